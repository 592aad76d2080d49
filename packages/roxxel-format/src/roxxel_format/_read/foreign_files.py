"""Parse files of other programs: `.npy`, indexes of Megatron and of datatrove."""

from __future__ import annotations

import struct
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.lib import format as npy
from roxxel_store.files import open_file

from roxxel_format._read.files import MappedFile
from roxxel_format._spec.layout import NAMES
from roxxel_format.errors import ShardError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import numpy.typing as npt

NPY_MAGIC = b"\x93NUMPY"
_NPY_HEADERS = {
    (1, 0): npy.read_array_header_1_0,
    (2, 0): npy.read_array_header_2_0,
}
"""Parsers by version. Version 3 is that of structured types, which no token has."""

_MEGATRON_HEAD_SIZE = 34
_MEGATRON_MAGIC = b"MMIDIDX\x00\x00"
_MEGATRON_DTYPES = {
    1: "|u1",
    2: "|i1",
    3: "<i2",
    4: "<i4",
    5: "<i8",
    6: "<f8",
    7: "<f4",
    8: "<u2",
}
_DS_SIZES = 2, 4


def read_megatron_index(
    path: Path,
) -> tuple[np.dtype[Any], npt.NDArray[np.int64]]:
    """Return an `.idx` file's dtype, and the end of each document in tokens."""
    file = map_file(path)
    head = file.read(0, min(_MEGATRON_HEAD_SIZE, file.num_bytes))
    if not head.startswith(_MEGATRON_MAGIC) or len(head) < _MEGATRON_HEAD_SIZE:
        raise ShardError(
            f"{path}: not a Megatron index, it begins with {head[:9]!r}; check the path"
        )
    version, code, num_sequences, num_bounds = struct.unpack_from("<QBQQ", head, 9)
    if version != 1 or code not in _MEGATRON_DTYPES:
        raise ShardError(
            f"{path}: index version {version} with item type {code} is not supported; "
            "convert the corpus to index version 1"
        )
    # Some writers append one byte for each sequence, its mode.
    needed = _MEGATRON_HEAD_SIZE + 12 * num_sequences + 8 * num_bounds
    if file.num_bytes not in (needed, needed + num_sequences):
        raise ShardError(
            f"{path}: has {file.num_bytes} bytes, but {num_sequences} sequences and "
            f"{num_bounds} document bounds need {needed}; the file is truncated or "
            "damaged, so copy it again"
        )
    at = _MEGATRON_HEAD_SIZE
    lengths = file.array(np.dtype("<i4"), num_sequences, at)
    at += lengths.nbytes
    pointers = file.array(np.dtype("<i8"), num_sequences, at)
    at += pointers.nbytes
    bounds = file.array(np.dtype("<i8"), num_bounds, at)
    if (
        num_bounds == 0
        or bounds[0] != 0
        or bounds[-1] != num_sequences
        or (lengths < 0).any()
        or (bounds[1:] < bounds[:-1]).any()
    ):
        raise ShardError(
            f"{path}: its lengths or document bounds are out of order; the file is "
            "damaged, so copy it again"
        )
    ends = np.zeros(num_sequences + 1, np.int64)
    np.cumsum(lengths, out=ends[1:])
    dtype = np.dtype(_MEGATRON_DTYPES[code])
    if (pointers != ends[:-1] * dtype.itemsize).any():
        raise ShardError(
            f"{path}: its sequences are not adjacent in the .bin file; only files with "
            "adjacent sequences can be read in place"
        )
    return dtype, ends[bounds[1:]]


def parse_datatrove(
    path: str, num_bytes: int, index: bytes
) -> tuple[np.dtype[Any], npt.NDArray[np.int64]]:
    """Return the item type of a `.ds` file, and where each of its documents ends.

    Only the size of the file and its index tell the type.

    Args:
        path: Path of the file, for messages; the index is `path` with `.index`.
        num_bytes: Size of the file.
        index: The bytes of the index.

    Raises:
        ShardError: The index is damaged, or does not fit the size of the file.

    Example:
        >>> dtype, ends = parse_datatrove("a.ds", 10, np.array([3, 5]).tobytes())
        >>> dtype.name, ends.tolist()
        ('uint16', [3, 5])
    """
    ends = np.frombuffer(index[: len(index) // 8 * 8], "<i8")
    if len(index) % 8 or (np.diff(ends, prepend=0) < 0).any():
        raise ShardError(
            f"{path}.index: is not an index of rising 8-byte numbers ({len(index)} "
            "bytes); copy it again"
        )
    num_tokens = int(ends[-1]) if ends.size else 0
    item_size = num_bytes // num_tokens if num_tokens else _DS_SIZES[0]
    if num_bytes != num_tokens * item_size or item_size not in _DS_SIZES:
        raise ShardError(
            f"{path}: has {num_bytes} bytes, but its index declares {num_tokens} "
            "tokens of 2 or 4 bytes; the file or its index is damaged, so copy both "
            "again"
        )
    return np.dtype(f"<u{item_size}"), ends


def parse_npy_header(
    path: str, read: Callable[[int], bytes]
) -> tuple[np.dtype[Any], tuple[int, ...], bool]:
    """Return the dtype and shape of a `.npy` file, and whether it is in Fortran order.

    `read(n)` returns the next n bytes of the file, or fewer at its end; it is called
    for the header alone.

    Raises:
        ShardError: The header is damaged, or declares items that are no tokens.
        OSError: `read` failed.

    Example:
        >>> np.save("one.npy", np.arange(6, dtype=np.uint16))
        >>> with open("one.npy", "rb") as file:
        ...     dtype, shape, _ = parse_npy_header("one.npy", file.read)
        >>> dtype.name, shape
        ('uint16', (6,))
    """
    file: Any = SimpleNamespace(read=read)
    try:
        shape, is_fortran, dtype = _NPY_HEADERS[npy.read_magic(file)](file)
    except OSError:
        raise
    except Exception as error:  # numpy evaluates the header: any error is possible
        reason = str(error).partition("\n")[0]
        raise ShardError(
            f"{path}: not a .npy file ({reason:.100}); check the path"
        ) from error
    if min(shape, default=0) < 0:
        raise ShardError(f"{path}: not a .npy file (shape {shape}); check the path")
    if dtype.kind not in "biuf" or dtype.name not in NAMES:
        raise ShardError(
            f"{path}: holds items of type {dtype.str!r}; save integers, floats or bools"
        )
    return dtype, shape, is_fortran


def map_file(path: Path) -> MappedFile:
    """Open a regular file; its map is made at the first use."""
    return MappedFile(str(path), open_file(str(path), ShardError))
