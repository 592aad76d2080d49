"""Files of other formats: flat `.npy` and `.bin`, and Megatron's `.idx`."""

from __future__ import annotations

import os
import struct
from typing import TYPE_CHECKING, Any

import numpy as np

from roxxel_format._read.mapped_file import MappedFile
from roxxel_format._read.opening import open_file
from roxxel_format._spec import dtypes
from roxxel_format.errors import ShardError

if TYPE_CHECKING:
    from pathlib import Path

    import numpy.typing as npt

    from roxxel_format._spec.dtypes import Tokens

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


def read_megatron_index(
    path: Path,
) -> tuple[np.dtype[Any], npt.NDArray[np.int64]]:
    """Return the item type, and the end of each document in tokens.

    Args:
        path: The `.idx` file.

    Raises:
        ShardError: The file is not a Megatron index of version 1, or contradicts
            itself.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(34)
    if not head.startswith(_MEGATRON_MAGIC) or len(head) < 34:
        raise ShardError(
            f"{path}: not a Megatron index, it begins with {head[:9]!r}; check the path"
        )
    version, code, num_sequences, num_bounds = struct.unpack_from("<QBQQ", head, 9)
    if version != 1 or code not in _MEGATRON_DTYPES:
        raise ShardError(
            f"{path}: index version {version} with item type {code} is not supported; "
            "convert the corpus to index version 1"
        )
    # Some writers append a mode (one byte) for each sequence.
    needed = 34 + 12 * num_sequences + 8 * num_bounds
    if size not in (needed, needed + num_sequences):
        raise ShardError(
            f"{path}: has {size} bytes, but {num_sequences} sequences and {num_bounds} "
            f"document bounds need {needed}; the file is truncated or damaged, "
            "so copy it again"
        )
    data = np.memmap(path, np.uint8, "r")
    at = 34
    lengths = np.asarray(data[at : at + 4 * num_sequences]).view("<i4")
    at += 4 * num_sequences
    pointers = np.asarray(data[at : at + 8 * num_sequences]).view("<i8")
    at += 8 * num_sequences
    bounds = np.asarray(data[at : at + 8 * num_bounds]).view("<i8")
    if num_bounds == 0 or bounds[0] != 0 or bounds[-1] != num_sequences:
        raise ShardError(f"{path}: its documents do not cover its sequences")
    if (lengths < 0).any() or (bounds[1:] < bounds[:-1]).any():
        raise ShardError(f"{path}: its lengths or bounds are out of order")
    ends = np.zeros(num_sequences + 1, np.int64)
    np.cumsum(lengths, out=ends[1:])
    dtype = np.dtype(_MEGATRON_DTYPES[code])
    if (pointers != ends[:-1] * dtype.itemsize).any():
        raise ShardError(
            f"{path}: its sequences do not follow one another in the .bin file; "
            "only such files can be read in place"
        )
    return dtype, ends[bounds[1:]]


def little_endian(dtype: npt.DTypeLike) -> np.dtype[Any]:
    """Return a dtype, little-endian unless it is spelled as big-endian."""
    is_big = isinstance(dtype, str) and dtype.startswith(">")
    found = np.dtype(dtype)
    return found if is_big or found.byteorder == ">" else found.newbyteorder("<")


def map_items(path: Path, dtype: np.dtype[Any]) -> tuple[MappedFile, Tokens]:
    """Map a file of bare items.

    Raises:
        ShardError: The file does not hold whole items of a known type.
    """
    file = _map_file(path)
    if file.num_bytes % dtype.itemsize:
        raise ShardError(
            f"{path}: has {file.num_bytes} bytes, which is not a whole number of "
            f"{dtype} items; check the dtype"
        )
    return file, _array(file, dtype, file.num_bytes // dtype.itemsize, 0)


def map_npy(path: Path) -> tuple[MappedFile, Tokens]:
    """Map a `.npy` file of one flat array.

    Raises:
        ShardError: The file is not one, or is truncated.
    """
    readers = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    with path.open("rb") as stream:
        try:
            shape, _, dtype = readers[np.lib.format.read_magic(stream)](stream)
        except (ValueError, KeyError) as error:
            raise ShardError(
                f"{path}: not a .npy file ({error}); check the path"
            ) from error
        offset = stream.tell()
    if len(shape) != 1:
        raise ShardError(f"{path}: holds an array of shape {shape}; save a flat array")
    file = _map_file(path)
    if file.num_bytes < offset + shape[0] * dtype.itemsize:
        raise ShardError(
            f"{path}: has {file.num_bytes} bytes, but {shape[0]} items of {dtype} need "
            f"{offset + shape[0] * dtype.itemsize}; the file is truncated"
        )
    return file, _array(file, dtype, shape[0], offset)


def _map_file(path: Path) -> MappedFile:
    fd = open_file(str(path))
    return MappedFile(str(path), fd, os.fstat(fd).st_size)


def _array(
    file: MappedFile, dtype: np.dtype[Any], count: int, byte_offset: int
) -> Tokens:
    try:
        dtypes.stored_name(dtype)
    except TypeError as error:
        raise ShardError(f"{file.path}: {error}") from error
    return file.array(dtype, count, byte_offset)
