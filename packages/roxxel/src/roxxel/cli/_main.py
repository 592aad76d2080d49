"""The command's parser, and how it ends."""

from __future__ import annotations

import argparse
import io
import sys
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from roxxel.cli._ending import ended_well
from roxxel.quickstart.settings import DEFAULT_STEPS, MIN_STEPS

if TYPE_CHECKING:
    from collections.abc import Sequence

_DEFAULT_OUT = Path("runs") / "quickstart"

_EXIT_CODES = """\
exit codes:
  0    done
  1    refused, with the reason in one sentence
  2    the command line was not understood
  75   a signal ended the run after it was saved; start it again to go on
  130  interrupted where there was nothing to save
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the `roxxel` command.

    Args:
        argv: Arguments after the program's name; by default those of the process.

    Returns:
        The exit code, as the module's docstring lists them.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] == ["format"]:
        # Its options are its own, so they are not parsed here.
        from roxxel_format.cli import main as format_main

        return format_main(arguments[1:])
    options = _parser().parse_args(arguments)
    return ended_well(lambda: _quickstart(options))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="roxxel",
        description="Pre-train language models in JAX.",
        epilog=_EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--version", action="version", version=f"roxxel {metadata.version('roxxel')}"
    )
    commands = parser.add_subparsers(metavar="command", required=True)
    quickstart = commands.add_parser(
        "quickstart",
        help="train a small model on Python's own sources, in a few minutes",
        description=(
            "Train a small language model on the sources of Python's own standard "
            "library, first on short texts, then on long ones. Nothing is downloaded. "
            "Stop it whenever you like: the same command goes on where it was."
        ),
        epilog=_EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    quickstart.add_argument(
        "--steps",
        type=int,
        metavar="N",
        help=(
            f"train to step N, {MIN_STEPS} or more (default: {DEFAULT_STEPS}; for a "
            "run that exists, as many as before); a larger N trains an existing run "
            "longer"
        ),
    )
    quickstart.add_argument(
        "--out",
        type=Path,
        default=_DEFAULT_OUT,
        metavar="FOLDER",
        help=f"folder of the run (default: {_DEFAULT_OUT})",
    )
    quickstart.add_argument(
        "--seed",
        type=seed,
        metavar="N",
        help="seed of the model and of the order of the data (default: 0)",
    )
    quickstart.add_argument(
        "--fresh",
        action="store_true",
        help="remove the quickstart run in the folder and start over",
    )
    commands.add_parser(
        "format",
        help="write, inspect, verify and export token files (see roxxel format --help)",
        add_help=False,
    )
    return parser


def seed(text: str) -> int:
    """Return a seed; argparse names this function where it refuses one."""
    number = int(text)
    if not 0 <= number < 2**32:
        raise argparse.ArgumentTypeError(f"must be from 0 to 2**32 - 1, got {text}")
    return number


def _quickstart(options: argparse.Namespace) -> None:
    from roxxel.cli._words import shown_command
    from roxxel.quickstart.run import Options, quickstart

    if isinstance(sys.stdout, io.TextIOWrapper):
        # A young model writes characters that not every terminal's encoding has.
        sys.stdout.reconfigure(errors="replace")
    out: Path = options.out
    extra = [] if out == _DEFAULT_OUT else ["--out", str(out)]
    quickstart(
        Options(
            out=out,
            steps=options.steps,
            seed=options.seed,
            fresh=options.fresh,
            command=shown_command("quickstart", *extra),
        ),
        say=_say,
    )


def _say(line: str) -> None:
    """Print a line at once, so that it keeps its place among those of the log."""
    print(line, flush=True)
