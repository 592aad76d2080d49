from __future__ import annotations

import pickle
import struct
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from roxxel_format import Roxxel, ShardError, TokenReader
from roxxel_format.foreign import (
    DatatroveTokens,
    FlatTokens,
    MegatronTokens,
    foreign_format,
    open_foreign,
)

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
        index[:-8] + bytes(8): "out of order",
        index[:38] + b"\7" + index[39:]: "describes 12 tokens, but the .bin file hold",
    }
    for content, message in cases.items():
        (tmp_path / "a.idx").write_bytes(content)
        with pytest.raises(ShardError, match=message):
            MegatronTokens(tmp_path / "a.bin")
    (tmp_path / "b.bin").write_bytes(b"abc")
    with pytest.raises(ShardError, match="has 3 bytes, which is not a whole num"):
        FlatTokens(tmp_path / "b.bin", "uint16")
    with pytest.raises(ValueError, match=r"b\.bin: has no header.*pass dtype"):
        FlatTokens(tmp_path / "b.bin")
    np.save(tmp_path / "c.npy", np.zeros((2, 2)))
    with pytest.raises(ShardError, match=r"shape \(2, 2\)"):
        FlatTokens(tmp_path / "c.npy")


def changed_bytes(data: bytes, stop: int) -> Iterator[bytes]:
    """Yield the data with one of its first `stop` bytes changed, in many ways."""
    for position in range(stop):
        old = data[position]
        others = {old ^ 1, old ^ 128, 0, *b"-1,'"}
        for byte in sorted(others - {old}):
            yield data[:position] + bytes([byte]) + data[position + 1 :]


def is_sentence(message: str, path: Path) -> bool:
    return message.startswith(f"{path}: ") and "; " in message and "\n" not in message


@pytest.mark.parametrize("version", [(1, 0), (2, 0)])
def test_a_changed_byte_in_a_npy_header_is_an_error_or_changes_no_item(
    version: tuple[int, int], tmp_path: Path
) -> None:
    path = tmp_path / "a.npy"
    [tokens] = documents_of(50)
    with path.open("wb") as file:
        np.lib.format.write_array(file, tokens, version)
    data = path.read_bytes()
    stop = len(data) - tokens.nbytes
    assert FlatTokens(path).tokens[:].tolist() == tokens.tolist()

    for changed in changed_bytes(data, stop):
        path.write_bytes(changed)
        try:
            reader = FlatTokens(path)
        except ValueError as error:
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
        with pytest.raises(ValueError, match="; ") as caught:
            _ = FlatTokens(path) if suffix == "npy" else MegatronTokens(path)
        assert str(tmp_path / "a.") in str(caught.value)


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ("(-5,)", "not a .npy file ("),
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


@pytest.mark.parametrize("descr", ["|V2", "|O", "<U4", "<c8", "<M8[s]", "<f16"])
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


def llm_c(path: Path, tokens: Any, magic: int, version: int) -> None:
    """Write a file as llm.c does: 256 numbers of 4 bytes, then the tokens."""
    header = np.zeros(256, np.int32)
    header[:3] = magic, version, len(tokens)
    path.write_bytes(header.tobytes() + tokens.tobytes())


@pytest.mark.parametrize(
    ("magic", "version", "dtype"),
    [(20240520, 1, "uint16"), (20240801, 7, "uint32"), (20251013, 1, "uint32")],
)
def test_the_header_of_llm_c_is_no_token(
    magic: int, version: int, dtype: str, tmp_path: Path
) -> None:
    path, tokens = tmp_path / "a.bin", np.arange(1, 500, dtype=dtype)
    llm_c(path, tokens, magic, version)

    for reader in (FlatTokens(path), FlatTokens(path, dtype)):
        assert reader.dtype == dtype
        assert reader.tokens[:].tolist() == tokens.tolist()
    with pytest.raises(ValueError, match=rf"{path}: its header says .*uint8"):
        FlatTokens(path, "uint8")
    raw = FlatTokens(path, dtype, offset=0)
    assert raw.num_tokens * raw.dtype.itemsize == path.stat().st_size
    path.write_bytes(path.read_bytes()[:-2])
    with pytest.raises(ShardError, match=rf"{path}: .*499 tokens.*offset=0"):
        FlatTokens(path)


def test_raw_tokens_with_the_ending_of_numpy_are_read_by_their_dtype(
    tmp_path: Path,
) -> None:
    path, tokens = tmp_path / "part-0.npy", np.arange(1, 300, dtype=np.uint16)
    tokens.tofile(path)

    assert FlatTokens(path, "uint16").tokens[:].tolist() == tokens.tolist()
    with pytest.raises(ValueError, match=rf"{path}: .*dtype"):
        FlatTokens(path)
    np.save(path, tokens)
    assert FlatTokens(path, "uint16").tokens[:].tolist() == tokens.tolist()
    with pytest.raises(ValueError, match=rf"{path}: its header says uint16.*uint32"):
        FlatTokens(path, "uint32")


def test_an_offset_skips_a_header_of_another_kind(tmp_path: Path) -> None:
    path, tokens = tmp_path / "a.bin", np.arange(1, 300, dtype=np.uint16)
    path.write_bytes(b"header!" + tokens.tobytes())

    assert FlatTokens(path, "uint16", offset=7).tokens[:].tolist() == tokens.tolist()
    with pytest.raises(ShardError, match="has 605 bytes, which is not a whole"):
        FlatTokens(path, "uint16")
    with pytest.raises(ValueError, match="offset=606"):
        FlatTokens(path, "uint16", offset=606)


@given(
    lengths=st.lists(st.integers(0, 40), min_size=1, max_size=8),
    cut=st.integers(0, 100),
    is_ended=st.booleans(),
)
def test_documents_of_flat_files_end_with_their_separator(
    lengths: list[int],
    cut: int,
    is_ended: bool,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("flat")
    documents = [np.arange(1, n + 1, dtype=np.uint16) for n in lengths]
    line = np.concatenate([np.append(each, 0) for each in documents])
    if not is_ended and documents[-1].size:
        line = line[:-1]
    for number, part in enumerate((line[:cut], line[cut:])):
        part.astype(np.uint16).tofile(folder / f"t_{number}.bin")

    flat = FlatTokens(folder / "t_*.bin", "uint16", separator=0)

    assert flat.tokens[:].tolist() == line.tolist()
    assert [each.tolist() for each in flat.documents] == [
        each.tolist() for each in documents
    ]
    assert flat.num_documents == len(documents)
    spans = flat.document_spans(0, flat.num_tokens)
    assert (
        spans[:, 2].tolist()
        == np.minimum(np.cumsum([n + 1 for n in lengths]), line.size).tolist()
    )


def test_flat_files_are_read_in_natural_order_or_as_listed(tmp_path: Path) -> None:
    paths = [tmp_path / f"t_{number}.bin" for number in (10, 9, 2)]
    for number, path in enumerate(paths):
        np.full(300, number + 1, np.uint16).tofile(path)

    whole = FlatTokens(tmp_path / "t_*.bin", "uint16")
    listed = FlatTokens(paths, "uint16")

    assert whole.read([299], 302).tolist() == [[3, *[2] * 300, 1]]
    assert listed.read([299], 302).tolist() == [[1, *[2] * 300, 3]]
    assert whole.fingerprint != listed.fingerprint
    again = pickle.loads(pickle.dumps(listed))  # noqa: S301 - our own bytes
    assert again.fingerprint == listed.fingerprint
    for name, dtype in (("a.npy", "uint16"), ("b.npy", "uint32")):
        np.save(tmp_path / name, np.arange(1, 50, dtype=dtype))
    with pytest.raises(ShardError, match=r"b.npy: holds uint32, but .*a.npy"):
        FlatTokens(tmp_path / "*.npy")
    with pytest.raises(IsADirectoryError, match=r"a folder; .*/\*\.bin"):
        FlatTokens(tmp_path, "uint16")


def test_a_replaced_flat_file_is_an_error_at_the_next_opening(tmp_path: Path) -> None:
    for number in (0, 1):
        np.full(5000, 7, np.uint16).tofile(tmp_path / f"t_{number}.bin")
    flat = FlatTokens(tmp_path / "t_*.bin", "uint16")
    np.full(5000, 8, np.uint16).tofile(tmp_path / "new")
    (tmp_path / "new").replace(tmp_path / "t_1.bin")

    with pytest.raises(ShardError, match=r"t_1.bin: the file was replaced"):
        flat.read([5000], 10)


few = settings(
    max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
WIDTHS = [
    ("uint32", "uint16", "uint32"),
    ("uint16", "uint8", "uint16"),
    ("uint32", "uint8", "uint32"),
    ("int64", "uint8", "uint64"),
    ("int64", "uint16", "uint64"),
    ("uint64", "int32", "uint64"),
    ("uint16", "uint32", "uint16"),
    ("uint32", "int64", "uint32"),
    (">u4", ">u2", "uint32"),
]


@pytest.mark.parametrize(("written", "read", "named"), WIDTHS)
@given(
    most=st.sampled_from([255, 2000, 50_000, 150_000, 260_000]),
    size=st.sampled_from([32, 2000]),
    seed=st.integers(0, 99),
)
@few
def test_tokens_of_another_width_are_refused(
    written: str,
    read: str,
    named: str,
    most: int,
    size: int,
    seed: int,
    tmp_path: Path,
) -> None:
    """The command names its option."""
    if np.dtype(written).itemsize == 2:
        # A few bytes do not tell a large vocabulary from tokens of one byte.
        most = min(most, 2000 if read == "uint8" and size == 32 else 50_257)
    path = tmp_path / "a.bin"
    ids = np.random.default_rng(seed).integers(1, most, size, endpoint=True)
    ids.astype(written).tofile(path)

    with pytest.raises(ValueError, match=rf"{path}: .*--dtype {named}"):
        FlatTokens(path, read)

    assert np.array_equal(FlatTokens(path, written).tokens[:], ids)


@pytest.mark.parametrize("dtype", ["uint16", "uint32", "int64"])
def test_a_text_is_not_read_as_tokens(dtype: str, tmp_path: Path) -> None:
    path = tmp_path / "notes.bin"
    path.write_bytes("Größe: a text of a few lines.\nNo token is here.\n".encode() * 8)

    with pytest.raises(ValueError, match=rf"{path}: .*the text 'Größe"):
        FlatTokens(path, dtype)

    assert FlatTokens(path, "uint8").num_tokens == path.stat().st_size


@given(
    most=st.sampled_from([3, 9, 255, 50_000, 65_535]),
    size=st.integers(0, 300),
    seed=st.integers(0, 999),
)
@few
def test_tokens_of_the_right_width_are_read(
    most: int, size: int, seed: int, tmp_path: Path
) -> None:
    path = tmp_path / "a.bin"
    ids = np.random.default_rng(seed).integers(0, most, size, endpoint=True)
    for dtype in ("uint8", "uint16", "uint32", ">u2", "int64"):
        stored = ids.astype(dtype)
        stored.tofile(path)
        assert np.array_equal(FlatTokens(path, dtype).tokens[:], stored)


def test_a_header_says_the_width_for_certain(tmp_path: Path) -> None:
    ids = np.array([7, 0] * 50, np.uint16)
    ids.tofile(tmp_path / "a.bin")
    with pytest.raises(ValueError, match=r"if uint16 is right, save .*\.npy"):
        FlatTokens(tmp_path / "a.bin", "uint16")

    np.save(tmp_path / "a.npy", ids)

    assert np.array_equal(FlatTokens(tmp_path / "a.npy").tokens[:], ids)


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("separator", True),
        ("separator", [1]),
        ("separator", float("nan")),
        ("offset", "2"),
        ("offset", 2.0),
        ("tokenizer", object()),
    ],
)
@pytest.mark.filterwarnings("ignore:invalid value")
def test_an_argument_of_another_kind_is_refused_by_name(
    argument: str, value: Any, tmp_path: Path
) -> None:
    np.arange(50, dtype=np.uint16).tofile(tmp_path / "a.bin")

    with pytest.raises((TypeError, ValueError), match=f"^{argument}"):
        len(FlatTokens(tmp_path / "a.bin", "uint16", **{argument: value}).documents)


def test_a_pointer_of_git_lfs_holds_no_tokens(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    path.write_text(
        f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0a' * 32}\nsize 7\n",
        encoding="utf-8",
    )

    for opened in (lambda: FlatTokens(path, "uint8"), lambda: Roxxel(path).num_tokens):
        with pytest.raises(ShardError, match=f"{path}: .*git lfs pull"):
            opened()


def test_datatrove_files_are_token_readers(tmp_path: Path) -> None:
    documents = [[5, 6, 0], [0], [7, 8], [9, 0]]
    for number, part in enumerate((documents[:1], documents[1:])):
        path = tmp_path / f"00{number}_tok.ds"
        np.array([*chain(*part)], np.uint16).tofile(path)
        np.cumsum([len(each) for each in part]).tofile(f"{path}.index")

    plain = DatatroveTokens(tmp_path / "*.ds")
    trove = DatatroveTokens(tmp_path / "*.ds", separator=0, tokenizer="t")

    assert isinstance(trove, TokenReader)
    assert [each.tolist() for each in plain.documents] == documents
    assert [each.tolist() for each in trove.documents] == [[5, 6], [], [7, 8], [9]]
    assert trove.tokens[:].tolist() == [*chain(*documents)]
    assert trove.fingerprint != plain.fingerprint
    again = pickle.loads(pickle.dumps(trove))  # noqa: S301 - our own bytes
    assert (again.fingerprint, again.tokenizer) == (trove.fingerprint, "t")
    (tmp_path / "000_tok.ds").write_bytes(bytes(5))
    with pytest.raises(ShardError, match=r"000_tok.ds: has 5 bytes, but"):
        DatatroveTokens(tmp_path / "*.ds")


def test_separators_of_megatron_documents_are_no_part_of_them(tmp_path: Path) -> None:
    documents = [np.array(each, np.uint16) for each in ([5, 0], [], [6], [0])]
    write_megatron(tmp_path / "m", documents)

    reader = MegatronTokens(tmp_path / "m", separator=0)

    assert [each.tolist() for each in reader.documents] == [[5], [], [6], []]
    assert [each.tolist() for each in reader.documents.with_separator] == [
        each.tolist() for each in documents
    ]


def test_a_reader_shows_its_path_and_its_size(tmp_path: Path) -> None:
    np.arange(3000, dtype=np.uint16).tofile(tmp_path / "a.bin")

    shown = repr(FlatTokens(tmp_path / "a.bin", "uint16"))

    assert shown == f"FlatTokens('{tmp_path}/a.bin', 3,000 tokens of uint16)"


def test_a_corpus_of_another_format_is_opened_by_plain_values(tmp_path: Path) -> None:
    tokens = np.array([5, 6, 0, 7, 0], np.uint16)
    tokens.tofile(tmp_path / "a.bin")
    tokens.tofile(tmp_path / "a.ds")
    np.array([3, 5]).tofile(tmp_path / "a.ds.index")
    write_megatron(tmp_path / "m", [tokens[:3], tokens[3:]])
    Roxxel(tmp_path / "r.rox").write([tokens])

    found = [
        open_foreign(tmp_path / "a.bin", dtype="uint16", separator=0),
        open_foreign(str(tmp_path / "a.ds"), separator=0, tokenizer="t"),
        open_foreign(tmp_path / "m", separator=0),
        open_foreign(tmp_path / "m.bin", separator=0),
        open_foreign(tmp_path / "m.bin", "flat", dtype="uint16", separator=0),
    ]

    assert [type(each).__name__.removesuffix("Tokens") for each in found] == [
        "Flat",
        "Datatrove",
        "Megatron",
        "Megatron",
        "Flat",
    ]
    for each in found:
        assert [one.tolist() for one in each.documents] == [[5, 6], [7]]
        again = pickle.loads(pickle.dumps(each))  # noqa: S301 - our own
        assert again.separator == (0,)
    assert foreign_format(tmp_path / "r.rox") is None
    assert foreign_format("s3://bucket/wiki_*.rox") is None
    with pytest.raises(ValueError, match=r"^s3://bucket/a\.bin: .*on a disk"):
        open_foreign("s3://bucket/a.bin")
    with pytest.raises(ValueError, match=r"r.rox.*'datatrove'"):
        open_foreign(tmp_path / "r.rox")
    with pytest.raises(ValueError, match=r"a.ds.*offset"):
        open_foreign(tmp_path / "a.ds", offset=3)
    unknown: Any = "bin"
    with pytest.raises(ValueError, match=r"format='bin'.*'megatron'"):
        open_foreign(tmp_path / "a.bin", unknown)


def test_tokens_of_megatron_are_not_taken_for_flat_ones(tmp_path: Path) -> None:
    """As flat tokens they would be one document, without a word."""
    tokens = np.array([5, 6, 0, 7, 0], np.uint16)
    for number in range(2):
        write_megatron(tmp_path / f"{number}_text_document", [tokens[:3], tokens[3:]])
    lone = tmp_path / "1_text_document.bin"

    with pytest.raises(FileNotFoundError, match=r"\*_text_document.*one \.bin file"):
        open_foreign(tmp_path / "*_text_document.bin")
    with pytest.raises(TypeError, match=r"1_text_document.* 1 more: .*one \.bin file"):
        open_foreign([lone, tmp_path / "2_text_document.bin"])
    lone.with_suffix(".idx").unlink()
    with pytest.raises(FileNotFoundError, match=r"1_text_document\.idx.*'flat'"):
        open_foreign(lone)
    with pytest.raises(ValueError, match=r"'megatron'.*pass format"):
        open_foreign(lone, dtype="uint16")
    assert open_foreign(lone, "flat", dtype="uint16").num_documents == 1
