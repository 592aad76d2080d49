"""How the user calls this command, and how it speaks to them."""

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


def say(line: str) -> None:
    """Print a line at once, so that it keeps its place among those of the log."""
    print(line, flush=True)


CONFIG_EXAMPLE = """\
a config file, its paths relative to itself:
  model = "model:make"          # a function: (model, optimizer, loss_fn)
  save_path = "runs/first"

  [sources]
  self = "data/web_*.rox"       # the primary corpus
  code = "data/code.rox"

  [[phases]]
  steps = 1000
  batch_size = 16
  seq_len = 1025
  weights = { self = 0.8, code = 0.2 }
all it can say: python -c "import roxxel.config as c; help(c)"

"""
