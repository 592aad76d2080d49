"""Reading from an opened corpus: windows, ranges and documents, across shards."""

from __future__ import annotations

from bisect import bisect_right
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from roxxel_format._read.addresses import AddressRange, reserve
from roxxel_format._read.maps import MapCache
from roxxel_format._read.read_ahead import calls
from roxxel_format._read.residency import are_resident, is_told
from roxxel_format._read.shard import as_table
from roxxel_format._spec import dtypes
from roxxel_format.errors import ShardError

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from roxxel_format._read.index import CorpusIndex
    from roxxel_format._read.shard_map import ShardMap
    from roxxel_format._read.window_reader import Empty, Read
    from roxxel_format._spec.dtypes import Tokens


# Of windows of so many tokens one casting copy a row is quicker than one gather and one
# cast of all rows, unless they are few: then what is gathered stays in the cache.
_LONG_WINDOW = 1 << 14
_FEW_TOKENS = 1 << 16

# So many of the windows that will be needed tell whether the corpus is in memory, or a
# few more.
_SAMPLED_WINDOWS = 8


class OpenCorpus:
    """An opened corpus: the index and the maps. Ranges given to it are valid.

    Args:
        index: The shards.
        checked: Whether reads compare blocks with their checksums.
        max_maps: Maps to keep; None for a share of what the process may have.
        first: The map of the first shard, where it was made already.
    """

    def __init__(
        self,
        index: CorpusIndex,
        checked: bool,
        max_maps: int | None,
        first: ShardMap | None,
    ) -> None:
        self.index = index
        self.checked = checked
        self.is_closed = False
        self.maps = MapCache(index.shards, max_maps, checked=checked, first=first)
        # Where many shards are mapped side by side; None where they cannot be.
        alone = checked or len(index.shards) == 1
        self.addresses: AddressRange | None = None if alone else reserve(index)
        self._mapped: dict[int, Tokens] = {}
        self._told: dict[int, bool] = {}
        # What a token must not exceed, by the dtype that is asked for; None: nothing.
        self._limits: dict[np.dtype[Any], tuple[int, int] | None] = {}

    def close(self) -> None:
        """Let go of the maps."""
        self.is_closed = True
        self.maps.clear()

    @cached_property
    def fingerprint(self) -> str:
        return self.index.fingerprint()

    @cached_property
    def tokenizer(self) -> str | None:
        found = {
            _tokenizer_in(self.metadata(number)): shard.path
            for number, shard in enumerate(self.index.shards)
        }
        if len(found) > 1:
            (one, first), (other, second), *_ = found.items()
            raise ShardError(
                f"{second}: written with tokenizer {other}, but {first} with {one}; "
                "open them as two corpora"
            )
        return next(iter(found))

    def metadata(self, number: int) -> dict[str, Any]:
        """Return the metadata of a shard, of the file that is open if one is."""
        return self.index.shards[number].read_metadata(self.maps.kept(number))

    def check_readable_as(self, wanted: np.dtype[Any]) -> None:
        """Check that the tokens can be read as a dtype, as far as the feet tell."""
        if wanted in self._limits:
            return
        name = self.index.shards[0].layout.head.dtype_name
        limits = None
        if not dtypes.holds_all(name, wanted):
            values = self.index.value_range
            dtypes.check_readable_as(name, values, wanted)
            limits = None if values is None else dtypes.exact_range(wanted)
        self._limits[wanted] = limits

    def read(
        self,
        starts: npt.NDArray[np.int64],
        length: int,
        dtype: np.dtype[Any],
        empty: Empty | None = None,
    ) -> Tokens:
        """Return windows as a dtype that was checked, in memory that `empty` makes."""
        gathered = self.gather(starts, length, dtype)
        if gathered is not None:
            return _as_batch(gathered, dtype, empty)
        rows = (empty or np.empty)((starts.size, length), dtype)
        self.copy_rows(starts, length, rows)
        return rows

    def reader(self, length: int, dtype: np.dtype[Any], empty: Empty | None) -> Read:
        """Return `read` for one length and dtype, to be called with starts.

        Of the windows of one shard nothing is looked up that stays the same.
        """
        is_alone = not self.checked and len(self.index.shards) == 1
        is_usual = 0 < length <= self.index.num_tokens and self._limits[dtype] is None
        if not (is_alone and is_usual):
            return lambda starts: self.read(starts, length, dtype, empty)
        maps, kept = self.maps, self.maps.kept
        # Into memory of `empty` a gather copies twice, out of the map and into it; a
        # row that is not cast is copied once.
        is_copied_twice = empty is not None and dtype == self.index.dtype
        few_tokens = 0 if is_copied_twice else _FEW_TOKENS

        def gathered(starts: npt.NDArray[np.int64]) -> Tokens:
            rows = (kept(0) or maps[0]).gather(starts, length)
            return _as_batch(rows, dtype, empty)

        def long(starts: npt.NDArray[np.int64]) -> Tokens:
            if starts.size * length <= few_tokens:
                return gathered(starts)
            out = (empty or np.empty)((starts.size, length), dtype)
            tokens = maps[0].tokens
            for row, start in enumerate(starts.tolist()):
                out[row] = tokens[start : start + length]
            return out

        return gathered if length < _LONG_WINDOW else long

    def gather(
        self, starts: npt.NDArray[np.int64], length: int, dtype: np.dtype[Any]
    ) -> Tokens | None:
        """Return windows by one call of numpy; None where a loop is the better way.

        They are as stored, and checked to fit `dtype`.
        """
        is_empty = not (starts.size and length)
        if self.checked or is_empty or _is_long(starts.size, length):
            return None
        if len(self.index.shards) == 1:
            rows = self.maps[0].gather(starts, length)
        elif self.addresses is None:
            return None
        else:
            rows = self.addresses.gather(starts, length)
        if rows is not None and self._limits[dtype] is not None:
            self._check_values(rows, starts, dtype)
        return rows

    def copy_rows(
        self, starts: npt.NDArray[np.int64], length: int, out: Tokens
    ) -> None:
        """Fill each row with its window."""
        if not length:
            return
        bounds, is_narrow = self.index.bounds, self._limits[out.dtype] is not None
        for row, start in enumerate(starts.tolist()):
            shard = bisect_right(bounds, start) - 1
            first, stop = bounds[shard], start + length
            if stop <= bounds[shard + 1]:
                window = self._shard_tokens(shard, start - first, stop - first)
            elif is_narrow:
                window = np.concatenate(self._parts(start, shard, length))
            else:
                parts = self._parts(start, shard, length)
                np.concatenate(parts, out=out[row], casting="unsafe")
                continue
            if is_narrow:
                self._check_values(window[None], starts[row : row + 1], out.dtype)
            out[row] = window

    def token_range(self, start: int, stop: int) -> Tokens:
        if start == stop:
            return np.empty(0, self.index.dtype)
        shard = self.index.shard_of(start)
        if self.addresses is not None:
            for touched in range(shard, self.index.shard_of(stop - 1) + 1):
                self.addresses.check_size(touched)
        if stop <= self.index.bounds[shard + 1]:
            first = self.index.bounds[shard]
            return self._shard_tokens(shard, start - first, stop - first)
        return np.concatenate(self._parts(start, shard, stop - start))

    def document_range(self, document: int) -> tuple[int, int, int]:
        index = self.index
        shard, local = index.shard_of_document(document)
        first = index.bounds[shard]
        ends = self.maps[shard].ends(max(0, local - 1), local + 1)
        start = first + (int(ends[0]) if local else 0)
        stop = first + int(ends[-1])
        while self._goes_on(shard, local):
            shard, local = shard + 1, 0
            (end,) = self.maps[shard].ends(0, 1).tolist()
            stop = index.bounds[shard] + end
        layout = index.shards[shard].layout
        cut_off = layout.last_continues and local == layout.num_documents - 1
        return start, stop, 0 if cut_off else layout.head.separator_length

    def document_spans(self, start: int, stop: int) -> npt.NDArray[np.int64]:
        index = self.index
        parts: list[npt.NDArray[np.int64]] = []
        at = start
        while at < stop:
            shard = index.shard_of(at)
            first, after = index.bounds[shard], index.bounds[shard + 1]
            until = min(stop, after)
            low, ends = self.maps[shard].ends_around(at - first, until - first)
            rows = np.empty((ends.size, 3), np.int64)
            number = index.first_own[shard] - index.joined[shard] + low
            rows[:, 0] = np.arange(number, number + ends.size)
            rows[:, 2] = ends
            rows[:, 2] += first
            rows[-1, 2] = until
            rows[1:, 1] = rows[:-1, 2]
            rows[0, 1] = at
            rows = rows[rows[:, 1] < rows[:, 2]]
            if parts and index.joined[shard] and rows[0, 0] == parts[-1][-1, 0]:
                parts[-1][-1, 2] = rows[0, 2]
                rows = rows[1:]
            if len(rows):
                parts.append(rows)
            at = until
        return np.concatenate(parts) if parts else np.empty((0, 3), np.int64)

    def will_need(self, starts: npt.NDArray[np.int64], length: int) -> bool:
        """Ask for windows, unless they are in memory; return whether it asked."""
        # To ask for pages that are there costs more than to read them.
        if not (starts.size and length) or self._is_sample_resident(starts, length):
            return False
        num_tokens, item_size = self.index.num_tokens, self.index.dtype.itemsize
        seen: set[int] = set()
        for call in calls(starts, length, item_size, num_tokens):
            for shard, start, stop in self._places(*call):
                if self.addresses is None:
                    self.maps[shard].will_need(start, stop)
                    continue
                if shard not in seen:
                    seen.add(shard)
                    self.addresses.check_size(shard)
                self.addresses.will_need(shard, start, stop)
        return True

    def read_ahead(self, starts: npt.NDArray[np.int64], length: int) -> bool:
        """Do as `will_need`, for a caller who did not ask for it.

        So only where the system tells what is in memory: to ask for windows that are
        there takes longer than to read them.
        """
        is_empty = not (starts.size and length)
        if is_empty or not self._is_told(self.index.shard_of(int(starts[0]))):
            return False
        return self.will_need(starts, length)

    def _is_sample_resident(self, starts: npt.NDArray[np.int64], length: int) -> bool:
        """Return whether some of the windows are known to be in memory."""
        stride = max(1, len(starts) // _SAMPLED_WINDOWS)
        sample: dict[int, list[tuple[int, int]]] = {}
        for first in starts[::stride].tolist():
            for shard, start, stop in self._places(first, first + length):
                sample.setdefault(shard, []).append((start, stop))
        return all(self._are_resident(*part) for part in sample.items())

    def _are_resident(self, shard: int, spans: list[tuple[int, int]]) -> bool:
        """Return whether stretches of a shard are known to be in memory.

        Raises:
            ShardError: Its file was cut short after it was mapped.
        """
        addresses = self.addresses
        tokens = addresses.tokens(shard) if addresses else self.maps[shard].tokens
        return self._is_told(shard) and are_resident(tokens, spans)

    def _is_told(self, shard: int) -> bool:
        """Return whether the system tells which pages of a shard are in memory."""
        told = self._told.get(shard)
        if told is None:
            told = self._told[shard] = is_told(self.index.shards[shard].path)
        return told

    def _places(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """Yield the shard, start and stop in it, of every part of a range."""
        bounds = self.index.bounds
        shard = bisect_right(bounds, start) - 1
        while start < stop:
            first, until = bounds[shard], min(stop, bounds[shard + 1])
            yield shard, start - first, until - first
            start, shard = until, shard + 1

    def _check_values(
        self, rows: Tokens, starts: npt.NDArray[np.int64], dtype: np.dtype[Any]
    ) -> None:
        """Check that tokens fit a dtype that holds only what the feet declare.

        Raises:
            ShardError: One does not: its foot is wrong, or the token.
        """
        limits = self._limits[dtype]
        assert limits is not None  # noqa: S101 - asked only where there are some
        low, high = limits
        # Unsigned tokens, most often as int32: one look, at the greatest, is enough.
        is_low = rows.dtype.kind != "u" and int(rows.min()) < low
        if not is_low and int(rows.max()) <= high:
            return
        row, column = np.argwhere((rows < low) | (rows > high))[0].tolist()
        shard = self.index.shards[self.index.shard_of(int(starts[row]) + column)]
        raise ShardError(
            f"{shard.path}: holds token {rows[row, column]}, but its foot declares "
            f"tokens from {shard.layout.min_value} to {shard.layout.max_value}; "
            "the bytes are damaged, so fetch or write this shard again"
        )

    def _goes_on(self, shard: int, local: int) -> bool:
        shards, joined = self.index.shards, self.index.joined
        last = local == shards[shard].layout.num_documents - 1
        return last and shard + 1 < len(shards) and joined[shard + 1]

    def _shard_tokens(self, shard: int, start: int, stop: int) -> Tokens:
        if self.checked:
            return self.maps[shard].read_checked(start, stop)
        return self._tokens_of(shard)[start:stop]

    def _tokens_of(self, shard: int) -> Tokens:
        tokens = self._mapped.get(shard)
        if tokens is None:
            addresses = self.addresses
            if addresses is None:
                return self.maps[shard].tokens
            tokens = self._mapped[shard] = addresses.tokens(shard)
        return tokens

    def _parts(self, start: int, shard: int, length: int) -> list[Tokens]:
        """Return the pieces of a range, of which `shard` holds the first token."""
        bounds = self.index.bounds
        parts: list[Tokens] = []
        begin = start - bounds[shard]
        while length:
            stop = min(begin + length, bounds[shard + 1] - bounds[shard])
            parts.append(self._shard_tokens(shard, begin, stop))
            length -= stop - begin
            shard, begin = shard + 1, 0
        return parts


def _as_batch(gathered: Tokens, dtype: np.dtype[Any], empty: Empty | None) -> Tokens:
    """Return windows as a dtype, in memory that `empty` makes."""
    if empty is None:
        return gathered.astype(dtype, copy=False)
    # Made after what it is filled with, it lies where memory was used last.
    out = empty(gathered.shape, dtype)
    out[...] = gathered
    return out


def _is_long(num_windows: int, length: int) -> bool:
    """Return whether windows are quicker copied one by one than gathered."""
    return length >= _LONG_WINDOW and num_windows * length > _FEW_TOKENS


def _tokenizer_in(metadata: dict[str, Any]) -> str | None:
    recorded = as_table(metadata.get("tokenizer"))
    name, digest = recorded.get("name"), recorded.get("hash")
    if not isinstance(name, str):
        return None
    return name if digest is None else f"{name}@{digest}"
