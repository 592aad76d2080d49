"""Write a file once, as a hidden draft that is renamed when it is complete.

This module writes every file that appears under its name as a whole: shards, manifests,
columns, copies of a cache, records of a run, exports and reports.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Self

from roxxel_store.files import claim, draft_path, read_file, sync_file, sync_folder
from roxxel_store.records import MAX_BYTES

if TYPE_CHECKING:
    from collections.abc import Generator
    from types import TracebackType

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class Output:
    """A new file. After an error or an interrupt, every further write raises.

    If a `with` block ends without `publish` or `rename`, the output removes the draft.
    `draft` is a path that no other output uses; this output removes it in the end. For
    None, the output makes a draft of its own.

    Example:
        >>> from pathlib import Path
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     path = Path(folder, "whole.txt")
        ...     with Output(path) as output:
        ...         output.write(b"all of it")
        ...         there_before = path.exists()
        ...         output.publish()
        ...     (there_before, path.read_bytes())
        (False, b'all of it')
    """

    def __init__(self, path: Path, draft: Path | None = None) -> None:
        self._path = path
        self._is_broken = False
        self._is_named = False
        try:
            check_output(path)
            self.draft = _new_draft(path) if draft is None else draft
            self._file = self.draft.open("wb", buffering=0)
        except OSError as error:
            if draft is not None:
                draft.unlink(missing_ok=True)
            if error.filename is None:
                raise
            raise OSError(error.errno, error.strerror, str(path)) from error

    def write(self, data: bytes | memoryview) -> None:
        """Append bytes."""
        with self.unless_broken(), self._named(), memoryview(data) as rest:
            start = 0
            while start < len(rest):
                start += self._file.write(rest[start:])

    def finish(self) -> None:
        """Flush the draft to the disk and close it."""
        with self.unless_broken(), self._named():
            if not self._file.closed:
                sync_file(self._file.fileno())
                self._file.close()

    def rename(self) -> None:
        """Finish the draft and rename it to the file; a second call does nothing."""
        if self._is_named:
            return
        self.finish()
        with self.unless_broken(), self._named():
            self.draft.replace(self._path)
            self._is_named = True

    def publish(self) -> None:
        """Rename the draft, and flush the folder to the disk."""
        self.rename()
        sync_folder(self._path.parent)

    def abort(self) -> None:
        """Close the draft, and remove it unless it was renamed to the file."""
        self._is_broken = True
        with contextlib.suppress(OSError):
            self._file.close()
        if not self._is_named:  # Another writer may already use a renamed draft's name.
            with contextlib.suppress(OSError):
                self.draft.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.abort()

    @contextlib.contextmanager
    def unless_broken(self) -> Generator[None]:
        """Run the block. After an error in it, every further write raises."""
        if self._is_broken:
            raise OSError(
                f"{self._path}: an earlier write failed, so this file cannot be "
                "completed; write it again"
            )
        try:
            yield
        except BaseException:
            self._is_broken = True
            raise

    @contextlib.contextmanager
    def _named(self) -> Generator[None]:
        """Add the file's name to each OSError that the block raises."""
        try:
            yield
        except OSError as error:
            remedy = "make room and write" if is_full(error) else "write it"
            raise OSError(
                error.errno,
                f"{os.strerror(error.errno or 0)}; the new file was discarded, so "
                f"{remedy} again",
                str(self._path),
            ) from error


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
    draft = draft_path(path, secrets.token_hex(4))
    try:
        with Output(path, draft) as output:
            with draft.open("r+b") as file:
                yield file
            output.publish()
    except OSError as error:
        # An error that names another file comes from reading what is written here.
        if error.filename in {None, str(draft), str(path)}:
            reason = os.strerror(error.errno) if error.errno else error
            raise OSError(
                f"{path}: cannot be written ({reason}); make room, or write elsewhere"
            ) from error
        raise


def replace_file(path: Path, data: bytes, draft: Path | None = None) -> None:
    """Replace a small file atomically, and flush it to the disk.

    `draft` is the name of the hidden file, for a folder with a single writer.
    """
    with Output(path, draft) as output:
        output.write(data)
        output.publish()


def swap_file(path: Path, data: bytes, before: bytes | None) -> bool:
    """Replace a small file if it still holds `before`; call this with a lock held.

    Args:
        path: The file.
        data: The new content.
        before: The content that this program has read; None for no such file.

    Returns:
        Whether it was replaced; False if it holds something else.

    Raises:
        FileNotFoundError: The file is gone.
        OSError: The disk refuses the file.
    """
    try:
        found = read_file(path, MAX_BYTES)
    except (FileNotFoundError, NotADirectoryError) as error:
        if before is not None:
            raise FileNotFoundError(*error.args) from error
        found = None
    if found != before:
        return False
    replace_file(path, data, draft_path(path))
    return True


def check_output(path: str | os.PathLike[str]) -> None:
    """Raise an OSError unless a file can be written at a path.

    The path must be a regular file, or a new name in a folder that exists.

    A rename would replace a device, a pipe or a link. So call this before long work
    whose result goes to `path`.

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


def is_full(error: Exception | None) -> bool:
    """Return whether an error says that a disk, a quota or a file has no room."""
    return isinstance(error, OSError) and error.errno in _FULL


def _new_draft(path: Path) -> Path:
    """Create a draft that no other writer uses, and return its path."""
    while not claim(draft := draft_path(path, secrets.token_hex(4))):
        pass
    return draft
