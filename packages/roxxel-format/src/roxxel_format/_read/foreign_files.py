"""Parse files of other formats: `.npy`, `.idx` of Megatron, `.ds`, `ROXXEL02`."""

from __future__ import annotations

import contextlib
import re
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from roxxel_store.reading import open_file

from roxxel_format._read.maps import MappedFile
from roxxel_format._spec import dtypes
from roxxel_format._spec.layout import ROXXEL02_MAGICS, is_shard_head
from roxxel_format.errors import ShardError

if TYPE_CHECKING:
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
_ROXXEL02_FOOT = struct.Struct("<qq8s8s")
_ROXXEL01_FOOT = struct.Struct("<qq8s")
_ROXXEL02_DTYPE = re.compile("[<>=|]?[biuf][1248]")


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


def parse_ends(path: str, data: bytes) -> npt.NDArray[np.int64]:
    """Return where each document of a `.ds` file ends, from the bytes of its index.

    Raises:
        ShardError: The index is damaged.
    """
    ends = np.frombuffer(data[: len(data) // 8 * 8], "<i8")
    is_rising = bool((np.diff(ends, prepend=0) >= 0).all())
    if len(data) % 8 or not is_rising:
        raise ShardError(
            f"{path}: is not an index of rising 8-byte numbers ({len(data)} bytes); "
            "copy it again"
        )
    return ends


def ds_dtype(path: str, num_bytes: int, ends: npt.NDArray[np.int64]) -> np.dtype[Any]:
    """Return the item type of a `.ds` file, which only its size and its index tell.

    Raises:
        ShardError: Size and index do not fit each other.
    """
    num_tokens = int(ends[-1]) if ends.size else 0
    item_size = num_bytes // num_tokens if num_tokens else _DS_SIZES[0]
    if num_bytes != num_tokens * item_size or item_size not in _DS_SIZES:
        raise ShardError(
            f"{path}: has {num_bytes} bytes, but its index declares {num_tokens} "
            "tokens of 2 or 4 bytes; the file or its index is damaged, so copy both "
            "again"
        )
    return np.dtype(f"<u{item_size}")


def is_roxxel02(foot: bytes, num_bytes: int) -> bool:
    """Return whether a file ends with the foot of a `ROXXEL02` or `ROXXEL01` shard.

    `foot` is at least the last 32 bytes of the file, or the whole file. The size of the
    file must be the size that the foot implies, because a text may end with the magic
    by chance.
    """
    layout = _roxxel02_layout(foot[-8:])
    if layout is None or len(foot) < layout.size:
        return False
    num_blocks, size, *_ = layout.unpack(foot[-layout.size :])
    return _roxxel02_size(num_blocks, size, layout) == num_bytes


def parse_roxxel02(
    path: str, data: memoryview, dtype: npt.DTypeLike | None = None
) -> tuple[Tokens, npt.NDArray[np.int64]]:
    """Parse a shard of `ROXXEL02` or `ROXXEL01`; return its items and its block ends.

    The items are a view of `data`. The shard holds blocks of any sizes, then the end of
    each block in bytes (int64), and then a foot. The foot holds the number of blocks,
    their bytes, the name of the item type (`ROXXEL02` only), and the magic. All numbers
    are little-endian. `data` is the whole file; `dtype` replaces the item type in the
    foot.

    Raises:
        ShardError: The file has another format, is damaged, or names no item type.
    """
    size, magic = len(data), bytes(data[-8:])
    layout = _roxxel02_layout(magic)
    if layout is None and is_shard_head(bytes(data[:8])):
        raise ShardError(
            f"{path}: is already a shard of the current format; read it with "
            "roxxel_format.Roxxel"
        )
    if layout is None or size < layout.size:
        raise ShardError(
            f"{path}: not a shard of ROXXEL02 or ROXXEL01, its {size} bytes end with "
            f"{magic!r}; the file was truncated or has another format, so copy it "
            "again or check the path"
        )
    num_blocks, num_bytes, *names, _ = layout.unpack(data[size - layout.size :])
    if _roxxel02_size(num_blocks, num_bytes, layout) != size:
        raise ShardError(
            f"{path}: has {size} bytes, but its foot declares {num_blocks} blocks of "
            f"{num_bytes} bytes together; the file is truncated or damaged, so copy it "
            "again"
        )
    ends = np.frombuffer(data, "<i8", num_blocks, num_bytes)
    last = int(ends[-1]) if num_blocks else 0
    is_ascending = bool((ends[:1] > 0).all() and (ends[1:] > ends[:-1]).all())
    if last != num_bytes or not is_ascending:
        raise ShardError(
            f"{path}: the ends of its {num_blocks} blocks do not ascend to {num_bytes}"
            "; the file is damaged, so copy it again"
        )
    if dtype is None:
        dtype = _roxxel02_dtype(path, *names)
    items = little_endian(dtype)
    dtypes.stored_name(items)
    count, rest = divmod(num_bytes, items.itemsize)
    if rest:
        raise ShardError(
            f"{path}: its blocks hold {num_bytes} bytes, which is not a whole number "
            f"of {items} items; check the dtype"
        )
    return np.frombuffer(data, items, count), ends


def ends_as_roxxel02(path: str) -> bool:
    """Return whether a file is a shard of the first Roxxel."""
    file = map_file(Path(path))
    foot = file.read(max(0, file.num_bytes - 32), file.num_bytes)
    return is_roxxel02(foot, file.num_bytes)


def is_untyped(path: str) -> bool:
    """Return whether a file is a shard of `ROXXEL01`, which records no item type."""
    file = map_file(Path(path))
    return file.read(max(0, file.num_bytes - 8), file.num_bytes) == b"ROXXEL01"


def _roxxel02_layout(magic: bytes) -> struct.Struct | None:
    if magic not in ROXXEL02_MAGICS:
        return None
    return _ROXXEL02_FOOT if magic == b"ROXXEL02" else _ROXXEL01_FOOT


def _roxxel02_size(num_blocks: int, num_bytes: int, layout: struct.Struct) -> int:
    """Return the size of a shard with these counts; -1 if a count is negative."""
    if min(num_blocks, num_bytes) < 0:
        return -1
    return num_bytes + 8 * num_blocks + layout.size


def _roxxel02_dtype(path: str, name: bytes = b"") -> str:
    text = name.rstrip(b"\0").decode("latin-1")
    if not text:
        raise ShardError(
            f"{path}: records no item type; pass the type as dtype (--dtype on the "
            'command line), "uint8" for text'
        )
    if text in dtypes.NAMES and text != dtypes.BFLOAT16:
        return text
    if _ROXXEL02_DTYPE.fullmatch(text):
        with contextlib.suppress(TypeError):
            return np.dtype(text).str
    raise ShardError(
        f"{path}: its items have the unknown type {text!r}; pass dtype to "
        "Roxxel02Tokens to read them as another type"
    )


class Identity(NamedTuple):
    """Facts about a shard that change if its file is replaced."""

    dtype: np.dtype[Any]
    num_items: int
    inode: int
    mtime_ns: int


class BlockFile:
    """An open shard of `ROXXEL02` or `ROXXEL01`; see `parse_roxxel02`."""

    def __init__(self, path: str, dtype: npt.DTypeLike | None) -> None:
        self._file = map_file(Path(path))
        view = self._file.view(0, self._file.num_bytes)
        self.items, self._ends = parse_roxxel02(path, view, dtype)

    @property
    def identity(self) -> Identity:
        """Identity of the file when it was opened."""
        status, items = self._file.status, self.items
        return Identity(items.dtype, items.size, status.st_ino, status.st_mtime_ns)

    @property
    def block_ends(self) -> npt.NDArray[np.int64]:
        """Item indices at which blocks end; without ends that lie inside an item."""
        self._file.check_size()
        ends, rest = np.divmod(self._ends, self.items.itemsize)
        return ends[rest == 0]

    def piece(self) -> BlockFile:
        """Check the size of the file, and return this object."""
        self._file.check_size()
        return self

    def __getitem__(self, items: slice[int, int, None], /) -> Tokens:
        """Return items; raise ShardError for a negative integer."""
        found = self.items[items]
        check_not_negative(self._file.path, found, items.start)
        return found


def check_not_negative(path: str, items: Tokens, start: int = 0) -> None:
    """Raise ShardError if an item is negative; `start` is the index of the first."""
    if items.dtype.kind == "i" and items.size and int(items.min()) < 0:
        at = int(np.argmax(items < 0))
        raise ShardError(
            f"{path}: holds the token {items[at]} (byte "
            f"{(start + at) * items.itemsize} on), and tokens cannot be negative; "
            "check the dtype, or copy the file again; if the old separator was not "
            f"whole tokens (such as one byte after tokens of {items.dtype}), it "
            "shifted all later tokens, so write this corpus again from its texts"
        )


def little_endian(dtype: npt.DTypeLike) -> np.dtype[Any]:
    """Return a little-endian dtype, unless `dtype` is explicitly big-endian."""
    is_big = isinstance(dtype, str) and dtype.startswith(">")
    found = np.dtype(dtype)
    return found if is_big or found.byteorder == ">" else found.newbyteorder("<")


class _BadHeaderError(Exception):
    """The header of a `.npy` file is wrong; the message says how."""


def parse_npy_header(
    file: MappedFile,
) -> tuple[np.dtype[Any], tuple[int, ...], int]:
    """Return the dtype, the shape, and the offset of the first item.

    Raises:
        ShardError: The header is damaged, or declares items that are no tokens.
    """
    try:
        return _parsed_npy_header(file)
    except _BadHeaderError as error:
        raise ShardError(
            f"{file.path}: not a .npy file ({error}); check the path"
        ) from None


def _parsed_npy_header(
    file: MappedFile,
) -> tuple[np.dtype[Any], tuple[int, ...], int]:
    """Parse a header.

    numpy's parser evaluates the header as Python, so a damaged header could raise any
    error.
    """
    head = file.read(0, min(12, file.num_bytes))
    length = _NPY_LENGTHS.get(head[:8])
    if length is None or len(head) < 12:
        raise _BadHeaderError(f"it begins with {head[:8]!r}")
    (num_bytes,) = length.unpack_from(head, 8)
    start = 8 + length.size
    if num_bytes > min(_MAX_NPY_HEADER, file.num_bytes - start):
        raise _BadHeaderError(
            f"its header declares {num_bytes} bytes, and the file has {file.num_bytes}"
        )
    text = file.read(start, start + num_bytes).decode("latin-1")
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
            f"{file.path}: holds items of type {descr[0]!r:.100}; save integers, "
            "floats or bools"
        )
    lengths = tuple(map(int, _DIGITS.findall(shape[0])))
    return little_endian(descr[0]), lengths, start + num_bytes


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
