"""Curricula over real shards."""

from __future__ import annotations

import copy
import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from roxxel_curriculum import (
    Curriculum,
    CurriculumError,
    Phase,
    StateMismatch,
)
from roxxel_curriculum.testing import PositionReader
from roxxel_format import ChecksumError, Roxxel, ShardError, ShardWriter
from roxxel_format.foreign import FlatTokens

FIELDS = ("tokens", "segment_ids", "positions", "source")


def write(path: Path, num_documents: int, seed: int, **options: Any) -> Roxxel:
    """Write documents of random length over several small shards."""
    rng = np.random.default_rng(seed)
    documents = [
        rng.integers(1, 50_000, rng.integers(1, 400)) for _ in range(num_documents)
    ]
    path.mkdir(parents=True, exist_ok=True)
    pattern = path / "part_*.rox"
    options = {"dtype": np.uint16, "max_shard_bytes": 40_000, **options}
    Roxxel(pattern).write(documents, separator=0, **options)
    return Roxxel(pattern)


def blend(web: Roxxel, code: Roxxel) -> Curriculum:
    return Curriculum(
        web,
        [Phase(30, 8, 129, {"self": 2, "code": 1}), Phase(5, 2, 1025)],
        {"code": code},
    )


def test_the_shape_of_a_step_is_that_of_its_batch(tmp_path: Path) -> None:
    corpus = write(tmp_path / "web", 300, 1)
    sampler = Curriculum(corpus, [Phase(9, 4, 8), Phase(9, 2, 16)]).sampler(7)

    for step in range(sampler.total_steps):
        assert sampler.batch(step).shape == sampler.shape(step)


class Wide(PositionReader):
    """Holds tokens that int32 cannot, and refuses to read them as such."""

    def read(self, starts: Any, length: int, dtype: Any = None, out: Any = None) -> Any:
        if dtype is not None and np.dtype(dtype) == np.int32:
            raise TypeError("int64 tokens do not fit int32")
        tokens = super().read(starts, length) + 2**33
        if out is None:
            return tokens
        out[...] = tokens
        return out


def test_a_reader_casts_to_the_type_of_a_batch_or_refuses() -> None:
    wide = Wide(10_000_000, dtype=np.int64)
    sampler = Curriculum(wide, [Phase(2, 3, 8)]).sampler(0)

    with pytest.raises(TypeError, match="do not fit int32"):
        sampler.batch(0)
    with pytest.raises(TypeError, match="do not fit int32"):
        sampler.rows(0, slice(0, 1))


def test_rows_are_the_tokens_and_documents_of_the_shards(tmp_path: Path) -> None:
    web, code = write(tmp_path / "web", 300, 1), write(tmp_path / "code", 100, 2)
    assert web.num_shards > 1
    sampler = blend(web, code).sampler(7, fields=FIELDS)

    for step in range(sampler.total_steps):
        batch = sampler.batch(step)
        for row in range(sampler.shape(step)[0]):
            location = sampler.locate(step, row)
            corpus = {"self": web, "code": code}[location.source]
            tokens = np.asarray(corpus.tokens[location.start : location.stop])
            assert np.array_equal(batch["tokens"][row], tokens)
            # A separator is the last token of its document.
            ends = np.flatnonzero(tokens == 0)
            segment = np.searchsorted(ends, np.arange(tokens.size)) + 1
            assert np.array_equal(batch["segment_ids"][row], segment)
            assert len(location.documents) == segment[-1]


def test_a_document_without_tokens_is_no_segment(tmp_path: Path) -> None:
    corpus = Roxxel(tmp_path / "empty.rox")
    sizes = np.random.default_rng(0).integers(0, 4, 300)
    corpus.write((np.full(size, 1) for size in sizes), dtype=np.uint16, separator=None)
    of_token = np.repeat(np.arange(sizes.size), sizes)
    phases = [Phase(9, 4, 9)]
    sampler = Curriculum(corpus, phases).sampler(0, fields=("tokens", "segment_ids"))

    for step in range(sampler.total_steps):
        starts = sampler.windows(step).start
        for start, found in zip(
            starts, sampler.batch(step)["segment_ids"], strict=True
        ):
            documents = of_token[start : start + 9]
            segments = np.unique(documents, return_inverse=True)[1] + 1
            assert found.tolist() == segments.tolist()


def test_shards_of_two_tokenizers_are_not_a_source(tmp_path: Path) -> None:
    paths = [tmp_path / f"{name}.rox" for name in "ab"]
    for path in paths:
        metadata = {"tokenizer": {"name": path.stem}}
        with ShardWriter(path, np.uint16, metadata=metadata) as shard:
            shard.append(np.arange(100, dtype=np.uint16))
    phases = [Phase(1, 1, 9)]

    assert Curriculum(Roxxel(paths[0]), phases).sampler(0).total_steps == 1
    with pytest.raises(ShardError, match="written with tokenizer b, but"):
        Curriculum(Roxxel(paths), phases)
    with pytest.raises(ShardError, match="written with tokenizer b, but"):
        Curriculum(Roxxel(paths), phases, {"code": Roxxel(paths[0])})
    with pytest.raises(ShardError, match="written with tokenizer b, but"):
        Curriculum(Roxxel(paths[0]), phases, {"code": Roxxel(paths)})


@pytest.fixture(scope="module")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> tuple[Roxxel, Roxxel, Roxxel]:
    """Return two corpora of several shards, and one of a single shard."""
    folder = tmp_path_factory.mktemp("corpora")
    one = write(folder / "one", 100, 3, max_shard_bytes=None)
    assert one.num_shards == 1
    return write(folder / "web", 100, 1), write(folder / "code", 60, 2), one


class Recorder(Roxxel):
    """Records the hints that it gets."""

    def __init__(self, corpus: Roxxel) -> None:
        super().__init__(corpus.filepath)
        self.hints: list[tuple[list[int], int]] = []

    def will_need(self, starts: Any, length: int, *, documents: bool = False) -> None:
        del documents
        self.hints.append((starts.tolist(), length))


@given(
    step=st.integers(0, 44),
    n=st.integers(0, 60),
    rows=st.sampled_from([None, slice(0, 8), slice(2, 5), [1, 7, 3]]),
    skips=st.sampled_from([[], [(12, 3)]]),
    blended=st.booleans(),
)
def test_hints_are_the_windows_of_the_steps_to_come(
    corpora: tuple[Roxxel, Roxxel, Roxxel],
    step: int,
    n: int,
    rows: Any,
    skips: list[tuple[int, int]],
    blended: bool,
) -> None:
    readers = {"self": Recorder(corpora[0]), "code": Recorder(corpora[1])}
    weights = {"self": 2, "code": 1 if blended else 0}
    phases = [Phase(30, 8, 65, weights), Phase(15, 8, 129, weights)]
    sampler = Curriculum(
        readers["self"], phases, {"code": readers["code"]}, skips=skips
    ).sampler(5)
    sampler.batch(0)
    expected: dict[tuple[str, int], list[int]] = {}
    for ahead in range(step, min(step + n, 45)):
        windows = sampler.windows(ahead)
        chosen = slice(None) if rows is None else rows
        for source, start, stop in zip(
            windows.source[chosen],
            windows.start[chosen],
            windows.stop[chosen],
            strict=True,
        ):
            key = sampler.source_names[int(source)], int(stop - start)
            expected.setdefault(key, []).append(int(start))

    sampler.will_need(step, n, rows)

    for name, reader in readers.items():
        wanted = {key[1]: starts for key, starts in expected.items() if key[0] == name}
        assert {length: starts for starts, length in reader.hints} == wanted
        assert len(reader.hints) == len(wanted)


def test_reading_gives_no_hints(corpora: tuple[Roxxel, Roxxel, Roxxel]) -> None:
    reader = Recorder(corpora[0])
    sampler = Curriculum(reader, [Phase(30, 8, 65)]).sampler(5)

    for step in range(30):
        sampler.batch(step)

    assert not reader.hints


@pytest.mark.parametrize("kind", [np.uint8, np.int16, np.uint64, np.int64])
def test_steps_of_numpy_are_those_of_python(
    corpora: tuple[Roxxel, Roxxel, Roxxel], kind: type[Any]
) -> None:
    curriculum = Curriculum(
        corpora[2], [Phase(200, 1000, 9)], policies={"self": "repeat"}
    )
    for step in (0, 1, 100, 101):
        expected = curriculum.sampler(7).batch(step)
        assert np.array_equal(curriculum.sampler(7).batch(kind(step)), expected)


def test_a_sampler_that_has_read_can_be_sent_to_another_process(
    corpora: tuple[Roxxel, Roxxel, Roxxel],
) -> None:
    sampler = Curriculum(corpora[2], [Phase(30, 8, 65)]).sampler(5)
    batches = [sampler.batch(step) for step in range(4)]

    sent = pickle.loads(pickle.dumps(sampler))  # noqa: S301 - our own bytes
    for other in (sent, copy.deepcopy(sampler)):
        for step, batch in enumerate(batches):
            assert np.array_equal(other.batch(step), batch)
    assert np.array_equal(sampler.batch(2), batches[2])


def test_a_run_goes_on_when_its_files_have_moved(tmp_path: Path) -> None:
    web, code = write(tmp_path / "web", 100, 1), write(tmp_path / "code", 50, 2)
    before = blend(web, code).sampler(7)
    state = before.state(20)
    shutil.copytree(tmp_path, tmp_path / "elsewhere")
    moved = tmp_path / "elsewhere"

    after = blend(
        Roxxel(moved / "web" / "*.rox"), Roxxel(moved / "code" / "*.rox")
    ).sampler(7, state)

    for step in range(35):
        assert np.array_equal(before.batch(step), after.batch(step))
    with pytest.raises(StateMismatch, match="source 'code' holds other data"):
        blend(web, write(tmp_path / "other", 50, 3)).sampler(7, state)


def test_checked_blocks_are_the_same_batches_until_one_is_damaged(
    tmp_path: Path,
) -> None:
    web, code = write(tmp_path / "web", 60, 1), write(tmp_path / "code", 30, 2)
    curriculum = blend(web, code)
    state = curriculum.sampler(7).state(10)
    unchecked = curriculum.sampler(7, fields=FIELDS)
    checked = curriculum.sampler(7, state, FIELDS, check="blocks")
    for step in (0, 20, 34):
        for name in FIELDS:
            batches = unchecked.batch(step)[name], checked.batch(step)[name]
            assert np.array_equal(*batches)
    location = checked.locate(3, 1)
    corpus = {"self": web, "code": code}[location.source]
    [path] = map(Path, corpus.paths)

    data = bytearray(path.read_bytes())
    data[4096 + 2 * location.start] ^= 1
    path.write_bytes(data)

    damaged = curriculum.sampler(7, check="blocks")
    with pytest.raises(ChecksumError, match=rf"{path.name}.*block"):
        damaged.batch(3)
    with pytest.raises(ChecksumError, match="block"):
        damaged.rows(3, [1])


def test_check_of_what_has_no_checksums_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "flat.npy", np.arange(2000, dtype=np.uint16))
    curriculum = Curriculum(FlatTokens(tmp_path / "flat.npy"), [Phase(3, 4, 65)])

    with pytest.raises(CurriculumError, match="a FlatTokens has no checksums"):
        curriculum.sampler(1, check="blocks")
    with pytest.raises(ValueError, match='"headers" or "blocks", got \'all\''):
        curriculum.sampler(1, check="all")  # pyright: ignore[reportCallIssue, reportArgumentType] - the point


def test_tokens_that_int32_cannot_hold_are_refused_before_the_first_step(
    tmp_path: Path,
) -> None:
    small, large = Roxxel(tmp_path / "small.rox"), Roxxel(tmp_path / "large.rox")
    small.write([np.arange(2000, dtype=np.uint32)])
    large.write([np.arange(2000, dtype=np.uint32) + np.uint32(2**31 - 10)])
    phases = [Phase(3, 4, 65, {"self": 1, "code": 1})]
    assert Curriculum(small, phases, {"code": small}).sampler(1).dtype == np.int32

    message = (
        "holds uint32 tokens from 2147483638 to 2147485637, but a batch is int32 and "
        "holds tokens from -2147483648 to 2147483647; write the source again"
    )
    with pytest.raises(CurriculumError, match=f"source 'self' {message}"):
        Curriculum(large, [Phase(3, 4, 65)])
    with pytest.raises(CurriculumError, match=f"source 'code' {message}"):
        Curriculum(small, phases, {"code": large})


def test_a_reader_that_does_not_know_its_tokens_refuses_them_when_they_are_read(
    tmp_path: Path,
) -> None:
    tokens = np.arange(2000, dtype=np.uint32)
    tokens[::3] += np.uint32(2**31)
    np.save(tmp_path / "flat.npy", tokens)
    flat = FlatTokens(tmp_path / "flat.npy")
    assert flat.token_range_seen is None
    phases = [Phase(3, 4, 65, {"self": 1, "code": 1})]

    for mix in ({"code": flat}, {"code": PositionReader(2000)}):
        sampler = Curriculum(flat, phases, mix).sampler(1)
        with pytest.raises(TypeError, match="int32"):
            sampler.batch(0)


def test_the_tutorials_steps_run_a_little_over_one_epoch(tmp_path: Path) -> None:
    corpus = Roxxel(tmp_path / "wiki_*.rox")
    corpus.write(
        (np.full(128, number % 10_000, np.int32) for number in range(3000)),
        separator=b"\x00",
        block_size=4096,
        max_shard_bytes=1024**3,
    )
    steps = corpus.estimate_steps(seq_len=129, batch_size=16)

    plan = Curriculum(corpus, [Phase(steps, 16, 129)]).plan()

    assert plan.total_steps == steps
    assert 0.9 < plan.sources[0].epochs < 1.1
