"""Checks of a folder that will be written, without changing anything on the disk."""

from __future__ import annotations

import os
import re
from pathlib import Path

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")


def check_writable(path: str | os.PathLike[str], name: str) -> None:
    """Check that a folder can be written, or created where it does not exist.

    Args:
        path: The folder.
        name: The argument that it was given as.

    Raises:
        OSError: The folder cannot be written, or the path is a file.
        ValueError: The path is a URL, or no file system allows it.
    """
    text = os.fspath(path)
    if _URL.match(text):
        raise ValueError(
            f"{name}={text!r}: is a URL, and runs are written to local folders only; "
            "give a local folder"
        )
    if "\0" in text:
        raise ValueError(f"{name}={text!r}: holds a NUL character; give another folder")
    folder = Path(path)
    if folder.is_symlink() and not folder.exists():
        raise FileNotFoundError(
            f"{name}={text!r}: is a link to nothing; "
            "create the folder that the link names, or give another folder"
        )
    nearest = folder
    while not nearest.exists() and nearest != nearest.parent:
        nearest = nearest.parent
    if not nearest.is_dir():
        raise NotADirectoryError(f"{name}={text!r}: {nearest} is a file; give a folder")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise PermissionError(
            f"{name}={text!r}: {nearest} cannot be written; "
            "give another folder or change its permissions"
        )
