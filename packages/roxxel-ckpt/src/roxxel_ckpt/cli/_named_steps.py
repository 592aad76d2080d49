"""Finds the steps that an argument of the command line names.

An argument is the path or the URL of a step, of a folder of steps, or of a run. `@STEP`
after a folder names one of its steps.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from roxxel_ckpt._names import ABANDONED, listed
from roxxel_ckpt._place.bucket import open_folder
from roxxel_ckpt._place.description import (
    Description,
    LeafSpec,
    read_description,
    read_leaves,
)
from roxxel_ckpt._place.disk import LocalFolder
from roxxel_ckpt.errors import (
    CheckpointDamagedError,
    CheckpointNotFoundError,
)

if TYPE_CHECKING:
    from collections.abc import Generator

    from roxxel_ckpt._place.folder import Folder

_NAME_A_FOLDER = "name a folder of checkpoints or of a run"


class Step(NamedTuple):
    """A step of a folder."""

    folder: Folder
    number: int

    @property
    def location(self) -> str:
        """The path or URL that names the step in messages."""
        return self.folder.location(self.number)

    @property
    def directory(self) -> Path:
        """A local directory with the description and the digests of the step."""
        return self.folder.step_path(self.number)

    def description(self) -> Description:
        """Read the description."""
        with self._renamed() as directory:
            return read_description(directory)

    def leaves(self) -> dict[str, LeafSpec]:
        """Read shape and dtype of every leaf."""
        with self._renamed() as directory:
            return read_leaves(directory)

    @contextlib.contextmanager
    def _renamed(self) -> Generator[Path]:
        """In errors, replace the local directory by the location of the step."""
        directory = self.directory
        try:
            yield directory
        except CheckpointDamagedError as error:
            text = str(error).replace(str(directory), self.location)
            raise CheckpointDamagedError(text) from error


def named_folder(text: str) -> Folder:
    """Return a folder of checkpoints; `text` may name the folder or its run."""
    folder = open_folder(text)
    if not isinstance(folder, LocalFolder):
        inner = open_folder(f"{folder}/checkpoints")
        is_run = not folder.numbered() and (
            inner.numbered() or inner.aside().numbered()
        )
        return inner if is_run else folder
    if not folder.path.is_dir():
        problem = "is a file" if folder.path.exists() else "does not exist"
        raise CheckpointNotFoundError(f"{text}: {problem}; {_NAME_A_FOLDER}")
    inner = LocalFolder(folder.path / "checkpoints")
    return inner if inner.path.is_dir() and not folder.numbered() else folder


def named_aside(text: str) -> tuple[Folder, int]:
    """Return the folder and the number of a step that was set aside, `FOLDER@STEP`."""
    head, _, digits = text.rpartition("@")
    if not (head and digits.isdecimal()):
        raise ValueError(f"{text}: names no step; write FOLDER@STEP")
    folder = named_folder(head.rstrip("/").removesuffix(f"/{ABANDONED}"))
    return folder, int(digits)


def holds_none(folder: Folder) -> CheckpointNotFoundError:
    """Return the error for a folder without steps."""
    return CheckpointNotFoundError(
        f"{folder}: is not a checkpoint and holds none; {_NAME_A_FOLDER}"
    )


def named_steps(text: str) -> list[Step]:
    """Return the step that a text names, or all steps of a folder or run."""
    head, at, digits = text.rpartition("@")
    if at and head and digits.isdecimal() and not Path(text).exists():
        folder = named_folder(head)
        if int(digits) not in folder.numbered():
            is_aside = int(digits) in folder.aside().numbered()
            raise CheckpointNotFoundError(
                f"{folder}: has no step {digits}; it holds {listed(folder.steps())}"
                + (f", and {folder}/{ABANDONED} holds step {digits}" * is_aside)
            )
        return [Step(folder, int(digits))]
    folder = named_folder(text)
    own = [Step(folder, n) for n in folder.numbered() if folder.is_checkpoint(n)]
    if own:
        return own
    parent, _, name = str(folder).rpartition("/")
    if name.isdigit():
        above = open_folder(parent)
        if int(name) in above.numbered() and above.is_checkpoint(int(name)):
            return [Step(above, int(name))]
    raise holds_none(folder)


def named_step(text: str) -> Step:
    """Return the step that a text names, or the newest of a folder or run."""
    return named_steps(text)[-1]
