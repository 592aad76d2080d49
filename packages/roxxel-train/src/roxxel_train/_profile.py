"""A JAX trace of a few steps, under the folder of the run."""

from __future__ import annotations

import operator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self

import jax

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def checked_steps(profile: Any, total_steps: int, *, has_folder: bool) -> range:
    """Return the steps to trace.

    Args:
        profile: `(start, stop)`, or None for none.
        total_steps: Updates in the whole curriculum.
        has_folder: Whether there is a folder to write to.

    Raises:
        ValueError: They are no steps of the run, or there is no folder.
        TypeError: They are not two integers.
    """
    if profile is None:
        return range(0)
    try:
        start, stop = map(operator.index, profile)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"profile must be (start, stop), two steps, got {profile!r}"
        ) from error
    if not 0 <= start < stop:
        raise ValueError(
            f"profile={(start, stop)} holds no steps; give 0 <= start < stop"
        )
    if start >= total_steps:
        raise ValueError(
            f"profile={(start, stop)} begins after the last of {total_steps} steps; "
            "begin earlier"
        )
    if not has_folder:
        raise ValueError(
            f"profile={(start, stop)} is written under save_path; give one"
        )
    return range(start, stop)


class Trace:
    """Traces the updates of some steps; a context that ends what is being traced.

    Args:
        steps: Which ones, counted from 0 as batches are.
        folder: Of the run; the trace goes to `profile` in it, for XProf or TensorBoard.
        say: Told where it lies, or why there is none.
    """

    def __init__(
        self, steps: range, folder: Path | None, say: Callable[[str], None]
    ) -> None:
        self._steps = steps
        self._folder = folder and folder / "profile"
        self._say = say
        self._first: int | None = None
        self._next = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def at(self, step: int, wait: Callable[[], None]) -> None:
        """Begin or end the trace before the update of `step` where that is due.

        Args:
            step: The step that comes next.
            wait: Waits until all updates before it are finished.
        """
        is_due = step in self._steps
        if is_due != (self._first is not None):
            wait()
            if is_due:
                self._begin(step)
            else:
                self._stop()
        self._next = step + 1

    def _begin(self, step: int) -> None:
        try:
            jax.profiler.start_trace(str(self._folder))
        except RuntimeError as error:  # JAX writes one trace at a time
            self._steps = range(0)
            self._say(
                f"no trace of this run is written, end the other one before: {error}"
            )
        else:
            self._first = step

    def _stop(self) -> None:
        first, self._first = self._first, None
        if first is not None:
            # The program may have ended it.
            with suppress(RuntimeError):
                jax.profiler.stop_trace()
            self._say(
                f"a trace of steps {first} to {self._next - 1} lies in {self._folder}"
            )
