"""Compare and swap one small file, or a manifest that several programs write in turn.

`swap_object` replaces a small object if nobody else has replaced it. `Writer` builds on
it: a folder whose manifest lists immutable objects, in a bucket (`Bucket`) or on a disk
(`DiskFolder`).

    manifest.json                                       replaced by each commit
    <label><generation>-<number>-<token>                an immutable object, or
    <label><generation>-<number>-<token>/...            several in one folder

The manifest lists what a folder of a bucket holds, and carries a generation. Every
other object is immutable, and its name holds the generation of the program that wrote
the object. An object that the manifest does not list does not exist for a reader.

A program begins by replacing the manifest with one of a higher generation. It commits
by uploading objects, then replacing the manifest. Each replacement is one conditional
request, which the store refuses if the manifest is no longer the one that this program
wrote; on a disk, the comparison is made while the folder is locked. So a program that
was suspended, or lost its network, cannot undo what a later program committed, whenever
its requests arrive.

A program deletes only objects that its own last commit dropped, or that earlier
generations left unlisted. Nobody can list these objects again: names are never used
twice.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, cast

from roxxel_store.client import Answer, Listed, Listing, ObjectVersion, Version
from roxxel_store.files import MAX_BYTES, read_file, swap_file
from roxxel_store.locks import lock_folder, unlock_folder
from roxxel_store.records import RecordError, RecordKind

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable
    from pathlib import Path

    from roxxel_store.client import Bucket

MANIFEST = "manifest.json"
_NAME = re.compile(r"(?:.*[./])?([0-9]+)-[0-9]+-[0-9a-f]{16}")
_POLL_INTERVAL_S = 0.02
_writers: dict[tuple[str, int], Writer] = {}


SharedFolder: TypeAlias = "Bucket | DiskFolder"
"""A folder that several programs write to. `Bucket` says what the methods do."""


class SupersededError(OSError):
    """A later program has begun, or the manifest is gone, so this one cannot commit.

    Example:
        >>> issubclass(SupersededError, OSError)
        True
    """


@dataclass(frozen=True)
class SwapErrors:
    """The classes of the errors of a manifest; each is called with a message.

    Attributes:
        damaged: The manifest is damaged, is lost, or has another version.
        late: Another thread of this process holds the folder for too long.
        superseded: A later program has begun, so this one cannot commit any more.
        remedy: What to do about a damaged manifest.

    Example:
        >>> SwapErrors(damaged=ValueError).late
        <class 'TimeoutError'>
    """

    damaged: Callable[[str], Exception] = RecordError
    late: Callable[[str], Exception] = TimeoutError
    superseded: Callable[[str], Exception] = SupersededError
    remedy: str = (
        "nothing here can be found without it, so put an earlier version of this "
        "object back, if the bucket keeps versions, or give another folder"
    )

    def kind(self) -> RecordKind:
        """Return the kind of record that a manifest is."""
        return RecordKind(
            "manifest",
            1,
            self.remedy,
            self.damaged,
            "install the release that wrote it",
            needs=("generation", "number", "writer", "host", "listed"),
        )


_ERRORS = SwapErrors()


def swap_object(
    bucket: SharedFolder, name: str, data: bytes, version: Version | None
) -> Version | None:
    """Write an object if its version is still `version` (None: no such object).

    The store's answer may be lost, and the client repeats the request, so a refusal
    proves nothing: if the object then holds `data`, it counts as written.

    Returns:
        The new version, or None if another program has replaced the object.

    Raises:
        FileNotFoundError: The object is gone, or there is no such bucket.
        BucketError: The request failed; unless `is_refused`, it may still take effect.
        OSError: The disk failed.
    """
    new = bucket.replace(name, data, version)
    if new is not None:
        return new
    found = bucket.get(name)
    return found.version if found.data == data else None


class Manifest(NamedTuple):
    """The content of a manifest.

    Attributes:
        generation: Number of the program that wrote the manifest; 0 without a manifest.
        number: How often the manifest of this folder has been replaced.
        writer: A random name of the program that wrote the manifest.
        host: The machine of this program, for messages.
        listed: What the folder holds, as JSON. The names of objects and of their
            folders are texts anywhere in it.

    Example:
        >>> Manifest(1, 0, "a1", "host", {"steps": ["5.1-1-00112233445566aa"]}).names()
        {'5.1-1-00112233445566aa'}
    """

    generation: int = 0
    number: int = 0
    writer: str = ""
    host: str = ""
    listed: Mapping[str, Any] = {}

    def names(self) -> set[str]:
        """Return the names that the manifest lists."""
        return set(_names_in(self.listed))


def read_manifest(bucket: SharedFolder, errors: SwapErrors = _ERRORS) -> Manifest:
    """Read the manifest of a folder, which is empty if there is none.

    Raises:
        RecordError: The manifest is damaged.
        BucketError: The bucket cannot be read.
    """
    return _read(bucket, errors)[0]


def check_not_lost(bucket: SharedFolder, errors: SwapErrors = _ERRORS) -> None:
    """Raise a RecordError if objects are there, but no manifest."""
    found = bucket.names()
    left = sorted(filter(is_name, [*found.objects, *found.prefixes]))
    if left and MANIFEST not in found.objects:
        raise errors.damaged(
            f"{bucket.url}: holds {left[-1]}, but {MANIFEST}, which lists the objects "
            "here, is gone; put it back (perhaps the bucket keeps deleted versions), "
            "or give another folder"
        )


def is_name(name: str) -> bool:
    """Return whether a program made the name with `Writer.new_name`."""
    return _NAME.fullmatch(name) is not None


def writer_of(bucket: SharedFolder, errors: SwapErrors = _ERRORS) -> Writer:
    """Return this process's writer of a folder, which writes through `bucket`."""
    writer = _writers.setdefault((bucket.url, os.getpid()), Writer(bucket, errors))
    writer.bucket = bucket
    return writer


class Writer:
    """A program that commits to a folder.

    All methods may be called from several threads. To commit, take over the folder,
    upload objects under new names, and list them::

        writer.begin()
        name = writer.new_name("5.")
        ...  # upload below this name
        writer.swap(lambda listed: {**listed, "steps": [name]})
        writer.collect()

    Example:
        >>> from roxxel_store.client import Bucket
        >>> Writer(Bucket("s3://my-bucket/run", timeout_s=60)).has_begun
        False

    Attributes:
        bucket: The folder.
    """

    def __init__(self, bucket: SharedFolder, errors: SwapErrors = _ERRORS) -> None:
        self.bucket = bucket
        self._errors = errors
        # Guards the fields. Methods that hold it call others that take it again.
        self._lock = threading.RLock()
        self._is_folder_locked = False
        # Held by `alone`, from a thread's first upload to its commit.
        self._alone = threading.Lock()
        self._held: Manifest | None = None
        self._version: Version | None = None
        self._num_names = 0
        # Names that no manifest lists, once the next swap has succeeded.
        self._dropped: set[str] = set()

    @property
    def held(self) -> Manifest:
        """The manifest that this program wrote last."""
        if self._held is None:
            raise AssertionError(f"{self.bucket.url}: this program has not begun")
        return self._held

    @property
    def has_begun(self) -> bool:
        """Whether this program has begun; another may have taken over since."""
        return self._held is not None

    @contextlib.contextmanager
    def alone(self, timeout_s: float) -> Generator[None]:
        """Wait until no other thread of this process uploads and commits here.

        Raises:
            TimeoutError: The other thread did not end in time.
        """
        if not self._alone.acquire(timeout=timeout_s):
            raise self._errors.late(
                f"{self.bucket.url}: the save of another thread did not end within "
                f"{timeout_s:g} seconds; use one Checkpointer, or give a larger "
                "timeout"
            )
        try:
            yield
        finally:
            self._alone.release()

    @contextlib.contextmanager
    def locked(self) -> Generator[None]:
        """On a disk, keep other programs from committing here while the block runs.

        In a bucket, the store compares and replaces in one request.

        Raises:
            SupersededError: The folder is gone.
        """
        with self._lock, contextlib.ExitStack() as stack:
            if not self._is_folder_locked:
                try:
                    stack.enter_context(self.bucket.locked())
                except FileNotFoundError:
                    raise self._gone() from None
                self._is_folder_locked = True
                stack.callback(setattr, self, "_is_folder_locked", False)
            yield

    def begin(self) -> None:
        """Take over the folder; from now on, commits of earlier programs fail.

        Raises:
            BucketError: The bucket fails, or its store ignores conditions.
        """
        with self._lock:
            while True:
                found, version = _read(self.bucket, self._errors)
                if version is None and self.bucket.needs_manifest:
                    check_not_lost(self.bucket, self._errors)
                mine = Manifest(
                    found.generation + 1,
                    found.number + 1,
                    secrets.token_hex(8),
                    socket.gethostname(),
                    found.listed,
                )
                if self._replace(mine, version):
                    self._check_conditions()
                    return

    def ensure_begun(self, seen: Manifest | None = None) -> bool:
        """Take over the folder, unless this program has done so already.

        Args:
            seen: The manifest that this program has read, perhaps before it restored a
                state. It begins unless another program has begun since that read.

        Returns:
            Whether the program has begun in this call.

        Raises:
            SupersededError: A later program has begun.
        """
        with self._lock:
            found = _read(self.bucket, self._errors)[0]
            if self._held is not None and self._held.writer == found.writer:
                return False
            is_first = self._held is None and seen is None
            if is_first or (seen is not None and seen.writer == found.writer):
                self.begin()
                return True
            self._check_ours(found)
            return False

    def new_name(self, label: str = "") -> str:
        """Return a name for an object that no other object has ever had."""
        with self._lock:
            self._num_names += 1
            number = self._num_names
        held = self.held  # the name of the program is random
        return f"{label}{held.generation}-{number}-{held.writer}"

    def swap(self, change: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> None:
        """Commit: replace what the manifest lists.

        Args:
            change: Returns what the new manifest lists, given what the old one lists.
                May be called more than once.

        Raises:
            SupersededError: A later program has begun; nothing was changed.
            BucketError: The request failed; it may still take effect.
        """
        with self._lock:
            while True:
                before = self.held
                after = before._replace(
                    number=before.number + 1, listed=change(before.listed)
                )
                if self._replace(after, self._version):
                    self._dropped |= before.names() - after.names()
                    return
                # An earlier swap of this program has taken effect after its failure.
                found, version = _read(self.bucket, self._errors)
                self._check_ours(found)
                self._held, self._version = found, version

    def drop(self, names: Iterable[str]) -> None:
        """Let `collect` delete objects that this program wrote and does not list."""
        with self._lock:
            self._dropped.update(names)

    def collect(self) -> None:
        """Delete what this program dropped, and what earlier ones left unlisted.

        Call it only after a successful swap, so that none of it can be listed again.
        """
        with self._lock:
            held, dropped = self.held, set(self._dropped)
        listed = held.names()

        def is_left(name: str) -> bool:
            found = _NAME.fullmatch(name)
            if found is None or name in listed:
                return False
            return int(found[1]) < held.generation or name in dropped

        objects, folders = self._names_there()
        self.bucket.delete(filter(is_left, objects))
        for name in filter(is_left, folders):
            self.bucket.delete_folder(name)

    def _names_there(self) -> tuple[list[str], list[str]]:
        """Return the objects and folders here, and those in folders of other names."""
        top = self.bucket.names()
        objects, folders = list(top.objects), list(top.prefixes)
        for prefix in top.prefixes:
            if not is_name(prefix):
                inner = self.bucket.names(f"{prefix}/")
                objects += [f"{prefix}/{name}" for name in inner.objects]
                folders += [f"{prefix}/{name}" for name in inner.prefixes]
        return objects, folders

    def _replace(self, manifest: Manifest, version: Version | None) -> bool:
        """Replace the manifest; return False if it no longer is `version`."""
        data = self._packed(manifest)
        try:
            with self.locked():
                new = swap_object(self.bucket, MANIFEST, data, version)
        except FileNotFoundError:
            raise self._gone() from None
        if new is None:
            return False
        self._held, self._version = manifest, new
        return True

    def _check_conditions(self) -> None:
        """Raise a BucketError if the store ignores the condition of a request.

        Such a store replaces the manifest with the same bytes, which does no harm.
        """
        no_version = Version('"0"', "0")
        same = self._packed(self.held)
        if self.bucket.replace(MANIFEST, same, no_version) is not None:
            raise self.bucket.refusal(
                f"{self.bucket.url}: the store ignores the condition If-Match of a "
                "request, so two programs could overwrite each other's files; "
                "update the store, or write to another one"
            )

    def _packed(self, manifest: Manifest) -> bytes:
        return self._errors.kind().to_bytes(manifest._asdict())

    def _gone(self) -> Exception:
        return self._errors.superseded(
            f"{self.bucket.url_of(MANIFEST)}: is gone, although this program wrote it, "
            "so nothing can be saved here; put it back (perhaps its folder was "
            "renamed, or the bucket keeps deleted versions), or start the program "
            "again with the folder's new name, or with another folder"
        )

    def _check_ours(self, found: Manifest) -> None:
        """Raise SupersededError if another program wrote the manifest."""
        if not found.generation:
            raise self._gone()
        if self._held is None or found.writer != self._held.writer:
            host = f" on {found.host}" if found.host else ""
            raise self._errors.superseded(
                f"{self.bucket.url}: another program{host} has begun to save here, so "
                "this program can no longer save; give every run a folder of its own"
            )


class DiskFolder:
    """A folder on a disk, with the methods of `Bucket` that a manifest needs.

    A bucket refuses a request whose condition does not hold. On a disk, a program locks
    the folder while it compares and replaces, and `Writer.locked` keeps the lock for
    whatever else must happen in between.

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
        """List what is directly in the folder, or in one of its folders.

        Sizes and ages are 0, because a manifest needs the names only.
        """
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


def _read(bucket: SharedFolder, errors: SwapErrors) -> tuple[Manifest, Version | None]:
    try:
        found = bucket.get(MANIFEST)
    except FileNotFoundError:
        return Manifest(), None
    url = bucket.url_of(MANIFEST)
    table = errors.kind().parse(found.data, url)
    return Manifest(**{name: table[name] for name in Manifest._fields}), found.version


def _names_in(value: Any) -> Generator[str]:
    """Yield the names among all texts inside a JSON value."""
    if isinstance(value, str):
        if is_name(value):
            yield value
    elif isinstance(value, Mapping):
        for each in cast("Mapping[str, Any]", value).values():
            yield from _names_in(each)
    elif isinstance(value, list | tuple):
        for each in cast("Iterable[Any]", value):
            yield from _names_in(each)


def _version_of(data: bytes) -> Version:
    """Return the version of a small file on a disk: its content, as a text."""
    # Copying is ten times as fast as a digest.
    return Version(data.decode("latin-1"), None)
