"""`roxxel train`: start or continue the run that a config file declares."""

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
from roxxel.run_files import claimed, local_folder, newest_state

if TYPE_CHECKING:
    import argparse

    from roxxel_train import RunSummary

DESCRIPTION = """\
Start or continue the run that a config file declares. You may stop the command
at any time, even with kill -9: the same command continues from the newest
checkpoint. Before you continue, you may edit the config for steps that are not
trained yet, but not for trained steps.
"""

EPILOG = CONFIG_EXAMPLE


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", type=Path, metavar="CONFIG", help="a TOML file")
    parser.add_argument(
        "--preflight",
        action="store_true",
        help=(
            "check everything, compile every phase, print time, memory and disk space, "
            "and exit"
        ),
    )


def run(options: argparse.Namespace) -> None:
    """Train, or with `--preflight` check that the run can be trained."""
    config = load_config(options.config)
    trainer = make_trainer(config)
    if options.preflight:
        found = trainer.preflight()
        say(str(found))
        if not found.ok:
            raise ConfigError(f"{config.file}: the run is not ready; see above")
        return
    import jax

    run_folder = config.run_folder
    assert run_folder is not None  # noqa: S101 - make_trainer requires save_path
    is_first = jax.process_index() == 0
    if is_first:
        folder = local_folder(run_folder)
        with claimed(folder):
            state = newest_state(folder)
            keep_config(config, folder, 0 if state is None else state["step"])
        say(f"{planned(config, state)}\n")
    summary = trainer.run()
    if is_first:
        _say_ending(config, run_folder, summary)


def _say_ending(config: RunConfig, folder: Path | str, summary: RunSummary) -> None:
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
    say("  config.toml    the config of this start; configs/ holds earlier ones")
    say(f"Write a report: {shown_command('report', str(folder))}")
    say(f"Train longer:   raise the steps of the last phase in {config.file}, then")
    say(f"                {shown_command('train', str(config.file))}")
