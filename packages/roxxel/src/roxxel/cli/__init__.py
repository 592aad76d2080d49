"""The `roxxel` command.

Exit codes: 0, done; 1, the request or its input was refused, in one sentence on
standard error; 2, the command line was not understood; 75, a signal ended a run after
its state was saved (start it again to go on); 130, interrupted where there was nothing
to save.
"""

from __future__ import annotations

from roxxel.cli._main import main

__all__ = ["main"]
