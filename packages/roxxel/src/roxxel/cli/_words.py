"""Output that several commands share: lines, command lines and an example config."""

from __future__ import annotations

import os
import shlex


def shown_command(*arguments: str) -> str:
    """Return a `roxxel` command line to copy, with `uv run` if the user used it."""
    # `uv run` sets this variable in the environment of its child.
    runner = ["uv", "run"] if os.environ.get("UV_RUN_RECURSION_DEPTH") else []
    return shlex.join([*runner, "roxxel", *arguments])


def say(line: str) -> None:
    """Print a line and flush standard output.

    Otherwise later log lines, which go to standard error, could appear before this
    line.
    """
    print(line, flush=True)


CONFIG_EXAMPLE = """\
an example of a config file; its paths are relative to the file:
  model = "model:make"          # returns (model, optimizer, loss_fn)
  save_path = "runs/first"

  [sources]
  self = "data/web_*.rox"       # the primary corpus
  code = "data/code.rox"

  [[phases]]
  steps = 1000
  batch_size = 16
  seq_len = 1025
  weights = { self = 0.8, code = 0.2 }
all keys: python -c "import roxxel.config as c; help(c)"

"""
