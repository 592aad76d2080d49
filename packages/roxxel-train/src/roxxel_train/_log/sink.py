"""A sink of the user, whose errors end its rows and not the run."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from roxxel_train._log.lines import plain_row
from roxxel_train._log.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


class SinkRunner:
    """Calls one sink, on a thread of its own, until the sink raises.

    Args:
        index: Number of the sink, for its name.
        sink: Called with every row. Its methods `cut(step)` and `close()` are optional.
        report: Called on the thread with the name and the first error of the sink.

    Attributes:
        name: Names the sink in the log.
        is_behind: Whether a row was dropped because 10,000 rows were waiting.
    """

    def __init__(
        self,
        index: int,
        sink: Callable[..., object],
        report: Callable[[str, BaseException], None],
    ) -> None:
        kind = getattr(sink, "__qualname__", type(sink).__qualname__)
        self.name = f"sink {index} ({kind})"
        self.is_behind = False
        self._sink = sink
        self._report = report
        self._has_failed = False
        self._worker = Worker(f"roxxel-sink-{index}", is_lossy=True)

    def row(self, row: Mapping[str, Any]) -> None:
        """Queue a row; the sink gets a copy in plain Python values."""
        call = partial(self._unless_failed, lambda: self._sink(plain_row(row)))
        self.is_behind |= not self._worker.put(call)

    def cut(self, step: int) -> None:
        """Announce that the rows after `step` are written again."""
        self._worker.put(self._unless_failed, lambda: self._method("cut", step))

    def request_close(self) -> None:
        """Queue the closing of the sink, also of one that has failed."""
        self._worker.put(self._guard, lambda: self._method("close"))

    def join(self, timeout_s: float) -> bool:
        """Wait for the sink; return whether it has accepted every row."""
        return self._worker.close(timeout_s)

    def _unless_failed(self, call: Callable[[], object]) -> None:
        if not self._has_failed:
            self._guard(call)

    def _method(self, name: str, *args: Any) -> None:
        method = getattr(self._sink, name, None)
        if method is not None:
            method(*args)

    def _guard(self, call: Callable[[], object]) -> None:
        try:
            call()
        except BaseException as error:  # noqa: BLE001 - a sink must not end the run
            if not self._has_failed:
                self._report(self.name, error)
            self._has_failed = True
