"""Files in buckets, read by byte ranges that are prefetched.

A training run knows its next batches, so `will_need` requests their ranges in advance,
and a read returns the bytes that have arrived. Worker threads send the requests: the
requests of a waiting reader first. All corpora of a process share the workers, which
end when idle.

A worker waits for one answer at a time: at a latency of 30 ms, 32 workers deliver 1 000
ranges a second. One thread with `obstore.get_async` needs more CPU, because obstore
then starts as many threads for the answers (`benchmarks/bucket_requests.py` prints
both).

A process keeps at most `MOST_BYTES_AHEAD` bytes in `_MOST_AHEAD` prefetched ranges. If
a request finds no room, ranges that nobody read for `_STALE_S` seconds are evicted. If
there are no such ranges, the hint is dropped, and the read later sends its own request.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import os
import threading
import time
from collections import OrderedDict, deque
from typing import TYPE_CHECKING

from roxxel_store.client import bucket_of
from roxxel_store.errors import BucketError

from roxxel_format._read.files import Files, OpenFile, missing_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from roxxel_store.client import Answer

MOST_BYTES_AHEAD = 256 << 20
_MOST_AHEAD = 1 << 16
_MOST_THREADS = 192
_MOST_BYTES_A_REQUEST = 8 << 20
_STALE_S = 30.0
_IDLE_S = 2.0
_END_S = 2.0

_Key = tuple[int, str, tuple[int, int]]
"""The owner of a request, the URL, and the range."""

_owners = itertools.count()


class RemoteFile(OpenFile):
    """An object in a bucket, read by ranges. Safe to use from many threads.

    A tag identifies one version of an object, as an ETag does. The first answer fixes
    the object's tag. Every later answer must have this tag, the size `num_bytes`, and
    the requested length.
    """

    how_changed = (
        "the corpus was replaced: this object is not the one that was opened; open the "
        "corpus again"
    )

    def __init__(self, path: str, num_bytes: int, timeout_s: float, owner: int) -> None:
        self.path = path
        self.num_bytes = num_bytes
        self._timeout_s = timeout_s
        self._owner = owner
        self._tag: str | None = None

    def read(self, start: int, stop: int) -> bytes:
        """Return the bytes `[start, stop)`; waits until they arrive."""
        spans = _spans(start, stop)
        for span in spans[1:]:
            _fetcher.request(
                self._owner, self.path, span, self._timeout_s, is_urgent=True
            )
        return b"".join(self._read_span(span) for span in spans)

    def will_need(self, start: int, stop: int, *, is_urgent: bool = False) -> None:
        """Request the bytes `[start, stop)`, for a read of exactly these bytes."""
        for span in _spans(start, stop):
            _fetcher.request(
                self._owner, self.path, span, self._timeout_s, is_urgent=is_urgent
            )

    def _read_span(self, span: tuple[int, int]) -> bytes:
        try:
            answer = _fetcher.take(self._owner, self.path, span, self._timeout_s)
        except FileNotFoundError as error:
            raise missing_file(self.path) from error
        if not answer.tag:
            raise BucketError(
                f"{self.path}: the server sends neither an ETag nor a time of the last "
                "change, so a replaced object would not be detected; copy the corpus "
                "to a disk, or use another server"
            )
        tag = self._tag
        if tag is None:
            tag = self._tag = answer.tag
        if answer.tag != tag or answer.size != self.num_bytes:
            raise self.changed()
        return answer.data


class RemoteFiles(Files):
    """Opens files in buckets; a read waits up to about `timeout_s` seconds.

    It never shares its prefetched ranges with another `RemoteFiles`. Otherwise a reader
    could get old bytes of an object that was replaced before it was opened.
    """

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._owner = next(_owners)

    @property
    def is_remote(self) -> bool:
        """Return True: every shard is read by ranges."""
        return True

    def open(self, path: str, num_bytes: int | None = None) -> RemoteFile:
        """Return the file; sends no request."""
        if num_bytes is None:
            raise ValueError(f"{path}: the size of a remote file must be known")
        return RemoteFile(path, num_bytes, self.timeout_s, self._owner)

    def will_open(self, path: str, spans: Iterable[tuple[int, int]]) -> None:
        """Request the ranges with priority over hints."""
        for span in spans:
            _fetcher.request(self._owner, path, span, self.timeout_s, is_urgent=True)

    def size_of(self, url: str, num_bytes: int) -> int:
        """Return the size of an object, by reading its first `num_bytes` bytes.

        `will_open` requests these bytes for many objects at once.
        """
        span = (0, num_bytes)
        return _fetcher.take(self._owner, url, span, self.timeout_s).size

    def release(self) -> None:
        """Drop the prefetched ranges."""
        _fetcher.forget(self._owner)


def run_later(task: Callable[[], object]) -> None:
    """Run a task that requests ranges in a background thread; tasks run in order.

    A task's error is dropped, because the read of the same bytes raises it again.
    """
    _fetcher.run_later(task)


def fetch(url: str, most_bytes: int, timeout_s: float) -> bytes:
    """Return the content of a whole object of at most `most_bytes` bytes."""
    return _fetcher.answer_of(_Request(url, None, timeout_s, most_bytes)).data


def _spans(start: int, stop: int) -> list[tuple[int, int]]:
    """Divide the bytes `[start, stop)` into the ranges of single requests."""
    size = _MOST_BYTES_A_REQUEST
    return [(at, min(at + size, stop)) for at in range(start, stop, size)]


class _Request:
    """One request, and its outcome once `done` is set."""

    def __init__(
        self,
        url: str,
        span: tuple[int, int] | None,
        timeout_s: float,
        most_bytes: int = _MOST_BYTES_A_REQUEST,
    ) -> None:
        self.url = url
        self.span = span
        self.timeout_s = timeout_s
        self.most_bytes = most_bytes
        self.made = time.monotonic()
        self.is_waiting = True  # in a queue
        self.done = threading.Event()
        self.answer: Answer | None = None
        self.error: BaseException | None = None

    @property
    def num_bytes(self) -> int:
        return 0 if self.span is None else self.span[1] - self.span[0]

    def send(self) -> None:
        try:
            bucket, name = bucket_of(self.url, self.timeout_s)
            self.answer = bucket.get(name, self.span, self.most_bytes)
            self._check_length(self.answer)
        except BaseException as error:  # noqa: BLE001 - the reader raises it
            # The frames hold this request, which would hold itself by its error.
            self.error = error.with_traceback(None)
        self.done.set()

    def _check_length(self, answer: Answer) -> None:
        if self.span is not None and len(answer.data) != self.num_bytes:
            raise BucketError(
                f"{self.url}: bytes {self.span[0]} to {self.span[1] - 1}: the object "
                f"has {answer.size} bytes, so it was replaced by a shorter one; open "
                "the corpus again"
            )


class _Fetcher:
    """The requests of a process, the threads that send them, and what arrived."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._urgent: deque[_Request] = deque()
        self._later: deque[_Request] = deque()
        # The requests ahead that nobody has read yet, the oldest first.
        self._ahead: OrderedDict[_Key, _Request] = OrderedDict()
        self._bytes_ahead = 0
        # What `run_later` was given. One thread, which is no worker, runs it in order.
        self._tasks: deque[Callable[[], object]] = deque()
        self._runs_tasks = False
        self._threads: set[threading.Thread] = set()
        self._num_idle = 0
        self._is_ending = False

    def request(
        self,
        owner: int,
        url: str,
        span: tuple[int, int],
        timeout_s: float,
        *,
        is_urgent: bool,
    ) -> None:
        """Request a range that `take` will read; drop the hint if there is no room."""
        key = owner, url, span
        with self._changed:
            if self._is_ending:
                return
            found = self._ahead.get(key)
            if found is None:
                request = _Request(url, span, timeout_s)
                if self._make_room(request.num_bytes):
                    self._ahead[key] = request
                    self._bytes_ahead += request.num_bytes
                    self._add(request, is_urgent=is_urgent)
            elif is_urgent and found.is_waiting:
                self._urgent.append(found)

    def take(
        self, owner: int, url: str, span: tuple[int, int], timeout_s: float
    ) -> Answer:
        """Return a range and forget it; send its request unless `request` has."""
        with self._changed:
            request = self._ahead.pop((owner, url, span), None)
            if request is not None:
                self._bytes_ahead -= request.num_bytes
                if request.is_waiting:
                    self._urgent.append(request)
                    self._changed.notify()
        if request is None or (request.done.is_set() and request.error):
            # A request ahead may have failed long ago, so repeat it.
            return self.answer_of(_Request(url, span, timeout_s))
        return _outcome(request)

    def answer_of(self, request: _Request) -> Answer:
        """Send a request with priority over hints, and return its answer."""
        with self._changed:
            if self._is_ending:
                raise BucketError(
                    f"{request.url}: cannot be read, the program is ending"
                )
            self._add(request, is_urgent=True)
        return _outcome(request)

    def forget(self, owner: int) -> None:
        with self._changed:
            for key in [key for key in self._ahead if key[0] == owner]:
                self._drop(key)

    def run_later(self, task: Callable[[], object]) -> None:
        """Run a task in one background thread; see the function `run_later`."""
        with self._changed:
            self._tasks.append(task)
            if not self._runs_tasks:
                self._runs_tasks = True
                self._start(self._run_tasks)

    def end(self) -> None:
        """Drop the waiting requests, and wait for the threads, for a short time."""
        with self._changed:
            self._is_ending = True
            self._urgent.clear()
            self._later.clear()
            self._tasks.clear()
            self._changed.notify_all()
        stop = time.monotonic() + _END_S
        for thread in list(self._threads):
            thread.join(max(0.0, stop - time.monotonic()))

    def _add(self, request: _Request, *, is_urgent: bool) -> None:
        """Put a request into a queue, and start a thread if all are busy."""
        (self._urgent if is_urgent else self._later).append(request)
        waiting = len(self._urgent) + len(self._later)
        if self._num_idle < waiting and len(self._threads) < _MOST_THREADS:
            self._start(self._work)
        self._changed.notify()

    def _start(self, function: Callable[[], None]) -> None:
        thread = threading.Thread(target=function, name="roxxel-bucket", daemon=True)
        self._threads.add(thread)
        thread.start()

    def _run_tasks(self) -> None:
        while True:
            with self._changed:
                if not self._tasks:
                    self._runs_tasks = False
                    self._threads.discard(threading.current_thread())
                    return
                task = self._tasks.popleft()
            with contextlib.suppress(Exception):
                task()

    def _work(self) -> None:
        while (request := self._next()) is not None:
            request.send()

    def _next(self) -> _Request | None:
        """Return the next request; None once this thread was idle for a while."""
        with self._changed:
            while not self._is_ending:
                while self._urgent or self._later:
                    request = (self._urgent or self._later).popleft()
                    # A request may be in both queues, or may have been evicted.
                    if request.is_waiting:
                        request.is_waiting = False
                        return request
                self._num_idle += 1
                is_due = self._changed.wait(_IDLE_S)
                self._num_idle -= 1
                if not is_due and not (self._urgent or self._later):
                    break
            self._threads.discard(threading.current_thread())
            return None

    def _make_room(self, num_bytes: int) -> bool:
        """Evict stale ranges until `num_bytes` fit; return whether they fit."""
        now = time.monotonic()
        while not self._has_room(num_bytes) and self._ahead:
            key, oldest = next(iter(self._ahead.items()))
            if now - oldest.made < _STALE_S:
                return False
            self._drop(key)
        return self._has_room(num_bytes)

    def _has_room(self, num_bytes: int) -> bool:
        is_small = self._bytes_ahead + num_bytes <= MOST_BYTES_AHEAD
        return is_small and len(self._ahead) < _MOST_AHEAD

    def _drop(self, key: _Key) -> None:
        request = self._ahead.pop(key)
        request.is_waiting = False
        self._bytes_ahead -= request.num_bytes


def _outcome(request: _Request) -> Answer:
    # The client has its own time limit. This limit covers a stuck queue.
    limit_s = 2 * request.timeout_s
    if not request.done.wait(limit_s):
        raise BucketError(
            f"{request.url}: no answer within {limit_s:g} s; check the network, or "
            "raise timeout_s"
        )
    if request.error is not None:
        raise request.error
    assert request.answer is not None  # noqa: S101 - `send` sets one of the two
    return request.answer


_fetcher = _Fetcher()


def _renew() -> None:
    """Replace `_fetcher` in a forked child, which lacks the parent's threads."""
    global _fetcher  # noqa: PLW0603 - one for each process
    _fetcher = _Fetcher()


os.register_at_fork(after_in_child=_renew)
atexit.register(lambda: _fetcher.end())  # noqa: PLW0108 - `_renew` replaces it
