"""One batch out of chunks of items that workers load."""

from __future__ import annotations

import threading
from concurrent.futures import BrokenExecutor, Executor, Future
from time import perf_counter
from typing import TYPE_CHECKING, Any

from .datasets._dataset import ITEM_NOTE, fetch, names_an_item

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .datasets import Dataset

CHUNK_S = 1e-3
"""Items are handed to workers in chunks that take about this long."""


class Pace:
    """How long an item takes, learned; it decides the size of chunks and no more."""

    def __init__(self) -> None:
        self._item_s: float | None = None

    def took(self, seconds: float, num_items: int) -> None:
        """Learn from a chunk."""
        each = seconds / num_items
        known = self._item_s
        self._item_s = each if known is None else 0.8 * known + 0.2 * each

    def chunks(self, indices: Sequence[int], workers: int) -> list[Sequence[int]]:
        """Return indices in chunks: several for each worker where items are slow."""
        if self._item_s is None:
            size = -(-len(indices) // (8 * workers))
        else:
            wanted = int(CHUNK_S / max(self._item_s, 1e-9))
            size = max(1, min(wanted, -(-len(indices) // workers)))
        return [indices[at : at + size] for at in range(0, len(indices), size)]


class Gather(Future[Any]):
    """A batch whose chunks are loaded by workers; the last one to end makes it.

    Args:
        step: The batch's step, for errors.
        pace: Learns how long the chunks take.
    """

    def __init__(self, step: int, pace: Pace) -> None:
        super().__init__()
        self._step = step
        self._pace = pace
        self._counter = threading.Lock()
        self._parts: list[Future[Any]] = []
        self._chunks: list[Sequence[int]] = []

    def prepare(self, executor: Executor, function: Callable[[], None]) -> None:
        """Have a function called that will `begin` this batch, or fail."""

        def guarded() -> None:
            try:
                function()
            except BaseException as error:  # noqa: BLE001 - the consumer raises it
                self.fail(error)

        preparing = executor.submit(guarded)
        with self._counter:  # for it may have run already, and submitted the chunks
            self._parts = self._parts or [preparing]

    def begin(
        self,
        executor: Executor,
        chunks: Sequence[Sequence[int]],
        load: Callable[[int], tuple[Any, ...]],
        finish: Callable[[list[Any]], Any],
    ) -> None:
        """Submit the chunks.

        Args:
            executor: What loads them.
            chunks: The indices of the items of each.
            load: Gives for the number of a chunk the function and arguments that return
                its items and the seconds they took.
            finish: Makes the batch of all items.

        Raises:
            RuntimeError: The executor takes no work.
        """
        self._chunks = list(chunks)
        self._finish = finish
        self._missing = len(chunks)
        parts: list[Future[Any]] = []
        for number, chunk in enumerate(chunks):
            try:
                parts.append(executor.submit(*load(number)))
            except RuntimeError as error:
                self.cancel()
                raise self._stopped(chunk) from error
        with self._counter:
            self._parts = parts
        for part in parts:
            part.add_done_callback(self._count)

    def cancel(self) -> bool:
        """Cancel what has not begun, the last chunk first, and the batch."""
        for part in reversed(self._parts):
            part.cancel()
        return super().cancel()

    def fail(self, error: BaseException) -> None:
        """Give the batch an exception for a result."""
        if self.set_running_or_notify_cancel():
            self.set_exception(error)

    def _count(self, _: Future[Any]) -> None:
        with self._counter:
            self._missing -= 1
            if self._missing:
                return
        if any(part.cancelled() for part in self._parts):
            self.cancel()
        if not self.set_running_or_notify_cancel():
            return
        try:
            result = self._finish(self._items())
        except BaseException as error:  # noqa: BLE001 - the consumer raises it
            self.set_exception(error)
        else:
            self.set_result(result)

    def _items(self) -> list[Any]:
        items: list[Any] = []
        for chunk, part in zip(self._chunks, self._parts, strict=True):
            try:
                loaded, seconds = part.result()
            except BrokenExecutor as error:
                raise self._stopped(chunk) from error
            except Exception as error:
                if not names_an_item(error):
                    error.add_note(f"{ITEM_NOTE}items {list(chunk)}")
                raise
            items.extend(loaded)
            self._pace.took(seconds, len(chunk))
        return items

    def _stopped(self, chunk: Sequence[int]) -> RuntimeError:
        return RuntimeError(
            f"the executor stopped before items {list(chunk)} of step {self._step} "
            "were loaded; start again from this step with a fresh one"
        )


def timed_fetch(
    dataset: Dataset[Any], indices: Sequence[int]
) -> tuple[list[Any], float]:
    """Return items of a dataset, and the seconds that took."""
    began = perf_counter()
    return fetch(dataset, indices), perf_counter() - began


def timed_map(
    function: Callable[[Any, int], Any], items: Sequence[Any], indices: Sequence[int]
) -> tuple[list[Any], float]:
    """Return items after a function of item and index, and the seconds that took."""
    began = perf_counter()
    mapped = [function(*pair) for pair in zip(items, indices, strict=True)]
    return mapped, perf_counter() - began
