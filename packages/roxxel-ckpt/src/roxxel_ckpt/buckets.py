"""The bucket of a run's checkpoints, with this package's errors and time limit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from roxxel_store.client import Bucket
from roxxel_store.swap import SwapErrors
from roxxel_store.urls import url_of

from roxxel_ckpt.errors import (
    CheckpointBucketError,
    CheckpointDamagedError,
    CheckpointTimeoutError,
    CheckpointWriteError,
)

if TYPE_CHECKING:
    import os

SWAP_ERRORS = SwapErrors(
    CheckpointDamagedError, CheckpointTimeoutError, CheckpointWriteError
)
"""The errors of the manifest of checkpoints."""


def checkpoint_bucket(url: str, timeout_s: float) -> Bucket:
    """Return the objects below a URL.

    A request gets half of `timeout_s`, because a save or a restore makes several.
    """
    return Bucket(url, timeout_s / 2, error=CheckpointBucketError, option="timeout")


def folder_url(path: str | os.PathLike[str], name: str = "") -> str | None:
    """Return the URL of a folder in a bucket; None for a path on a disk.

    Args:
        path: A path or a URL.
        name: The argument that holds the path, for messages.

    Raises:
        ValueError: The URL is of a web server, or not valid; see `url_of`.
    """
    url = url_of(path, name, "s3://bucket/run/checkpoints")
    if url is not None and url.startswith(("http://", "https://")):
        raise ValueError(
            f"{url}: a web server cannot hold checkpoints; give a path, or a URL that "
            "begins with s3://, gs:// or az://"
        )
    return url
