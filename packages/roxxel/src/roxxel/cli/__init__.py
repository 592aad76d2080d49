"""The `roxxel` command.

`COMMANDS` and `PASSED_ON` have the help of each command, `parsers()` yields their
arguments, and `roxxel_store.command.EXIT_CODES` says what a command's exit code means.
"""

from __future__ import annotations

import argparse
import inspect
import re
import sys
from functools import lru_cache, partial
from importlib import import_module, metadata
from typing import TYPE_CHECKING, Any

from roxxel_store.command import (
    EXIT_CODES,
    CommandParser,
    interruptible,
    prepare_streams,
    run_command,
    sentence_of,
)
from roxxel_store.errors import is_ours

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from roxxel_train import RunFolder

    _Act = Callable[[argparse.Namespace], int | None]

__all__ = ["COMMANDS", "PASSED_ON", "main", "parsers"]

_DESCRIPTION = """\
Pre-train language models in JAX.

Begin with `roxxel quickstart`. For a run of your own, `roxxel write` turns your
files into a corpus, and one TOML file declares the run: `roxxel plan` shows what
it will read, `roxxel train` starts or continues it, and `roxxel report` draws
its losses and rates.
"""

COMMANDS = {
    "quickstart": "train a small model on Python's own sources, in two minutes",
    "write": "turn files of text or tokens into a corpus",
    "scan": "find the text of evaluation sets in a corpus",
    "plan": "show what a run will read, from its config file",
    "train": "start or continue the run of a config file",
    "ls": "list runs: how each stands, its losses and its age",
    "show": "show what is in a batch of a run",
    "where": "find the steps in which a run reads a document or a text",
    "withdraw": "leave documents out of a run from its next step on",
    "diff": "say where two runs part, and why",
    "verify": "find out whether a run is what its folder says",
    "replay": "train a run again without some documents, and see what they did",
    "sweep": "train small runs of many blends, and find the best blend",
    "drill": "kill a run at random, and prove that its result is the same",
    "sample": "let the model of a run continue a text",
    "eval": "evaluate a run's model on tasks of lm-evaluation-harness",
    "export": "write a run's model for the library transformers",
    "report": "write the charts of a run as one HTML page",
}
"""Help of each command. The module `roxxel.cli._x` implements the command `x`.

Its function `x` has the arguments and the help. A parameter `typed` gets the words
that the user typed. `EPILOG` of the module is text below the help.
"""

_OF_PREPARE = {"write", "scan"}
"""Commands that `roxxel_prepare.cli.main` runs."""

PASSED_ON = {
    "format": "inspect, verify, print, copy and clean corpora",
    "ckpt": "list, compare, verify, export and delete checkpoints",
}
"""Help of commands that parse their own options. `roxxel_x.cli.main` runs `x`."""


@interruptible("roxxel")
def main(argv: Sequence[str] | None = None) -> int:
    """Run the `roxxel` command.

    Args:
        argv: Arguments after the program's name; by default `sys.argv[1:]`.

    Returns:
        An exit code, as in `EXIT_CODES`.
    """
    prepare_streams()
    arguments = list(sys.argv[1:] if argv is None else argv)
    name, rest = (arguments[0], arguments[1:]) if arguments else ("", [])
    if name in _OF_PREPARE:
        prepare = import_module("roxxel_prepare.cli")
        return prepare.main(arguments, prog="roxxel")
    if name in PASSED_ON:
        passed_on = import_module(f"roxxel_{name}.cli")
        of_run = {"describe": _run_texts, "logged": _logged_digest}
        more = of_run if name == "ckpt" else {}
        return passed_on.main(rest, prog=f"roxxel {name}", **more)
    if name in COMMANDS:
        # One parser per command, so that an error shows the usage of the command.
        parser, act = _command(name, arguments)
        options = parser.parse_args(rest)
        return run_command(
            "roxxel", lambda: act(options), _is_meant_for_users, _on_one_line
        )
    _parser().parse_command([*COMMANDS, *PASSED_ON], arguments)
    raise AssertionError(arguments)  # unreachable: an option of `roxxel` exits


def parsers() -> Iterator[tuple[str, CommandParser]]:
    """Yield every command as a user types it, with the parser of its arguments.

    Commands that other packages parse come last, because their parsers hold further
    commands.
    """
    for name in COMMANDS:
        if name not in _OF_PREPARE:
            yield f"roxxel {name}", _command(name, ())[0]
    for name in ("prepare", *PASSED_ON):
        prog = "roxxel" if name == "prepare" else f"roxxel {name}"
        yield prog, import_module(f"roxxel_{name}.cli").parser(prog)


def _command(name: str, typed: Sequence[str]) -> tuple[CommandParser, _Act]:
    module = import_module(f"roxxel.cli._{name}")
    prog, epilog = f"roxxel {name}", getattr(module, "EPILOG", "")
    act = getattr(module, name)
    if "typed" in inspect.signature(act).parameters:
        act = partial(act, typed=typed)
    parser = CommandParser(prog=prog, epilog=epilog, **CommandParser.settings_of(act))
    return parser, parser.calling(act)


def _run_texts(checkpoints: str, step: int, extra: Mapping[str, Any]) -> dict[str, str]:
    """Return texts about the run that saved a checkpoint, for `roxxel ckpt export`.

    `config` is the TOML that the run used at the step. `tokenizer` is the name and the
    hash of the primary corpus's tokenizer. An unknown text is left out.
    """
    run = _run_of(checkpoints)
    texts = {"config": None if run is None else run.config_text(step)}
    sources = (extra.get("data") or {}).get("sources") or [{}]
    texts["tokenizer"] = sources[0].get("tokenizer")
    return {name: str(text) for name, text in texts.items() if text}


def _logged_digest(checkpoints: str, step: int) -> str | None:
    run = _run_of(checkpoints)
    return None if run is None else run.saves().get(step)


@lru_cache(maxsize=1)  # `roxxel ckpt` asks for each step; the log is read once.
def _run_of(checkpoints: str) -> RunFolder | None:
    """Return the run around a folder of checkpoints; None if there is none."""
    run = re.sub("/checkpoints$", "", checkpoints)
    if run == checkpoints:
        return None
    from roxxel_train import RunFolder

    return RunFolder(run)


def _parser() -> CommandParser:
    commands = {**COMMANDS, **PASSED_ON}
    listed = "".join(f"  {name:11} {text}\n" for name, text in commands.items())
    parser = CommandParser(
        prog="roxxel",
        usage="roxxel [-h] [--version] COMMAND ...",
        description=_DESCRIPTION,
        epilog=f"commands (each has its own --help):\n{listed}\n",
        codes=EXIT_CODES,
    )
    parser.add_argument(
        "--version", action="version", version=f"roxxel {metadata.version('roxxel')}"
    )
    parser.add_argument("command", help=argparse.SUPPRESS)
    return parser


def _is_meant_for_users(error: Exception) -> bool:
    """Return whether an error becomes one sentence; any other error is a bug."""
    return isinstance(error, OSError) or is_ours(error)


def _on_one_line(error: Exception) -> str:
    return " ".join(sentence_of(error).split())
