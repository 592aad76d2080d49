"""The folder of checkpoints, or the steps, that a path, a URL or a user's text names.

On the command line, a step is named by its own path or URL, as `FOLDER@STEP`, or by a
folder of steps or of a run, whose newest step is meant.

`roxxel_train` uses `split_step`; user programs need nothing of this module. It does not
import JAX.
"""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING

from roxxel_store.urls import bucket_url, expanded

from roxxel_ckpt._place.bucket import BucketFolder
from roxxel_ckpt._place.description import finished, not_found
from roxxel_ckpt._place.disk import LocalFolder, without_dots
from roxxel_ckpt.errors import CheckpointNotFoundError

if TYPE_CHECKING:
    from roxxel_ckpt._place.folder import Folder, Step

_READ_TIMEOUT_S = 60.0
_NAME_A_FOLDER = "name a folder of checkpoints or of a run"


def split_step(text: str) -> tuple[str, int | None]:
    """Return the folder and the step of `FOLDER@STEP`.

    Without a step, return the text and None. If a file or folder with the whole name
    exists on a disk, such as `runs/a@100`, the text names no step.

    Example:
        >>> split_step("runs/a@100"), split_step("runs/a")
        (('runs/a', 100), ('runs/a', None))
    """
    folder, _, digits = text.rpartition("@")
    is_step = digits.isascii() and digits.isdecimal()
    if folder and is_step and not expanded(text).exists():
        return folder, int(digits)
    return text, None


def named_step(text: str) -> Step:
    """Return the step that a text names, or the newest of a folder or run."""
    return named_steps(text)[-1]


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
    step = _step_at(folder)
    if step is not None and step.state != "foreign":
        return [step]
    raise CheckpointNotFoundError(
        f"{folder}: is not a checkpoint and holds none; {_NAME_A_FOLDER}"
    )


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


def named_folder(text: str) -> Folder:
    """Return a folder of checkpoints; `text` may name the folder or its run."""
    folder = open_folder(text)
    if not isinstance(folder, LocalFolder):
        # A bucket has no empty folder, so only steps show that this is a run's.
        inner = open_folder(f"{folder}/checkpoints")
        return inner if not folder.steps() and inner.steps() else folder
    if not folder.path.is_dir():
        raise CheckpointNotFoundError(f"{text}: does not exist; {_NAME_A_FOLDER}")
    inner = open_folder(folder.path / "checkpoints")
    # On a disk the inner folder does, even before the run's first save.
    is_run = (folder.path / "checkpoints").is_dir()
    return inner if is_run and not folder.steps() else folder


def open_folder(
    location: str | os.PathLike[str],
    local: str | os.PathLike[str] | None = None,
    timeout_s: float = _READ_TIMEOUT_S,
) -> Folder:
    """Return the folder of checkpoints that a path or a URL names.

    Raises:
        TypeError: It is neither a path nor a URL.
        ValueError: The path is empty, the URL cannot be used, or `local` is given with
            a path.
        NotADirectoryError: The path is a file.
        ModuleNotFoundError: The client of buckets is not installed.
    """
    url = bucket_url(location, "checkpoint_path")
    if url is not None:
        # Several runs may share `local`.
        name = hashlib.sha256(url.encode()).hexdigest()[:16]
        directory = None if local is None else without_dots(expanded(local)) / name
        return BucketFolder(url, directory, timeout_s)
    text = os.fspath(location)
    if local is not None:
        raise ValueError(
            f"local={os.fspath(local)!r} is for checkpoints in a bucket; omit it, or "
            f"give checkpoint_path a URL instead of {text}"
        )
    folder = LocalFolder(expanded(text), timeout_s)
    if folder.path.is_file():
        raise NotADirectoryError(f"{text}: is a file; {_NAME_A_FOLDER}")
    return folder


def check_is_the_folder(folder: Folder) -> None:
    """Raise CheckpointNotFoundError if a folder without steps is a run, or a step.

    The caller probably meant the steps in it, and would silently begin anew.

    Raises:
        CheckpointDamagedError: There are steps that no reader can find.
    """
    folder.check_not_lost()
    inner, step = open_folder(f"{folder}/checkpoints"), _step_at(folder)
    if finished(inner):
        raise CheckpointNotFoundError(
            f"{folder}: holds no step, but {inner} does; give that folder"
        )
    if step is not None and step.state == "finished":
        raise CheckpointNotFoundError(
            f"{folder}: is a checkpoint and not a folder of checkpoints; give "
            f"{str(folder).rpartition('/')[0]}"
        )


def _step_at(folder: Folder) -> Step | None:
    """Return the step that a path names; None if it names a folder of steps."""
    parent, _, name = str(folder).rpartition("/")
    if not (name.isascii() and name.isdecimal()):
        return None
    return open_folder(parent or "/").steps([int(name)]).get(int(name))
