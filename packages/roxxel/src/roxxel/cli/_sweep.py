"""`roxxel sweep`: trains a proxy for each of many blends, and names the best blend."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from roxxel_prepare.cli.values import part
from roxxel_store.command import STOPPED
from roxxel_store.screen import say

from roxxel.cli._launch import (
    add_launch_arguments,
    connect,
    ended_once,
    from_first,
    run_several,
    starts_several,
)
from roxxel.cli._words import shown_command, tell

if TYPE_CHECKING:
    import argparse

DESCRIPTION = """\
Find the best blend of your sources. The command trains a small run for each
blend that SWEEP declares, at a share of the tokens of the big run, with each
source read as often. It writes what they measured to sweep.csv and sweep.html,
and fits laws that recommend a blend, or say why they cannot. Each run is an
ordinary run in the folder runs/. The same command continues after a kill, and
trains no finished run again.
"""

EXAMPLES = ["sweep.toml"]

CODES = [STOPPED]

EPILOG = """\
an example of SWEEP; its paths are relative to the file:
  config = "run.toml"     # the run whose blend you want
  scale = 0.0625          # of each small run; or tokens = 2_000_000

  [drawn]                 # around the natural shares; or [grid], or [[blends]]
  number = 24
  each_phase = true       # or all phases of the run get one blend
all keys: python -c "import roxxel.sweeping as s; help(s.load_sweep)"

"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("sweep", type=Path, metavar="SWEEP", help="a TOML file")
    # A part does not see all runs, so it has nothing to recommend.
    either = parser.add_mutually_exclusive_group()
    either.add_argument(
        "--write",
        type=Path,
        metavar="FILE",
        help=(
            "write the config of the big run with the recommended blend to FILE, with "
            "the predicted losses as comments"
        ),
    )
    either.add_argument(
        "--part",
        type=part,
        metavar="I/N",
        help=(
            "train part I of N of the runs, from 0, such as one of a scheduler's "
            "array; afterwards, the command without --part writes the table"
        ),
    )
    add_launch_arguments(parser)


def run(options: argparse.Namespace) -> None:
    """Train the remaining runs, and print what all runs show."""
    if starts_several(options):
        run_several(options)
        return
    connect(options)
    with ended_once():
        _sweep(options)


def _sweep(options: argparse.Namespace) -> None:
    from roxxel.sweeping import sweep

    progress = from_first(tell)
    found = sweep(options.sweep, part=options.part, say=progress)
    progress("")
    if options.part is not None:
        index, count = options.part
        progress(
            f"part {index} of {count} is trained: {len(found.table.rows)} of "
            f"{found.num_runs} runs are finished"
        )
        again = shown_command("sweep", str(options.sweep))
        progress(f"When all parts are, write the table: {again}")
        return
    from_first(say)(str(found))
    if options.write is not None:
        from_first(found.write_config)(str(options.write))
        from_first(say)(
            f"Train the big run: {shown_command('train', str(options.write))}"
        )
