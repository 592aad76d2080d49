"""A file that grows in the background: its pieces in order, their sync on the way.

To write a piece into the system's cache takes about as long as to check and sum the
next one, and the disk takes its own time after that. So large pieces are written by one
thread, and brought to the disk by another, while the next are made.
"""

from __future__ import annotations

import os
import time
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from roxxel_format._store.local import sync_file

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from pathlib import Path

_SMALL = 1 << 18
"""A piece of fewer bytes is not worth the way to another thread."""

_LARGE = 1 << 23
"""A piece of more bytes is not kept beside the next one."""

_MAX_PENDING = 3
"""Pieces that wait to be written."""

_CHUNK = 1 << 21
"""Bytes of which whole multiples are written, from the file's beginning on, so that the
system can keep them in pages of that size; windows are read sooner from those."""

_SYNC_EVERY = 1 << 23
"""Bytes after which the disk is given what is written."""


class Output:
    """A new file, written from its beginning to its end.

    After an error, or an interrupt that met a wait, it takes nothing more.

    Args:
        path: The file; one of that name is emptied.
        name: What to call it in errors.

    Attributes:
        sync_s: Seconds spent waiting for the disk.
    """

    def __init__(self, path: Path, name: Path) -> None:
        self._name = name
        self._file = path.open("wb", buffering=0)
        self._is_broken = False
        self._pending: deque[Future[None]] = deque()
        self._writing: ThreadPoolExecutor | None = None
        self._syncing: ThreadPoolExecutor | None = None
        self._sync: Future[None] | None = None
        self._num_unsynced = 0
        self._held = bytearray()
        self.sync_s = 0.0

    def write(self, data: bytes | memoryview) -> Future[None] | None:
        """Add a piece.

        Returns:
            None once it is written, or copied; else what is done then, and until then
            the piece must not change.

        Raises:
            OSError: This piece, or one before it, cannot be written; of what is held
                back that is found later.
        """
        with self.unless_broken():
            is_large = len(data) > _LARGE
            self._wait(until=0 if is_large else _MAX_PENDING - 1)
            if is_large or (not self._pending and len(data) < _SMALL):
                self._write(data)
                return None
            if self._writing is None:
                self._writing = ThreadPoolExecutor(1, "roxxel-format-write")
            piece = _submitted(self._writing, self._write, data)
            if piece is None:
                self._wait(until=0)
                self._writing.shutdown(cancel_futures=True)
                self._writing = None
                self._write(data)
            else:
                self._pending.append(piece)
            return piece

    def finish(self) -> None:
        """Write what is left, bring all of it to the disk and close the file.

        Raises:
            OSError: A piece could not be written, or the disk cannot take it.
        """
        with self.unless_broken():
            self._wait(until=0)
            self._put(self._held)
            self._held = bytearray()
            began = time.perf_counter()
            if self._sync is not None:
                self._sync.result()
            self._bring_to_disk()
            self.sync_s += time.perf_counter() - began
            self._end()

    def abort(self) -> None:
        """Close the file once no thread is at work on it; what is held back is lost."""
        self._is_broken = True
        for pending in self._pending:
            pending.cancel()
        self._end()

    @contextmanager
    def unless_broken(self) -> Generator[None]:
        """Take what the block adds; where it does not get to its end, no more."""
        if self._is_broken:
            raise OSError(
                f"{self._name}: a write before this one has failed, so the shard was "
                "given up; write it again"
            )
        try:
            yield
        except BaseException:
            self._is_broken = True
            raise

    def _wait(self, until: int) -> None:
        """Wait until no more pieces than so many are pending."""
        while len(self._pending) > until:
            self._pending[0].result()
            self._pending.popleft()

    def _end(self) -> None:
        try:
            if self._writing is not None:
                self._writing.shutdown()
            self._held = bytearray()
            if self._syncing is not None:  # the last piece may have begun it
                self._syncing.shutdown()
        finally:
            self._file.close()

    def _write(self, data: bytes | memoryview) -> None:
        """Write whole chunks, and hold back what is left."""
        rest = memoryview(data)
        if self._held:
            missing = _CHUNK - len(self._held)
            self._held += rest[:missing]
            rest = rest[missing:]
            if len(self._held) < _CHUNK:
                return
            self._put(self._held)
            self._held.clear()
        whole = len(rest) - len(rest) % _CHUNK
        self._put(rest[:whole])
        self._held += rest[whole:]

    def _put(self, data: bytearray | memoryview) -> None:
        """Write all of it, and have the disk begin where that is enough."""
        with memoryview(data) as whole, self._named():
            at = 0
            while at < len(whole):
                at += self._file.write(whole[at:])
        self._num_unsynced += len(data)
        is_free = self._sync is None or self._sync.done()
        if self._num_unsynced >= _SYNC_EVERY and is_free:
            self._num_unsynced = 0
            if self._sync is not None:
                self._sync.result()
            if self._syncing is None:
                self._syncing = ThreadPoolExecutor(1, "roxxel-format-sync")
            self._sync = _submitted(self._syncing, self._bring_to_disk)
            if self._sync is None:
                self._syncing.shutdown(cancel_futures=True)
                self._syncing = None

    def _bring_to_disk(self) -> None:
        with self._named():
            sync_file(self._file.fileno())

    @contextmanager
    def _named(self) -> Generator[None]:
        """Say in an error of the system which shard it has met."""
        try:
            yield
        except OSError as error:
            raise OSError(
                error.errno,
                f"{os.strerror(error.errno or 0)}; the shard was given up, "
                "so make room and write again",
                str(self._name),
            ) from error


def _submitted(
    threads: ThreadPoolExecutor, work: Callable[..., None], *arguments: Any
) -> Future[None] | None:
    """Have work done by a thread.

    None where none is started, as when the program ends or has too many; then the
    executor may hold the work all the same, and must be shut down without it.
    """
    try:
        return threads.submit(work, *arguments)
    except RuntimeError:
        return None
