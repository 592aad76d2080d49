"""A place for files: a folder on a disk, or in a bucket.

Whoever holds a `FilePlace` does not ask which of the two it is. A file appears whole,
under a name that its writer chose, or not at all. A manifest that several programs
replace needs more, a comparison: see `swap`.

Use it for files of which each is whole by itself, such as the shards of a corpus. A
checkpoint is no such place: a step is a tree of files that Orbax writes, and all of
them appear by one rename or one swap.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, NamedTuple

from roxxel_store.client import Bucket
from roxxel_store.files import names_in, read_file
from roxxel_store.locks import held
from roxxel_store.output import Output, replace_file
from roxxel_store.swap import swap_object
from roxxel_store.urls import check_writable

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable
    from contextlib import AbstractContextManager


class Stage(NamedTuple):
    """A folder on a disk; `publish` adds a complete file from it to the place.

    Example:
        >>> with OnDisk(Path.cwd(), Path(".lock")).stage() as stage:
        ...     path = stage.path / "staged.bin"
        ...     written = path.write_bytes(b"whole")
        ...     stage.publish(path)
        True
    """

    path: Path
    publish: Callable[[Path], object]


class FilePlace(ABC):
    """A folder of files, on a disk or in a bucket.

    Attributes:
        location: The folder's path or URL, with a slash at the end.

    Example:
        >>> def finished(place: FilePlace, name: str) -> bool:
        ...     return place.read(name, 100) is not None
        >>> finished(OnDisk(Path.cwd(), Path(".lock")), "no such file")
        False
    """

    location: str

    @abstractmethod
    def read(self, name: str, max_bytes: int) -> bytes | None:
        """Return the content of a small file; None if there is no such file."""

    @abstractmethod
    def create(self, name: str, data: bytes) -> bool:
        """Add a small file; return False if there is a file of this name."""

    @abstractmethod
    def replace(self, name: str, data: bytes) -> None:
        """Add a small file, in the place of one of this name, if there is one."""

    @abstractmethod
    def sizes(self, names: Iterable[str] | None = None) -> dict[str, int]:
        """Return the sizes of all files, or at least of those in `names`."""

    @abstractmethod
    def stage(self) -> AbstractContextManager[Stage]:
        """Return a folder in which to write files, and how to publish them."""

    @abstractmethod
    def add(
        self,
        name: str,
        write: Callable[[Output], object],
        check: Callable[[Path], object],
        source: Path | None = None,
    ) -> None:
        """Add a file; it replaces a file of this name.

        Args:
            name: Name of the file.
            write: Writes the content.
            check: Called with the complete file's path on a disk before the file
                appears; may raise.
            source: A file on a disk that has this content already, if there is one. Its
                upload needs no other copy.
        """

    @abstractmethod
    def delete(self, names: Iterable[str]) -> None:
        """Delete files in this order; files that cannot be deleted now stay."""


class OnDisk(FilePlace):
    """A folder on a disk.

    Args:
        folder: The folder.
        lock: The file to lock while a small file is created.
        error: Class of the error for what is no regular file.

    Example:
        >>> place = OnDisk(Path.cwd(), Path(".lock"))
        >>> place.create("plan", b"one"), place.create("plan", b"two")
        (True, False)
        >>> place.read("plan", 100), place.sizes(["plan", "none"])
        (b'one', {'plan': 3})
    """

    def __init__(
        self,
        folder: Path,
        lock: Path,
        error: Callable[[str], Exception] = ValueError,
    ) -> None:
        self.location = f"{folder}/"
        self._folder = folder
        self._lock = lock
        self._error = error

    def read(self, name: str, max_bytes: int) -> bytes | None:
        """Return the content of a small file; None if there is no such file."""
        try:
            return read_file(self._folder / name, max_bytes, self._error)
        except FileNotFoundError:
            return None

    def create(self, name: str, data: bytes) -> bool:
        """Add a small file; return False if there is a file of this name."""
        path = self._folder / name
        with held(self._lock):
            if path.exists():
                return False
            replace_file(path, data)
        return True

    def replace(self, name: str, data: bytes) -> None:
        """Add a small file, in the place of one of this name, if there is one."""
        with held(self._lock):
            replace_file(self._folder / name, data)

    def sizes(self, names: Iterable[str] | None = None) -> dict[str, int]:
        """Return the sizes of all files, or of those in `names`."""
        found: dict[str, int] = {}
        for each in names_in(self._folder) if names is None else names:
            # Another process may have renamed its draft; a link may be broken.
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                found[each] = (self._folder / each).stat().st_size
        return found

    @contextlib.contextmanager
    def stage(self) -> Generator[Stage]:
        """Return the folder itself: a complete file is renamed there."""
        yield Stage(self._folder, Path.exists)

    def add(
        self,
        name: str,
        write: Callable[[Output], object],
        check: Callable[[Path], object],
        source: Path | None = None,
    ) -> None:
        """Add a file; `check` gets the path of its draft."""
        del source
        with Output(self._folder / name) as output:
            write(output)
            output.finish()
            check(output.draft)
            output.publish()

    def delete(self, names: Iterable[str]) -> None:
        """Delete files in this order; files that cannot be deleted now stay."""
        for each in names:
            with contextlib.suppress(OSError):
                (self._folder / each).unlink(missing_ok=True)


class InBucket(FilePlace):
    """A folder in a bucket. What is written passes through a temporary folder.

    Args:
        url: The folder's URL.
        timeout_s: Seconds after which a request fails.

    Attributes:
        bucket: The client of the folder.

    Example:
        >>> InBucket("s3://bucket/wiki", 60.0).location
        's3://bucket/wiki/'
    """

    def __init__(self, url: str, timeout_s: float) -> None:
        check_writable(url)
        self.bucket = Bucket(url.rstrip("/"), timeout_s)
        self.location = f"{url.rstrip('/')}/"

    def read(self, name: str, max_bytes: int) -> bytes | None:
        """Return the content of a small object; None if there is no such object."""
        try:
            return self.bucket.get(name, most_bytes=max_bytes).data
        except FileNotFoundError:
            return None

    def create(self, name: str, data: bytes) -> bool:
        """Put a small object; return False if there is an object of this name."""
        return swap_object(self.bucket, name, data, None) is not None

    def replace(self, name: str, data: bytes) -> None:
        """Put a small object, in the place of one of this name, if there is one."""
        self.add(name, lambda output: output.write(data), lambda _: None)

    def sizes(self, names: Iterable[str] | None = None) -> dict[str, int]:
        """Return the sizes of all objects: one listing has them."""
        del names
        found = self.bucket.names().objects.items()
        return {name: each.version.size for name, each in found}

    @contextlib.contextmanager
    def stage(self) -> Generator[Stage]:
        """Return a temporary folder; publishing a file uploads and then deletes it."""
        with TemporaryDirectory(prefix="roxxel-") as folder:

            def publish(path: Path) -> None:
                self.bucket.write_file(path.name, path)
                path.unlink()

            yield Stage(Path(folder), publish)

    def add(
        self,
        name: str,
        write: Callable[[Output], object],
        check: Callable[[Path], object],
        source: Path | None = None,
    ) -> None:
        """Upload a file; `check` gets the path of what is uploaded."""
        if source is not None:
            check(source)
            self.bucket.write_file(name, source)
            return
        with TemporaryDirectory(prefix="roxxel-") as folder:
            path = Path(folder, name)
            with Output(path) as output:
                write(output)
                output.publish()
            check(path)
            self.bucket.write_file(name, path)

    def delete(self, names: Iterable[str]) -> None:
        """Delete objects; if they cannot be deleted now, they stay."""
        with contextlib.suppress(OSError):
            self.bucket.delete(names)
