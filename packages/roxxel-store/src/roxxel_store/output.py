"""One output file of a command: a regular file that appears when it is complete."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from collections.abc import Generator


def check_output(path: str | os.PathLike[str]) -> None:
    """Raise an OSError unless a path names a regular file or none in a folder.

    A rename would put a file in the place of a device, a pipe or a link, so call this
    before long work whose result a path is to hold.

    Args:
        path: The file to write.

    Raises:
        OSError: The path is a folder, a link or a device, or its folder does not exist.

    Example:
        >>> check_output("new.txt")
        >>> check_output("/dev/null")
        Traceback (most recent call last):
        OSError: /dev/null: is not a regular file; name a file to write
    """
    path = Path(path)
    if path.is_symlink():
        raise OSError(f"{path}: is a link; name a file to write, not a link to it")
    if path.is_dir():
        raise OSError(f"{path}: is a folder; name a file to write")
    if path.exists() and not path.is_file():
        raise OSError(f"{path}: is not a regular file; name a file to write")
    if not path.parent.is_dir():
        raise OSError(
            f"{path}: its folder does not exist; make it, or name a file in another "
            "folder"
        )


@contextlib.contextmanager
def published(path: str | os.PathLike[str]) -> Generator[BinaryIO]:
    """Yield a hidden file; rename it to `path` at the end, or remove it on error.

    The file is flushed to the disk before the rename, and an older file at `path`
    stays until then.

    Args:
        path: The file to write; see `check_output`.

    Raises:
        OSError: `path` cannot hold a file, or the disk refuses the file.

    Example:
        >>> from pathlib import Path
        >>> with published("new.txt") as file:
        ...     file.write(b"text")
        4
        >>> Path("new.txt").read_text()
        'text'
    """
    path = Path(path)
    check_output(path)
    draft = path.with_name(f".{path.name}~{secrets.token_hex(4)}.partial")
    try:
        with draft.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except BaseException as error:
        with contextlib.suppress(OSError):  # a name may be too long to remove, too
            draft.unlink(missing_ok=True)
        # An error that names another file comes from reading what is written here.
        if isinstance(error, OSError) and error.filename in {None, str(draft)}:
            reason = error.strerror or error
            raise OSError(
                f"{path}: cannot be written ({reason}); make room, or write elsewhere"
            ) from error
        raise
    with contextlib.suppress(OSError):  # some systems cannot flush a folder
        descriptor = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
