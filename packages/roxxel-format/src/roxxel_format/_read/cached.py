"""Shards in a bucket that are also copied to a local disk, and read there.

Reads start at once, by byte ranges of the objects. Meanwhile one background thread of
the process copies the shards to the cache folder, one after the other. A copy is
verified before it gets its final name. `CachedFiles.open` then opens the copy instead
of the object. `take_moved` returns the shards whose copies were added or removed, so
that the reader opens these shards again.

Processes that share a folder take turns: one holds the lock of the folder and copies,
and the others check for its copies every second.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import os
import threading
import weakref
from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from roxxel_store.errors import BucketError
from roxxel_store.output import Output

from roxxel_format._read.blocks import damage_of_shard
from roxxel_format._read.remote import RemoteFiles
from roxxel_format._read.shard import LOCAL, ShardMap
from roxxel_format.errors import ShardError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from roxxel_format._read.contents import Contents
    from roxxel_format._read.files import OpenFile
    from roxxel_format._store.cache_folder import CacheFolder

_CHUNK_BYTES = 8 << 20
_CHUNKS_AHEAD = 3
_MOST_FAILURES = 3
_POLL_S = 1.0
_SHORTAGES = {errno.EMFILE, errno.ENFILE, errno.ENOMEM}
_END_S = 2.0

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
        >>> written = Roxxel("local.rox").write([[5, 6, 7]], vocab_size=100)
        >>> Roxxel("local.rox").cache_status() is None
        True
    """

    state: State
    num_shards: int
    total_shards: int
    num_bytes: int
    total_bytes: int


def cached(contents: Contents, folder: CacheFolder) -> Contents:
    """Return the contents of a corpus in a bucket, with copies in a folder."""
    assert isinstance(contents.files, RemoteFiles)  # noqa: S101 - checked before
    table = contents.shards
    files = CachedFiles(
        contents.files, folder, contents.paths, table.num_bytes, table.digests
    )
    result = replace(contents, files=files)
    # Stop copying a corpus that was deleted without `close`.
    weakref.finalize(result, files.stop)
    return result


class CachedFiles:
    """Opens the copies of shards in a cache folder, and other files in the bucket.

    `paths`, `sizes` and `digests` describe the shards of the corpus.
    """

    has_copies = True

    def __init__(
        self,
        remote: RemoteFiles,
        folder: CacheFolder,
        paths: Sequence[str],
        sizes: Sequence[int],
        digests: Sequence[str],
    ) -> None:
        self._moved: deque[int] = deque()
        self._remote = remote
        self._folder = folder
        self._paths = paths
        self._sizes = sizes
        self._digests = digests
        self._number = {path: number for number, path in enumerate(paths)}
        self._lease: int | None = folder.lease(digests)
        self._failures: dict[int, int] = {}
        self._state: State = "idle"
        self._is_closed = False
        self._present: set[int] = set()
        self._look()

    @property
    def is_remote(self) -> bool:
        """Whether any shard has no copy."""
        return len(self._present) < len(self._paths)

    @property
    def status(self) -> CacheStatus:
        """How much of the corpus is in the cache."""
        present = list(self._present)
        return CacheStatus(
            state=self._state if self.is_remote else "complete",
            num_shards=len(present),
            total_shards=len(self._paths),
            num_bytes=sum(self._sizes[number] for number in present),
            total_bytes=sum(self._sizes),
        )

    def open(self, path: str, num_bytes: int | None = None) -> OpenFile:
        """Open the copy of a shard; without a copy, open the object."""
        number = self._number.get(path)
        if number is not None and number in self._present:
            file = self._open_copy(number)
            if file is not None:
                return file
        self._begin()
        return self._remote.open(path, num_bytes)

    def take_moved(self) -> Sequence[int]:
        """Return shards to open again, because their copies were added or removed."""
        if not self._moved:
            return ()
        moved: list[int] = []
        with contextlib.suppress(IndexError):  # Another thread may take some shards.
            while True:
                moved.append(self._moved.popleft())
        return moved

    def discard(self, path: str) -> bool:
        """Remove a damaged copy of a shard; return whether `path` is a copy."""
        copies = (str(self._folder.path_of(each)) for each in self._digests)
        number = next((n for n, copy in enumerate(copies) if copy == path), None)
        if number is None:
            return False
        if number in self._present:  # Another thread may have removed it.
            self._remove(number)
        return True

    def will_open(self, path: str, spans: Iterable[tuple[int, int]]) -> None:
        """Request the ranges, unless the shard has a copy."""
        self._begin()
        if self._number.get(path) not in self._present:
            self._remote.will_open(path, spans)

    def release(self) -> None:
        """Stop copying, and forget what was prefetched."""
        self.stop()
        self._remote.release()

    def stop(self) -> None:
        """Stop copying; takes no locks, so that a finalizer may call it."""
        self._is_closed = True
        if self._state in ("idle", "copying"):
            self._state = "stopped"
        lease, self._lease = self._lease, None
        if lease is not None:
            os.close(lease)

    def step(self) -> Literal["done", "wait", "again"]:
        """Copy one shard, if no other process does; called by the background thread."""
        try:
            with self._folder.downloading() as is_alone:
                self._look()
                number = None if self._is_closed else self._next()
                if number is None:
                    return self._end("stopped" if self.is_remote else "complete")
                if not is_alone:
                    return "wait"
                if not self._folder.make_room(self._sizes[number]):
                    return self._end("full")
                return self._copy(number)
        except BucketError:
            return "wait"  # If the error lasts, the readers raise it.
        except (OSError, ShardError) as error:
            if self._folder.exists():
                _log("warning", f"the cache {self._folder.path} stops growing: {error}")
            else:
                self._forget_missing()
            return self._end("stopped")

    @property
    def is_active(self) -> bool:
        """Whether the thread has shards of this corpus to copy."""
        return self._state == "copying"

    def _open_copy(self, number: int) -> OpenFile | None:
        """Open the copy of a shard; None if the copy is missing or damaged."""
        try:
            file = LOCAL.open(str(self._folder.path_of(self._digests[number])))
        except FileNotFoundError:
            self._forget_missing()
            return None
        except OSError as error:
            if error.errno in _SHORTAGES:  # The copy is good: the caller retries.
                raise
        else:
            if file.num_bytes == self._sizes[number]:
                return file
        self._remove(number)
        return None

    def _forget_missing(self) -> None:
        """Forget all copies that somebody removed, with one warning for all of them."""
        is_gone = not self._folder.exists()
        there = {} if is_gone else self._folder.sizes()
        num_missing = 0
        for number in list(self._present):
            if self._digests[number] in there:
                continue
            with contextlib.suppress(KeyError):  # Another thread may have removed it.
                self._present.remove(number)
                self._moved.append(number)
                num_missing += 1
        if is_gone and self._state != "stopped":
            self._state = "stopped"
            _log(
                "warning",
                f"the cache {self._folder.path} was removed, so {self._what} are read "
                "by ranges; open the corpus again to fill a new cache",
            )
        elif num_missing and not is_gone:
            copies = "1 copy" if num_missing == 1 else f"{num_missing} copies"
            _log(
                "warning",
                f"the cache {self._folder.path} has lost {copies} of {self._what}, "
                "which are read by ranges, and copied again",
            )
            if self._state == "complete":
                self._state = "idle"

    def _remove(self, number: int) -> None:
        """Remove the copy of a shard, and copy the shard again."""
        self._folder.remove(self._digests[number])
        self._present.discard(number)
        self._moved.append(number)
        _log(
            "warning",
            f"{self._folder.path_of(self._digests[number])}: is damaged; "
            f"{self._paths[number]} is read instead, and copied again",
        )
        if self._state == "complete":
            self._state = "idle"
        self._begin()

    def _begin(self) -> None:
        """Begin to copy at the first use of a shard."""
        if self._state == "idle" and not self._is_closed and self.is_remote:
            self._state = "copying"
            _copies.add(self)

    def _end(self, state: State) -> Literal["done"]:
        self._state = state
        if state == "complete":
            _log("info", f"the cache {self._folder.path} holds {self._what}")
        if state == "full":
            _log(
                "info",
                f"the cache {self._folder.path} is full, so a part of {self._what} is "
                "read by ranges; raise cache_bytes, or free space on the disk",
            )
        return "done"

    @property
    def _what(self) -> str:
        folder = self._paths[0].rpartition("/")[0]
        return f"the {len(self._paths)} shards of {folder}/"

    def _look(self) -> None:
        """Find the copies that this or another process has made."""
        there = self._folder.sizes()
        for number, digest in enumerate(self._digests):
            if number not in self._present and there.get(digest) == self._sizes[number]:
                self._present.add(number)
                self._moved.append(number)

    def _next(self) -> int | None:
        """Return the first shard that has no copy and may be tried again."""
        for number in range(len(self._paths)):
            is_given_up = self._failures.get(number, 0) >= _MOST_FAILURES
            if number not in self._present and not is_given_up:
                return number
        return None

    def _copy(self, number: int) -> Literal["again", "wait"]:
        """Copy and verify a shard."""
        target = self._folder.path_of(self._digests[number])
        file = self._remote.open(self._paths[number], self._sizes[number])
        size = self._sizes[number]
        starts = range(0, size, _CHUNK_BYTES)
        with Output(target) as output:
            for start in starts:
                if self._is_closed:
                    return "wait"
                for ahead in range(start, size, _CHUNK_BYTES)[1 : 1 + _CHUNKS_AHEAD]:
                    file.will_need(ahead, min(ahead + _CHUNK_BYTES, size))
                output.write(file.read(start, min(start + _CHUNK_BYTES, size)))
            output.finish()
            if not self._is_right(number, str(output.draft)):
                self._failures[number] = self._failures.get(number, 0) + 1
                if self._failures[number] == _MOST_FAILURES:
                    _log(
                        "warning",
                        f"{self._paths[number]}: arrived damaged {_MOST_FAILURES} "
                        "times, so it is not cached; verify the corpus",
                    )
                return "again"
            output.publish()
        self._look()
        return "again"

    def _is_right(self, number: int, draft: str) -> bool:
        """Return whether every block and the digests of a draft are correct."""
        try:
            shard = ShardMap(LOCAL.open(draft))
            if shard.layout.digest.hex() != self._digests[number]:
                return False
            return not damage_of_shard(shard, map)
        except ShardError:
            return False


class _Copies:
    """The corpora of a process that are being copied, and the thread that copies.

    The thread takes one shard of each corpus in turn, and ends when nothing is left.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._jobs: deque[CachedFiles] = deque()
        self._thread: threading.Thread | None = None
        self._is_ending = False

    def add(self, job: CachedFiles) -> None:
        """Copy the shards of a corpus from now on."""
        with self._changed:
            if self._is_ending or job in self._jobs:
                return
            self._jobs.append(job)
            self._changed.notify()
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="roxxel-cache", daemon=True
                )
                self._thread.start()

    def end(self) -> None:
        """Stop all copies, and wait for the thread for a short time."""
        with self._changed:
            self._is_ending = True
            jobs, thread = list(self._jobs), self._thread
            self._changed.notify()
        for job in jobs:
            job.release()
        if thread is not None:
            thread.join(_END_S)

    def _run(self) -> None:
        num_waiting = 0
        while True:
            with self._changed:
                if num_waiting >= len(self._jobs) > 0 and not self._is_ending:
                    self._changed.wait(_POLL_S)
                    num_waiting = 0
                if not self._jobs or self._is_ending:
                    self._thread = None
                    return
                job = self._jobs[0]
            try:
                outcome = job.step()
            except RuntimeError:
                if threading.main_thread().is_alive():
                    raise
                return  # The program is ending, so no thread can begin.
            with self._changed:
                # If a copy was found to be damaged, the job may have begun again.
                if outcome == "done" and not job.is_active:
                    self._jobs.popleft()
                else:
                    self._jobs.rotate(-1)
                num_waiting = num_waiting + 1 if outcome == "wait" else 0


def _log(level: Literal["info", "warning"], message: str) -> None:
    # Imported here because reading does not need it.
    import logging

    getattr(logging.getLogger("roxxel_format"), level)(message)


_copies = _Copies()


def _renew() -> None:
    """Replace `_copies` in a forked child, which does not have the parent's thread."""
    global _copies  # noqa: PLW0603 - one for each process
    _copies = _Copies()


os.register_at_fork(after_in_child=_renew)
atexit.register(lambda: _copies.end())  # noqa: PLW0108 - `_renew` replaces it
