from __future__ import annotations

import os
import pickle
import resource
import shutil
import subprocess
import sys
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from mmap import PAGESIZE
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from roxxel_format import Roxxel, ShardError, ShardWriter, TokenReader
from roxxel_format.foreign import FlatTokens

from .helpers import corpus_of, documents_of, line_of, window_rows

LENGTHS = st.lists(st.integers(0, 3000), min_size=1, max_size=8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("corpus")


@given(lengths=LENGTHS, separator=st.sampled_from([None, 7]), data=st.data())
@pytest.mark.parametrize("check", ["headers", "blocks"])
def test_windows_are_runs_of_the_token_line(
    lengths: list[int],
    separator: int | None,
    data: st.DataObject,
    check: Literal["headers", "blocks"],
    folder: Path,
) -> None:
    documents = documents_of(*lengths)
    line = line_of(documents, None if separator is None else [separator])
    corpus = corpus_of(folder, documents, separator=separator, exist="replace")
    corpus = Roxxel(corpus.filepath, check=check)
    start = data.draw(st.integers(0, len(line)))
    stop = data.draw(st.integers(start, len(line)))
    length = data.draw(st.integers(0, len(line)))
    starts = data.draw(st.lists(st.integers(0, len(line) - length)))

    assert corpus.num_tokens == len(line)
    assert np.array_equal(corpus.tokens[start:stop], line[start:stop])
    windows = corpus.read(starts, length, np.int32)
    assert windows.dtype == np.int32
    assert windows.shape == (len(starts), length)
    for window, begin in zip(windows, starts, strict=True):
        assert np.array_equal(window, line[begin : begin + length])
    out = np.zeros((len(starts), length), np.int64)
    assert corpus.read(starts, length, out=out) is out
    assert np.array_equal(out, windows)


@pytest.mark.parametrize("num_windows", [1, 9])
@pytest.mark.parametrize("length", [1, PAGESIZE // 2, PAGESIZE // 2 + 1])
@pytest.mark.parametrize("room", [20_000, 10**6])
def test_many_windows_up_to_the_last_token_are_runs_of_the_line(
    num_windows: int, length: int, room: int, tmp_path: Path
) -> None:
    line = np.arange(20_000, dtype=np.uint16)
    corpus = corpus_of(tmp_path, np.split(line, 20), max_shard_bytes=room)
    assert (corpus.num_shards > 1) == (room == 20_000)
    starts = np.linspace(0, line.size - length, num_windows).astype(np.int64)
    expected = line[starts[:, None] + np.arange(length)]
    np.save(tmp_path / "flat.npy", line)
    flat = FlatTokens(tmp_path / "flat.npy")

    assert np.array_equal(corpus.read(starts, length), expected)
    assert np.array_equal(flat.read(starts, length), expected)


def test_a_window_may_cross_into_a_shard_by_any_number_of_tokens(
    tmp_path: Path,
) -> None:
    line = np.arange(9000, dtype=np.uint16)
    corpus = corpus_of(tmp_path, np.split(line, 9), max_shard_bytes=9000)
    assert corpus.num_shards > 1

    windows = corpus.read(np.arange(line.size - 4), 5)

    assert np.array_equal(windows, np.lib.stride_tricks.sliding_window_view(line, 5))


@given(
    path=st.lists(
        st.sampled_from(["/", ".", "..", "a", ".b", "c.", " ", "~", "*"]), min_size=1
    ).map("".join)
)
def test_a_path_is_made_absolute_as_pathlib_does_but_keeps_a_slash_at_its_end(
    path: str,
) -> None:
    absolute = str(Path(os.path.expanduser(path)).absolute())  # noqa: PTH111
    slash = "/" * (path.endswith("/") and not absolute.endswith("/"))

    assert Roxxel(path).filepath == absolute + slash


@given(lengths=LENGTHS, separator=st.sampled_from([None, 7, b"ab\0\1"]))
def test_documents_come_back_as_they_were_given(
    lengths: list[int], separator: int | bytes | None, folder: Path
) -> None:
    documents = documents_of(*lengths)
    corpus = corpus_of(folder, documents, separator=separator, exist="replace")

    assert len(corpus.documents) == len(documents) == corpus.num_documents
    for number, document in enumerate(documents):
        assert np.array_equal(corpus.documents[number], document)
    for found, document in zip(corpus.documents, documents, strict=True):
        assert np.array_equal(found, document)
    end = {None: [], 7: [7], b"ab\0\1": [0x6261, 0x0100]}[separator]
    with_separator = np.append(documents[-1], end)
    assert np.array_equal(corpus.documents.with_separator[-1], with_separator)


@given(lengths=LENGTHS, separator=st.sampled_from([None, 7]), data=st.data())
def test_document_spans_cover_a_range_once_and_in_order(
    lengths: list[int], separator: int | None, data: st.DataObject, folder: Path
) -> None:
    documents = documents_of(*lengths)
    corpus = corpus_of(folder, documents, separator=separator, exist="replace")
    start = data.draw(st.integers(0, corpus.num_tokens))
    stop = data.draw(st.integers(start, corpus.num_tokens))
    owner = np.repeat(
        np.arange(len(lengths)), np.array(lengths) + (separator is not None)
    )

    spans = corpus.document_spans(start, stop)

    assert spans.dtype == np.int64
    assert all(a < b for _, a, b in spans.tolist())
    assert [t for _, a, b in spans.tolist() for t in range(a, b)] == list(
        range(start, stop)
    )
    found = [number for number, a, b in spans.tolist() for _ in range(a, b)]
    assert found == owner[start:stop].tolist()
    assert len(set(spans[:, 0].tolist())) == len(spans)


@given(
    lengths=LENGTHS,
    starts=st.lists(st.integers(0, 10**6), max_size=9),
    length=st.integers(0, 2000),
)
def test_spans_of_windows_are_those_of_each(
    lengths: list[int], starts: list[int], length: int, folder: Path
) -> None:
    corpus = corpus_of(folder, documents_of(*lengths), exist="replace")
    length = min(length, corpus.num_tokens)
    begins = [start % (corpus.num_tokens - length + 1) for start in starts]
    expected = [
        [window, *row]
        for window, start in enumerate(begins)
        for row in corpus.document_spans(start, start + length).tolist()
    ]

    for each in (corpus, corpus.with_check("blocks")):
        assert window_rows(each, begins, length) == expected


@given(
    dtype=st.sampled_from(["uint16", "uint32", "int64"]),
    starts=st.lists(st.integers(0, 10**6), min_size=1, max_size=9),
    data=st.data(),
)
def test_windows_fill_chosen_rows_of_an_array_and_no_others(
    dtype: str, starts: list[int], data: st.DataObject, folder: Path
) -> None:
    tokens = np.random.default_rng(0).integers(0, 2**15, 4000)
    corpus = corpus_of(
        folder,
        np.array_split(tokens, 9),
        dtype=dtype,
        max_shard_bytes=9000,
        exist="replace",
    )
    begins = [start % (tokens.size - 600) for start in starts]
    rows = data.draw(st.permutations(range(12)))[: len(begins)]
    whole = np.full((12, 900), -1, np.int32)
    out = whole[:, 100:700]

    corpus.read_into(begins, out, rows)

    expected = np.full_like(whole, -1)
    expected[rows, 100:700] = corpus.read(begins, 600)
    assert np.array_equal(whole, expected)


def test_looking_up_a_document_copies_no_index(tmp_path: Path) -> None:
    corpus = Roxxel(tmp_path / "a.rox")
    corpus.write([[1]] * 200_000)
    corpus.document_spans(0, 1)

    tracemalloc.start()
    corpus.document_spans(100_000, 100_003)
    _ = corpus.documents[150_000]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert peak < 100_000


@given(lengths=LENGTHS)
def test_blocks_make_up_the_token_line(lengths: list[int], folder: Path) -> None:
    documents = documents_of(*lengths)
    corpus = corpus_of(folder, documents, exist="replace")

    blocks = [corpus[number] for number in range(len(corpus))]

    assert all(len(block) == 256 for block in blocks[:-1])
    assert np.array_equal(np.concatenate(blocks or [line_of([])]), line_of(documents))
    for key in (
        slice(None),
        slice(1, -1),
        slice(-3, None),
        slice(9, 2, -2),
        slice(5, 2),
    ):
        wanted = [block.tolist() for block in blocks[key]]
        assert [block.tolist() for block in corpus[key]] == wanted


def test_a_slice_inside_a_shard_is_a_read_only_view(tmp_path: Path) -> None:
    corpus = corpus_of(tmp_path, documents_of(1000))

    view = corpus.tokens[10:20]

    assert not view.flags.owndata
    assert not view.flags.writeable
    assert np.shares_memory(view, corpus.tokens[0:1000])


def test_slices_and_indices_mean_what_they_mean_for_a_list(tmp_path: Path) -> None:
    documents = documents_of(3000, 2000, 1000)
    line = line_of(documents).tolist()
    corpus = corpus_of(tmp_path, documents)

    assert corpus.num_shards > 2
    for key in (slice(None), slice(-5, None), slice(5, -5, 7), slice(9, 2, -3)):
        assert corpus.tokens[key].tolist() == line[key]
    assert corpus.tokens[slice(4, 2)].size == 0
    assert corpus.tokens[-1] == line[-1]
    assert corpus.tokens[np.uint8(7)] == line[7]
    assert corpus.documents[np.int64(1)].tolist() == documents[1].tolist()
    assert corpus[np.int32(-1)].tolist() == corpus[23].tolist() == line[23 * 256 :]
    assert corpus[np.int64(2) : np.int64(3)][0].tolist() == line[512:768]
    assert [len(each) for each in corpus.documents[1:]] == [2000, 1000]
    with pytest.raises(IndexError, match="token 6000 is out of range; there are 6000"):
        corpus.tokens[6000]
    with pytest.raises(IndexError, match="document 3 is out of range; there are 3"):
        corpus.documents[3]
    with pytest.raises(IndexError, match="block 24 is out of range"):
        corpus[24]


def test_windows_outside_the_corpus_are_refused(tmp_path: Path) -> None:
    corpus = corpus_of(tmp_path, documents_of(100))

    assert corpus.read([0], 100).shape == (1, 100)
    for starts, length in (([1], 100), ([-1], 1), ([100], 1), ([2**62], 2**62)):
        with pytest.raises(IndexError, match="leaves the corpus of 100 tokens"):
            corpus.read(starts, length)
        with pytest.raises(IndexError, match="leaves the corpus of 100 tokens"):
            corpus.will_need(starts, length)
    with pytest.raises(IndexError, match="leaves the corpus"):
        corpus.document_spans(0, 101)
    with pytest.raises(TypeError, match="starts has dtype float64"):
        corpus.read([0.5], 1)
    with pytest.raises(ValueError, match=r"starts has shape \(1, 1\)"):
        corpus.read([[0]], 1)
    with pytest.raises(ValueError, match="length must not be negative"):
        corpus.read([0], -1)


@pytest.mark.parametrize("num_windows", [1, 2, 16, 17, 100])
@pytest.mark.parametrize("dtype", ["i1", "u1", "i4", "u4", "i8", "u8"])
def test_one_window_outside_is_found_among_many(
    num_windows: int, dtype: str, tmp_path: Path
) -> None:
    corpus = corpus_of(tmp_path, documents_of(100))
    starts = np.full(num_windows, 90).astype(dtype)
    assert corpus.read(starts, 10).shape == (num_windows, 10)

    starts[num_windows // 2] = 91
    with pytest.raises(IndexError, match=r"window \[91, 101\) leaves the corpus"):
        corpus.read(starts, 10)
    starts[num_windows // 2] = np.array(-1).astype(dtype)
    with pytest.raises(IndexError, match="leaves the corpus of 100 tokens"):
        corpus.read(starts, 10)


def test_no_value_is_changed_on_the_way_to_another_dtype(tmp_path: Path) -> None:
    corpus = corpus_of(tmp_path, [np.array([1, 2**31], np.uint32)])

    with pytest.raises(TypeError, match="1 to 2147483648 cannot be read as int32"):
        corpus.read([0], 2, np.int32)
    assert corpus.read([0], 2, np.int64).tolist() == [[1, 2**31]]
    with pytest.raises(TypeError, match="cannot be read as float32"):
        corpus.read([0], 2, np.float32)
    great = corpus_of(tmp_path, [np.array([2**53 + 1])], exist="replace")
    with pytest.raises(TypeError, match="cannot be read as float64"):
        great.read([0], 1, np.float64)
    small = corpus_of(tmp_path, [np.array([1, 2], np.uint32)], exist="replace")
    assert small.read([0], 2, np.int8).tolist() == [[1, 2]]


def test_out_must_have_the_shape_and_dtype_that_is_asked_for(tmp_path: Path) -> None:
    corpus = corpus_of(tmp_path, documents_of(100))

    with pytest.raises(ValueError, match=r"out has shape \(2, 10\)"):
        corpus.read([0], 10, out=np.zeros((2, 10), np.int32))
    with pytest.raises(ValueError, match="out has dtype int32, but dtype="):
        corpus.read([0], 10, np.int64, np.zeros((1, 10), np.int32))
    strided = np.zeros((1, 20), np.int32)[:, ::2]
    assert np.array_equal(corpus.read([5], 10, out=strided), corpus.read([5], 10))


def test_arguments_of_wrong_types_are_refused(tmp_path: Path) -> None:
    corpus: Any = corpus_of(tmp_path, documents_of(100))
    constructor: Any = Roxxel

    with pytest.raises(TypeError, match="out is a list; pass a numpy array"):
        corpus.read([0], 1, out=[[0]])
    for dtype in (object, "V4", "S4", "M8[s]", [("a", "i4")]):
        with pytest.raises(TypeError, match="cannot be read as"):
            corpus.read([0], 1, dtype)
    for call in (
        lambda: corpus.read([0], 1.5),
        lambda: corpus.documents[1.5],
        lambda: corpus[1.5],
        lambda: corpus["a"],
        lambda: corpus[1.5:],
        lambda: corpus.estimate_steps(1.5, 2),
    ):
        with pytest.raises(TypeError, match=r"be interpreted as an int|must be int"):
            call()
    for wrong in (5, Path, b"a.rox", [5]):
        with pytest.raises(TypeError, match=r"filepath is .*; pass a path, a pattern"):
            constructor(wrong)
    with pytest.raises(ValueError, match="filepath is empty"):
        constructor("")
    with pytest.raises(ValueError, match="check must be"):
        constructor(".", check="all")


def test_constructing_touches_no_file_and_reading_nothing_is_the_error(
    tmp_path: Path,
) -> None:
    with pytest.raises(FileNotFoundError, match="no file matches the pattern"):
        _ = Roxxel(tmp_path / "none_*.rox").num_tokens
    with pytest.raises(FileNotFoundError, match="no such file or folder"):
        _ = Roxxel(tmp_path / "none.rox").num_tokens
    with pytest.raises(FileNotFoundError, match=r"the folder holds no \.rox file"):
        _ = Roxxel(tmp_path).num_tokens
    with pytest.raises(FileNotFoundError, match="the list of shards is empty"):
        _ = Roxxel([]).num_tokens


def test_a_file_a_folder_a_pattern_and_a_list_name_the_same_corpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = corpus_of(tmp_path, documents_of(3000, 10))
    monkeypatch.chdir(tmp_path)
    shards = sorted(tmp_path.glob("*.rox"))

    for name in (tmp_path, "c_*.rox", ".", shards, ["c_*.rox"]):
        assert Roxxel(name).fingerprint == corpus.fingerprint
    assert Roxxel(shards[0]).num_shards == 1
    reordered = Roxxel(shards[::-1])
    assert reordered.fingerprint != corpus.fingerprint


def test_a_pickled_corpus_opens_the_same_shards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    documents = documents_of(3000, 10)
    corpus_of(tmp_path, documents)
    monkeypatch.chdir(tmp_path)
    data = pickle.dumps(Roxxel("c_*.rox", check="blocks"))
    monkeypatch.chdir("/")

    corpus = pickle.loads(data)  # noqa: S301 - our own bytes

    assert np.array_equal(corpus.tokens[:], line_of(documents))


def test_few_maps_serve_many_shards_from_many_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("roxxel_format._read.files._MOST_MAPS", 2)
    documents = documents_of(*[400] * 60)
    line = line_of(documents)
    corpus_of(tmp_path, documents)
    corpus = Roxxel(tmp_path)
    rng = np.random.default_rng(0)
    starts = rng.integers(0, len(line) - 900, (40, 15))  # the last of each is alone

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(corpus.read, starts, [900] * len(starts)))

    assert corpus.num_shards > 5
    for row, windows in zip(starts, found, strict=True):
        assert np.array_equal(windows, np.stack([line[s : s + 900] for s in row]))


def test_corpora_share_the_descriptors_that_a_process_may_have(
    tmp_path: Path,
) -> None:
    documents = documents_of(*[400] * 90)
    corpus_of(tmp_path, documents)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    corpora = [Roxxel(tmp_path, check="blocks") for _ in range(12)]
    assert corpora[0].num_shards > 10
    if not Path("/proc/self/fd").exists():
        pytest.skip("this system does not list the descriptors of a process")
    before = len(list(Path("/proc/self/fd").iterdir()))
    resource.setrlimit(resource.RLIMIT_NOFILE, (400, hard))
    try:
        # A corpus closes what is beyond its share when it is used again.
        for corpus in corpora * 2:
            found = list(corpus.documents)
            assert all(map(np.array_equal, found, documents))
        assert len(list(Path("/proc/self/fd").iterdir())) - before <= 400 // 4
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_the_maps_of_a_corpus_are_kept_when_another_is_opened(tmp_path: Path) -> None:
    documents = documents_of(*[400] * 30)
    corpus = corpus_of(tmp_path / "one", documents)
    other = corpus_of(tmp_path / "other", documents)
    expected = corpus.read([0, 11_000], 900)
    shutil.rmtree(tmp_path / "one")

    other.read([0, 11_000], 900)

    # The files are gone, so only the maps can give the tokens.
    assert np.array_equal(corpus.read([0, 11_000], 900), expected)


@pytest.mark.parametrize("max_maps", [2, 3])
def test_a_column_maps_no_more_files_than_its_share(
    max_maps: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("roxxel_format._read.files._MOST_MAPS", max_maps)
    corpus = corpus_of(tmp_path, documents_of(*[400] * 30))
    corpus.write_column("mask", np.ones(12_000, np.uint8))
    column = Roxxel(tmp_path).column("mask")
    if not Path("/proc/self/fd").exists():
        pytest.skip("this system does not list the descriptors of a process")
    before = len(list(Path("/proc/self/fd").iterdir()))

    assert column.read(range(0, 12_000, 100), 100).all()

    opened = len(list(Path("/proc/self/fd").iterdir())) - before
    # Before Python 3.13 a map keeps a second descriptor.
    per_map = 1 if sys.version_info >= (3, 13) else 2
    assert opened == max_maps * per_map


def test_lone_shards_let_go_of_maps_where_descriptors_run_out(tmp_path: Path) -> None:
    documents = documents_of(*[40] * 100)
    for number, document in enumerate(documents):
        Roxxel(tmp_path / f"{number}.rox").write([document])
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (160, hard))
    try:
        corpora = [Roxxel(tmp_path / f"{number}.rox") for number in range(100)]
        assert {corpus.num_tokens for corpus in corpora} == {40}
        for _ in range(2):
            for corpus, document in zip(corpora, documents, strict=True):
                assert np.array_equal(corpus.read([0], 40)[0], document)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_maps_are_given_back_when_a_corpus_is_closed(tmp_path: Path) -> None:
    corpus = corpus_of(tmp_path, documents_of(3000))
    mine = f"{tmp_path}"

    def mapped() -> bool:
        return mine in Path("/proc/self/maps").read_text(encoding="utf-8")

    corpus.read([0, 1000, 2000], 900)
    if not Path("/proc/self/maps").exists():
        pytest.skip("this system does not list its maps")
    view = corpus.tokens[5:9]
    assert mapped()
    corpus.close()
    assert mapped()
    assert np.array_equal(view, documents_of(3000)[0][5:9])
    del view
    assert not mapped()


@pytest.mark.parametrize("num_shards", [1, 3])
def test_a_corpus_that_outlives_the_modules_is_given_up_silently(
    tmp_path: Path, num_shards: int
) -> None:
    """JAX keeps a program's functions, and what they hold, until modules are gone."""
    path = tmp_path / "a_*.rox"
    for _ in range(num_shards):
        Roxxel(path).write(documents_of(9), exist="append")
    program = f"""
import os
from roxxel_format import Roxxel
os.corpus = Roxxel({str(path)!r})
os.corpus.read([0, 3], 4)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    assert done.stderr == ""


def test_a_closed_corpus_opens_again_and_views_outlive_it(tmp_path: Path) -> None:
    documents = documents_of(1000)
    with corpus_of(tmp_path, documents) as corpus:
        view = corpus.tokens[3:500]

    assert np.array_equal(view, documents[0][3:500])
    assert corpus.num_tokens == 1000


def test_estimate_steps_is_an_upper_bound(tmp_path: Path) -> None:
    corpus = corpus_of(tmp_path, documents_of(1000))

    assert corpus.estimate_steps(seq_len=7, batch_size=10) == 14
    assert corpus.estimate_steps(seq_len=1001, batch_size=1) == 0
    with pytest.raises(ValueError, match="must be positive, got 0, 1"):
        corpus.estimate_steps(0, 1)


def test_a_corpus_is_a_token_reader(tmp_path: Path) -> None:
    corpus = corpus_of(tmp_path, documents_of(2000, 1000))

    assert isinstance(corpus, TokenReader)
    assert [each.size for each in corpus.documents] == [2000, 1000]
    corpus.will_need(np.array([0, 1500, 2990]), 10)
    assert np.array_equal(np.asarray(corpus.tokens), corpus.tokens[:])


def write_shard(path: Path, tokens: list[int], dtype: str = "uint16") -> Path:
    with ShardWriter(path, dtype) as writer:
        writer.append(np.array(tokens))
    return path


def test_list_of_shards_with_two_dtypes_is_an_error(tmp_path: Path) -> None:
    first = write_shard(tmp_path / "a.rox", [1])
    second = write_shard(tmp_path / "b.rox", [1], "uint32")

    with pytest.raises(ShardError, match=r"b\.rox: holds uint32, but .*a\.rox holds"):
        _ = Roxxel([first, second]).num_tokens
