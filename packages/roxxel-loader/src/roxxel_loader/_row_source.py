"""Sources of rows, and hints to them about the next steps."""

from __future__ import annotations

import inspect
import threading
from math import prod
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Callable

    from .sharding._layout import Layout

ASKED_BYTES = 64 << 20
"""Approximate bytes of batches per call of `will_need`, at 4 bytes per value; the
first call hints at twice as many."""

MAX_ASKED_STEPS = 64
"""Steps per call of `will_need` while calls are slow, because the caller waits."""

MAX_QUICKLY_ASKED_STEPS = 256
"""Steps per call of `will_need` while calls are quick, as for resident pages. The first
call for pages that are not resident then takes up to four times as long."""

MAX_ASKED_ROWS = 1 << 14
"""Rows per call of `will_need`. A source computes the location of each row, and a
sampler caches the locations of twice as many rows."""

QUICK_ASK_S = 2e-3
"""Seconds up to which a call of `will_need` counts as quick."""


@runtime_checkable
class RowSource(Protocol):
    """Batches as a pure function of the step; any part can be read alone.

    A source may also have `will_need(step, n)`: a hint that the steps
    `[step, step + n)` are read next. A third argument, if accepted, is the slice of
    rows that this process reads. Without it, hints are given only to a process that
    reads all rows.
    """

    def shape(self, step: int) -> tuple[int, ...]:
        """Return the global shape of a step's batch: rows, then columns if any."""
        ...

    def rows(self, step: int, rows: slice, columns: slice | None = None) -> Any:
        """Return part of a batch.

        Args:
            step: The step.
            rows: The rows, with start and stop, without a stride.
            columns: The columns, in the same form; None means all.

        Returns:
            An array of those rows and columns, or a pytree of such arrays. The loader
            copies the values before the same thread reads another step.
        """
        ...


class Hints:
    """Hints a source at the steps `[start, stop)`, at each step once.

    Args:
        source: Any object; hints are given if it has a method `will_need`.
        start: First step.
        stop: One past the last step.

    Attributes:
        ask_at: Call `ask` before this step is read; `stop` means never again.
    """

    def __init__(self, source: object, start: int, stop: int) -> None:
        hint = getattr(source, "will_need", None)
        self._hint: Callable[..., Any] | None = hint if callable(hint) else None
        self._takes_rows = self._hint is not None and _takes(self._hint, 3)
        self._asked = start
        self._stop = stop
        self._max_steps = MAX_ASKED_STEPS
        self._lock = threading.Lock()
        self.ask_at = stop if self._hint is None else start

    def ask(self, step: int, layout: Layout) -> None:
        """Hint at the steps from `step` on, within the bounds of this module."""
        with self._lock:
            if step < self.ask_at:
                return  # another thread has given this hint
            num_steps = min(
                ASKED_BYTES // (4 * max(prod(layout.shape), 1)),
                MAX_ASKED_ROWS // max(layout.shape[0], 1),
                self._max_steps,
            )
            num_steps = max(1, num_steps)
            first = max(self._asked, step)
            stop = min(step + 2 * num_steps, self._stop)
            if first < stop:
                began = perf_counter()
                self._give(layout, first, stop - first)
                if perf_counter() - began < QUICK_ASK_S:
                    more = min(2 * self._max_steps, MAX_QUICKLY_ASKED_STEPS)
                    self._max_steps = more
                else:
                    self._max_steps = MAX_ASKED_STEPS
            self._asked = max(first, stop)
            self.ask_at = step + num_steps if self._asked < self._stop else self._stop

    def _give(self, layout: Layout, step: int, num_steps: int) -> None:
        low = min(read[0][0] for read in layout.reads)
        high = max(read[0][1] for read in layout.reads)
        if self._hint is not None and self._takes_rows:
            self._hint(step, num_steps, slice(low, high))
        elif self._hint is not None and (low, high) == (0, layout.shape[0]):
            self._hint(step, num_steps)


def _takes(function: Callable[..., Any], num_arguments: int) -> bool:
    try:
        inspect.signature(function).bind(*range(num_arguments))
    except (TypeError, ValueError):
        return False
    return True
