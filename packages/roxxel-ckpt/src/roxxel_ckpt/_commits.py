"""The objects that decide which steps a bucket has, and who may write them.

    writer-<generation>.json             made by each program that saves here
    <step>.<attempt>.json                commits a step

An attempt is `<generation>-<number>-<token>`. If a step has two commits, the later
attempt counts. A generation is a number. To become the writer, a program that saves
creates `writer-<generation>.json`, with the highest earlier generation plus 1. The
writer with the highest generation wins.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import socket
import threading
import time
from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from roxxel_ckpt.errors import CheckpointTimeoutError, CheckpointWriteError

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable

    from roxxel_ckpt.buckets import Bucket

_NAME = re.compile(r"(0|[1-9][0-9]*)\.([0-9]+)-([0-9]+)-([0-9a-f]+)")
_WRITER = re.compile(r"writer-([0-9]+)\.json")
# The generation of this program in each folder, and the number of its saves there.
_generations: dict[tuple[str, int], int] = {}
_num_attempts: dict[str, int] = {}
# Held during a save of this process into the folder: the sweep of a second save would
# delete the files of the first save.
_saving: defaultdict[tuple[str, int], threading.Lock] = defaultdict(threading.Lock)


class Attempt(NamedTuple):
    """A save of a step; attempts are ordered by step, then by time."""

    step: int
    generation: int
    number: int
    token: str

    def __str__(self) -> str:
        return f"{self.step}.{self.generation}-{self.number}-{self.token}"


class Contents(NamedTuple):
    """The objects in the folder.

    Attributes:
        committed: The attempts with a commit, in order.
        uploaded: The attempts with files.
        writers: The generations of all writers.
    """

    committed: list[Attempt]
    uploaded: list[Attempt]
    writers: list[int]

    def newest(self) -> dict[int, Attempt]:
        """Return, for every step, the attempt that counts, oldest step first."""
        return {attempt.step: attempt for attempt in self.committed}


class Commits:
    """Steps and writers of a folder of checkpoints.

    Args:
        bucket: The folder of the commits.
        files: The folder of the files of the committed steps.
    """

    def __init__(self, bucket: Bucket, files: Bucket) -> None:
        self._bucket, self._files = bucket, files

    def contents(self) -> Contents:
        """List the folder."""
        found = self._bucket.names()
        is_apart = self._files.url != self._bucket.url
        prefixes = self._files.names().prefixes if is_apart else found.prefixes
        writers = map(_WRITER.fullmatch, found.objects)
        return Contents(
            sorted(commits_in(found.objects)),
            [parsed(name) for name in prefixes if _NAME.fullmatch(name)],
            sorted(int(match[1]) for match in writers if match),
        )

    def become_writer(self) -> None:
        """Create the object of the next generation, once per process.

        Raises:
            CheckpointWriteError: A later writer exists.
        """
        key = self._bucket.url, os.getpid()
        if key in _generations:
            self.check_writer(self.contents())
        else:
            _generations[key] = self._new_generation()

    @contextlib.contextmanager
    def one_save(self, timeout_s: float) -> Generator[None]:
        """Wait until no other thread of this process saves here.

        Raises:
            CheckpointTimeoutError: The save of another thread did not end in time.
        """
        lock = _saving[self._bucket.url, os.getpid()]
        if not lock.acquire(timeout=timeout_s):
            raise CheckpointTimeoutError(
                f"{self._bucket.url}: the save of another thread did not end within "
                f"{timeout_s:g} seconds; use one Checkpointer, or give a larger "
                "timeout"
            )
        try:
            yield
        finally:
            lock.release()

    def check_writer(self, contents: Contents) -> None:
        """Raise CheckpointWriteError if there is a later writer."""
        newest = max(contents.writers, default=0)
        if newest > self.generation():
            raise CheckpointWriteError(
                f"{self._bucket.url}: another program{self._host_of(newest)} has begun "
                "to save checkpoints here, so this program can no longer save; give "
                "every run a folder of its own"
            )

    def generation(self) -> int:
        """Return the generation of this program, which is a writer."""
        return _generations[self._bucket.url, os.getpid()]

    def new_attempt(self) -> str:
        """Return a unique name for a save, ordered after the names of earlier saves."""
        url = self._bucket.url
        number = _num_attempts[url] = _num_attempts.get(url, 0) + 1
        return f"{self.generation()}-{number}-{secrets.token_hex(4)}"

    def _new_generation(self) -> int:
        about = {"host": socket.gethostname(), "started_at": time.time()}
        while True:
            # A person may have deleted the objects of earlier writers.
            found = self.contents()
            attempts = found.committed + found.uploaded
            known = (*found.writers, *(a.generation for a in attempts))
            generation = max(known, default=0) + 1
            about["token"] = secrets.token_hex(8)
            with contextlib.suppress(FileExistsError):
                self._bucket.create(writer_name(generation), json.dumps(about).encode())
                if max(self.contents().writers, default=0) == generation:
                    return generation

    def _host_of(self, generation: int) -> str:
        try:
            about = json.loads(self._bucket.read(writer_name(generation)))
            return f" on {about['host']}"
        except (OSError, ValueError, KeyError, TypeError):
            return ""


def writer_name(generation: int) -> str:
    """Return the name of the object that a writer creates."""
    return f"writer-{generation}.json"


def commits_in(names: Iterable[str]) -> list[Attempt]:
    """Return the attempts that have a commit among the objects `names`."""
    bare = (name.removesuffix(".json") for name in names if name.endswith(".json"))
    return [parsed(name) for name in bare if _NAME.fullmatch(name)]


def is_attempt(name: str) -> bool:
    """Return whether a name denotes an attempt to save a step."""
    return _NAME.fullmatch(name) is not None


def parsed(name: str) -> Attempt:
    """Return the attempt of a name such as `500.3-1-0a1b2c3d`."""
    match = _NAME.fullmatch(name)
    if match is None:
        raise AssertionError(f"{name} is not the name of a save")
    return Attempt(int(match[1]), int(match[2]), int(match[3]), match[4])
