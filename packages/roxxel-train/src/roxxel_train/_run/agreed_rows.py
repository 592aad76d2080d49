"""Batches in which all processes mask the same damaged blocks.

If a block of a corpus is damaged, a run with `on_damage="mask"` masks the tokens of the
block. All processes must do so from the same step on, also those that never read the
block. So the processes read ahead of training, in windows of consecutive steps: every
process reads its own rows of a window, then all processes exchange the damaged blocks
that they found. If they found any, all processes read the window again without these
blocks. If they found none, training may use the batches of the window. An agreement in
the loop would be too late: the updates of other processes may already wait in a
collective.
"""

from __future__ import annotations

import math
import threading
from typing import TYPE_CHECKING, Any

import jax
from roxxel_curriculum import DamagedBlock
from roxxel_format import ChecksumError

from roxxel_train._step.fed import Fed
from roxxel_train._step.fed_rows import FedRows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from roxxel_ckpt.coordination import Channel
    from roxxel_curriculum import Sampler

    from roxxel_train._step.placement import BatchPlacement

_MOST_STEPS = 16
"""Largest number of steps in a window. The first windows have 1, 1, 2, 4 ... steps, so
the first batch waits for the reads of one step only."""

_MOST_VALUES = 1 << 20
"""Largest number of array elements in a window of several steps. One call of
`will_need` by the loader covers twice as many elements."""

_STEPS_A_CALL = 2
"""Steps read ahead for each delivered step. With two, the next window is read, and the
processes have usually agreed on it, before the current window is used up."""

_SHORTEST_WAIT_S, _LONGEST_WAIT_S = 0.001, 0.1


class AgreedRows:
    """The batches of a sampler as `Fed`, for the one thread of a `device_stream`.

    Attributes:
        sampler: The sampler that masks every block on which the processes agreed. A
            block is masked only from its own step on.
    """

    def __init__(
        self,
        sampler: Sampler,
        num_parts: int,
        start: int,
        placement: BatchPlacement,
        channel: Channel,
    ) -> None:
        self.sampler = sampler
        self._num_parts = num_parts
        self._start = start
        self._placement = placement
        self._channel = channel
        self._is_alone = jax.process_count() == 1
        self._closed = threading.Event()
        # The batches of all steps before `_agreed` may be used.
        self._agreed = start
        self._delivered = start - 1
        # The batches that were read, only this process's part: those of the last window
        # on which the processes agreed, and those of the next window.
        self._batches: dict[int, Fed] = {}
        self._begin_window()

    def shape(self, step: int) -> tuple[int, int]:
        """Return the shape of a batch."""
        return self.sampler.shape(step)

    def rows(self, step: int, rows: slice, columns: slice | None = None) -> Fed:
        """Return part of a batch, and the sources of its rows."""
        if step > self._delivered:
            self._delivered = step
            self._wait_for(step)
            for past in [each for each in self._batches if each < step]:
                del self._batches[past]
            if not self._is_alone:
                for _ in range(_STEPS_A_CALL):
                    self._advance()
        (first_row, _), (first_column, stop_column) = self._own_box(step)
        if columns is None:
            columns = slice(first_column, stop_column)
        own_rows = slice(rows.start - first_row, rows.stop - first_row)
        own = own_rows, slice(columns.start - first_column, columns.stop - first_column)
        batch, source, order = self._batches[step]
        return Fed(
            {name: batch[name][own] for name in batch},
            source[own_rows],
            None if order is None else order[own_rows],
        )

    def will_need(self, step: int, n: int = 1, rows: slice | None = None) -> None:
        """Pass a hint to the sampler."""
        self.sampler.will_need(step, n, rows)

    def close(self) -> None:
        """End the wait for other processes, which may never read this window."""
        self._closed.set()

    def _wait_for(self, step: int) -> None:
        """Wait until all processes have agreed on the window of a step."""
        wait_s = _SHORTEST_WAIT_S
        while step >= self._agreed:
            if self._advance():
                wait_s = _SHORTEST_WAIT_S
            elif self._closed.wait(wait_s):
                raise RuntimeError("the run ended while a batch was read")
            else:
                wait_s = min(2 * wait_s, _LONGEST_WAIT_S)

    def _advance(self) -> bool:
        """Read the next step of the window; after the last step, poll the agreement.

        Returns False if no step is left to read and the processes have not agreed yet.
        """
        if not self._window:
            return False
        if self._next < self._window.stop:
            self._read(self._next)
            self._next += 1
            return True
        answer = self._channel.poll(
            lambda _: [block.to_json() for block in self._found], _all_blocks
        )
        if answer is None:
            return False
        if answer:
            # Mask the blocks that any process has found, then read the window again.
            blocks = map(DamagedBlock.from_json, answer)
            self.sampler = self.sampler.with_damaged(blocks)
        else:
            self._agreed = self._window.stop
        self._begin_window()
        return True

    def _begin_window(self) -> None:
        """Begin the window of steps that follows the agreed steps."""
        first = self._agreed
        size = 0
        if first < self.sampler.total_steps:
            size = min(
                1 if self._is_alone else _MOST_STEPS,
                max(1, first - self._start),
                max(1, _MOST_VALUES // math.prod(self.shape(first))),
                self.sampler.total_steps - first,
            )
        self._window = range(first, first + size)
        self._next = first
        self._found: list[DamagedBlock] = []
        self._reading = self.sampler

    def _read(self, step: int) -> None:
        """Read this process's part of a step, and note the damaged blocks in it."""
        rows, columns = (slice(*span) for span in self._own_box(step))
        while True:
            try:
                feed = FedRows(self._reading, self._num_parts)
                self._batches[step] = feed.rows(step, rows, columns)
            except ChecksumError as error:
                blocks = self._reading.damaged_by(error, self._window)
                if {*blocks} <= {*self._reading.damaged}:
                    raise
                self._found += blocks
                self._reading = self._reading.with_damaged(blocks)
            else:
                return

    def _own_box(self, step: int) -> list[tuple[int, int]]:
        """Return `(start, stop)` of the rows and columns that this process reads."""
        shape = self.shape(step)
        sharding = self._placement(shape)
        indices = sharding.addressable_devices_indices_map(shape)
        spans = [
            [part.indices(size)[:2] for part, size in zip(index, shape, strict=True)]
            for index in indices.values()
            if index is not None
        ]
        return [
            (min(start for start, _ in axis), max(stop for _, stop in axis))
            for axis in zip(*spans, strict=True)
        ]


def _all_blocks(found: list[Any]) -> Sequence[Any]:
    """Return every block that at least one process has found, without duplicates."""
    distinct: list[Any] = []
    for block in (each for blocks in found for each in blocks):
        if block not in distinct:
            distinct.append(block)
    return distinct
