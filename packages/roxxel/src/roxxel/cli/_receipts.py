"""The option `--check`, by which `verify` and `replay` compare a receipt."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from roxxel_store.command import Found
from roxxel_store.screen import say
from roxxel_train import RunFolderError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence


def add_check_argument(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument(
        "--check",
        type=Path,
        metavar="RECEIPT",
        help=(
            f"{what}, and compare everything that the receipt says; RUN says where the "
            "run is now. Exit code 3 means that something differs"
        ),
    )


def check_alone(options: argparse.Namespace, given: Mapping[str, object]) -> None:
    """Check that RUN or --check is given, and no option that a receipt contains.

    Raises:
        RunFolderError: Neither is given, or --check and one of `given`.
    """
    if options.check is None and options.run is None:
        raise RunFolderError("no run is given; give the folder of a run, or --check")
    for name, value in given.items():
        if options.check is not None and value:
            raise RunFolderError(
                f"{name} is given with --check, whose receipt says what is trained; "
                f"omit {name}"
            )


def say_checked(options: argparse.Namespace, unconfirmed: Sequence[str]) -> None:
    """Print the facts of a receipt that could not be confirmed, or that all were.

    Raises:
        Found: A fact could not be confirmed.
    """
    for line in unconfirmed:
        say(line)
    if unconfirmed:
        raise Found(
            f"{options.check}: other values came out here, as the lines above say; on "
            "another kind of device or release, compare the losses instead"
        )
    say(f"{options.check}: holds, bit for bit")
