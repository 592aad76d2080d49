"""How the user calls this command."""

from __future__ import annotations

import os
import shlex


def shown_command(*arguments: str) -> str:
    """Return a command line that the user can copy, as they would write it.

    Args:
        arguments: What follows `roxxel`.
    """
    # uv names the depth of its nesting to whatever `uv run` starts.
    runner = ["uv", "run"] if os.environ.get("UV_RUN_RECURSION_DEPTH") else []
    return shlex.join([*runner, "roxxel", *arguments])
