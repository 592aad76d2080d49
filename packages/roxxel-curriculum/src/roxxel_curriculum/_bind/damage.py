"""Reads the rows of a step, with 0 for the tokens of damaged blocks.

A run masks a damaged block from some step on: the bytes of the block are not read, so
no batch depends on them.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

import numpy as np

from roxxel_curriculum._bind.fields import read_rows
from roxxel_curriculum._bind.sources import damaged_tokens
from roxxel_curriculum._plan.damaged import DamagedBlock

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import numpy.typing as npt
    from roxxel_format import ChecksumError, TokenReader

    from roxxel_curriculum._bind.samples import Windows

    _Integers = npt.NDArray[np.int64]


class Damage:
    """The masked blocks of a run, by the index of their source."""

    def __init__(
        self, blocks: Sequence[DamagedBlock], source_names: Sequence[str]
    ) -> None:
        self._blocks: dict[int, _Integers] = {}
        for index, name in enumerate(source_names):
            rows = [(b.start, b.stop, b.step) for b in blocks if b.source == name]
            if rows:
                self._blocks[index] = np.array(sorted(rows), np.int64)

    def rows(
        self, step: int, source: _Integers, starts: _Integers, length: int
    ) -> _Integers:
        """Return the rows that hold masked tokens.

        `source` and `starts` hold the index of each row's source and the first token of
        its window.
        """
        is_touched = np.zeros(source.size, np.bool_)
        for index, (begins, stops, steps) in self._columns():
            rows = np.flatnonzero(source == index)
            first = starts[rows, None]
            touches = (first < stops) & (begins < first + length) & (steps <= step)
            is_touched[rows] = touches.any(axis=1)
        return np.flatnonzero(is_touched)

    def read_rows(
        self,
        step: int,
        readers: Mapping[int, TokenReader],
        source: _Integers,
        starts: _Integers,
        length: int,
        dtype: np.dtype[Any],
    ) -> npt.NDArray[Any]:
        """Return the windows of some rows; masked tokens are 0 and are not read."""
        touched = self.rows(step, source, starts, length)
        if not touched.size:
            return read_rows(readers, source, starts, length, dtype)
        tokens = np.zeros((source.size, length), dtype)
        whole = np.delete(np.arange(source.size), touched)
        if whole.size:
            tokens[whole] = read_rows(
                readers, source[whole], starts[whole], length, dtype
            )
        for row in touched:
            index, start = int(source[row]), int(starts[row])
            at = 0
            for stop, after in [*self._spans(step, index, start, length), (length, 0)]:
                if at < stop:
                    [part] = readers[index].read([start + at], stop - at, dtype)
                    tokens[row, at:stop] = part
                at = after
        return tokens

    def mask(
        self,
        mask: npt.NDArray[np.int32],
        step: int,
        source: _Integers,
        starts: _Integers,
    ) -> None:
        """Set `mask`, the `loss_mask` of some rows, to 0 on tokens of masked blocks."""
        length = mask.shape[1]
        for row in self.rows(step, source, starts, length):
            for span in self._spans(step, int(source[row]), int(starts[row]), length):
                mask[row, slice(*span)] = 0

    def _columns(self) -> Iterator[tuple[int, _Integers]]:
        """Yield the index of each source, and an array with a column for each block.

        A column holds the first token of the block, one past its last token, and the
        first step that masks the block.
        """
        for index, blocks in self._blocks.items():
            yield index, blocks.T

    def _spans(
        self, step: int, index: int, start: int, length: int
    ) -> Iterator[tuple[int, int]]:
        """Yield the masked columns `[start, stop)` of a window, in order."""
        reached = 0
        for begin, stop, since in self._blocks[index].tolist():
            first, last = max(begin - start, reached), min(stop - start, length)
            if since <= step and first < last:
                yield first, last
                reached = last


def find_damage(
    error: ChecksumError,
    sources: Sequence[tuple[str, TokenReader]],
    windows: Mapping[int, Windows],
) -> list[DamagedBlock]:
    """Return the block that a checksum error reports, for each source that reads it.

    The first step of the block is the first step in `windows` that reads the block. If
    several sources read the same file, the result has one block for each of these
    sources. `windows` maps steps, in ascending order, to their windows.
    """
    found: list[DamagedBlock] = []
    for name, reader in sources:
        tokens = damaged_tokens(reader, error)
        if tokens is None or error.block is None:
            continue
        file = PurePosixPath(error.path).name
        block = DamagedBlock(0, name, *tokens, file, error.block, error.byte_offset)
        damage = Damage([block], [name for name, _ in sources])
        for step, rows in windows.items():
            length = int(rows.stop[0] - rows.start[0])
            if damage.rows(step, rows.source, rows.start, length).size:
                found.append(replace(block, step=step))
                break
    return found
