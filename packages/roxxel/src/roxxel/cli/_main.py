"""Selects the command, parses its arguments, runs it, and prints errors."""

from __future__ import annotations

import argparse
import contextlib
import difflib
import sys
from importlib import import_module, metadata
from typing import TYPE_CHECKING

from roxxel_store.command import prepare_streams, run_command, sentence_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_INVALID = 2

_EXIT_CODES = """\
exit codes:
  0    done
  1    refused, with the reason in one sentence
  2    the command line is invalid
  75   a signal stopped the run after a save; the same command continues the run
  130  interrupted, with nothing to save
"""

_DESCRIPTION = """\
Pre-train language models in JAX.

Begin with `roxxel quickstart`. A run of your own is one TOML file:
`roxxel plan` shows what the run will read, `roxxel train` starts or continues
the run, and `roxxel report` draws its losses and rates.
"""


_COMMANDS = {
    "quickstart": "train a small model on Python's own sources, in two minutes",
    "plan": "show what a run will read, from its config file",
    "write": "turn files of text or tokens into a corpus",
    "train": "start or continue the run of a config file",
    "ls": "list runs: how each stands, its losses and its age",
    "show": "show what is in a batch of a run",
    "where": "find the steps in which a run reads a document or a text",
    "audit": "compare the batches that a run trained on with its corpora",
    "drill": "kill a run at random, and prove that its result is the same",
    "sample": "let the model of a run continue a text",
    "export": "write a run's model for the library transformers",
    "report": "write the charts of a run as one HTML page",
}
"""Help of each command. The module `roxxel.cli._x` implements the command `x`.

Each module has `DESCRIPTION`, `add_arguments`, `run` and optionally `EPILOG`.
"""

_PASSED_ON = {
    "prepare": "write a corpus from files, in parts too; hold documents out",
    "format": "inspect, verify, copy, repair and export token files",
    "ckpt": "list, show, compare, verify and export checkpoints",
}
"""Help of commands that parse their own options. `roxxel_x.cli.main` runs `x`."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the `roxxel` command.

    Args:
        argv: Arguments after the program's name; by default `sys.argv[1:]`.

    Returns:
        An exit code; the docstring of `roxxel.cli` lists the codes.
    """
    prepare_streams()
    arguments = list(sys.argv[1:] if argv is None else argv)
    name, rest = (arguments[0], arguments[1:]) if arguments else ("", [])
    if name == "write":  # The first of the commands of `prepare`.
        prepare = import_module("roxxel_prepare.cli")
        return prepare.main(arguments, prog="roxxel")
    if name in _PASSED_ON:
        passed_on = import_module(f"roxxel_{name}.cli")
        more = {}
        if name == "ckpt":
            more["describe"] = import_module("roxxel.run_texts").run_texts
        if not rest:  # As `roxxel` alone: say which commands there are.
            with (
                contextlib.redirect_stdout(sys.stderr),
                contextlib.suppress(SystemExit),
            ):
                passed_on.main(["--help"], prog=f"roxxel {name}")
            raise SystemExit(_INVALID)
        return passed_on.main(rest, prog=f"roxxel {name}", **more)
    if name in _COMMANDS:
        # One parser per command, so that an error shows the usage of the command.
        command = import_module(f"roxxel.cli._{name}")
        epilog = getattr(command, "EPILOG", "")
        parser = _new_parser(f"roxxel {name}", command.DESCRIPTION, epilog)
        command.add_arguments(parser)
        options = parser.parse_args(rest)
        return _ended_well(lambda: command.run(options))
    parser = _parser()
    if not arguments:
        parser.print_help(sys.stderr)
        parser.exit(_INVALID)
    if not name.startswith("-"):
        known = {**_COMMANDS, **_PASSED_ON}
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        parser.error(f"no command {name!r}; {hint}`roxxel --help` lists the commands")
    parser.parse_args(arguments)
    raise AssertionError(arguments)  # unreachable: an option of `roxxel` exits


def _parser() -> argparse.ArgumentParser:
    """Return the parser of `roxxel` itself; the help lists all commands."""
    commands = {**_COMMANDS, **_PASSED_ON}
    listed = "".join(f"  {name:11} {text}\n" for name, text in commands.items())
    parser = _new_parser(
        "roxxel", _DESCRIPTION, f"commands (each has its own --help):\n{listed}\n"
    )
    parser.usage = "roxxel [-h] [--version] command ..."
    parser.add_argument(
        "--version", action="version", version=f"roxxel {metadata.version('roxxel')}"
    )
    parser.add_argument("command", help=argparse.SUPPRESS)
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


def _ended_well(command: Callable[[], None]) -> int:
    """Run a command and return its exit code.

    Print an error of Roxxel's classes or an `OSError` as one sentence. Any other error
    is a bug and propagates with its traceback.
    """
    return run_command("roxxel", command, _is_meant_for_users, _on_one_line)


def _is_meant_for_users(error: Exception) -> bool:
    """Return whether an error has a class of Roxxel, or is an `OSError`."""
    if isinstance(error, OSError):
        return True
    return type(error).__module__.partition(".")[0].startswith("roxxel")


def _on_one_line(error: Exception) -> str:
    return " ".join(sentence_of(error).split())
