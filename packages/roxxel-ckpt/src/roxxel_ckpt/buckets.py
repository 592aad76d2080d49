"""The bucket of a run's checkpoints, with this package's errors and time limit."""

from __future__ import annotations

from urllib.parse import urlsplit

from roxxel_store.client import Bucket
from roxxel_store.swap import SwapErrors

from roxxel_ckpt.errors import (
    CheckpointBucketError,
    CheckpointDamagedError,
    CheckpointTimeoutError,
    CheckpointWriteError,
)

SCHEMES = ("s3", "gs", "az")
SWAP_ERRORS = SwapErrors(
    CheckpointDamagedError, CheckpointTimeoutError, CheckpointWriteError
)
"""The errors of the manifest of checkpoints."""


def checkpoint_bucket(url: str, timeout_s: float) -> Bucket:
    """Return the objects below a URL.

    A request gets half of `timeout_s`, because a save or a restore makes several.
    """
    return Bucket(url, timeout_s / 2, error=CheckpointBucketError, option="timeout")


def is_url(text: str) -> bool:
    """Return whether a text is a URL and not a path."""
    return "://" in text


def checked_url(url: str) -> str:
    """Return the URL of a folder of checkpoints, without a slash at its end.

    Raises:
        ValueError: The scheme is unknown, the bucket or the folder is missing, or the
            URL has a query or a password. The message leaves these out.
    """
    parts = urlsplit(url)
    shown = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
    if parts.scheme not in SCHEMES:
        known = ", ".join(f"{scheme}://" for scheme in SCHEMES)
        raise ValueError(
            f"{shown}: checkpoints cannot be written to this kind of URL; give a path, "
            f"or a URL that begins with one of {known}"
        )
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise ValueError(
            f"{shown}: the URL has a password, a query or a fragment; remove it, and "
            "pass credentials in the environment"
        )
    names = parts.path.strip("/").split("/")
    if not parts.netloc or not {"", ".", ".."}.isdisjoint(names):
        raise ValueError(
            f"{shown}: names no folder in a bucket; give a URL such as "
            "s3://bucket/run/checkpoints"
        )
    return f"{parts.scheme}://{parts.netloc}/{'/'.join(names)}"
