"""The `roxxel` command.

Exit codes:

- 0: done;
- 1: the command refused the request or an input; standard error has the reason;
- 2: the command line is invalid;
- 75: a signal stopped the run after a save; the same command continues the run;
- 130: interrupted, with nothing to save.
"""

from __future__ import annotations

from roxxel.cli._main import main

__all__ = ["main"]
