"""Opens a folder of checkpoints by its path or URL."""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING

from roxxel_store.urls import bucket_url, expanded

from roxxel_ckpt._place.bucket import BucketFolder
from roxxel_ckpt._place.description import finished
from roxxel_ckpt._place.disk import LocalFolder, absolute
from roxxel_ckpt.errors import CheckpointNotFoundError

if TYPE_CHECKING:
    from roxxel_ckpt._place.folder import Folder, Step

_READ_TIMEOUT_S = 60.0
NAME_A_FOLDER = "name a folder of checkpoints or of a run"


def open_folder(
    location: str | os.PathLike[str],
    local: str | os.PathLike[str] | None = None,
    timeout_s: float = _READ_TIMEOUT_S,
) -> Folder:
    """Return the folder of checkpoints that a path or a URL names.

    Raises:
        ValueError: The URL cannot be used, or `local` is given with a path.
        NotADirectoryError: The path is a file.
        ModuleNotFoundError: The client of buckets is not installed.
    """
    url = bucket_url(location)
    if url is not None:
        # Several runs may share `local`.
        name = hashlib.sha256(url.encode()).hexdigest()[:16]
        directory = None if local is None else absolute(expanded(local)) / name
        return BucketFolder(url, directory, timeout_s)
    text = os.fspath(location)
    if local is not None:
        raise ValueError(
            f"local={os.fspath(local)!r} is for checkpoints in a bucket; omit it, or "
            f"give checkpoint_path a URL instead of {text}"
        )
    folder = LocalFolder(expanded(text), timeout_s)
    if folder.path.is_file():
        raise NotADirectoryError(f"{text}: is a file; {NAME_A_FOLDER}")
    return folder


def step_at(folder: Folder) -> Step | None:
    """Return the step that a path names; None if it names a folder of steps."""
    parent, _, name = str(folder).rpartition("/")
    if not (name.isascii() and name.isdecimal()):
        return None
    return open_folder(parent).steps([int(name)]).get(int(name))


def check_is_the_folder(folder: Folder) -> None:
    """Raise CheckpointNotFoundError if a folder without steps is a run, or a step.

    The caller probably meant the steps in it, and would silently begin anew.

    Raises:
        CheckpointDamagedError: There are steps that no reader can find.
    """
    folder.check_not_lost()
    inner, step = open_folder(f"{folder}/checkpoints"), step_at(folder)
    if finished(inner):
        raise CheckpointNotFoundError(
            f"{folder}: holds no step, but {inner} does; give that folder"
        )
    if step is not None and step.state == "finished":
        raise CheckpointNotFoundError(
            f"{folder}: is a checkpoint and not a folder of checkpoints; give "
            f"{str(folder).rpartition('/')[0]}"
        )
