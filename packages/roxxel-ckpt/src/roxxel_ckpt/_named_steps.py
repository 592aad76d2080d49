"""Finds the steps that an argument of the command line names.

An argument is the path or the URL of a step, of a folder of steps, or of a run. `@STEP`
after a folder names one of its steps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from roxxel_ckpt._place.description import not_found
from roxxel_ckpt._place.disk import LocalFolder
from roxxel_ckpt._place.opening import NAME_A_FOLDER, open_folder, step_at
from roxxel_ckpt.errors import CheckpointNotFoundError
from roxxel_ckpt.locations import split_step

if TYPE_CHECKING:
    from roxxel_ckpt._place.folder import Folder, Step


def named_folder(text: str) -> Folder:
    """Return a folder of checkpoints; `text` may name the folder or its run."""
    folder = open_folder(text)
    if not isinstance(folder, LocalFolder):
        inner = open_folder(f"{folder}/checkpoints")
        return inner if not folder.steps() and inner.steps() else folder
    if not folder.path.is_dir():
        raise CheckpointNotFoundError(f"{text}: does not exist; {NAME_A_FOLDER}")
    inner = open_folder(folder.path / "checkpoints")
    is_there = (folder.path / "checkpoints").is_dir()
    return inner if is_there and not folder.steps() else folder


def named_for_deletion(text: str) -> tuple[Folder, int]:
    """Return the folder and the number of a step of this package, `FOLDER@STEP`."""
    head, number = split_step(text)
    if number is None:
        raise ValueError(f"{text}: names no step; write FOLDER@STEP")
    folder = named_folder(head)
    step = folder.steps([number]).get(number)
    if step is None or step.state == "foreign":
        raise not_found(folder, number)
    return folder, number


def named_steps(text: str) -> list[Step]:
    """Return the step that a text names, or all steps of a folder or run."""
    head, number = split_step(text)
    if number is not None:
        folder = named_folder(head)
        steps = folder.steps([number])
        if not steps:
            raise not_found(folder, number)
        return list(steps.values())
    folder = named_folder(text)
    own = [step for step in folder.steps().values() if step.state != "foreign"]
    if own:
        return own
    step = step_at(folder)
    if step is not None and step.state != "foreign":
        return [step]
    raise CheckpointNotFoundError(
        f"{folder}: is not a checkpoint and holds none; {NAME_A_FOLDER}"
    )


def named_step(text: str) -> Step:
    """Return the step that a text names, or the newest of a folder or run."""
    return named_steps(text)[-1]
