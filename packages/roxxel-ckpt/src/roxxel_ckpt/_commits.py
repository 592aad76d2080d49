"""The objects that decide which steps a bucket has, and who may write them.

    writer-<generation>.json             made by each program that saves here
    <step>.<attempt>.json                commits a step

An attempt is `<generation>-<number>-<token>`. If a step has two commits, the later
attempt counts. `roxxel_ckpt.writers` explains writers and generations.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import threading
from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from roxxel_ckpt.errors import CheckpointTimeoutError
from roxxel_ckpt.writers import Writers

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable

    from roxxel_ckpt.buckets import Bucket

_NAME = re.compile(r"(0|[1-9][0-9]*)\.([0-9]+)-([0-9]+)-([0-9a-f]+)")
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
        objects: The names of all objects.
    """

    committed: list[Attempt]
    uploaded: list[Attempt]
    objects: list[str]

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
        self._writers = Writers(bucket, "save checkpoints")

    def contents(self) -> Contents:
        """List the folder."""
        found = self._bucket.names()
        is_apart = self._files.url != self._bucket.url
        prefixes = self._files.names().prefixes if is_apart else found.prefixes
        return Contents(
            sorted(commits_in(found.objects)),
            [parsed(name) for name in prefixes if _NAME.fullmatch(name)],
            found.objects,
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
            _generations[key] = self._writers.begin(self._generations_of_attempts)

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
        self._writers.check(self.generation(), contents.objects)

    def remove_earlier_writers(self, contents: Contents) -> None:
        """Delete the objects of the writers before this program."""
        self._writers.remove_earlier(self.generation(), contents.objects)

    def generation(self) -> int:
        """Return the generation of this program, which is a writer."""
        return _generations[self._bucket.url, os.getpid()]

    def new_attempt(self) -> str:
        """Return a unique name for a save, ordered after the names of earlier saves."""
        url = self._bucket.url
        number = _num_attempts[url] = _num_attempts.get(url, 0) + 1
        return f"{self.generation()}-{number}-{secrets.token_hex(4)}"

    def _generations_of_attempts(self) -> list[int]:
        found = self.contents()
        return [attempt.generation for attempt in found.committed + found.uploaded]


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
