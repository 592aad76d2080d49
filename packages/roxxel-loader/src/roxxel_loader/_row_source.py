"""What a source of rows is, and how it is told of the steps to come."""

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
"""About so many bytes of batches, 4 to a value, are asked for in one call of
`will_need`; twice as many in the first."""

MAX_ASKED_STEPS = 64
"""The same bound in steps where asking is slow, for the caller waits for it."""

MAX_QUICKLY_ASKED_STEPS = 256
"""The bound in steps where it is quick, as of pages that are in memory: the first ask
after they are not takes four times as long as it had to."""

MAX_ASKED_ROWS = 1 << 14
"""The bound in rows, however quick: a source works out where each lies, and a sampler
keeps that of twice so many, which may have been asked for and not been read yet."""

QUICK_ASK_S = 2e-3
"""Time of a call of `will_need` up to which it is quick."""


@runtime_checkable
class RowSource(Protocol):
    """Batches as a pure function of the step, of which any part can be read alone.

    A source may also have `will_need(step, n)`: a hint that the steps
    `[step, step + n)` come next. Where it takes a third argument, that is the slice of
    rows this process will read; a hint that cannot be so limited is not given where
    other processes read other rows.
    """

    def shape(self, step: int) -> tuple[int, ...]:
        """Return the global shape of a step's batch: rows, then columns if any."""
        ...

    def rows(self, step: int, rows: slice, columns: slice | None = None) -> Any:
        """Return part of a batch.

        Args:
            step: The step.
            rows: The rows wanted, with start and stop, without a stride.
            columns: The columns wanted, in the same form; None is all of them.

        Returns:
            An array of those rows and columns, or a pytree of such arrays. It is copied
            before the next call, so its memory may be reused.
        """
        ...


class Hints:
    """Asks a source for the pages of the steps `[start, stop)`, each step's once.

    Args:
        source: Has or has not a method `will_need`.
        start: First step.
        stop: One past the last step.

    Attributes:
        ask_at: The step before which `ask` is to be called next; `stop` is never.
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
        """Hint at the steps from `step` on: some 64 MiB of batches of this layout.

        At most as many as are bounded above, which are more while the source is quick.
        """
        with self._lock:
            if step < self.ask_at:
                return  # another thread has asked meanwhile
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
