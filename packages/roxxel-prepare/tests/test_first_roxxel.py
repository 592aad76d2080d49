"""Shards of the first Roxxel, made here from the description of their format.

Blocks of bytes, the end of each block in bytes (int64), and a foot: the number of
blocks, their bytes, the item type in eight bytes (`ROXXEL02` alone), and the magic.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from roxxel_format import Roxxel, ShardError
from roxxel_prepare.first_roxxel import read_documents

from .helpers import main

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def shard_of(
    blocks: Sequence[bytes], dtype: str = "uint8", magic: bytes = b"ROXXEL02"
) -> bytes:
    """Return the bytes of a shard of these blocks."""
    ends = np.cumsum([len(block) for block in blocks], dtype="<i8")
    data = b"".join(blocks)
    name = dtype.encode().ljust(8, b"\0") if magic == b"ROXXEL02" else b""
    counts = struct.pack("<qq", len(blocks), len(data))
    return data + ends.tobytes() + counts + name + magic


def write_old(
    folder: Path,
    documents: Sequence[bytes],
    separator: bytes = b"",
    *,
    block_size: int = 64,
    blocks_per_shard: int = 3,
    dtype: str = "uint8",
    magic: bytes = b"ROXXEL02",
    first: int = 0,
) -> bytes:
    """Write documents as the first Roxxel did; return the bytes of the blocks."""
    data = b"".join(each + separator for each in documents)
    padding = -len(data) % block_size
    data += ((separator or b"\0") * block_size)[:padding]
    blocks = [data[at : at + block_size] for at in range(0, len(data), block_size)]
    for number in range(0, len(blocks), blocks_per_shard):
        path = folder / f"old_{first + number // blocks_per_shard:04d}.rox"
        part = blocks[number : number + blocks_per_shard]
        path.write_bytes(shard_of(part, dtype, magic))
    return data


def converted(
    filepath: Any, dtype: str | None = None, separator: Any = None
) -> list[np.ndarray[Any, Any]]:
    """Return the documents of old shards."""
    return list(read_documents(filepath, separator=separator, dtype=dtype))


def tokens_of(*lengths: int) -> list[np.ndarray[Any, Any]]:
    """Return int32 documents of these lengths, of tokens from 1 on."""
    rng = np.random.default_rng(0)
    return [rng.integers(1, 50_000, n, np.int32) for n in lengths]


@given(
    lengths=st.lists(st.integers(1, 60), min_size=1, max_size=9),
    dtype=st.sampled_from(["uint8", "int32", "float32", "int64", ">i4", "<u2", "u2"]),
    blocks_per_shard=st.integers(1, 4),
)
def test_old_shards_become_the_same_documents(
    lengths: list[int],
    dtype: str,
    blocks_per_shard: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("old")
    item = np.dtype(dtype)
    documents = [(each % 250 + 1).astype(item) for each in tokens_of(*lengths)]
    end = np.zeros(1, item)
    write_old(
        folder,
        [each.tobytes() for each in documents],
        end.tobytes(),
        dtype=dtype,
        blocks_per_shard=blocks_per_shard,
    )

    found = converted(folder / "old_*.rox", separator=0)

    assert [each.tolist() for each in found] == [each.tolist() for each in documents]


@given(
    documents=st.lists(st.binary(min_size=1, max_size=40), min_size=1, max_size=8),
    separator=st.binary(min_size=1, max_size=5),
)
def test_documents_end_behind_each_row_of_separators(
    documents: list[bytes],
    separator: bytes,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("old")
    # In one block: documents that hold separators look like padding in others.
    line = write_old(folder, documents, separator, block_size=4096)

    found = converted(folder / "old_*.rox", separator=separator)
    found = [bytes(each) for each in found]

    assert not any(separator in each for each in found)
    assert all(found[1:])
    # bytes.split finds separators from the left too; padding may end inside one.
    *pieces, last = line.split(separator)
    if not separator.startswith(last) or len(pieces) == 0:
        pieces.append(last)
    pieces = [each for each in pieces if each]
    assert [each for each in found if each] == pieces


@given(
    writes=st.lists(
        st.lists(
            st.binary(max_size=40).map(lambda each: b"x" + each.replace(b"<", b"")),
            min_size=1,
            max_size=5,
        ),
        min_size=1,
        max_size=4,
    ),
    is_one_shard=st.booleans(),
    block_size=st.sampled_from([16, 17, 64]),
)
def test_padding_between_two_writes_belongs_to_no_document(
    writes: list[list[bytes]],
    is_one_shard: bool,
    block_size: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder, separator = tmp_path_factory.mktemp("old"), b"<e>"
    blocks: list[list[bytes]] = []
    for documents in writes:
        # An empty document ends each write: its padding has two separators or more.
        data = b"".join(each + separator for each in [*documents, b""])
        data += (separator * block_size)[: -len(data) % block_size]
        at = range(0, len(data), block_size)
        blocks.append([data[start : start + block_size] for start in at])
    if is_one_shard:
        blocks = [[block for each in blocks for block in each]]
    for number, each in enumerate(blocks):
        (folder / f"old_{number:04d}.rox").write_bytes(shard_of(each))

    found = converted(folder / "old_*.rox", separator=separator)

    expected = [document for documents in writes for document in documents]
    assert [bytes(each) for each in found] == expected


def test_padding_of_less_than_a_separator_ends_with_its_shard(tmp_path: Path) -> None:
    (tmp_path / "m_0000.rox").write_bytes(shard_of([b"hello<e>", b"you<e><e"]))
    (tmp_path / "m_0001.rox").write_bytes(shard_of([b"world<e>", b"abc<e><e"]))

    found = converted(tmp_path / "m_*.rox", separator=b"<e>")

    assert [bytes(each) for each in found] == [
        b"hello",
        b"you",
        b"world",
        b"abc",
    ]


@pytest.mark.parametrize(
    ("blocks", "documents"),
    [
        # A document that begins like a separator, at the end of a block.
        ([b"hello<e><", b"html><e>"], [b"hello", b"<html>"]),
        ([b"hello<e><", b"e>x<e>"], [b"hello", b"x"]),
        # Padding, then a document that is empty, or begins like a separator.
        ([b"hi<e><e><e", b"<e>x<e>"], [b"hi", b"x"]),
        ([b"hi<e><e><e", b"<ex<e>"], [b"hi", b"<ex"]),
        ([b"hi<e><e><e"], [b"hi"]),
        ([b"<e"], [b"<e"]),
    ],
)
def test_part_of_a_separator_is_padding_only_at_the_end_of_a_write(
    blocks: list[bytes], documents: list[bytes], tmp_path: Path
) -> None:
    (tmp_path / "m_0000.rox").write_bytes(shard_of(blocks))

    found = converted(tmp_path / "m_*.rox", separator=b"<e>")

    assert [bytes(each) for each in found] == documents


def test_shards_are_read_in_natural_order(tmp_path: Path) -> None:
    for number in (9999, 10000, 10001):
        path = tmp_path / f"old_{number:04d}.rox"
        path.write_bytes(shard_of([str(number).encode()]))

    for filepath in (
        tmp_path / "old_*.rox",
        [tmp_path / f"old_{n}.rox" for n in (9999, 10000, 10001)],
    ):
        found = converted(filepath)
        assert [bytes(each) for each in found] == [b"9999", b"10000", b"10001"]


def test_a_shard_of_roxxel01_needs_its_item_type(tmp_path: Path) -> None:
    [tokens] = tokens_of(32)
    write_old(tmp_path, [tokens.tobytes()], dtype="", magic=b"ROXXEL01")
    path = tmp_path / "old_0000.rox"

    with pytest.raises(ShardError, match=f"{path}: records no item type; pass dtype"):
        converted(path)
    assert [each.tolist() for each in converted(path, "int32")] == [tokens.tolist()]


def test_a_negative_token_is_refused_with_its_place(tmp_path: Path) -> None:
    tokens = np.arange(60, dtype=np.int32)
    tokens[37] = -5
    write_old(tmp_path, [tokens.tobytes()], dtype="int32", blocks_per_shard=2)

    with pytest.raises(ShardError, match=r"old_0001\.rox: .*-5 \(byte 20 on\)"):
        converted(tmp_path / "old_*.rox")


def test_the_error_of_a_shifted_corpus_names_its_cause(tmp_path: Path) -> None:
    documents = [each.tobytes() for each in tokens_of(30, 50, 71)]
    write_old(tmp_path, documents, b"\0", dtype="int32")

    with pytest.raises(ValueError, match="if the old separator was not whole tokens"):
        converted(tmp_path / "old_*.rox", separator=0)


FOOT = 32
DAMAGES: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "not a shard of ROXXEL02 or ROXXEL01, its 0 bytes end with b''"),
    "leftover": (b"hello", "ROXXEL02 or ROXXEL01, its 5 bytes end with b'hello'"),
    "magic alone": (b"ROXXEL02", "its 8 bytes end with b'ROXXEL02'"),
    "magic of 24 bytes": (
        bytes(16) + b"ROXXEL02",
        "not a shard of ROXXEL02 or ROXXEL01",
    ),
    "counts": (
        shard_of([b"ab", b"cd"])[:-FOOT]
        + struct.pack("<qq8s8s", 3, 4, b"uint8", b"ROXXEL02"),
        "has 52 bytes, but not the 3 blocks of 4 bytes that its foot declares; the fi",
    ),
    "negative": (
        shard_of([b"ab", b"cd"])[:-FOOT]
        + struct.pack("<qq8s8s", -2, 36, b"uint8", b"ROXXEL02"),
        "not the -2 blocks of 36 bytes",
    ),
    "descending": (
        b"abcd"
        + struct.pack("<2q", 4, 4)
        + struct.pack("<qq8s8s", 2, 4, b"uint8", b"ROXXEL02"),
        "not the 2 blocks of 4 bytes that its foot declares; the file is damaged",
    ),
    "short ends": (
        b"abcd"
        + struct.pack("<2q", 1, 3)
        + struct.pack("<qq8s8s", 2, 4, b"uint8", b"ROXXEL02"),
        "not the 2 blocks of 4 bytes that its foot declares; the file is damaged",
    ),
    "unknown type": (
        shard_of([bytes(16)], "complex6"),
        "its items have the unknown type 'complex6'; copy it again",
    ),
    "no such size": (shard_of([bytes(16)], "<i3"), "unknown type '<i3'"),
    "half an item": (
        shard_of([b"abc", b"def"], "int32"),
        "its blocks hold 6 bytes, which is not a whole number of int32 items",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_of_an_old_shard_is_one_sentence(damage: str, tmp_path: Path) -> None:
    data, sentence = DAMAGES[damage]
    path = tmp_path / "old_0000.rox"
    path.write_bytes(data)

    with pytest.raises(ValueError, match="old_0000") as caught:
        converted(path)

    assert str(caught.value).startswith(f"{path}: ")
    assert sentence in str(caught.value)
    assert "; " in str(caught.value)


def test_every_truncation_is_found(tmp_path: Path) -> None:
    path = tmp_path / "old_0000.rox"
    data = shard_of([bytes(range(8)), bytes(range(4))], "int32")
    for size in range(len(data)):
        path.write_bytes(data[:size])
        with pytest.raises(ValueError, match="old_0000"):
            converted(path)


def test_shards_of_different_types_are_two_corpora(tmp_path: Path) -> None:
    (tmp_path / "a.rox").write_bytes(shard_of([bytes(8)], "int32"))
    (tmp_path / "b.rox").write_bytes(shard_of([bytes(8)], "uint8"))

    with pytest.raises(ValueError, match="holds uint8") as caught:
        converted(tmp_path / "?.rox", separator=0)

    assert str(tmp_path / "a.rox") in str(caught.value)
    assert "holds int32; convert them into two corpora" in str(caught.value)


@pytest.mark.parametrize(
    ("separator", "sentence"),
    [
        (b"\0", "separator has 1 bytes, but an item of int32 has 4; such a separator"),
        (2**40, "separator=1099511627776 is not a value of int32; pass a token"),
    ],
)
def test_a_separator_that_is_not_whole_items_is_refused(
    separator: Any, sentence: str, tmp_path: Path
) -> None:
    write_old(tmp_path, [bytes(64)], dtype="int32")

    with pytest.raises(ValueError, match=sentence):
        converted(tmp_path / "old_*.rox", separator=separator)


def test_old_shards_become_a_corpus(tmp_path: Path) -> None:
    documents = tokens_of(30, 50, 70, 3)
    data = [each.tobytes() for each in documents]
    write_old(tmp_path, data, np.int32(0).tobytes(), dtype="int32")
    new = Roxxel(tmp_path / "new_*.rox")

    old = read_documents(tmp_path / "old_*.rox", separator=0)
    new.write(old, separator=0, dtype="uint16")

    assert [each.tolist() for each in new.documents] == [x.tolist() for x in documents]


def test_who_opens_or_prepares_old_shards_is_told_of_the_converter(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_old(tmp_path, [b"text"] * 99, b"\n")
    path = tmp_path / "old_0000.rox"

    for filepath in (path, tmp_path, tmp_path / "old_*.rox", [path]):
        with pytest.raises(ShardError, match=f"{path}: .*roxxel_prepare.first_roxxel"):
            Roxxel(filepath).verify()
    assert main(["write", str(tmp_path / "new_*.rox"), str(path)]) == 1
    error = capsys.readouterr().err
    assert f"{path}: is a shard" in error
    assert "roxxel_prepare.first_roxxel" in error


@pytest.mark.parametrize("form", ["text", "lines"])
def test_the_command_takes_no_shard_for_text(
    form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "new.rox"
    Roxxel(path).write([b"some text"])
    write = ["write", str(tmp_path / "c.rox"), str(path)]

    assert main([*write, "--format", form]) == 1
    assert str(path) in capsys.readouterr().err
    assert main(write) == 1
    assert "quote its pattern" in capsys.readouterr().err
    assert not list(tmp_path.glob("c*"))
