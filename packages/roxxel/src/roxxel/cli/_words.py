"""Output that several commands share: lines, command lines and an example config."""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from roxxel_store.command import as_text, drop_output, positive
from roxxel_store.screen import note, say
from roxxel_store.urls import absolute

from roxxel.config import load_config

if TYPE_CHECKING:
    from roxxel.config import RunConfig


BRANCH = "trainer.branch_from="
"""`--branch FOLDER` stands for the config change `trainer.branch_from=FOLDER`."""


def shown_command(*arguments: str) -> str:
    """Return a `roxxel` command line to copy, with `uv run` if the user used it."""
    # `uv run` sets this variable in the environment of its child.
    runner = ["uv", "run"] if os.environ.get("UV_RUN_RECURSION_DEPTH") else []
    return shlex.join([*runner, "roxxel", *arguments])


def tell(line: str) -> None:
    """Print a line of a run; the run continues if its standard output fails.

    `roxxel train run.toml 2>&1 | head` closes the output while the run trains.
    """
    try:
        say(line)
    except OSError as error:
        drop_output()
        with suppress(OSError):
            note(
                f"roxxel: standard output cannot be written ({error.strerror}); the "
                "run goes on, and system.log has its lines"
            )


def step_range(text: str) -> range:
    """Return the steps that `A:B` names."""
    found = re.fullmatch(r"(\d+):(\d+)", text)
    if found is None or int(found[1]) >= int(found[2]):
        raise argparse.ArgumentTypeError(f"{text!r} is not A:B with A < B")
    return range(int(found[1]), int(found[2]))


AtLeast1 = Annotated[int, positive, "N"]
ConfigFile = Annotated[Path, "a TOML file"]
Changes = Sequence[
    Annotated[
        str,
        as_text,
        "KEY=VALUE",
        "replace a value of CONFIG, such as trainer.log_every=1, phases.0.steps=20 or "
        "save_path=runs/b; repeatable. Paths are relative to CONFIG",
    ]
]
Branch = Annotated[
    str | None,
    "RUN[@STEP]",
    "begin a new run, in the save_path of CONFIG, with the whole state of another run: "
    "its newest checkpoint, or that of STEP. A branch that has begun continues from "
    "its own checkpoints",
]
Steps = Annotated[range | None, step_range, "A:B"]
Json = Annotated[bool, "print JSON"]


def config_of(
    config: Path, changes: Sequence[str], branch: str | None = None
) -> RunConfig:
    """Read the config of a command with its changes."""
    if branch is None:
        return load_config(config, changes)
    # A path on the command line is relative to the working directory.
    where = json.dumps(absolute(branch), ensure_ascii=False)
    return load_config(config, [*changes, BRANCH + where])


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

all keys, with what they mean:
  python -m pydoc roxxel.config.RunConfig          # above the tables,
  python -m pydoc roxxel.Curriculum                # and those of the schedule
  python -m pydoc roxxel.Phase                     # [[phases]]
  python -m pydoc roxxel_train.config.TrainConfig  # [trainer]
  python -m pydoc roxxel.models.llama              # [model_args] of our model,
  python -m pydoc roxxel.models.LlamaConfig        # and its sizes
  python -m pydoc roxxel.config.MeshConfig         # [mesh]

"""


def set_again(changes: Iterable[str]) -> list[str]:
    """Return changes of a config as `--set` arguments."""
    return [argument for change in changes for argument in ("--set", change)]
