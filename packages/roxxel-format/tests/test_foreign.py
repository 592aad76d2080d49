from __future__ import annotations

import pickle
import struct
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from roxxel_format import Roxxel, ShardError, TokenReader
from roxxel_format.foreign import FlatTokens, MegatronTokens

from .helpers import documents_of, line_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def write_megatron(stem: Path, documents: list[Any], per_document: int = 1) -> None:
    """Write documents, each in so many sequences, as Megatron's indexed_dataset."""
    parts = [np.array_split(each, per_document) for each in documents]
    lengths = [part.size for each in parts for part in each]
    offsets = np.cumsum([0, *lengths[:-1]]) * 2
    bounds = np.arange(len(documents) + 1) * per_document
    stem.with_suffix(".bin").write_bytes(line_of(documents).tobytes())
    stem.with_suffix(".idx").write_bytes(
        b"MMIDIDX\x00\x00"
        + struct.pack("<QBQQ", 1, 8, len(lengths), len(bounds))
        + np.array(lengths, "<i4").tobytes()
        + np.array(offsets, "<i8").tobytes()
        + bounds.astype("<i8").tobytes()
    )


@given(
    lengths=st.lists(st.integers(0, 50), min_size=1, max_size=9),
    per_document=st.integers(1, 3),
    data=st.data(),
)
def test_megatron_files_read_as_the_same_documents_in_a_corpus(
    lengths: list[int],
    per_document: int,
    data: st.DataObject,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("megatron")
    documents = documents_of(*lengths)
    write_megatron(folder / "a", documents, per_document)
    corpus = Roxxel(folder / "a.rox")
    corpus.write(documents)

    reader = MegatronTokens(folder / "a")

    assert isinstance(reader, TokenReader)
    assert len(reader.documents) == len(corpus.documents)
    assert reader.num_tokens == corpus.num_tokens
    start = data.draw(st.integers(0, reader.num_tokens))
    stop = data.draw(st.integers(start, reader.num_tokens))
    ours, theirs = (
        reader.document_spans(start, stop),
        corpus.document_spans(start, stop),
    )
    assert np.array_equal(ours, theirs)
    for one, other in zip(reader.documents, corpus.documents, strict=True):
        assert np.array_equal(one, other)
    windows = reader.read([start], stop - start, np.int32)
    assert np.array_equal(windows, corpus.read([start], stop - start, np.int32))


@pytest.mark.parametrize("length", [1, 100, 5000])
def test_tokens_off_the_boundaries_of_their_type_are_read(
    length: int, tmp_path: Path
) -> None:
    [tokens] = documents_of(9000)
    described = f"{{'descr': '<u2', 'fortran_order': False, 'shape': ({tokens.size},)}}"
    header = described.encode() + b" " * (len(described) % 2)
    path = tmp_path / "odd.npy"
    path.write_bytes(
        b"\x93NUMPY\1\0"
        + struct.pack("<H", len(header) + 1)
        + header
        + b"\n"
        + tokens.tobytes()
    )
    starts = np.arange(17) * 200

    windows = FlatTokens(path).read(starts, length)

    assert np.array_equal(windows, [tokens[start:][:length] for start in starts])
    assert path.stat().st_size % 2 == 1


@pytest.mark.parametrize("code", range(1, 9))
def test_items_are_little_endian_on_every_machine(code: int, tmp_path: Path) -> None:
    kinds = ["|u1", "|i1", "<i2", "<i4", "<i8", "<f8", "<f4", "<u2"]
    tokens = np.arange(5).astype(kinds[code - 1])
    tokens.tofile(tmp_path / "m.bin")
    (tmp_path / "m.idx").write_bytes(
        b"MMIDIDX\x00\x00"
        + struct.pack("<QBQQ", 1, code, 1, 2)
        + np.array([5], "<i4").tobytes()
        + np.array([0, 0, 1], "<i8").tobytes()
    )

    assert MegatronTokens(tmp_path / "m").dtype.str == kinds[code - 1]
    assert MegatronTokens(tmp_path / "m").tokens[:].tolist() == [0, 1, 2, 3, 4]
    flat = FlatTokens(tmp_path / "m.bin", tokens.dtype.name)
    assert flat.dtype.str == kinds[code - 1]
    tokens.astype(tokens.dtype.newbyteorder(">")).tofile(tmp_path / "big.bin")
    big = FlatTokens(tmp_path / "big.bin", tokens.dtype.newbyteorder(">").str)
    assert big.read([1], 3, tokens.dtype).tolist() == [[1, 2, 3]]


def test_a_pickled_reader_opens_its_files_again(tmp_path: Path) -> None:
    write_megatron(tmp_path / "m", documents_of(3000, 3000))
    np.save(tmp_path / "a.npy", documents_of(6000)[0])
    readers = [
        MegatronTokens(tmp_path / "m", tokenizer="t"),
        FlatTokens(tmp_path / "a.npy", tokenizer="t"),
        FlatTokens(tmp_path / "m.bin", "uint16", tokenizer="t"),
    ]

    for reader in readers:
        data = pickle.dumps(reader)
        again = pickle.loads(data)  # noqa: S301 - our own bytes
        assert len(data) < 1000
        assert again.fingerprint == reader.fingerprint
        assert again.tokenizer == "t"


def test_megatron_sequences_with_gaps_between_them_are_refused(tmp_path: Path) -> None:
    write_megatron(tmp_path / "m", documents_of(30, 30))
    index = tmp_path / "m.idx"
    data = bytearray(index.read_bytes())
    data[34 + 8 + 8] += 2
    index.write_bytes(data)

    with pytest.raises(ShardError, match="its sequences are not adjacent in the"):
        MegatronTokens(tmp_path / "m")


def test_flat_files_are_token_readers(tmp_path: Path) -> None:
    line = np.arange(1000, dtype=np.uint16)
    np.save(tmp_path / "a.npy", line)
    line.tofile(tmp_path / "a.bin")

    readers = [
        FlatTokens(tmp_path / "a.npy", tokenizer="bytes"),
        FlatTokens(tmp_path / "a.bin", "uint16"),
    ]

    for reader in readers:
        assert isinstance(reader, TokenReader)
        assert reader.tokens[3:5].tolist() == [3, 4]
        assert [each.tolist() for each in reader.documents] == [line.tolist()]
        assert reader.document_spans(5, 9).tolist() == [[0, 5, 9]]
        assert reader.document_spans(5, 5).tolist() == []
        out = np.zeros((2, 3), np.int64)
        assert reader.read([0, 997], 3, out=out) is out
        assert out.tolist() == [[0, 1, 2], [997, 998, 999]]
        reader.will_need([0], 10)
        wrong: Any = [[0]]
        with pytest.raises(TypeError, match="out is a list; pass a numpy array"):
            reader.read([0], 1, out=wrong)
        with pytest.raises(ValueError, match="out has dtype int64, but dtype="):
            reader.read([0, 997], 3, np.int32, out)
        with pytest.raises(IndexError, match="leaves the corpus of 1000 tokens"):
            reader.read([998], 3)
        with pytest.raises(TypeError, match="256 to 256 cannot be read as uint8"):
            reader.read([256], 1, np.uint8)
    assert readers[0].fingerprint == readers[1].fingerprint
    assert [reader.tokenizer for reader in readers] == ["bytes", None]


def test_a_fingerprint_tells_one_file_from_another(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    seen: set[str] = set()
    for changed in (None, 0, 50_000, 99_999):
        line = np.zeros(100_000, np.uint8)
        if changed is not None:
            line[changed] = 1
        line.tofile(path)
        seen.add(FlatTokens(path, "uint8").fingerprint)

    assert len(seen) == 4


def test_foreign_files_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    write_megatron(tmp_path / "a", documents_of(5, 6))
    index = (tmp_path / "a.idx").read_bytes()
    cases = {
        b"hello": "not a Megatron index, it begins with b'hello'",
        index[:9] + b"\2" + index[10:]: "index version 2",
        index[:-8]: "the file is truncated or damaged",
        index[:18] + b"\xff" * 8 + index[26:]: "the file is truncated or damaged",
        index[:34] + b"\xff" * 4 + index[38:]: "out of order",
        index[:-8] + bytes(8): "do not cover its sequences",
        index[:38] + b"\7" + index[39:]: "describes 12 tokens, but the .bin file hold",
    }
    for content, message in cases.items():
        (tmp_path / "a.idx").write_bytes(content)
        with pytest.raises(ShardError, match=message):
            MegatronTokens(tmp_path / "a.bin")
    (tmp_path / "b.bin").write_bytes(b"abc")
    with pytest.raises(ShardError, match="has 3 bytes, which is not a whole num"):
        FlatTokens(tmp_path / "b.bin", "uint16")
    with pytest.raises(ValueError, match="a file without a header needs dtype"):
        FlatTokens(tmp_path / "b.bin")
    np.save(tmp_path / "c.npy", np.zeros((2, 2)))
    with pytest.raises(ShardError, match=r"shape \(2, 2\)"):
        FlatTokens(tmp_path / "c.npy")
    (tmp_path / "d.npy").write_bytes(b"no")
    with pytest.raises(ShardError, match=r"not a \.npy file"):
        FlatTokens(tmp_path / "d.npy")


def changed_bytes(data: bytes, stop: int) -> Iterator[bytes]:
    """Yield the data with one of its first `stop` bytes changed, in many ways."""
    for position in range(stop):
        old = data[position]
        others = {old ^ (1 << bit) for bit in range(8)}
        others |= {0, 255, *b"-+19L'\"\\([{,:<>\n "}
        for byte in sorted(others - {old}):
            yield data[:position] + bytes([byte]) + data[position + 1 :]


def is_sentence(message: str, path: Path) -> bool:
    return message.startswith(f"{path}: ") and "; " in message and "\n" not in message


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_a_changed_byte_in_a_npy_header_is_an_error_or_changes_no_item(
    version: tuple[int, int], tmp_path: Path
) -> None:
    path = tmp_path / "a.npy"
    [tokens] = documents_of(50)
    with path.open("wb") as file:
        np.lib.format.write_array(file, tokens, (1, 0) if version == (1, 0) else (2, 0))
    data = bytearray(path.read_bytes())
    data[6:8] = version
    stop = len(data) - tokens.nbytes
    assert FlatTokens(path).tokens[:].tolist() == tokens.tolist()

    for changed in changed_bytes(bytes(data), stop):
        path.write_bytes(changed)
        try:
            reader = FlatTokens(path)
        except ShardError as error:
            assert is_sentence(str(error), path)  # noqa: PT017 - not every change is one
        else:
            # The item type is all that another valid header can change.
            assert reader.tokens[:].tobytes() == tokens.tobytes()
            assert reader.num_tokens * reader.dtype.itemsize == tokens.nbytes


def test_a_changed_byte_in_a_megatron_index_is_an_error_or_changes_no_item(
    tmp_path: Path,
) -> None:
    documents = documents_of(7, 0, 20, 3)
    write_megatron(tmp_path / "m", documents, 2)
    path = tmp_path / "m.idx"
    data = path.read_bytes()
    line = line_of(documents).tobytes()

    for changed in changed_bytes(data, len(data)):
        path.write_bytes(changed)
        try:
            reader = MegatronTokens(tmp_path / "m")
        except ShardError as error:
            named = path.with_suffix(".bin") if ".bin: " in str(error) else path
            assert is_sentence(str(error), named)  # noqa: PT017 - as above
        else:
            assert reader.tokens[:].tobytes() == line
            assert reader.dtype.itemsize == 2


@pytest.mark.parametrize("suffix", ["npy", "idx", "bin"])
def test_a_truncated_foreign_file_is_an_error(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"a.{suffix}"
    write_megatron(tmp_path / "a", documents_of(7, 20))
    np.save(tmp_path / "a.npy", documents_of(27)[0])
    data = path.read_bytes()

    for size in range(len(data)):
        path.write_bytes(data[:size])
        with pytest.raises(ShardError) as caught:
            _ = FlatTokens(path) if suffix == "npy" else MegatronTokens(path)
        assert str(tmp_path / "a.") in str(caught.value)
        assert "; " in str(caught.value)


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ("(-5,)", "not a .npy file (its header is "),
        ("(4,)", "has 138 bytes, but 4 items of uint16 end at byte 136; the file cont"),
        ("(6,)", "has 138 bytes, but 6 items of uint16 end at byte 140; the file is"),
        ("(5, 1)", "holds an array of shape (5, 1); save a flat array"),
    ],
)
def test_a_npy_file_of_another_shape_than_its_items_is_refused(
    shape: str, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "a.npy"
    np.save(path, np.arange(5, dtype=np.uint16))
    header = f"{{'descr': '<u2', 'fortran_order': False, 'shape': {shape}, }}"
    data = path.read_bytes()
    path.write_bytes(data[:10] + header.encode().ljust(117) + data[127:])

    with pytest.raises(ShardError) as caught:
        FlatTokens(path)

    assert str(caught.value).startswith(f"{path}: {message}")


@pytest.mark.parametrize("descr", ["<V2", "|O", "<U4", "<c8", "<M8[s]", "<f16", "<i3"])
def test_npy_items_that_are_no_tokens_are_refused_by_their_type(
    descr: str, tmp_path: Path
) -> None:
    path = tmp_path / "a.npy"
    np.save(path, np.arange(5, dtype=np.uint16))
    data = path.read_bytes()
    header = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': (5,), }}"
    path.write_bytes(data[:10] + header.encode().ljust(117) + data[127:])

    with pytest.raises(ShardError) as caught:
        FlatTokens(path)

    assert str(caught.value) == (
        f"{path}: holds items of type {descr!r}; save integers, floats or bools"
    )


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_floats_that_no_integer_holds_are_rounded_like_others(
    value: float, tmp_path: Path
) -> None:
    np.save(tmp_path / "a.npy", np.array([1.5, value], np.float32))
    tokens = FlatTokens(tmp_path / "a.npy")

    found = tokens.read([0], 2, "float16")

    assert np.array_equal(found, np.array([[1.5, value]], np.float16), equal_nan=True)
    with pytest.raises(TypeError, match="float32 tokens cannot be read as int32"):
        tokens.read([0], 2, "int32")
