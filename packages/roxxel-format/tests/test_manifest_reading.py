from __future__ import annotations

import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from roxxel_format import Roxxel, ShardError
from roxxel_format.errors import ManifestError
from roxxel_store.records import sealed, unsealed

from .conformance.reader import seal
from .helpers import (
    corpus_of,
    documents_of,
    line_of,
    listed,
    manifest_of,
    manifest_with,
    short,
    with_manifest,
)

if TYPE_CHECKING:
    from collections.abc import Sequence


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("corpus")


@given(
    lengths=st.lists(st.integers(0, 3000), min_size=1, max_size=8),
    stored=st.sampled_from([np.uint8, np.uint16, np.uint32, np.int64]),
    data=st.data(),
)
@pytest.mark.parametrize("check", ["headers", "blocks"])
def test_reads_of_a_corpus_with_a_manifest_equal_numpy(
    lengths: list[int],
    stored: Any,
    data: st.DataObject,
    check: Literal["headers", "blocks"],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    documents = [
        each.astype(np.uint8).astype(stored) for each in documents_of(*lengths)
    ]
    line = np.concatenate(documents)
    corpus = corpus_of(tmp_path_factory.mktemp("c"), documents)
    corpus = with_manifest(corpus).with_check(check)
    length = data.draw(st.integers(0, len(line)))
    starts = data.draw(st.lists(st.integers(0, len(line) - length)))
    dtype = data.draw(st.sampled_from([stored, np.int16, np.int32, np.int64]))
    expected = np.array([line[start : start + length] for start in starts], dtype)

    found = corpus.read(starts, length, dtype)

    assert found.dtype == dtype
    assert np.array_equal(found, expected.reshape(len(starts), length))
    target = np.zeros((len(starts), 2 * length), dtype)[:, ::2]
    assert corpus.read(starts, length, out=target) is target
    assert np.array_equal(target, found)
    assert np.array_equal(corpus.tokens[:], line)
    for one, other in zip(corpus.documents, documents, strict=True):
        assert np.array_equal(one, other)


def test_only_shards_in_the_manifest_are_read(tmp_path: Path) -> None:
    documents = documents_of(900, 900, 900)
    corpus = corpus_of(tmp_path, documents, max_shard_bytes=9000)
    paths = corpus.paths
    (tmp_path / "c_manifest.json").write_bytes(manifest_of(paths[:2]))

    for name in ("c_*.rox", "c_[0-9]*.rox", "."):
        corpus = Roxxel(tmp_path / name)
        assert corpus.paths == paths[:2]
        assert np.array_equal(corpus.tokens[:], line_of(documents[:2]))
        assert corpus.verify().ok
    both = Roxxel([tmp_path / "c_*.rox", paths[2]])
    assert np.array_equal(both.tokens[:], line_of(documents))
    assert both.versions == [both.fingerprint]


def test_opening_reads_no_shard_and_reading_only_what_it_needs(tmp_path: Path) -> None:
    documents = documents_of(900, 900, 900)
    corpus = with_manifest(corpus_of(tmp_path, documents, max_shard_bytes=9000))
    for path in sorted(tmp_path.glob("*.rox"))[1:]:
        path.unlink()

    assert (corpus.num_tokens, corpus.num_documents, corpus.num_shards) == (2700, 3, 3)
    assert corpus.token_range_seen == (
        min(int(each.min()) for each in documents),
        max(int(each.max()) for each in documents),
    )
    assert corpus.fingerprint == corpus.versions[-1]
    assert (corpus.block_size, corpus.dtype_name) == (512, "uint16")
    assert np.array_equal(corpus.read([5], 800)[0], documents[0][5:805])


def test_a_folder_of_two_corpora_is_an_error_that_names_them(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}_manifest.json").write_bytes(manifest_with([]))

    with pytest.raises(ShardError, match=r"2 corpora \(a_manifest\.json, b_manif"):
        _ = Roxxel(tmp_path).num_tokens


@pytest.mark.parametrize("dtype", [None, "uint16"])
def test_a_manifest_without_versions_is_an_error(
    dtype: str | None, tmp_path: Path
) -> None:
    data = manifest_with([], dtype=dtype, block_size=512)
    (tmp_path / "c_manifest.json").write_bytes(data)

    with pytest.raises(ManifestError, match="contradicts itself"):
        _ = Roxxel(tmp_path / "c_*.rox").num_tokens


@given(data=st.data())
def test_a_mutated_manifest_is_an_error(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("c")
    corpus = with_manifest(corpus_of(folder, documents_of(900, 900)))
    path = folder / "c_manifest.json"
    changed = bytearray(path.read_bytes())
    changed[data.draw(st.integers(0, len(changed) - 1))] ^= data.draw(
        st.integers(1, 255)
    )
    path.write_bytes(changed)

    with pytest.raises(ShardError, match=r"c_manifest\.json: "):
        _ = corpus.num_tokens


def test_a_shard_that_differs_from_its_entry_is_an_error_at_its_first_use(
    tmp_path: Path,
) -> None:
    documents = documents_of(900, 900)
    corpus = with_manifest(corpus_of(tmp_path, documents, max_shard_bytes=9000))
    other = corpus_of(tmp_path / "other", [documents[0], documents[1][::-1].copy()])
    first, second = corpus.paths
    assert np.array_equal(corpus.read([0], 900)[0], documents[0])
    assert other.num_shards == 1
    Path(second).write_bytes(Path(other.paths[0]).read_bytes())

    with pytest.raises(ShardError, match=r"c_\w+_001\.rox: the corpus was replaced"):
        corpus.read([890], 20)
    report = corpus.verify()
    assert [str(error)[: len(second)] for error in report.errors] == [second]
    assert Path(first).exists()


def test_many_shards_are_opened_by_one_file(tmp_path: Path) -> None:
    digests = [f"{number:064x}" for number in range(20_000)]
    rows = [
        (f"c_{number:05d}.rox", 8192, 1, 1, 1, 1, digest, digest)
        for number, digest in enumerate(digests)
    ]
    data = manifest_with(rows, [len(rows)], dtype="uint16", block_size=4096)
    (tmp_path / "c_manifest.json").write_bytes(data)

    corpus = Roxxel(tmp_path / "c_*.rox")

    assert corpus.num_tokens == corpus.num_documents == len(digests)
    assert corpus.versions == [corpus.fingerprint]


@pytest.mark.parametrize("check", ["headers", "blocks"])
def test_threads_with_few_maps_read_what_one_thread_reads(
    check: Literal["headers", "blocks"],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("roxxel_format._read.files._MOST_MAPS", 3)
    documents = documents_of(*[400] * 60)
    line = line_of(documents)
    corpus = with_manifest(corpus_of(tmp_path, documents))
    corpus = Roxxel(corpus.filepath, check=check)
    barrier = threading.Barrier(8)

    def read(seed: int) -> bool:
        rng = np.random.default_rng(seed)
        barrier.wait()
        for length in (7, 900, 5000):
            starts: Sequence[int] = rng.integers(0, len(line) - length, 20).tolist()
            found = corpus.read(starts, length, np.int32)
            if not np.array_equal(found, [line[s : s + length] for s in starts]):
                return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(read, range(8)))


def test_a_folder_is_the_corpus_of_its_manifest_whatever_else_is_there(
    tmp_path: Path,
) -> None:
    first = corpus_of(tmp_path, documents_of(500))
    Roxxel(tmp_path / "other.rox").write([[1, 2]])

    for path in (tmp_path, tmp_path / "*.rox", tmp_path / "c_*.rox"):
        assert Roxxel(path).fingerprint == first.fingerprint


@pytest.mark.parametrize(("field", "value"), [("dtype", "uint8"), ("block_size", 1024)])
def test_a_manifest_that_belies_the_head_of_a_shard_is_refused(
    field: str, value: Any, tmp_path: Path
) -> None:
    corpus = corpus_of(tmp_path, documents_of(500))
    path = tmp_path / "c_manifest.json"
    path.write_bytes(seal(listed(tmp_path) | {field: value}))

    with pytest.raises(ShardError, match="this file is not the one that this version"):
        _ = Roxxel(corpus.filepath).tokens[:]


def test_a_pattern_over_two_corpora_is_an_error(tmp_path: Path) -> None:
    for name in ("a", "b"):
        Roxxel(tmp_path / f"{name}_*.rox").write([[1, 2]])

    with pytest.raises(ShardError, match=r"2 corpora \(a_manifest\.json, b_manif"):
        _ = Roxxel(tmp_path / "*.rox").num_tokens


@pytest.mark.parametrize("columns", [False, True])
def test_a_corpus_that_was_written_as_a_star_is_the_corpus_of_its_folder(
    tmp_path: Path, *, columns: bool
) -> None:
    written = Roxxel(tmp_path / "*.rox")
    written.write([[1, 2], [3]])
    assert short([Path(written.paths[0]).name]) == ["shard_000.rox"]
    if columns:
        written.write_column("mask", [1, 0, 1], dtype="uint8")
    folder = Roxxel(tmp_path)
    assert folder.fingerprint == written.fingerprint

    folder.write([[4]], exist="append", without_columns=folder.columns)

    for path in (tmp_path, tmp_path / "*.rox", tmp_path / "shard_*.rox"):
        corpus = Roxxel(path)
        assert corpus.tokens[:].tolist() == [1, 2, 3, 4]
        assert len(corpus.versions) == 2
        assert corpus.verify().ok


def test_leftovers_of_a_corpus_that_was_written_as_a_star_are_found_by_its_folder(
    tmp_path: Path,
) -> None:
    Roxxel(tmp_path / "*.rox").write([[1, 2], [3]])
    left = tmp_path / "shard_0123456789ab_00000_000.rox"
    shutil.copy(Roxxel(tmp_path).paths[0], left)

    assert Roxxel(tmp_path).tokens[:].tolist() == [1, 2, 3]
    assert Roxxel(tmp_path).remove_leftovers() == [str(left)]
    assert Roxxel(tmp_path).tokens[:].tolist() == [1, 2, 3]


def test_an_append_refuses_parts_that_do_not_stand_on_lines(tmp_path: Path) -> None:
    corpus = Roxxel(tmp_path / "c_*.rox")
    for number in range(2):
        corpus.write([[number]], dtype="uint16", exist="append")
    file = tmp_path / "c_manifest.json"
    data = unsealed(file.read_bytes()).replace(b'"parts":[\n', b'"parts":[')
    file.write_bytes(sealed(data))

    with pytest.raises(ManifestError, match="on lines of their own"):
        Roxxel(tmp_path / "c_*.rox").write([[9]], exist="append")

    assert Roxxel(tmp_path / "c_*.rox").num_documents == 2
