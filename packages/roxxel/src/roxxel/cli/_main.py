"""Which command is meant, its parser, and how it ends."""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from importlib import import_module, metadata
from typing import TYPE_CHECKING

from roxxel.cli._ending import ended_well

if TYPE_CHECKING:
    from collections.abc import Sequence

_EXIT_CODES = """\
exit codes:
  0    done
  1    refused, with the reason in one sentence
  2    the command line was not understood
  75   a signal ended the run after it was saved; start it again to go on
  130  interrupted where there was nothing to save
"""

_DESCRIPTION = """\
Pre-train language models in JAX.

Begin with `roxxel quickstart`. A run of your own is one TOML file:
`roxxel plan` shows what it will read, `roxxel train` trains it and, run again,
goes on where it stopped, and `roxxel report` draws what came of it.
"""


@dataclass(frozen=True)
class _Command:
    """A command: its module and a line of help.

    A module of ours has `DESCRIPTION`, perhaps `EPILOG`, `add_arguments` and `run`.
    """

    module: str
    help: str


_COMMANDS = {
    "quickstart": _Command(
        "roxxel.cli._quickstart",
        "train a small model on Python's own sources, in a few minutes",
    ),
    "plan": _Command(
        "roxxel.cli._plan", "show what a config file will read, before any step"
    ),
    "train": _Command("roxxel.cli._train", "train what a config file says, or go on"),
    "report": _Command("roxxel.cli._report", "draw a run as one page for the browser"),
}

_PASSED_ON = {
    "format": _Command(
        "roxxel_format.cli", "write, inspect, verify and export token files"
    ),
    "ckpt": _Command(
        "roxxel_ckpt.cli", "list, show, compare, verify and export checkpoints"
    ),
}
"""Commands of the other packages, whose options are their own."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the `roxxel` command.

    Args:
        argv: Arguments after the program's name; by default those of the process.

    Returns:
        The exit code, as the package's docstring lists them.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    name, rest = (arguments[0], arguments[1:]) if arguments else ("", [])
    if name in _PASSED_ON:
        passed_on = import_module(_PASSED_ON[name].module)
        return passed_on.main(rest, prog=f"roxxel {name}")
    if name in _COMMANDS:
        # A parser of its own, so that a mistake shows the usage of this command.
        command = import_module(_COMMANDS[name].module)
        epilog = getattr(command, "EPILOG", "")
        parser = _new_parser(f"roxxel {name}", command.DESCRIPTION, epilog)
        command.add_arguments(parser)
        options = parser.parse_args(rest)
        return ended_well(lambda: command.run(options))
    parser = _parser()
    if not arguments:
        parser.print_help(sys.stderr)
        parser.exit(2)
    parser.parse_args(arguments)
    raise AssertionError(arguments)  # the parser knows no command that we do not


def _parser() -> argparse.ArgumentParser:
    """Return the parser of what stands before a command, which lists them all."""
    commands = {**_COMMANDS, **_PASSED_ON}
    listed = "".join(f"  {name:11} {c.help}\n" for name, c in commands.items())
    parser = _new_parser(
        "roxxel", _DESCRIPTION, f"commands (each has its own --help):\n{listed}\n"
    )
    parser.usage = "roxxel [-h] [--version] command ..."
    parser.add_argument(
        "--version", action="version", version=f"roxxel {metadata.version('roxxel')}"
    )
    parser.add_argument("command", choices=commands, help=argparse.SUPPRESS)
    return parser


def _new_parser(
    prog: str, description: str, epilog: str = ""
) -> argparse.ArgumentParser:
    return argparse.ArgumentParser(
        prog=prog,
        description=description,
        epilog=epilog + _EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
