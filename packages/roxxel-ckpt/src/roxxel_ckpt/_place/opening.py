"""Opens a folder of checkpoints by its path or URL."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from roxxel_store.files import in_parallel
from roxxel_store.urls import checked_url, expanded

from roxxel_ckpt._names import ABANDONED, COMMIT_FILE
from roxxel_ckpt._place.bucket import BucketFolder
from roxxel_ckpt._place.copies import write_copy
from roxxel_ckpt._place.disk import LocalFolder, absolute
from roxxel_ckpt.locations import folder_url

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
    url = folder_url(location)
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
    folder = LocalFolder(expanded(text))
    if folder.path.is_file():
        raise NotADirectoryError(f"{text}: is a file; {NAME_A_FOLDER}")
    return folder


def aside_of(folder: Folder) -> Folder:
    """Return the folder of the steps that were set aside."""
    return open_folder(f"{folder}/{ABANDONED}")


def fetch_descriptions(url: str, directory: str | os.PathLike[str]) -> list[int]:
    """Copy the description of every step of a bucket to `<directory>/<step>/`.

    `read_description` reads the copies. Copies of other steps in the directory are
    removed.

    Args:
        url: URL of a folder of checkpoints.
        directory: Local directory, which is created if there is a step.

    Returns:
        The steps, oldest first.

    Raises:
        ValueError: The URL cannot be used.
        CheckpointBucketError: The bucket cannot be read.
    """
    # Keep the folder object: its temporary directory is removed with it.
    folder = BucketFolder(checked_url(url), None, _READ_TIMEOUT_S)
    steps, target = folder.steps(), Path(directory)
    for other in target.iterdir() if target.is_dir() else ():
        if other.name.isdecimal() and int(other.name) not in steps:
            shutil.rmtree(other)

    def copy(step: Step) -> None:
        with contextlib.suppress(FileNotFoundError):  # the object is gone
            data = step.read(COMMIT_FILE)
            write_copy(target / str(step.number) / COMMIT_FILE, data)

    in_parallel(copy, steps.values())
    return list(steps)
