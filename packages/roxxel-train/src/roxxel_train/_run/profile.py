"""A JAX trace of a few steps, in the folder of the run."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import jax

from roxxel_train._files.folder import PROFILE

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class Trace:
    """Writes a JAX trace of the updates of some steps, for XProf or TensorBoard.

    Steps count from 0, like batches. The trace is in the folder `profile` of `folder`.
    `info` is called with the path of the trace, or the reason why there is no trace.
    """

    def __init__(
        self, steps: range, folder: Path | None, info: Callable[[str], None]
    ) -> None:
        self._steps = steps
        self._folder = folder and folder / PROFILE
        self._info = info
        self._first: int | None = None
        self._next = 0

    def at(self, step: int, wait: Callable[[], None]) -> None:
        """Start or stop the trace before `step`; `wait` waits for earlier updates."""
        is_due = step in self._steps
        if is_due != (self._first is not None):
            wait()
            if is_due:
                self._start(step)
            else:
                self.close()
        self._next = step + 1

    def _start(self, step: int) -> None:
        try:
            jax.profiler.start_trace(str(self._folder))
        except RuntimeError as error:  # JAX writes one trace at a time
            self._steps = range(0)
            self._info(
                f"no trace of this run is written: {error}; stop the other trace first"
            )
        else:
            self._first = step

    def close(self) -> None:
        """End the trace if JAX is writing it."""
        first, self._first = self._first, None
        if first is not None:
            # The user's program may have stopped the trace already.
            with suppress(RuntimeError):
                jax.profiler.stop_trace()
            self._info(
                f"wrote a trace of steps {first} to {self._next - 1} to {self._folder}"
            )
