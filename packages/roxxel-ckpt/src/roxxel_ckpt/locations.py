"""What a user names: a folder of checkpoints, on a disk or in a bucket, and a step.

This module does not import JAX.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from roxxel_store.urls import expanded, url_of

if TYPE_CHECKING:
    import os


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
