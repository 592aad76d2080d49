"""Copies the descriptions of a bucket's checkpoints, without their arrays.

`roxxel_train` uses this module to read a run in a bucket; user programs need not.
"""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from roxxel_store.files import in_parallel, replace_file
from roxxel_store.urls import checked_url

from roxxel_ckpt._place.bucket import BucketFolder
from roxxel_ckpt._place.copies import storing
from roxxel_ckpt._place.description import COMMIT_FILE

if TYPE_CHECKING:
    import os

    from roxxel_ckpt._place.folder import Step


def fetch_descriptions(
    url: str, directory: str | os.PathLike[str], timeout_s: float
) -> list[int]:
    """Copy the description of every step of a bucket to `<directory>/<step>/`.

    `read_description` reads the copies. Copies of other steps in the directory are
    removed.

    Args:
        url: URL of a folder of checkpoints.
        directory: Local directory, which is created if there is a step.
        timeout_s: Time limit in seconds.

    Returns:
        The steps, oldest first.

    Raises:
        ValueError: The URL cannot be used.
        CheckpointBucketError: The bucket cannot be read.
    """
    # Keep the folder object: its temporary directory is removed with it.
    folder = BucketFolder(checked_url(url), None, timeout_s)
    steps, target = folder.steps(), Path(directory)
    for other in target.iterdir() if target.is_dir() else ():
        if other.name.isdecimal() and int(other.name) not in steps:
            shutil.rmtree(other)

    def copy(step: Step) -> None:
        with contextlib.suppress(FileNotFoundError):  # the object is gone
            data, path = step.read(COMMIT_FILE), target / str(step.number) / COMMIT_FILE
            with storing(path):
                path.parent.mkdir(parents=True, exist_ok=True)
                replace_file(path, data)

    in_parallel(copy, steps.values())
    return list(steps)
