"""What other packages warn of while a run goes on, kept in the run's own log."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from roxxel_train._log import Logger


class Overheard(logging.Handler):
    """A context in which the warnings of a package go through the log of a run.

    Args:
        package: Name of its logger in the standard library's `logging`.
        log: The run's, open inside the context.
    """

    def __init__(self, package: str, log: Logger) -> None:
        super().__init__(logging.WARNING)
        self._logger = logging.getLogger(package)
        self._log = log
        self._is_shown = False

    def __enter__(self) -> Self:
        # What nobody handles the standard library prints, unless we handle it.
        self._is_shown = self._logger.hasHandlers()
        self._logger.addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        self._logger.removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Pass a warning on; who handles it already shows it as well."""
        try:
            self._log.warning(self.format(record), terminal=not self._is_shown)
        except Exception:  # noqa: BLE001 - a log must not end what it reports
            self.handleError(record)
