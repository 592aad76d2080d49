"""A folder on a local disk that holds copies of shards from buckets.

The name of a copy is the digest of its shard. So corpora and versions share copies, and
the copy of a replaced shard is never read for the new one. A copy is complete: its
downloader verifies a hidden draft, and then renames the draft.

A process that downloads holds the lock of the folder. Every process that uses a corpus
holds a shared lock on a lease, a file that names the shards of the corpus. To make
room, a downloader removes copies that no held lease names. Other files of the folder
stay: a user may name a folder that holds files of their own.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING

from roxxel_store.arguments import as_integer
from roxxel_store.files import drafted_name
from roxxel_store.locks import locked_alone, locked_shared, open_lock
from roxxel_store.urls import check_on_disk, expanded

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Sequence

_SUFFIX = ".rox"
_LEASE_SUFFIX = ".lease"
_COPY = re.compile(r"[0-9a-f]{64}\.rox")
_LEASE = re.compile(r"[0-9a-f]{32}\.lease")
_FREE_SHARE = 0.05
"""Share of the disk that stays free if the user sets no limit."""


def cache_size(num_bytes: int) -> int:
    """Return the maximum size of a cache folder.

    Raises:
        TypeError: The size is not an integer.
        ValueError: The size is less than 1.
    """
    return as_integer(
        "cache_bytes", num_bytes, 1, what="an integer such as 200 << 30 (200 GiB)"
    )


def cache_path(folder: str | os.PathLike[str]) -> str:
    """Return the absolute path of a cache folder.

    Raises:
        ValueError: The text is empty or a URL.
    """
    text = os.fspath(folder)
    remedy = "pass the path of a folder on a local disk"
    if not text:
        raise ValueError(f"cache is {text!r}; {remedy}")
    check_on_disk(text, f"cannot be a cache; {remedy}")
    return str(expanded(text).absolute())


class CacheFolder:
    """A folder of copies of shards, with at most `most_bytes` in all its files.

    With `most_bytes=None`, 5 % of the disk stays free. The constructor makes the
    folder.

    Raises:
        OSError: The folder cannot be made, written or locked.
    """

    def __init__(self, path: str, most_bytes: int | None) -> None:
        self.path = Path(path)
        self._most_bytes = most_bytes
        with self._naming_folder():
            self.path.mkdir(parents=True, exist_ok=True)
            os.close(open_lock(self._lock))

    def exists(self) -> bool:
        """Return whether the folder still exists."""
        return self.path.is_dir()

    def path_of(self, digest: str) -> Path:
        """Return the path of the copy of a shard."""
        return self.path / (digest + _SUFFIX)

    def sizes(self) -> dict[str, int]:
        """Return the sizes of all copies by digest."""
        return {
            name.removesuffix(_SUFFIX): size
            for name, (size, _) in self._files().items()
            if name.endswith(_SUFFIX) and not name.startswith(".")
        }

    def remove(self, digest: str) -> None:
        """Remove a copy; an absent copy is not an error."""
        with contextlib.suppress(OSError):
            self.path_of(digest).unlink()

    def lease(self, digests: Sequence[str]) -> int:
        """Protect the copies of a corpus; returns a descriptor to close at the end."""
        text = "\n".join(digests).encode()
        name = blake2b(text, digest_size=16).hexdigest() + _LEASE_SUFFIX
        with self._naming_folder():
            fd = locked_shared(self.path / name)
            try:
                if os.fstat(fd).st_size != len(text):
                    os.pwrite(fd, text, 0)
                os.utime(fd)
            except BaseException:
                os.close(fd)
                raise
        return fd

    @contextlib.contextmanager
    def downloading(self) -> Generator[bool]:
        """Hold the lock of the folder; yields False if another process holds it."""
        fd = locked_alone(self._lock)
        try:
            yield fd is not None
        finally:
            if fd is not None:
                os.close(fd)

    def make_room(self, num_bytes: int) -> bool:
        """Remove drafts and unused copies until a copy fits; return whether it fits.

        Removes the oldest copies first. The caller holds the lock of the folder, so all
        drafts belong to killed processes.
        """
        files = self._files()
        for name in [each for each in files if _is_copy(drafted_name(each))]:
            (self.path / name).unlink(missing_ok=True)
            del files[name]
        used = sum(size for size, _ in files.values())
        unused: list[str] | None = None
        while not self._fits(used + num_bytes, num_bytes):
            if unused is None:
                leased = self._leased(files)
                unused = [
                    each
                    for each in sorted(files, key=lambda name: files[name][1])
                    if _is_copy(each) and each.removesuffix(_SUFFIX) not in leased
                ]
            if not unused:
                return False
            name = unused.pop(0)
            (self.path / name).unlink(missing_ok=True)
            used -= files[name][0]
        return True

    @property
    def _lock(self) -> Path:
        return self.path / "download.lock"

    def _fits(self, used: int, num_bytes: int) -> bool:
        if self._most_bytes is not None:
            return used <= self._most_bytes
        disk = shutil.disk_usage(self.path)
        return disk.free - num_bytes >= _FREE_SHARE * disk.total

    def _files(self) -> dict[str, tuple[int, float]]:
        """Return size and time of the last change of every file."""
        found: dict[str, tuple[int, float]] = {}
        with os.scandir(self.path) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):
                    status = entry.stat(follow_symlinks=False)
                    found[entry.name] = status.st_size, status.st_mtime
        return found

    def _leased(self, names: Iterable[str]) -> set[str]:
        """Return the digests in leases that a process holds; remove other leases."""
        leased: set[str] = set()
        for name in names:
            if not _LEASE.fullmatch(name):
                continue
            path = self.path / name
            fd = locked_alone(path)
            if fd is None:
                with contextlib.suppress(OSError):
                    leased.update(path.read_text().split("\n"))
                continue
            path.unlink(missing_ok=True)
            os.close(fd)
        return leased

    @contextlib.contextmanager
    def _naming_folder(self) -> Generator[None]:
        try:
            yield
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno else str(error)
            raise OSError(
                error.errno,
                f"{reason}; choose a folder on a local disk that this user may write, "
                "or leave cache out",
                str(self.path),
            ) from error


def _is_copy(name: str | None) -> bool:
    return name is not None and _COPY.fullmatch(name) is not None
