from __future__ import annotations

import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import tracemalloc
from array import array
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from roxxel_format import Roxxel, ShardError, ShardWriter
from roxxel_format.writing import Recipe

from .helpers import corpus_of, documents_of, in_child, names_in, short

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def untouchable() -> Iterator[object]:
    raise AssertionError("the generator was touched")
    yield


def interrupted(*documents: object) -> Iterator[object]:
    yield from documents
    raise KeyboardInterrupt


@given(
    lengths=st.lists(st.integers(0, 5000), min_size=1), limit=st.integers(9_500, 15_000)
)
def test_only_a_shard_of_one_document_is_larger_than_asked(
    lengths: list[int], limit: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("corpus")
    documents = documents_of(*lengths)

    summary = corpus_of(folder, documents, max_shard_bytes=limit).write(
        untouchable(), block_size=512, max_shard_bytes=limit
    )

    assert summary.kept
    sizes = [Path(path).stat().st_size for path in summary.paths]
    shards = [[*Roxxel(path).documents] for path in summary.paths]
    for size, found in zip(sizes, shards, strict=True):
        assert size <= limit or len(found) == 1
    assert sum(sizes) == summary.num_bytes
    whole = [each for found in shards for each in found]
    for one, other in zip(whole, documents, strict=True):
        assert np.array_equal(one, other)


@given(
    lengths=st.lists(st.integers(0, 90), min_size=1),
    stage=st.integers(8, 400),
    given_as=st.sampled_from(["uint8", "uint16", "int64"]),
    separator=st.sampled_from([(), (7,), (500, 501)]),
)
def test_what_is_written_at_once_changes_no_byte(
    lengths: list[int],
    stage: int,
    given_as: str,
    separator: tuple[int, ...],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("staged")
    documents = [np.arange(each).astype(np.dtype(given_as)) for each in lengths]

    with ShardWriter(folder / "a.rox", "uint16", separator=separator) as writer:
        writer.extend(documents)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("roxxel_format._write.shard_writer._STAGE_SIZE", stage)
        with ShardWriter(folder / "b.rox", "uint16", separator=separator) as writer:
            writer.extend(documents)

    assert (folder / "b.rox").read_bytes() == (folder / "a.rox").read_bytes()


def test_a_value_out_of_range_in_a_large_document_leaves_no_shard(
    tmp_path: Path,
) -> None:
    large = np.zeros(3_000_000, np.int64)
    large[2_999_999] = -1
    writer = ShardWriter(tmp_path / "a.rox", "uint16", separator=(7,))
    writer.append(np.arange(3))
    with pytest.raises(ValueError, match=r"document 1: value -1 is outside"):
        writer.append(large)
    with pytest.raises(OSError, match="an earlier write failed"):
        writer.close()
    assert names_in(tmp_path) == []


def test_a_summary_says_what_was_written(tmp_path: Path) -> None:
    corpus = Roxxel(tmp_path / "new" / "c_*.rox")

    summary = corpus.write([[1, 2], [3]], separator=0)

    assert summary.paths == (*corpus.paths,)
    assert short([Path(corpus.paths[0]).name]) == ["c_000.rox"]
    assert (summary.num_documents, summary.num_tokens) == (2, 5)
    assert summary.dtype == "uint32"
    assert not summary.kept
    assert summary.num_bytes == Path(summary.paths[0]).stat().st_size
    assert summary.fingerprint == corpus.fingerprint
    assert str(summary).startswith(
        "wrote 5 tokens (uint32) in 2 documents and 1 shard, "
    )
    one = Roxxel(tmp_path / "one.rox").write([[1]])
    assert str(one).startswith("wrote 1 token (uint32) in 1 document and 1 shard, ")


def test_the_same_write_again_keeps_the_corpus(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus = corpus_of(tmp_path, documents_of(5000, 3000), separator=b"\0")
    first = corpus.fingerprint
    assert capsys.readouterr() == ("", "")

    again = corpus_of(tmp_path, untouchable(), separator=b"\0")

    assert again.fingerprint == first
    output = capsys.readouterr()
    assert output.out == ""
    pattern = re.escape(str(corpus.filepath))
    assert re.match(
        rf'kept 8,002 tokens of {pattern}; .*not read .*exist="replace"', output.err
    )
    assert output.err.count("\n") == 1


def test_keeping_warns_if_other_documents_are_given(tmp_path: Path) -> None:
    corpus = Roxxel(tmp_path / "c_*.rox")
    corpus.write([b"one", b"two"], separator=b"\0")

    named = "kept 8 tokens of .*, although 1 document is given, and not 2"
    with pytest.warns(UserWarning, match=named) as caught:
        assert corpus.write([b"one"], separator=b"\0").kept

    assert caught[0].filename == __file__
    corpus.write([b"one", b"two"], separator=b"\0")


def test_other_arguments_are_an_error_that_names_them(tmp_path: Path) -> None:
    corpus = corpus_of(tmp_path, documents_of(100), separator=1)
    before = corpus.fingerprint

    with pytest.raises(
        FileExistsError, match=r"other arguments \(separator is 1 in the corpus, 2 "
    ):
        corpus_of(tmp_path, documents_of(100), separator=2)
    with pytest.raises(FileExistsError, match="the corpus exists already; use"):
        corpus_of(tmp_path, documents_of(100), separator=1, exist="error")
    assert corpus.fingerprint == before


def test_a_separator_of_bytes_is_shown_as_it_is_given(tmp_path: Path) -> None:
    corpus = Roxxel(tmp_path / "a.rox")
    corpus.write([b"one"], separator=b"\n end")

    with pytest.raises(FileExistsError, match=r"separator is b'\\n end' in the corpus"):
        corpus.write([b"one"], separator=b"\n")


def test_append_adds_shards_of_the_same_type(tmp_path: Path) -> None:
    corpus_of(tmp_path, documents_of(3000))

    corpus = corpus_of(tmp_path, [[1], [2]], exist="append")

    assert corpus.tokens[3000:].tolist() == [1, 2]
    assert corpus.num_documents == 3
    with pytest.raises(ValueError, match="document 0: value 65536 is outside"):
        corpus_of(tmp_path, [[65536]], exist="append")
    with pytest.raises(ValueError, match="dtype is uint16, but uint32 of the new"):
        corpus_of(tmp_path, [[1]], exist="append", dtype="uint32")
    assert corpus.num_documents == 3


def test_a_write_that_raises_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        corpus_of(tmp_path, interrupted(*documents_of(9000, 9000)))

    assert names_in(tmp_path) == []


DTYPES: list[tuple[dict[str, Any], list[Any], str]] = [
    ({}, [[1, 2]], "uint32"),
    ({}, [np.array([1], np.int16)], "int16"),
    ({}, [np.array([1], ">u4")], "uint32"),
    ({}, [[]], "uint32"),
    ({}, [np.array([]), np.array([1], np.uint16)], "uint16"),
    ({}, [[], np.array([]), [1]], "uint32"),
    ({}, [np.array([]), np.array([0.5], np.float32)], "float32"),
    ({}, [np.array([]), np.array([])], "uint32"),
    ({}, [np.array([]), np.array([], np.uint16)], "uint16"),
    ({}, [[1], np.array([])], "uint32"),
    ({}, ["", "a"], "uint8"),
    ({}, ["a"], "uint8"),
    ({}, [b"a"], "uint8"),
    ({}, [memoryview(b"a")], "uint8"),
    ({}, [memoryview(array("i", [70_000]))], "int32"),
    ({}, [[0.5]], "float64"),
    ({}, [[True]], "bool"),
    ({"vocab_size": 65536}, [np.array([1])], "uint16"),
    ({"vocab_size": 65537}, [[1]], "uint32"),
    ({"dtype": "bfloat16"}, [np.array([1], np.uint16)], "bfloat16"),
    ({"dtype": np.uint16}, ["Aé"], "uint16"),
]


@pytest.mark.parametrize(("options", "documents", "dtype"), DTYPES)
def test_the_dtype_follows_from_the_arguments_or_the_first_document(
    options: dict[str, Any], documents: list[Any], dtype: str, tmp_path: Path
) -> None:
    assert Roxxel(tmp_path / "a.rox").write(documents, **options).dtype == dtype


@pytest.mark.parametrize("length", [1, 1000, 10_000])
@pytest.mark.parametrize("value", [-1, 70_000])
def test_a_value_out_of_range_names_document_and_value(
    length: int, value: int, tmp_path: Path
) -> None:
    documents = [np.arange(length, dtype=np.int64) % 1000 for _ in range(30)]
    documents[17][length // 2] = value

    with pytest.raises(
        ValueError, match=rf"document 17: value {value} is outside \[0, 65535\] of uint"
    ):
        Roxxel(tmp_path / "a.rox").write(documents, dtype="uint16", separator=0)
    with pytest.raises(ValueError, match=rf"document 17: value {value} is outside"):
        corpus_of(tmp_path, documents, dtype=np.uint16)
    with pytest.raises(ValueError, match=rf"value {value} is outside \[0, 999\] of ui"):
        Roxxel(tmp_path / "a.rox").write(documents, vocab_size=1000)
    assert names_in(tmp_path) == []


def test_documents_of_other_kinds_are_refused(tmp_path: Path) -> None:
    corpus = Roxxel(tmp_path / "a.rox")
    cases: list[tuple[list[Any], str]] = [
        (
            [[1], "a"],
            "document 1 is str, but the corpus holds tokens",
        ),
        ([[1], np.array([0.5])], "document 1: dtype float64 cannot be stored as"),
        ([[1], [[1, 2]]], ""),
        ([["a"]], "document 0 holds 'a' at index 0; pass a flat list of ints"),
        ([[[1], [1, 2]]], "document 0 is a list but not of numbers"),
        ([3], "document 0 is a int"),
        ([[True, 2]], "document 0 holds True at index 0 beside numbers"),
        ([[1], [2.5, False]], "document 1 holds False at index 1"),
        ([[1], np.array([True])], "document 1 holds booleans"),
        ([[1], [True, False]], "document 1 holds booleans"),
        ([np.array([1j])], "a shard cannot hold items of dtype complex128"),
    ]
    for documents, message in cases:
        kind = TypeError if message else ValueError
        with pytest.raises(kind, match=message or r"document 1 has shape \(1, 2\)"):
            corpus.write(documents)
    for wrong, message in (
        (["\ud800"], "document 0 cannot be encoded as UTF-8 .surrogates not allowed"),
        ([[1.0, 2]], "document 0 holds 1.0 and no fraction"),
        ([[1], [2**70]], "document 1 holds an integer of more than 64 bits"),
        ([[np.int64(1), 2**70]], "document 0 holds an integer of more than 64 bits"),
        (np.arange(3), r"document 0 has shape \(\)"),
    ):
        with pytest.raises(ValueError, match=message):
            corpus.write(wrong)
    with pytest.raises(TypeError, match="data is one dict; pass an iterable"):
        corpus.write({"a": [1]})
    with pytest.raises(TypeError, match="data is one str; pass an iterable"):
        corpus.write("text")
    with pytest.raises(TypeError, match="data is a int; pass an iterable"):
        corpus.write(cast("Any", 3))
    assert names_in(tmp_path) == []


def test_integers_of_several_dtypes_make_one_corpus(tmp_path: Path) -> None:
    corpus = Roxxel(tmp_path / "a.rox")

    corpus.write([np.array([1], np.uint16), np.array([2]), [3]], separator=60_000)
    corpus.write(
        [np.array([1], np.int8)], separator=60_000, dtype="u2", exist="replace"
    )

    assert corpus.tokens[:].tolist() == [1, 60_000]


@pytest.mark.parametrize("options", [{}, {"pack": 4}])
@pytest.mark.parametrize(
    ("stored", "given", "separator"),
    [
        ("uint16", "int16", 60_000),
        ("int32", "uint32", -1),
        ("uint64", "int64", 2**64 - 1),
        ("bfloat16", "uint16", 0x3F80),
        ("bfloat16", ">u2", 0x3F80),
        ("uint16", ">i2", 60_000),
    ],
)
def test_a_separator_is_stored_whatever_the_type_of_the_documents(
    options: dict[str, Any], stored: str, given: str, separator: int, tmp_path: Path
) -> None:
    corpus = Roxxel(tmp_path / "a_*.rox")

    corpus.write([np.array([2, 1], given)] * 2, separator, dtype=stored, **options)

    bits = np.dtype("u2") if stored == "bfloat16" else corpus.dtype
    expected = np.array([2, 1, separator, 2, 1, separator], bits)
    found = [corpus.documents.with_separator[at].view(bits) for at in range(2)]
    assert np.array_equal(np.concatenate(found), expected)


@pytest.mark.parametrize("separator", [(7,), (500,)])
def test_a_writer_holds_no_copy_of_a_large_document(
    separator: tuple[int, ...], tmp_path: Path
) -> None:
    large = np.ones(30_000_000, np.uint8)
    tracemalloc.start()
    with ShardWriter(tmp_path / "a.rox", "uint16", separator=separator) as writer:
        writer.append(large)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert peak < 24 << 20


def test_lists_of_large_integers_are_exact(tmp_path: Path) -> None:
    large = 2**63 + 1

    corpus = corpus_of(tmp_path, [[large, 1], [1, large]], dtype="uint64")

    assert corpus.tokens[:].tolist() == [large, 1, 1, large]
    with pytest.raises(ValueError, match=rf"document 0: value {large} is outside"):
        Roxxel(tmp_path / "a.rox").write([[large, 1]])


def test_integers_that_a_float_would_round_are_refused(tmp_path: Path) -> None:
    for dtype, least in product((None, "float64", "uint64"), (-1, np.int64(-1))):
        with pytest.raises(TypeError, match="document 0 is a list but not of numbers"):
            Roxxel(tmp_path / "a.rox").write([[2**64 - 1, least]], dtype=dtype)
    assert names_in(tmp_path) == []


def test_floats_are_widened_and_never_overflow(tmp_path: Path) -> None:
    corpus = Roxxel(tmp_path / "a.rox")

    corpus.write([np.array([0.5], np.float16), [1, 2]], dtype="float32")
    assert corpus.tokens[:].tolist() == [0.5, 1, 2]
    with pytest.raises(
        ValueError, match="document 0: value 1e\\+30 is outside the ran"
    ):
        corpus.write([[1e30]], dtype="float16", exist="replace")


def test_a_reused_buffer_is_copied(tmp_path: Path) -> None:
    buffer = np.zeros(3, np.uint8)

    def reusing() -> Iterator[object]:
        for value in range(4):
            buffer[:] = value
            yield buffer

    corpus = Roxxel(tmp_path / "a.rox")
    corpus.write(reusing())

    assert corpus.tokens[:].tolist() == [v for v in range(4) for _ in range(3)]


def test_an_empty_iterator_is_an_error_and_empty_documents_are_not(
    tmp_path: Path,
) -> None:
    corpus = Roxxel(tmp_path / "a.rox")

    with pytest.raises(ValueError, match=r"a\.rox: there are no documents to write; c"):
        corpus.write(iter([]))
    assert names_in(tmp_path) == []
    corpus.write([[], []])
    assert (corpus.num_tokens, corpus.num_documents, len(corpus)) == (0, 2, 0)
    assert corpus.documents[1].size == 0
    assert corpus.read([], 0).shape == (0, 0)
    assert corpus.verify().ok


def test_arguments_that_cannot_be_met_are_refused_at_once(tmp_path: Path) -> None:
    cases: list[tuple[str, dict[str, Any], str]] = [
        ("a_*_*.rox", {}, "may have one \\*, in its last part"),
        ("a_*.rox", {"block_size": 5000}, "block_size must be a power of two"),
        ("a_*.rox", {"max_shard_bytes": 5000}, "max_shard_bytes=5000 is too small"),
        (
            "a_*.rox",
            {"max_shard_bytes": 30_000, "metadata": {"note": "a" * 20_000}},
            "max_shard_bytes=30000 is too small",
        ),
        ("a_*.rox", {"exist": "maybe"}, "exist must be"),
        ("a_*.rox", {"vocab_size": 0}, "vocab_size must be in"),
        ("a_*.rox", {"vocab_size": 300, "dtype": "uint8"}, "does not fit dtype uint8"),
        ("a_*.rox", {"dtype": "uint16", "separator": b"abc"}, "has 3 bytes; use up to"),
        ("a_*.rox", {"dtype": "bool", "separator": b"\2"}, "bytes other than 0 and 1"),
        ("a_*.rox", {"dtype": "uint8", "separator": 256}, "separator \\[256\\] is out"),
    ]
    for name, options, message in cases:
        with pytest.raises(ValueError, match=message):
            Roxxel(tmp_path / name).write([[1]], **options)
    with pytest.raises(TypeError, match="separator must be a token, bytes or None"):
        Roxxel(tmp_path / "a.rox").write([[1]], cast("Any", "\n"))
    with pytest.raises(TypeError, match="separator must be a token, bytes or None"):
        Roxxel(tmp_path / "a.rox").write([[1]], separator=True)
    for dtype in ("uint16", "bool", "bfloat16"):
        with pytest.raises(TypeError, match=rf"separator 1.5 is .* {dtype} items are"):
            Roxxel(tmp_path / "a.rox").write([[1]], separator=1.5, dtype=dtype)
        with pytest.raises(TypeError, match=rf"separator 1.5 is .* {dtype} items are"):
            ShardWriter(tmp_path / "a.rox", dtype, separator=(1.5,))
    with pytest.raises(TypeError, match="max_shard_bytes must be an integer, "):
        Roxxel(tmp_path / "a.rox").write([[1]], max_shard_bytes=cast("Any", 1e9))
    with pytest.raises(TypeError, match="a list of 1 paths cannot be written to"):
        Roxxel([tmp_path / "a.rox"]).write([[1]])
    assert names_in(tmp_path) == []


def test_metadata_is_stored(tmp_path: Path) -> None:
    corpus = Roxxel(tmp_path / "a.rox")

    corpus.write([[1]], separator=b"\2", metadata={"source": "übung"})

    assert corpus.metadata["source"] == "übung"
    assert corpus.metadata["separator"] == [2]
    assert corpus.metadata["created_by"].startswith("roxxel-format ")
    with pytest.raises(TypeError, match="metadata cannot be stored as JSON"):
        corpus.write([[1]], metadata={"a": object()}, exist="replace")
    with pytest.raises(TypeError, match="use strings, finite numbers"):
        corpus.write([[1]], metadata={"a": float("nan")}, exist="replace")
    with pytest.raises(TypeError, match="use strings, finite numbers"):
        corpus.write([[1.5]], float("nan"), dtype="float32", exist="replace")
    with pytest.raises(ValueError, match="more than 1048576"):
        corpus.write([[1]], metadata={"a": "x" * 2**20}, exist="replace")
    assert corpus.metadata["source"] == "übung"


@pytest.mark.parametrize(
    ("argument", "value"),
    [("special_tokens", "no"), ("metadata", "web"), ("metadata", 5)],
)
def test_an_argument_of_another_kind_is_refused_by_name(
    argument: str, value: Any, tmp_path: Path
) -> None:
    with pytest.raises(TypeError, match=f"^{argument} must be"):
        Roxxel(tmp_path / "a.rox").write(["a"], **{argument: value})

    with pytest.raises(TypeError, match=r"cache is True; pass the path of a folder"):
        Roxxel(tmp_path / "a.rox", cache=True)  # pyright: ignore[reportArgumentType]


def test_a_shard_writer_names_what_is_of_another_kind(tmp_path: Path) -> None:
    path, wrong = tmp_path / "a.rox", cast("Any", [1, 2])
    for argument, value in cast("list[Any]", [("separator", 0), ("vocab_size", True)]):
        with pytest.raises(TypeError, match=f"^{argument}"):
            ShardWriter(path, "uint8", **{argument: value})
    with (
        pytest.raises(TypeError, match="document 0 is a list; pass an array"),
        ShardWriter(path, "uint8") as writer,
    ):
        writer.append(wrong)

    assert names_in(tmp_path) == []


@pytest.mark.parametrize("key", sorted(Recipe.OWN_METADATA))
@pytest.mark.parametrize("name", ["a.rox", "a_*.rox"])
def test_metadata_that_only_a_write_may_set_are_refused(
    tmp_path: Path, name: str, key: str
) -> None:
    with pytest.raises(ValueError, match=f"metadata has '{key}'.*leave it out"):
        Roxxel(tmp_path / name).write([[1, 9], [2]], metadata={key: 2})

    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize(
    ("name", "arguments", "appends"),
    [
        ("a.rox", {"separator": 2}, False),
        ("a.rox", {"block_size": 512}, False),
        ("a_*.rox", {"separator": 2}, False),
        ("a_*.rox", {"block_size": 512}, True),
    ],
)
def test_a_corpus_that_is_not_kept_names_only_ways_that_work(
    tmp_path: Path, name: str, arguments: dict[str, Any], appends: bool
) -> None:
    corpus = Roxxel(tmp_path / name)
    corpus.write([[1]], vocab_size=9)

    with pytest.raises(FileExistsError, match="write elsewhere") as caught:
        corpus.write([[1]], vocab_size=9, exist="keep", **arguments)

    assert ("append" in str(caught.value)) == appends
    assert corpus.num_tokens == 1


def test_a_full_disk_is_an_error_that_leaves_nothing(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    old = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, hard))
    try:
        with pytest.raises(OSError, match="the new file was discarded, so make room"):
            Roxxel(tmp_path / "a.rox").write(documents_of(10**6))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, old)
    assert names_in(tmp_path) == []


def as_nobody(action: Callable[[], object]) -> int:
    """Run something in a process without root's rights; return its exit code."""

    def run() -> None:
        if os.geteuid() == 0:
            os.setegid(65534)
            os.seteuid(65534)
        action()

    return in_child(run)


def test_a_read_only_folder_can_be_kept_but_not_written() -> None:
    # Not below tmp_path, whose parents are closed to others.
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        corpus = corpus_of(folder, documents_of(10))
        folder.chmod(0o555)

        def keep() -> None:
            assert corpus_of(folder, documents_of(10)).num_tokens == 10

        def append() -> None:
            with pytest.raises(PermissionError):
                corpus.write([[1]], exist="append")

        assert as_nobody(keep) == 0
        assert as_nobody(append) == 0
        folder.chmod(0o755)


def test_other_files_in_the_folder_do_not_matter(tmp_path: Path) -> None:
    for name in ("q", "full", ".x", ".partial", "..partial", "c_.rox", "c_1.rox"):
        (tmp_path / name).write_text("mine", encoding="utf-8")

    corpus = Roxxel(tmp_path / "c_*.rox")
    Roxxel(tmp_path / "a.rox").write([[1]])
    corpus.write([[1]])

    assert short([Path(corpus.paths[0]).name]) == ["c_000.rox"]
    assert (tmp_path / "..partial").read_text(encoding="utf-8") == "mine"


@pytest.mark.parametrize("first", ["wiki_*.rox", "wiki_2024*.rox"])
def test_a_corpus_leaves_one_whose_name_is_longer_alone(
    tmp_path: Path, first: str
) -> None:
    # wiki_202400000.rox would be shard 202400000 of wiki_*.rox.
    patterns = sorted(["wiki_*.rox", "wiki_2024*.rox"], key=lambda each: each != first)
    corpora = [Roxxel(tmp_path / pattern) for pattern in patterns]
    for value, corpus in enumerate(corpora):
        corpus.write([[value]], vocab_size=10)
        corpus.write([[value]], vocab_size=10, exist="append")
    for corpus in corpora:
        assert corpus.leftovers() == []
        corpus.write([[5]], vocab_size=10, exist="replace")
        corpus.remove_leftovers()
    for value, corpus in enumerate(corpora):
        corpus.write([[value]], vocab_size=10, exist="append")
    assert [Roxxel(tmp_path / each).tokens[:].tolist() for each in patterns] == [
        [5, 0],
        [5, 1],
    ]


def test_a_shard_writer_writes_one_shard(tmp_path: Path) -> None:
    with ShardWriter(tmp_path / "a.rox", "uint8", separator=(9,)) as writer:
        writer.append(np.array([1, 2]))
        (draft,) = names_in(tmp_path)
        assert re.fullmatch(r"\.a\.rox~[0-9a-f]{8}\.partial", draft)

    assert names_in(tmp_path) == ["a.rox"]
    assert Roxxel(tmp_path / "a.rox").tokens[:].tolist() == [1, 2, 9]
    with pytest.raises(ValueError, match="this shard is complete"):
        writer.append(np.array([1]))
    with pytest.raises(ZeroDivisionError), ShardWriter(tmp_path / "b.rox", "i4"):
        _ = 1 / 0
    assert names_in(tmp_path) == ["a.rox"]


@given(
    documents=st.lists(
        st.tuples(
            st.sampled_from([0, 1, 300, 70_000]),
            st.sampled_from(["uint8", "uint16", "int64"]),
        ),
        min_size=1,
        max_size=12,
    ),
    separator=st.sampled_from([(), (7,), (7, 8, 9)]),
    failing=st.integers(0, 12),
)
def test_documents_can_be_added_all_at_once(
    documents: list[tuple[int, str]], separator: tuple[int, ...], failing: int
) -> None:
    arrays = [
        np.full(length, number, dtype)
        for number, (length, dtype) in enumerate(documents * 9)
    ]

    def broken_off() -> Iterator[Any]:
        yield from arrays[:failing]
        raise ZeroDivisionError

    with tempfile.TemporaryDirectory() as folder:
        one, all_at_once = Path(folder) / "one.rox", Path(folder) / "all.rox"
        with ShardWriter(one, "uint16", separator=separator) as writer:
            for each in arrays:
                writer.append(each)
        with ShardWriter(all_at_once, "uint16", separator=separator) as writer:
            with pytest.raises(ZeroDivisionError):
                writer.extend(broken_off())
            with pytest.raises(ValueError, match="pass a flat array"):
                writer.extend([np.zeros((2, 2), np.uint16)])
            assert writer.num_documents == len(arrays[:failing])
            writer.extend(
                each for each in arrays[failing:] if writer.size_with(each.size)
            )
            assert writer.num_tokens == sum(
                each.size + len(separator) for each in arrays
            )

        assert all_at_once.read_bytes() == one.read_bytes()


class Restarting:
    """Begins anew when it is asked again after its end."""

    def __init__(self) -> None:
        self._number = 0

    def __iter__(self) -> Restarting:
        return self

    def __next__(self) -> list[int]:
        if self._number == 3:
            self._number = 0
            raise StopIteration
        self._number += 1
        return [self._number] * 3


@pytest.mark.parametrize("limit", [None, 20_000])
def test_documents_are_not_asked_for_after_their_end(
    tmp_path: Path, limit: int | None
) -> None:
    corpus = Roxxel(tmp_path / "c_*.rox")

    written = corpus.write(Restarting(), max_shard_bytes=limit)

    assert written.num_documents == corpus.num_documents == 3


class Stopping:
    """A tokenizer that ends an iteration of its own in the middle of a text."""

    vocab_size = 100

    def encode(self, text: str) -> list[int]:
        return [1, 2] if text != "bad" else [next(iter([]))]


@pytest.mark.parametrize("limit", [None, 20_000])
def test_an_end_of_iteration_in_a_tokenizer_is_not_that_of_the_documents(
    tmp_path: Path, limit: int | None
) -> None:
    corpus = Roxxel(tmp_path / "c_*.rox")

    with pytest.raises(
        ValueError, match=r"document 1 cannot be encoded by the tokenizer \(StopIter"
    ):
        corpus.write(
            ["a", "bad", "b"],
            separator=None,
            tokenizer=Stopping(),
            max_shard_bytes=limit,
        )

    assert names_in(tmp_path) == []


def test_corpus_is_written_after_the_main_thread_has_ended(tmp_path: Path) -> None:
    path = tmp_path / "a.rox"
    program = f"""
import threading, numpy as np
from roxxel_format import Roxxel

def documents():
    threading.main_thread().join()
    for number in range(24):
        yield np.full(500_000, number, np.uint16)

def write():
    Roxxel({str(path)!r}).write(documents())

threading.Thread(target=write).start()
"""
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True)

    assert Roxxel(path).num_tokens == 24 * 500_000


def test_a_file_that_is_no_shard_is_written_over_only_on_request(
    tmp_path: Path,
) -> None:
    path = tmp_path / "a; b.rox"
    path.write_bytes(b"hello")
    corpus = Roxxel(path)

    with pytest.raises(ShardError, match=r"a; b\.rox: not a Roxxel shard"):
        corpus.write([[1, 2]], separator=None)
    assert path.read_bytes() == b"hello"
    assert corpus.write([[1, 2]], separator=None, exist="replace").num_tokens == 2


def test_a_link_in_place_of_the_file_is_refused_and_stays(tmp_path: Path) -> None:
    link = tmp_path / "link.rox"
    link.symlink_to("target.rox")

    with pytest.raises(OSError, match=f"{link}: is a link"):
        Roxxel(str(link)).write([[1, 2]], vocab_size=5)

    assert link.is_symlink()
    assert not (tmp_path / "target.rox").exists()


def test_a_copy_of_one_file_keeps_the_arguments_of_its_write(tmp_path: Path) -> None:
    path = tmp_path / "one.rox"
    one = Roxxel(path)
    one.write([[5, 6], [7]], vocab_size=9)
    copy = Roxxel(tmp_path / "copy_*.rox")
    one.copy_to(tmp_path / "copy_*.rox")

    assert copy.arguments == one.arguments
    assert Roxxel([path]).arguments == one.arguments
    assert copy.write(iter(()), vocab_size=9, exist="keep").kept


def test_a_copy_of_two_corpora_is_not_kept_as_the_result_of_one_write(
    tmp_path: Path,
) -> None:
    paths = [str(tmp_path / f"{name}.rox") for name in "ab"]
    for path in paths:
        Roxxel(path).write([[5, 6], [7]], vocab_size=9)
    Roxxel(paths).copy_to(tmp_path / "copy_*.rox")

    assert Roxxel(paths).arguments["vocab_size"] == 9
    with pytest.raises(FileExistsError, match="joined"):
        Roxxel(tmp_path / "copy_*.rox").write(iter(()), vocab_size=9, exist="keep")
