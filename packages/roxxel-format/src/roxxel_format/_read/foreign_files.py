"""Parse files of other programs: `.npy`, indexes of Megatron and of datatrove."""

from __future__ import annotations

import re
import struct
from typing import TYPE_CHECKING, Any

import numpy as np
from roxxel_store.files import open_file

from roxxel_format._read.files import MappedFile
from roxxel_format._spec import dtypes
from roxxel_format.errors import ShardError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import numpy.typing as npt

    from roxxel_format._spec.dtypes import Tokens

NPY_MAGIC = b"\x93NUMPY"
_NPY_LENGTHS = {
    NPY_MAGIC + b"\1\0": struct.Struct("<H"),
    NPY_MAGIC + b"\2\0": struct.Struct("<I"),
    NPY_MAGIC + b"\3\0": struct.Struct("<I"),
}
"""First bytes of each version of `.npy`, and the struct of its header length."""

# A `.npy` header is the text of a Python dict. Python 2 wrote lengths as `3L`.
_NPY_MEMBER = re.compile(
    r"""['"]descr['"]\s*:\s*['"](?P<descr>[^'"]*)['"]\s*,?"""
    r"""|['"]fortran_order['"]\s*:\s*(?P<order>True|False)\s*,?"""
    r"""|['"]shape['"]\s*:\s*\("""
    r"""(?P<shape>(?:\s*[0-9]{1,18}L?\s*,)*(?:\s*[0-9]{1,18}L?)?\s*)\)\s*,?"""
)
_NPY_ITEMS = re.compile("[<>=|](b1|[iu][1248]|f[248])")
_DIGITS = re.compile("[0-9]+")
_MAX_NPY_HEADER = 1 << 16
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
    if num_bounds == 0 or bounds[0] != 0 or bounds[-1] != num_sequences:
        raise ShardError(
            f"{path}: its documents do not cover its sequences; the file is damaged, "
            "so copy it again"
        )
    if (lengths < 0).any() or (bounds[1:] < bounds[:-1]).any():
        raise ShardError(
            f"{path}: its lengths or bounds are out of order; the file is damaged, so "
            "copy it again"
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
    ends = _parse_ends(f"{path}.index", index)
    return _ds_dtype(path, num_bytes, ends), ends


def _parse_ends(path: str, data: bytes) -> npt.NDArray[np.int64]:
    """Return where each document of a `.ds` file ends, from the bytes of its index."""
    ends = np.frombuffer(data[: len(data) // 8 * 8], "<i8")
    is_rising = bool((np.diff(ends, prepend=0) >= 0).all())
    if len(data) % 8 or not is_rising:
        raise ShardError(
            f"{path}: is not an index of rising 8-byte numbers ({len(data)} bytes); "
            "copy it again"
        )
    return ends


def _ds_dtype(path: str, num_bytes: int, ends: npt.NDArray[np.int64]) -> np.dtype[Any]:
    num_tokens = int(ends[-1]) if ends.size else 0
    item_size = num_bytes // num_tokens if num_tokens else _DS_SIZES[0]
    if num_bytes != num_tokens * item_size or item_size not in _DS_SIZES:
        raise ShardError(
            f"{path}: has {num_bytes} bytes, but its index declares {num_tokens} "
            "tokens of 2 or 4 bytes; the file or its index is damaged, so copy both "
            "again"
        )
    return np.dtype(f"<u{item_size}")


def little_endian(dtype: npt.DTypeLike) -> np.dtype[Any]:
    """Return `dtype`, little-endian unless it is explicitly big-endian."""
    is_big = isinstance(dtype, str) and dtype.startswith(">")
    try:
        found = np.dtype(dtype)
    except TypeError as error:
        raise TypeError(
            f'{dtype!r} is not a dtype; use one such as "uint16"'
        ) from error
    return found if is_big or found.byteorder == ">" else found.newbyteorder("<")


class _BadHeaderError(Exception):
    """The header of a `.npy` file is wrong; the message says how."""


def parse_npy_header(
    path: str, read: Callable[[int], bytes]
) -> tuple[np.dtype[Any], tuple[int, ...], bool]:
    """Return the dtype and shape of a `.npy` file, and whether it is in Fortran order.

    `read(n)` returns the next n bytes of the file, or fewer at its end; it is called
    for the header alone.

    Raises:
        ShardError: The header is damaged, or declares items that are no tokens.

    Example:
        >>> np.save("one.npy", np.arange(6, dtype=np.uint16))
        >>> with open("one.npy", "rb") as file:
        ...     dtype, shape, _ = parse_npy_header("one.npy", file.read)
        >>> dtype.name, shape
        ('uint16', (6,))
    """
    try:
        return _parsed_npy_header(path, read)
    except _BadHeaderError as error:
        raise ShardError(f"{path}: not a .npy file ({error}); check the path") from None


def _parsed_npy_header(
    path: str, read: Callable[[int], bytes]
) -> tuple[np.dtype[Any], tuple[int, ...], bool]:
    """Parse a header.

    numpy's parser evaluates the header as Python, so a damaged header could raise any
    error.
    """
    head = read(8)
    length = _NPY_LENGTHS.get(head)
    size = b"" if length is None else read(length.size)
    if length is None or len(size) < length.size:
        raise _BadHeaderError(f"it begins with {head!r}")
    (num_bytes,) = length.unpack(size)
    data = read(min(num_bytes, _MAX_NPY_HEADER))
    if num_bytes > len(data):
        raise _BadHeaderError(
            f"its header declares {num_bytes} bytes, and {len(data)} can be read"
        )
    text = data.decode("latin-1")
    # Each match sets one group, so every group is set in exactly one match.
    found = [match.groupdict() for match in _NPY_MEMBER.finditer(text)]
    descr, order, shape = (
        [each[name] for each in found if each[name] is not None]
        for name in ("descr", "order", "shape")
    )
    around = "".join(_NPY_MEMBER.sub("", text).split())
    if around != "{}" or not len(descr) == len(order) == len(shape) == 1:
        raise _BadHeaderError(f"its header is {text.strip()!r:.100}")
    if not _NPY_ITEMS.fullmatch(descr[0]):
        raise ShardError(
            f"{path}: holds items of type {descr[0]!r:.100}; save integers, floats or "
            "bools"
        )
    lengths = tuple(map(int, _DIGITS.findall(shape[0])))
    return little_endian(descr[0]), lengths, order[0] == "True"


def map_file(path: Path) -> MappedFile:
    """Open a regular file; its map is made at the first use."""
    return MappedFile(str(path), open_file(str(path), ShardError))


def array_of(
    file: MappedFile, dtype: np.dtype[Any], count: int, byte_offset: int
) -> Tokens:
    """Return items of a file; raise ShardError if no token has this type."""
    try:
        dtypes.stored_name(dtype)
    except TypeError as error:
        raise ShardError(f"{file.path}: {error}") from error
    return file.array(dtype, count, byte_offset)
