"""A folder on a disk that several programs write to, one after the other.

It has the methods of `roxxel_store.client.Bucket` that `roxxel_store.swap` needs, so
programs take turns at a folder on a disk as they do in a bucket. A bucket refuses a
request whose condition does not hold. On a disk, a program locks the folder while it
compares and replaces, and `Writer.locked` keeps the lock for whatever else must happen
in between.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from typing import TYPE_CHECKING

from roxxel_store.client import Answer, Listed, Listing, ObjectVersion, Version
from roxxel_store.files import read_file
from roxxel_store.locks import lock_folder, unlock_folder
from roxxel_store.output import swap_file
from roxxel_store.records import MAX_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable
    from pathlib import Path

_POLL_INTERVAL_S = 0.02


class DiskFolder:
    """A folder on a disk.

    Args:
        path: The folder, which need not exist yet.
        timeout_s: Longest wait for another program that holds the lock, in seconds.
        late: Class of the error if the wait is longer.

    Attributes:
        url: The path.

    Example:
        >>> from pathlib import Path
        >>> folder = DiskFolder(Path.cwd(), timeout_s=60)
        >>> with folder.locked():
        ...     version = folder.replace("state.json", b"{}", None)
        ...     late = folder.replace("state.json", b"[]", None)
        >>> late is None, folder.get("state.json").data
        (True, b'{}')
    """

    needs_manifest = False

    def __init__(
        self,
        path: Path,
        timeout_s: float,
        late: Callable[[str], Exception] = TimeoutError,
    ) -> None:
        self.url = str(path)
        self._path, self._timeout_s, self._late = path, timeout_s, late

    def url_of(self, name: str) -> str:
        """Return the path of a file."""
        return f"{self.url}/{name}"

    @contextlib.contextmanager
    def locked(self) -> Generator[None]:
        """Wait for the lock of the folder, and hold it.

        Raises:
            FileNotFoundError: There is no such folder.
            TimeoutError: Another program holds the lock for too long.
        """
        deadline_s = time.monotonic() + self._timeout_s
        while (descriptor := lock_folder(self._path)) is None:
            if time.monotonic() > deadline_s:
                raise self._late(
                    f"{self.url}: another program holds the lock of this folder for "
                    f"more than {self._timeout_s:g} seconds; end it if it hangs"
                )
            time.sleep(_POLL_INTERVAL_S)
        try:
            yield
        finally:
            unlock_folder(descriptor)

    def get(self, name: str) -> Answer:
        """Return the content and the version of a small file.

        Raises:
            FileNotFoundError: There is no such file, or no such folder.
        """
        try:
            data = read_file(self._path / name, MAX_BYTES)
        except NotADirectoryError as error:
            raise FileNotFoundError(*error.args) from error
        version = _version_of(data)
        return Answer(data, len(data), version.e_tag or "", version)

    def replace(
        self, name: str, data: bytes, version: Version | None
    ) -> Version | None:
        """Write a small file if it still has `version`; call this while it is locked.

        Returns:
            The new version, or None if the file has another version.

        Raises:
            FileNotFoundError: The file is gone.
            OSError: The disk refuses the file.
        """
        before = None if version is None else (version.e_tag or "").encode("latin-1")
        is_replaced = swap_file(self._path / name, data, before)
        return _version_of(data) if is_replaced else None

    def refusal(self, message: str) -> OSError:
        """Return the error for a bucket that ignores conditions."""
        return OSError(message)

    def names(self, prefix: str = "") -> Listing:
        """List what is directly in the folder, or in one of its folders."""
        files, folders = dict[str, Listed](), list[str]()
        with (
            contextlib.suppress(FileNotFoundError),
            os.scandir(self._path / prefix) as entries,
        ):
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.name)
                else:
                    files[entry.name] = Listed(ObjectVersion(0, ""), 0.0)
        return Listing(files, folders)

    def delete(self, names: Iterable[str]) -> None:
        """Delete files, if they exist."""
        for name in names:
            (self._path / name).unlink(missing_ok=True)

    def delete_folder(self, name: str) -> None:
        """Delete a folder; another program may delete it at the same time."""
        path = self._path / name
        while path.exists():
            with contextlib.suppress(FileNotFoundError):
                shutil.rmtree(path)


def _version_of(data: bytes) -> Version:
    """Return the version of a small file on a disk: its content, as a text."""
    # Copying is ten times as fast as a digest.
    return Version(data.decode("latin-1"), None)
