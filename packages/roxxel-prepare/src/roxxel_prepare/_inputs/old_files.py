"""The shards of the first Roxxel, an older library of this name.

They end with `ROXXEL02` or `ROXXEL01`, and hold items in blocks of any sizes. They do
not record where documents end, and a document may be in several shards. So consecutive
shards are read as one line of items, and a separator cuts it into documents. Only a
preparation reads them: the result is a corpus of the present format.
"""

from __future__ import annotations

import contextlib
import re
import struct
from bisect import bisect_right
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from roxxel_format import ShardError
from roxxel_format.writing import is_shard_head
from roxxel_store.files import check_no_pointer

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

_MAGICS = b"ROXXEL02", b"ROXXEL01"
_ROXXEL02_FOOT = struct.Struct("<qq8s8s")
_ROXXEL01_FOOT = struct.Struct("<qq8s")
_DTYPE = re.compile("bool|u?int(8|16|32|64)|float(16|32|64)|[<>=|]?[biuf][1248]")
_SEARCHED_ITEMS = 1 << 22


class OldLine:
    """The items of consecutive shards, in order.

    Args:
        paths: The shards.
        dtype: Item type. Default: the type that the shards record.

    Raises:
        ShardError: A file is damaged or has another format, or the shards hold items of
            different types.
    """

    def __init__(self, paths: Sequence[str], dtype: str | None) -> None:
        self._paths = paths
        self._ends: list[npt.NDArray[np.int64]] = []
        self.dtype: np.dtype[Any] = np.dtype("u1")
        sizes: list[int] = []
        for number, path in enumerate(paths):
            items, ends = parse_roxxel02(path, Path(path).read_bytes(), dtype)
            if number and items.dtype != self.dtype:
                raise ShardError(
                    f"{path}: holds {items.dtype}, but {paths[0]} holds {self.dtype}; "
                    "convert them into two corpora, or pass --dtype"
                )
            self.dtype = items.dtype
            sizes.append(items.size)
            whole, rest = np.divmod(ends, items.dtype.itemsize)
            self._ends.append(whole[rest == 0])
        self.bounds = list(accumulate(sizes, initial=0))

    def __len__(self) -> int:
        return self.bounds[-1]

    def block_ends(self, number: int) -> npt.NDArray[np.int64]:
        """Return the items of a shard at which blocks end, if they end a whole item."""
        return self._ends[number]

    def range(self, start: int, stop: int) -> npt.NDArray[Any]:
        """Return items; raise ShardError for a negative integer."""
        parts: list[npt.NDArray[Any]] = []
        while start < stop:
            number = bisect_right(self.bounds, start) - 1
            first, last = self.bounds[number], min(stop, self.bounds[number + 1])
            size, path = self.dtype.itemsize, self._paths[number]
            offset = (start - first) * size
            part = np.fromfile(path, self.dtype, last - start, offset=offset)
            if part.size != last - start:
                raise ShardError(
                    f"{path}: was truncated while it was read; copy it again"
                )
            check_not_negative(path, part, start - first)
            parts.append(part)
            start = last
        return np.concatenate(parts) if parts else np.empty(0, self.dtype)

    def documents(self, separator: int | bytes) -> Iterator[npt.NDArray[Any]]:
        """Yield the documents, without the separators at their ends.

        The writer padded blocks with separators, and may have cut off the last one. So
        a document ends after one or more separators in a row.

        Raises:
            ValueError: The separator is no value of the items, or not whole items.
        """
        begins, stops = _separated(self, items_of(separator, self.dtype))
        start = 0
        for begin, stop in zip(begins.tolist(), stops.tolist(), strict=True):
            yield self.range(start, begin)
            start = stop


def items_of(separator: int | bytes, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Return a separator as items; raise ValueError if it is no value or no items."""
    if isinstance(separator, bytes):
        if not separator or len(separator) % dtype.itemsize:
            raise ValueError(
                f"separator has {len(separator)} bytes, but an item of {dtype} has "
                f"{dtype.itemsize}; such a separator misaligned all later items, so "
                "write this corpus again from its texts"
            )
        return np.frombuffer(separator, dtype)
    with contextlib.suppress(OverflowError, TypeError, ValueError):
        items = np.array([separator]).astype(dtype)
        if items[0] == separator:
            return items
    raise ValueError(
        f"separator={separator!r} is not a value of {dtype}; pass a token or its bytes"
    )


def is_roxxel02(foot: bytes, num_bytes: int) -> bool:
    """Return whether a file ends with the foot of a `ROXXEL02` or `ROXXEL01` shard.

    `foot` is at least the last 32 bytes of the file, or the whole file. The size of the
    file must be the size that the foot implies, because a text may end with the magic
    by chance.
    """
    layout = _layout(foot[-8:])
    if layout is None or len(foot) < layout.size:
        return False
    num_blocks, size, *_ = layout.unpack(foot[-layout.size :])
    return _size(num_blocks, size, layout) == num_bytes


def parse_roxxel02(
    path: str, data: bytes, dtype: str | None = None
) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
    """Parse a shard of `ROXXEL02` or `ROXXEL01`; return its items and its block ends.

    The items are a view of `data`. The shard holds blocks of any sizes, then the end of
    each block in bytes (int64), and then a foot. The foot holds the number of blocks,
    their bytes, the name of the item type (`ROXXEL02` only), and the magic. All numbers
    are little-endian. `data` is the whole file; `dtype` replaces the item type in the
    foot.

    Raises:
        ShardError: The file has another format, is damaged, or names no item type.
    """
    size, magic = len(data), data[-8:]
    check_no_pointer(path, data, ShardError)
    layout = _layout(magic)
    if layout is None and is_shard_head(data[:8]):
        raise ShardError(
            f"{path}: is already a shard of a corpus; quote the corpus's pattern, so "
            "that the shell does not expand it, or read the shard with "
            "roxxel_format.Roxxel"
        )
    if layout is None or size < layout.size:
        raise ShardError(
            f"{path}: not a shard of ROXXEL02 or ROXXEL01, its {size} bytes end with "
            f"{magic!r}; the file was truncated or has another format, so copy it "
            "again or check the path"
        )
    num_blocks, num_bytes, *names, _ = layout.unpack(data[size - layout.size :])
    if _size(num_blocks, num_bytes, layout) != size:
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
        dtype = _recorded_dtype(path, *names)
    items = np.dtype(dtype)
    items = items if dtype.startswith(">") else items.newbyteorder("<")
    count, rest = divmod(num_bytes, items.itemsize)
    if rest:
        raise ShardError(
            f"{path}: its blocks hold {num_bytes} bytes, which is not a whole number "
            f"of {items} items; check the dtype"
        )
    return np.frombuffer(data, items, count), ends


def is_untyped(path: str) -> bool:
    """Return whether a file is a shard of `ROXXEL01`, which records no item type."""
    with Path(path).open("rb") as file:
        file.seek(max(0, file.seek(0, 2) - 8))
        return file.read() == b"ROXXEL01"


def _layout(magic: bytes) -> struct.Struct | None:
    if magic not in _MAGICS:
        return None
    return _ROXXEL02_FOOT if magic == b"ROXXEL02" else _ROXXEL01_FOOT


def _size(num_blocks: int, num_bytes: int, layout: struct.Struct) -> int:
    """Return the size of a shard with these counts; -1 if a count is negative."""
    if min(num_blocks, num_bytes) < 0:
        return -1
    return num_bytes + 8 * num_blocks + layout.size


def _recorded_dtype(path: str, name: bytes = b"") -> str:
    text = name.rstrip(b"\0").decode("latin-1")
    if not text:
        raise ShardError(
            f"{path}: records no item type; pass the type as dtype (--dtype on the "
            'command line), "uint8" for text'
        )
    if _DTYPE.fullmatch(text):
        with contextlib.suppress(TypeError):
            return np.dtype(text).str
    raise ShardError(
        f"{path}: its items have the unknown type {text!r}; pass --dtype to "
        "read them as another type"
    )


def check_not_negative(path: str, items: npt.NDArray[Any], start: int = 0) -> None:
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


def _separated(
    line: OldLine, end: npt.NDArray[Any]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return where the separators after each document begin and stop."""
    size, stop = end.size, len(line)
    found_begins: list[int] = []  # Where separators, or runs of them, begin.
    found_stops: list[int] = []
    for start in range(0, stop, _SEARCHED_ITEMS):
        items = line.range(start, min(start + _SEARCHED_ITEMS + size - 1, stop))
        is_found = np.ones(max(0, items.size - size + 1), np.bool_)
        for at, item in enumerate(end):
            is_found &= items[at : at + is_found.size] == item
        for begin in (np.flatnonzero(is_found) + start).tolist():
            if found_stops and begin < found_stops[-1]:  # Overlaps the last one.
                continue
            if found_stops and begin == found_stops[-1]:
                found_stops[-1] += size
            else:
                found_begins.append(begin)
                found_stops.append(begin + size)
    begins, stops = np.array(found_begins, np.int64), np.array(found_stops, np.int64)
    begins, stops = _with_padding(line, end, begins, stops)
    if (stops[-1] if stops.size else 0) < stop:  # A document without a separator.
        begins, stops = np.append(begins, stop), np.append(stops, stop)
    return begins, stops


def _with_padding(
    line: OldLine,
    end: npt.NDArray[Any],
    begins: npt.NDArray[np.int64],
    stops: npt.NDArray[np.int64],
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Add each incomplete separator at the end of a block to the run before it.

    The first Roxxel padded the last block of each write with separators, of which the
    last may be incomplete. The next write begins with a new block, in the same shard or
    another. But the last items of a block may also begin a document and only look like
    a separator. So within a shard, they count as padding only after two separators:
    that of the document, and the first of the padding.
    """
    if end.size == 1 or not stops.size:
        return begins, stops
    for number, (first, last) in enumerate(pairwise(line.bounds)):
        low, high = np.searchsorted(stops, (first, last)).tolist()
        if low == high:
            continue
        ends = line.block_ends(number) + first
        next_ends = ends[np.searchsorted(ends, stops[low:high], "right")]
        is_near = next_ends - stops[low:high] < end.size
        for row in (np.flatnonzero(is_near) + low).tolist():
            start, stop = int(stops[row]), int(next_ends[row - low])
            if row + 1 < stops.size and begins[row + 1] < stop:
                continue
            if stop < last and start - begins[row] < 2 * end.size:
                continue
            if np.array_equal(line.range(start, stop), end[: stop - start]):
                stops[row] = stop
    # Join runs that now touch: an empty document after the padding is a run of
    # separators that begins where the padding ends.
    is_apart = begins[1:] != stops[:-1]
    return begins[np.append(1, is_apart) > 0], stops[np.append(is_apart, 1) > 0]
