"""A place for files: a folder on a disk, or in a bucket.

Code that holds a `FilePlace` never asks which of the two it has. A file appears whole,
under a name that its writer chose, or not at all. A manifest that several programs
replace is swapped: `swap` writes it only if it still is what this program has read.

Use it for independent files, such as the shards of a corpus. A checkpoint is no such
place: a step is a tree of files that Orbax writes, and all of them appear by one rename
or one swap.

No two writers give a file the same name, so nothing is overwritten. What a killed
writer left is deleted by a cleaner, which must not delete the files of a living one: on
a disk the cleaner is `alone`, because writers share a lock (`writing`). A bucket has no
locks: there only a file that is a week old has surely lost its writer (`settled`).
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from roxxel_store.client import Bucket
from roxxel_store.files import (
    MAX_BYTES,
    Output,
    make_folder,
    names_in,
    read_file,
    replace_file,
    swap_file,
)
from roxxel_store.locks import held
from roxxel_store.swap import swap_object
from roxxel_store.urls import check_writable

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable
    from contextlib import AbstractContextManager

    from roxxel_store.client import Version

_SETTLED_AGE_S = 7 * 86400.0


class SmallFile(NamedTuple):
    """A small file as `get` has read it; `swap` replaces it only if it still is so.

    Attributes:
        data: The content; None if there is no such file.
        version: The version of an object in a bucket.

    Example:
        >>> place = OnDisk(Path.cwd(), Path(".lock"), Path(".writers"))
        >>> before = place.get("list.json")
        >>> place.swap("list.json", b"{}", before), place.swap("list.json", b"", before)
        (True, False)
    """

    data: bytes | None
    version: Version | None = None


_NO_FILE = SmallFile(None)


class Stage(NamedTuple):
    """A folder on a disk in which files are written. `publish` adds one to the place.

    Example:
        >>> with OnDisk(Path.cwd(), Path(".lock"), Path(".writers")).stage() as stage:
        ...     path = stage.path / "staged.bin"
        ...     written = path.write_bytes(b"whole")
        ...     stage.publish(path)
        True
    """

    path: Path
    publish: Callable[[Path], object]


class OnDisk:
    """A folder on a disk.

    Args:
        folder: The folder.
        lock: The file to lock while a small file is created or swapped.
        writers: The file whose lock all writers share.
        error: Class of the error for a path that is no regular file.

    Attributes:
        location: The folder's path or URL, with a slash at the end.
        may_act_late: Whether a swap that failed may still take effect.

    Example:
        >>> place = OnDisk(Path.cwd(), Path(".lock"), Path(".writers"))
        >>> place.create("plan", b"one"), place.create("plan", b"two")
        (True, False)
        >>> place.read("plan", 100), place.sizes(["plan", "none"])
        (b'one', {'plan': 3})
    """

    may_act_late = False

    def __init__(
        self,
        folder: Path,
        lock: Path,
        writers: Path,
        error: Callable[[str], Exception] = ValueError,
    ) -> None:
        self.location = f"{folder}/"
        self._folder, self._lock, self._writers = folder, lock, writers
        self._error = error

    def read(self, name: str, max_bytes: int) -> bytes | None:
        """Return the content of a small file; None if there is no such file."""
        try:
            return read_file(self._folder / name, max_bytes, self._error)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def get(self, name: str) -> SmallFile:
        """Return a small file, to be swapped later."""
        return SmallFile(self.read(name, MAX_BYTES))

    def swap(self, name: str, data: bytes, before: SmallFile) -> bool:
        """Replace a small file if it still is what `get` has returned.

        Returns:
            Whether it was replaced; False if another program has replaced it.

        Raises:
            OSError: The disk failed; the file has the old content or the new one.
        """
        try:
            with held(self._lock):
                return swap_file(self._folder / name, data, before.data)
        except FileNotFoundError:
            if before.data is None:
                raise
            return False  # Another program has deleted it.

    def create(self, name: str, data: bytes) -> bool:
        """Add a small file; return False if there is a file of this name."""
        return self.swap(name, data, _NO_FILE)

    def replace(self, name: str, data: bytes) -> None:
        """Add a small file; it replaces a file of this name."""
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
    def writing(self) -> Generator[None]:
        """Make the folder, wait for a cleaner, and then keep cleaners out."""
        make_folder(self._folder)
        with held(self._writers, is_shared=True):
            yield

    @contextlib.contextmanager
    def alone(self, busy: str) -> Generator[bool]:
        """Keep writers out; raise BlockingIOError(busy) if one writes, or cleans.

        Yields whether writers are kept out. If so, list
        again: an earlier listing may be old.
        """
        with held(self._writers, busy=busy):
            yield True

    def note(self, *, is_committed: bool) -> None:
        """Record that files are committed here, or that a first write begins."""
        # A full disk, another user's file, no folder yet: none of them may make a
        # commit that has taken effect look like a failure.
        with contextlib.suppress(OSError):
            self._writers.write_bytes(b"1" if is_committed else b"")

    def may_be_interrupted(self) -> bool:
        """Return whether programs have written here, but none can have committed.

        Then files that nothing lists are leftovers. After a commit they may be the only
        copy, even if the list of them is lost.
        """
        return self._writers.exists() and not self._writers.stat().st_size

    def settled(self) -> dict[str, bool]:
        """Return for each file whether its writer has ended; call this in `alone`.

        This is one listing. On a disk the lock says that nobody writes.
        """
        return dict.fromkeys(names_in(self._folder), True)

    @contextlib.contextmanager
    def stage(self) -> Generator[Stage]:
        """Return a folder in which to write files, and how to publish them.

        It is the folder itself: a complete file is renamed there.
        """
        yield Stage(self._folder, Path.exists)

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
            source: A file on a disk that has this content already, if there is one. An
                upload of it needs no other copy.
        """
        del source
        with Output(self._folder / name) as output:
            write(output)
            output.finish()
            check(output.draft)
            output.publish()

    def delete(self, names: Iterable[str]) -> OSError | None:
        """Delete files in this order; a file that cannot be deleted stays.

        Returns:
            The first error, or None if all the files are gone.
        """
        first: OSError | None = None
        for each in names:
            try:
                (self._folder / each).unlink(missing_ok=True)
            except OSError as error:
                first = first or error
        return first


class InBucket:
    """A folder in a bucket. What is written passes through a temporary folder.

    Args:
        url: The folder's URL.
        timeout_s: Seconds after which a request fails.

    Example:
        >>> InBucket("s3://bucket/wiki", 60.0).location
        's3://bucket/wiki/'
    """

    may_act_late = True

    def __init__(self, url: str, timeout_s: float) -> None:
        check_writable(url)
        self._bucket = Bucket(url.rstrip("/"), timeout_s)
        self.location = f"{url.rstrip('/')}/"

    def read(self, name: str, max_bytes: int) -> bytes | None:
        """Return the content of a small object; None if there is no such object."""
        try:
            return self._bucket.get(name, most_bytes=max_bytes).data
        except FileNotFoundError:
            return None

    def get(self, name: str) -> SmallFile:
        """Return a small object, to be swapped later."""
        try:
            found = self._bucket.get(name, most_bytes=MAX_BYTES)
        except FileNotFoundError:
            return _NO_FILE
        return SmallFile(found.data, found.version)

    def swap(self, name: str, data: bytes, before: SmallFile) -> bool:
        """Replace a small object by one conditional request.

        Raises:
            BucketError: The request failed; unless `is_refused`, it may take effect.
        """
        try:
            swapped = swap_object(self._bucket, name, data, before.version)
        except FileNotFoundError:
            return False  # Another program has deleted it.
        return swapped is not None

    def create(self, name: str, data: bytes) -> bool:
        """Add a small object; return False if there is an object of this name."""
        return self.swap(name, data, _NO_FILE)

    def replace(self, name: str, data: bytes) -> None:
        """Add a small object; it replaces an object of this name."""
        self.add(name, lambda output: output.write(data), lambda _: None)

    def sizes(self, names: Iterable[str] | None = None) -> dict[str, int]:
        """Return the sizes of all objects: one listing has them."""
        del names
        found = self._bucket.names().objects.items()
        return {name: each.version.size for name, each in found}

    def writing(self) -> AbstractContextManager[None]:
        """Do nothing: a bucket has no locks."""
        return contextlib.nullcontext()

    def alone(self, busy: str) -> AbstractContextManager[bool]:
        """Yield False: a bucket has no locks."""
        del busy
        return contextlib.nullcontext(enter_result=False)

    def note(self, *, is_committed: bool) -> None:
        """Do nothing: a bucket has no lock file."""

    def may_be_interrupted(self) -> bool:
        """Return True: a bucket keeps no record of it."""
        return True

    def settled(self) -> dict[str, bool]:
        """Return for each object whether it is at least a week old."""
        found = self._bucket.names().objects.items()
        return {name: each.age_s > _SETTLED_AGE_S for name, each in found}

    @contextlib.contextmanager
    def stage(self) -> Generator[Stage]:
        """Return a temporary folder; a published file is uploaded and deleted here."""
        with TemporaryDirectory(prefix="roxxel-") as folder:

            def publish(path: Path) -> None:
                self._bucket.write_file(path.name, path)
                path.unlink()

            yield Stage(Path(folder), publish)

    def add(
        self,
        name: str,
        write: Callable[[Output], object],
        check: Callable[[Path], object],
        source: Path | None = None,
    ) -> None:
        """Upload a file. Before that, `check` gets its local path."""
        if source is not None:
            check(source)
            self._bucket.write_file(name, source)
            return
        with TemporaryDirectory(prefix="roxxel-") as folder:
            path = Path(folder, name)
            with Output(path) as output:
                write(output)
                output.publish()
            check(path)
            self._bucket.write_file(name, path)

    def delete(self, names: Iterable[str]) -> OSError | None:
        """Delete objects; after an error, which is returned, some of them stay."""
        try:
            self._bucket.delete(names)
        except OSError as error:
            return error
        return None


FilePlace: TypeAlias = OnDisk | InBucket
"""A folder of files, on a disk or in a bucket. The docstrings of `OnDisk` say what the
methods do.
"""
