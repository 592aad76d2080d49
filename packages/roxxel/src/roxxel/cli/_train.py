"""`roxxel train`: trains what a config file says; run again, goes on."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from roxxel.cli._plan import planned
from roxxel.cli._words import CONFIG_EXAMPLE, say, shown_command
from roxxel.config import (
    ConfigError,
    RunConfig,
    keep_config,
    load_config,
    make_trainer,
)
from roxxel.run_files import claimed, newest_state

if TYPE_CHECKING:
    import argparse

    from roxxel_train import RunSummary

DESCRIPTION = """\
Train what a config file says. Stop it whenever you like, even with kill -9:
the same command goes on from the newest checkpoint. The config may be edited
meanwhile: what comes after the steps that are done may change, what came
before may not.
"""

EPILOG = CONFIG_EXAMPLE


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what the command takes."""
    parser.add_argument("config", type=Path, metavar="CONFIG", help="a TOML file")
    parser.add_argument(
        "--preflight",
        action="store_true",
        help="check everything, compile every phase, say what it takes, and end",
    )


def run(options: argparse.Namespace) -> None:
    """Train, or check that it can be done."""
    config = load_config(options.config)
    trainer = make_trainer(config)
    if options.preflight:
        found = trainer.preflight()
        say(str(found))
        if not found.ok:
            raise ConfigError(f"{config.file}: the run is not ready; see above")
        return
    import jax

    folder = config.run_folder
    assert folder is not None  # noqa: S101 - make_trainer has refused it
    is_first = jax.process_index() == 0
    if is_first:
        with claimed(folder):
            state = newest_state(folder)
            keep_config(config, folder, 0 if state is None else state["step"])
        say(f"{planned(config, state)}\n")
    summary = trainer.run()
    if is_first:
        _say_ending(config, folder, summary)


def _say_ending(config: RunConfig, folder: Path, summary: RunSummary) -> None:
    say("")
    if summary.start_step == summary.total_steps:
        say(f"This run is already complete: {summary.total_steps} steps are done.")
    else:
        say(str(summary))
    say("")
    say(f"In {shlex.quote(str(folder))}:")
    say("  checkpoints/   model and optimizer: the newest and the best")
    say("  metrics.jsonl  loss, tokens/s, waiting time and evaluations by step")
    say("  system.log     what happened when")
    say("  config.toml    this config; configs/ has those of before")
    say(f"Look at it:      {shown_command('report', str(folder))}")
    say(f"Train it longer: raise the steps of the last phase in {config.file}, then")
    say(f"                 {shown_command('train', str(config.file))}")
