"""`roxxel quickstart`: trains a small model, or continues its run."""

from __future__ import annotations

import argparse
from pathlib import Path

from roxxel_store.command import STOPPED

from roxxel.quickstart.folder import DEFAULT_STEPS, LIBRARY, MIN_STEPS

_DEFAULT_OUT = Path("runs") / "quickstart"

DESCRIPTION = """\
Train a small language model on the sources of Python's own standard library,
first on short texts, then on long ones. Nothing is downloaded. You may stop the
command at any time: the same command continues the run.
"""

EXAMPLES = ["--steps 300"]

CODES = [STOPPED]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--steps",
        type=int,
        metavar="N",
        help=(
            f"train to step N, {MIN_STEPS} or more (default: {DEFAULT_STEPS} for a new "
            "run, no change for an existing run); a larger N trains an existing run "
            "longer"
        ),
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=_DEFAULT_OUT,
        metavar="FOLDER",
        help=f"folder of the run (default: {_DEFAULT_OUT})",
    )
    parser.add_argument(
        "--seed",
        type=seed,
        metavar="N",
        help="seed of the model and of the data order (default: 0)",
    )
    parser.add_argument(
        "--fresh",
        action="store_true",
        help="remove the quickstart run in the folder and start over",
    )


def seed(text: str) -> int:
    """Parse a seed. argparse shows the name of this function in errors."""
    number = int(text)
    if not 0 <= number < 2**32:
        raise argparse.ArgumentTypeError(f"must be from 0 to 2**32 - 1, got {text}")
    return number


def run(options: argparse.Namespace) -> None:
    """Train the quickstart's model, or continue its run."""
    from roxxel.cli._launch import ended_once
    from roxxel.cli._words import shown_command, tell
    from roxxel.quickstart.run import Options, quickstart

    out: Path = options.out
    extra = [] if out == _DEFAULT_OUT else ["--out", str(out)]
    with ended_once():
        quickstart(
            Options(
                out=out,
                steps=options.steps,
                seed=options.seed,
                fresh=options.fresh,
                command=shown_command("quickstart", *extra),
                report=shown_command("report", str(out)),
                describe=shown_command("format", "info", str(out / LIBRARY)),
            ),
            say=tell,
        )
