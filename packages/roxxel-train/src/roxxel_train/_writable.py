"""Whether a folder that will be written to can be, found out without touching it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def check_writable(path: Path, name: str) -> None:
    """Check that a folder can be written, or made where it does not exist.

    Args:
        path: The folder.
        name: The argument that it was given as.

    Raises:
        OSError: It cannot, or it is no folder.
        ValueError: No file system has such a name.
    """
    if "\0" in str(path):
        raise ValueError(
            f"{name}={str(path)!r}: holds a NUL character; give another folder"
        )
    if path.is_symlink() and not path.exists():
        raise FileNotFoundError(
            f"{name}={str(path)!r}: is a link to nothing; "
            "make the folder that it names or give another one"
        )
    nearest = path
    while not nearest.exists() and nearest != nearest.parent:
        nearest = nearest.parent
    if not nearest.is_dir():
        raise NotADirectoryError(
            f"{name}={str(path)!r}: {nearest} is a file; give a folder"
        )
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise PermissionError(
            f"{name}={str(path)!r}: {nearest} cannot be written; "
            "give another folder or change its permissions"
        )
