"""A JAX trace of a few steps, under the folder of the run."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, Self

import jax

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def checked_steps(profile: Any, *, has_folder: bool) -> range:
    """Return the steps to trace.

    Raises:
        ValueError: They are no range of steps, or there is no folder to write to.
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
        say: Told where it lies.
    """

    def __init__(
        self, steps: range, folder: Path | None, say: Callable[[str], None]
    ) -> None:
        self._steps = steps
        self._folder = folder and folder / "profile"
        self._say = say
        self._is_on = False

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
        if self._is_on == (step in self._steps):
            return
        wait()
        if self._is_on:
            self._stop()
        else:
            jax.profiler.start_trace(str(self._folder))
            self._is_on = True

    def _stop(self) -> None:
        if self._is_on:
            self._is_on = False
            jax.profiler.stop_trace()
            first, last = self._steps[0], self._steps[-1]
            self._say(f"a trace of steps {first} to {last} lies in {self._folder}")
