"""Opens a folder of checkpoints by its path or URL."""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING

from roxxel_store.urls import expanded

from roxxel_ckpt._names import ABANDONED
from roxxel_ckpt._place.bucket import BucketFolder
from roxxel_ckpt._place.disk import LocalFolder, absolute
from roxxel_ckpt.locations import folder_url

if TYPE_CHECKING:
    from roxxel_ckpt._place.folder import Folder

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
