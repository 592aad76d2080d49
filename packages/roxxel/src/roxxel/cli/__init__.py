"""The `roxxel` command.

`COMMANDS` and `PASSED_ON` have the help of each command, `parsers()` yields their
arguments, and `roxxel_store.command.EXIT_CODES` says what a command's exit code means.
"""

from __future__ import annotations

from roxxel.cli._main import COMMANDS, PASSED_ON, main, parsers

__all__ = ["COMMANDS", "PASSED_ON", "main", "parsers"]
