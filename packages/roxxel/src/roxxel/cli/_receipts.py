"""The option `--check`, by which `verify` and `replay` compare a receipt."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from roxxel_store.command import Found
from roxxel_store.screen import say
from roxxel_train import RunFolderError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


Receipt = Annotated[Path | None, "RECEIPT"]


def check_alone(
    check: Path | None, run: str | None, given: Mapping[str, object]
) -> None:
    """Check that RUN or --check is given, and no option that a receipt contains.

    Raises:
        RunFolderError: Neither is given, or --check and one of `given`.
    """
    if check is None and run is None:
        raise RunFolderError("no run is given; give the folder of a run, or --check")
    for name, value in given.items():
        if check is not None and value:
            raise RunFolderError(
                f"{name} is given with --check, whose receipt says what is trained; "
                f"omit {name}"
            )


def say_checked(check: Path, unconfirmed: Sequence[str]) -> None:
    """Print the facts of a receipt that could not be confirmed, or that all were.

    Raises:
        Found: A fact could not be confirmed.
    """
    for line in unconfirmed:
        say(line)
    if unconfirmed:
        raise Found(
            f"{check}: other values came out here, as the lines above say; on "
            "another kind of device or release, compare the losses instead"
        )
    say(f"{check}: holds, bit for bit")
