"""One iteration over a `Dataloader`.

Functions over global arrays run here, on the consumer's thread and in order, because
dispatches to devices must have the same order in all processes.
"""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ._prefetch import Prefetcher

B = TypeVar("B")


@dataclass(frozen=True)
class LoaderStats:
    """Progress and waiting time of one iteration.

    Attributes:
        steps: Batches delivered.
        waited_s: Seconds the consumer spent in `next()`.
    """

    steps: int
    waited_s: float


class DataloaderIterator(Generic[B]):
    """One iteration over a `Dataloader`; a context manager.

    Attributes:
        step: The step of the next batch; resume with `start_step=step`.
    """

    def __init__(
        self,
        prefetcher: Prefetcher[B],
        start: int,
        stop: int | None,
        functions: Sequence[Callable[[Any], Any]],
        progress: Callable[[int, int | None], None] | None,
    ) -> None:
        self._prefetcher = prefetcher
        self._start = start
        self._stop = stop
        self._functions = functions
        self._progress = progress
        self._waited_s = 0.0
        self.step = start

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> B:
        began = perf_counter()
        batch: Any = next(self._prefetcher)
        try:
            for function in self._functions:
                batch = function(batch)
        except Exception as error:
            error.add_note(f"while making the batch of step {self.step}")
            self.close()
            raise
        self._waited_s += perf_counter() - began
        self.step += 1
        if self._progress is not None:
            self._progress(self.step, self._stop)
        return batch

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop working ahead and wait for the batches in progress."""
        self._prefetcher.close()

    @property
    def stats(self) -> LoaderStats:
        """A snapshot of the progress and the waiting time."""
        return LoaderStats(self.step - self._start, self._waited_s)
