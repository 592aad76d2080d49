"""Read the shards of the first Roxxel, an older library of this name, to convert them.

They end with `ROXXEL02` or `ROXXEL01`, and hold items in blocks of any sizes. They do
not record where documents end, and a document may be in several shards. So consecutive
shards are read as one line of items, and the separator divides this line into
documents.
"""

from __future__ import annotations

import contextlib
import os
import re
import struct
from bisect import bisect_right
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from roxxel_format import ShardError
from roxxel_store.files import matches_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

__all__ = ["read_documents"]

# The number of blocks, their bytes, and the name of the item type (`ROXXEL02` only).
_FEET = {b"ROXXEL02": struct.Struct("<qq8s8s"), b"ROXXEL01": struct.Struct("<qq8s")}
_DTYPE = re.compile("bool|u?int(8|16|32|64)|float(16|32|64)|[<>=|]?[biuf][1248]")
_SEARCHED_ITEMS = 1 << 22


def read_documents(
    filepath: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    separator: int | bytes | None = None,
    dtype: str | None = None,
) -> Iterator[npt.NDArray[Any]]:
    r"""Yield the documents of shards of the first Roxxel, to pass to `Roxxel.write`.

    The old writer padded blocks with separators, the last of them perhaps incomplete.
    So a document ends after one or more separators in a row.

    Args:
        filepath: A shard, a pattern such as `old_*.rox`, or a list of shards.
        separator: The end of each document in the old write: a token, or its bytes.
            Default: each shard is one document, with its padding.
        dtype: Item type of shards that record none, those of `ROXXEL01`.

    Raises:
        FileNotFoundError: There is no such file.
        ShardError: A file is damaged or has another format, the shards hold items of
            different types, or an item is negative.
        ValueError: The item type cannot hold the separator, or its bytes are not whole
            items.

    Example:
        >>> blocks = np.array([5, 6, 0, 7, 8, 9, 0, 0], np.uint16).tobytes()
        >>> counts = np.array([len(blocks), 1, len(blocks)]).tobytes()
        >>> data = blocks + counts + b"uint16\0\0ROXXEL02"
        >>> np.frombuffer(data, np.uint8).tofile("old_0.rox")
        >>> [each.tolist() for each in read_documents("old_*.rox", separator=0)]
        [[5, 6], [7, 8, 9]]
    """
    if isinstance(filepath, (str, os.PathLike)):
        name = os.fspath(filepath)
        paths = [name] if Path(name).exists() else matches_of(name)[1]
        if not paths:
            raise FileNotFoundError(f"{name}: no such file; check the path")
    else:
        paths = [os.fspath(each) for each in filepath]
    line = _Line(paths, dtype)
    if separator is None:
        yield from (line.range(*bounds) for bounds in pairwise(line.bounds))
        return
    begins, stops = _separated(line, _items_of(separator, line.dtype))
    start = 0
    for begin, stop in zip(begins.tolist(), stops.tolist(), strict=True):
        yield line.range(start, begin)
        start = stop


class _Line:
    """The items of consecutive shards, in order."""

    def __init__(self, paths: Sequence[str], dtype: str | None) -> None:
        self._paths = paths
        self._ends: list[npt.NDArray[np.int64]] = []
        self.dtype: np.dtype[Any] = np.dtype("u1")
        sizes: list[int] = []
        for number, path in enumerate(paths):
            items, ends = _parsed(path, dtype)
            if number and items != self.dtype:
                raise ShardError(
                    f"{path}: holds {items}, but {paths[0]} holds {self.dtype}; "
                    "convert them into two corpora"
                )
            self.dtype = items
            whole, rest = np.divmod(ends, items.itemsize)
            sizes.append(int(whole[-1]) if whole.size else 0)
            self._ends.append(whole[rest == 0])
        self.bounds = list(accumulate(sizes, initial=0))

    def __len__(self) -> int:
        return self.bounds[-1]

    def block_ends(self, number: int) -> npt.NDArray[np.int64]:
        """Return the ends of blocks in items, without those inside an item."""
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
            if part.dtype.kind == "i" and (part < 0).any():
                at = int(np.argmax(part < 0))
                raise ShardError(
                    f"{path}: holds the token {part[at]} (byte {offset + at * size} "
                    "on), and tokens cannot be negative; if the old separator was not "
                    f"whole tokens (such as one byte after tokens of {part.dtype}), "
                    "it shifted all later tokens, so write this corpus again from "
                    "its texts"
                )
            parts.append(part)
            start = last
        return np.concatenate(parts) if parts else np.empty(0, self.dtype)


def _items_of(separator: int | bytes, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Return a separator as items; raise ValueError if the item type cannot hold it."""
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


def _parsed(
    path: str, dtype: str | None
) -> tuple[np.dtype[Any], npt.NDArray[np.int64]]:
    """Return the item type of a shard, and the end of each block in bytes.

    The shard holds its blocks, then their ends (int64), and then a foot. All numbers
    are little-endian.
    """
    with Path(path).open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 32))
        foot = file.read()
        layout = _FEET.get(foot[-8:])
        if layout is None or size < layout.size:
            raise ShardError(
                f"{path}: not a shard of ROXXEL02 or ROXXEL01, its {size} bytes end "
                f"with {foot[-8:]!r}; copy it again or check the path"
            )
        num_blocks, num_bytes, *names, _ = layout.unpack(foot[-layout.size :])
        sizes = num_bytes, 8 * num_blocks, layout.size
        ends = np.empty(0, "<i8")
        if min(sizes) >= 0 and sum(sizes) == size:
            file.seek(num_bytes)
            ends = np.frombuffer(file.read(8 * num_blocks), "<i8")
    bounds = [0, *ends.tolist()]
    if sum(sizes) != size or bounds[-1] != num_bytes or (np.diff(bounds) <= 0).any():
        raise ShardError(
            f"{path}: has {size} bytes, but not the {num_blocks} blocks of {num_bytes} "
            "bytes that its foot declares; the file is damaged, so copy it again"
        )
    items = _recorded_dtype(path, names[0]) if names else dtype
    if items is None:
        raise ShardError(f'{path}: records no item type; pass dtype, "uint8" for text')
    found = np.dtype(items)
    found = found if items.startswith(">") else found.newbyteorder("<")
    if num_bytes % found.itemsize:
        raise ShardError(
            f"{path}: its blocks hold {num_bytes} bytes, which is not a whole number "
            f"of {found} items; copy it again"
        )
    return found, ends


def _recorded_dtype(path: str, name: bytes) -> str:
    text = name.rstrip(b"\0").decode("latin-1")
    if _DTYPE.fullmatch(text):
        with contextlib.suppress(TypeError):
            return np.dtype(text).str
    raise ShardError(f"{path}: its items have the unknown type {text!r}; copy it again")


def _separated(
    line: _Line, end: npt.NDArray[Any]
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
    line: _Line,
    end: npt.NDArray[Any],
    begins: npt.NDArray[np.int64],
    stops: npt.NDArray[np.int64],
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Add each incomplete separator at the end of a block to the run before it.

    The first Roxxel padded the last block of each write with separators, of which the
    last may be incomplete. The next write begins with a new block, in the same shard or
    another. But the last items of a block may also begin a document, and only look like
    a separator. So inside a shard, they count as padding only after two separators: the
    document's, and the first of the padding.
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
