"""A sink of the user, whose errors end its rows and not the run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from roxxel_train._log.lines import plain_row

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


class GuardedSink:
    """Calls one sink until it raises.

    Args:
        sink: Called with every row. Its methods `cut(step)` and `close()` are optional.
        report: Called once, with the first error of the sink.
    """

    def __init__(
        self, sink: Callable[..., object], report: Callable[[BaseException], None]
    ) -> None:
        self._sink = sink
        self._report = report
        self._has_failed = False

    def row(self, row: Mapping[str, Any]) -> None:
        """Pass a copy of a row to the sink, in plain Python values."""
        if not self._has_failed:
            self._guard(lambda: self._sink(plain_row(row)))

    def cut(self, step: int) -> None:
        """Announce that the rows after `step` are written again."""
        if not self._has_failed:
            self._guard(lambda: self._method("cut", step))

    def close(self) -> None:
        """Close the sink, also one that has failed."""
        self._guard(lambda: self._method("close"))

    def _method(self, name: str, *args: Any) -> None:
        method = getattr(self._sink, name, None)
        if method is not None:
            method(*args)

    def _guard(self, call: Callable[[], object]) -> None:
        try:
            call()
        except BaseException as error:  # noqa: BLE001 - a sink must not end the run
            if not self._has_failed:
                self._report(error)
            self._has_failed = True
