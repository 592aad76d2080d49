"""Warnings of other packages, written to the log of a run."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from roxxel_train._log.logger import Logger


class WarningForwarder(logging.Handler):
    """A context in which the warnings of a package are written to the log of a run.

    Args:
        package: Name of the package's logger in the standard library's `logging`.
        log: The log of the run, open inside the context.
    """

    def __init__(self, package: str, log: Logger) -> None:
        super().__init__(logging.WARNING)
        self._logger = logging.getLogger(package)
        self._log = log
        self._is_shown = False

    def __enter__(self) -> Self:
        # Our handler turns off the printing of unhandled warnings, so we print them.
        self._is_shown = self._logger.hasHandlers()
        self._logger.addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        self._logger.removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Write a warning; show it too unless another handler shows it."""
        try:
            self._log.warning(self.format(record), terminal=not self._is_shown)
        except Exception:  # noqa: BLE001 - logging must not end the code that logs
            self.handleError(record)
