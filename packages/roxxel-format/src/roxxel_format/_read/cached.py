"""Shards in a bucket that are copied to a local disk, and then read there.

Reads start at once, by byte ranges of the objects. Meanwhile a background thread copies
the shards to the cache folder, one after the other. A copy is verified before it gets
its final name. From then on its number is in `CachedFiles.copies`, and `MapCache` opens
the copy instead of the object.

The name of a copy is the digest of its shard. So corpora and versions share copies, and
the copy of a replaced shard is never read for the new one.

Processes that share a folder take turns: one holds the lock of the folder and copies,
and the others check for its copies every second. Only its user removes copies, and
other files of the folder stay: a user may name a folder that holds files of their own.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import shutil
import threading
import weakref
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

from roxxel_store.arguments import as_integer
from roxxel_store.errors import BucketError
from roxxel_store.files import Output, drafted_name
from roxxel_store.locks import open_lock, tried
from roxxel_store.urls import check_on_disk, expanded

from roxxel_format._read.files import Files, OpenFile
from roxxel_format._read.shard import LOCAL
from roxxel_format._read.verify import is_undamaged
from roxxel_format.errors import ShardError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from roxxel_format._read.contents import Contents

_CHUNK_BYTES = 8 << 20
_CHUNKS_AHEAD = 3
_POLL_S = 1.0
_END_S = 2.0
_COPY = re.compile(r"([0-9a-f]{64})\.rox")
_FREE_SHARE = 0.05
"""Share of the disk that stays free if the user sets no limit."""

State = Literal["idle", "copying", "complete", "full", "stopped"]


@dataclass(frozen=True, slots=True)
class CacheStatus:
    """How much of a corpus is in its cache.

    Attributes:
        state: `"idle"` before the first read; `"copying"`; `"complete"`; `"full"` if
            `cache_bytes` or the disk holds no further shard; `"stopped"` after an error
            that was logged, or after `close()`.
        num_shards: Shards of the corpus in the cache.
        total_shards: Shards of the corpus.
        num_bytes: Bytes of the shards in the cache.
        total_bytes: Bytes of all shards.

    Example:
        >>> written = Roxxel("local.rox").write([[5, 6, 7]])
        >>> Roxxel("local.rox").cache_status() is None
        True
    """

    state: State
    num_shards: int
    total_shards: int
    num_bytes: int
    total_bytes: int


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
    remedy = "pass the path of a folder on a local disk"
    if not isinstance(cast("object", folder), str | os.PathLike):
        raise TypeError(f"cache is {folder!r:.50}; {remedy}")
    text = os.fspath(folder)
    if not text:
        raise ValueError(f"cache is {text!r}; {remedy}")
    check_on_disk(text, f"cannot be a cache; {remedy}")
    return str(expanded(text).absolute())


def cached(contents: Contents, folder: str, most_bytes: int | None) -> Contents:
    """Return the contents of a corpus in a bucket, with copies in a folder.

    With `most_bytes=None`, 5 % of the disk stays free.

    Raises:
        OSError: The folder cannot be made, written or locked.
    """
    files = CachedFiles(contents, _CacheFolder(folder, most_bytes))
    result = replace(contents, files=files)
    # Stop copying a corpus that was deleted without `close`.
    weakref.finalize(result, files.stop)
    return result


class CachedFiles(Files):
    """Opens the copies of shards in a cache folder, and other files in the bucket."""

    def __init__(self, contents: Contents, folder: _CacheFolder) -> None:
        self._copied: set[int] = set()
        self._remote = contents.files
        self._folder = folder
        self._paths = contents.paths
        self._sizes = contents.shards.num_bytes
        self._digests = contents.shards.digests
        self._number = {path: number for number, path in enumerate(self._paths)}
        self._state: State = "idle"
        self._wake = threading.Event()
        # If several threads read first, one of them takes the thread and starts it.
        self._thread = threading.Thread(
            target=self._run, name="roxxel-cache", daemon=True
        )
        self._unstarted = [self._thread]
        self._look()

    @property
    def copies(self) -> set[int]:
        """Numbers of the shards that have copies."""
        return self._copied

    @property
    def is_remote(self) -> bool:
        """Whether any shard has no copy."""
        return len(self._copied) < len(self._paths)

    @property
    def status(self) -> CacheStatus:
        """How much of the corpus is in the cache."""
        copies = list(self._copied)
        return CacheStatus(
            state=self._state if self.is_remote else "complete",
            num_shards=len(copies),
            total_shards=len(self._paths),
            num_bytes=sum(self._sizes[number] for number in copies),
            total_bytes=sum(self._sizes),
        )

    def open(self, path: str, num_bytes: int | None = None) -> OpenFile:
        """Open the copy of a shard; without a copy, open the object."""
        number = self._number.get(path)
        if number is not None and number in self._copied:
            try:
                return LOCAL.open(str(self._folder.path_of(self._digests[number])))
            except FileNotFoundError:  # A user may remove copies at any time.
                self._copied.discard(number)
        self._begin()
        return self._remote.open(path, num_bytes)

    def will_open(self, path: str, spans: Iterable[tuple[int, int]]) -> None:
        """Request the ranges, unless the shard has a copy."""
        self._begin()
        if self._number.get(path) not in self._copied:
            self._remote.will_open(path, spans)

    def release(self) -> None:
        """Stop copying, and forget what was prefetched."""
        self.stop()
        self._remote.release()

    def stop(self) -> None:
        """Stop copying; takes no locks, so that a finalizer may call it."""
        if self._state in ("idle", "copying"):
            self._state = "stopped"

    def end(self) -> None:
        """Stop copying, and wait for the thread for a short time."""
        self.release()
        self._wake.set()
        self._thread.join(_END_S)

    def _begin(self) -> None:
        """Begin to copy at the first use of a shard."""
        if self._state == "idle" and self.is_remote:
            try:
                thread = self._unstarted.pop()
            except IndexError:  # Another thread took it.
                return
            self._state = "copying"
            _copying.add(self)
            thread.start()

    def _run(self) -> None:
        while self._state == "copying":
            try:
                with tried(self._folder.lock) as is_alone:
                    is_waiting = not self._step(is_alone=is_alone)
            except BucketError:
                is_waiting = True  # If the error lasts, the readers raise it.
            except (OSError, ShardError) as error:
                self._end("stopped", "warning", f"stops growing: {error}")
                return
            except RuntimeError:
                if threading.main_thread().is_alive():
                    raise
                return  # The program is ending, so no thread can begin.
            if is_waiting:
                self._wake.wait(_POLL_S)

    def _step(self, *, is_alone: bool) -> bool:
        """Copy a shard, if no other process does; return whether it did."""
        self._look()
        number = next(
            (n for n in range(len(self._paths)) if n not in self._copied), None
        )
        what = f"the {len(self._paths)} shards of {self._paths[0].rpartition('/')[0]}/"
        if number is None:
            self._end("stopped", "info", f"holds {what}")
        elif is_alone and not self._folder.make_room(self._sizes[number]):
            self._end(
                "full",
                "info",
                f"is full, so a part of {what} is read by ranges; raise cache_bytes, "
                "or delete copies that no run needs",
            )
        elif is_alone:
            self._copy(number)
            return True
        return False

    def _end(self, state: State, level: Literal["info", "warning"], what: str) -> None:
        # Imported here because reading does not need it.
        import logging

        self._state = state
        message = f"the cache {self._folder.path} {what}"
        getattr(logging.getLogger("roxxel_format"), level)(message)

    def _look(self) -> None:
        """Find the copies that this process or another has made."""
        there = self._folder.digests()
        self._copied.update(n for n, each in enumerate(self._digests) if each in there)

    def _copy(self, number: int) -> None:
        path, size = self._paths[number], self._sizes[number]
        digest = self._digests[number]
        file = self._remote.open(path, size)
        with Output(self._folder.path_of(digest)) as output:
            for start in range(0, size, _CHUNK_BYTES):
                if self._state != "copying":
                    return
                for ahead in range(start, size, _CHUNK_BYTES)[1 : 1 + _CHUNKS_AHEAD]:
                    file.will_need(ahead, min(ahead + _CHUNK_BYTES, size))
                output.write(file.read(start, min(start + _CHUNK_BYTES, size)))
            output.finish()
            if not is_undamaged(str(output.draft), bytes.fromhex(digest)):
                raise ShardError(f"{path}: arrived damaged; verify the corpus")
            output.publish()


class _CacheFolder:
    """A folder of copies of shards, with at most `most_bytes` in all its files.

    With `most_bytes=None`, 5 % of the disk stays free. The constructor makes the
    folder.

    Raises:
        OSError: The folder cannot be made, written or locked.
    """

    def __init__(self, path: str, most_bytes: int | None) -> None:
        self.path = Path(path)
        self.lock = self.path / "download.lock"
        self._most_bytes = most_bytes
        self.path.mkdir(parents=True, exist_ok=True)
        os.close(open_lock(self.lock))  # An error if copies cannot be written.

    def path_of(self, digest: str) -> Path:
        """Return the path of the copy of a shard."""
        return self.path / f"{digest}.rox"

    def digests(self) -> set[str]:
        """Return the digests of the shards that have copies."""
        names = (each.name for each in self.path.iterdir())
        return {match[1] for match in map(_COPY.fullmatch, names) if match}

    def make_room(self, num_bytes: int) -> bool:
        """Remove the drafts of killed processes; return whether a copy fits.

        The caller holds the lock of the folder, so nobody writes a draft.
        """
        used = 0
        with os.scandir(self.path) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):
                    drafted = drafted_name(entry.name)
                    if drafted is not None and _COPY.fullmatch(drafted):
                        Path(entry).unlink()
                    else:
                        used += entry.stat(follow_symlinks=False).st_size
        if self._most_bytes is not None:
            return used + num_bytes <= self._most_bytes
        disk = shutil.disk_usage(self.path)
        return disk.free - num_bytes >= _FREE_SHARE * disk.total


_copying: weakref.WeakSet[CachedFiles] = weakref.WeakSet()


def _end_all() -> None:
    for files in list(_copying):
        files.end()


atexit.register(_end_all)
