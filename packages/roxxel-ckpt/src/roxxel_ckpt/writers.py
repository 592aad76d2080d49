"""Which of several programs may write to a folder in a bucket: the last to begin.

A bucket has no locks. So a program that writes to a folder creates an object
`writer-<generation>.json` when it begins. Its generation is a number, the highest
earlier generation plus 1. A program with an earlier generation may no longer write.

An object on which readers rely, such as the commit of a checkpoint, is created between
two checks for a later writer. If the second check fails, the program deletes the object
again. A later program begins, and reads the folder after that. It thus sees every
object that passed both checks.

`roxxel_train` uses this module too; user programs need not.
"""

from __future__ import annotations

import contextlib
import json
import re
import secrets
import socket
import time
from typing import TYPE_CHECKING

from roxxel_ckpt.errors import CheckpointWriteError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from roxxel_ckpt.buckets import Bucket

_NAME = re.compile(r"writer-([0-9]+)\.json")


class Writers:
    """The writers of a folder.

    Args:
        bucket: The folder.
        purpose: What the programs do here, for messages, such as `"save checkpoints"`.

    Example:
        >>> from roxxel_ckpt.buckets import Bucket
        >>> writers = Writers(Bucket("s3://bucket/run", timeout_s=60), "run")
        >>> writers.check(2, ["run.json", "writer-1.json", "writer-2.json"])
    """

    def __init__(self, bucket: Bucket, purpose: str) -> None:
        self._bucket, self._purpose = bucket, purpose

    def begin(self, others: Callable[[], Iterable[int]]) -> int:
        """Become the writer; return the generation of this program.

        Args:
            others: Returns the generations that other objects of the folder name. A
                person may have deleted the objects of earlier writers.
        """
        about = {"host": socket.gethostname(), "started_at": time.time()}
        while True:
            generation = max((*self._generations(), *others()), default=0) + 1
            about["token"] = secrets.token_hex(8)
            with contextlib.suppress(FileExistsError):
                self._bucket.create(writer_name(generation), json.dumps(about).encode())
                if max(self._generations(), default=0) == generation:
                    return generation

    def check(self, generation: int, objects: Iterable[str]) -> None:
        """Raise CheckpointWriteError if there is a writer later than `generation`.

        `objects` are the names of all objects of the folder.
        """
        newest = max(generations_in(objects), default=0)
        if newest > generation:
            raise CheckpointWriteError(
                f"{self._bucket.url}: another program{self._host_of(newest)} has begun "
                f"to {self._purpose} here, so this program can no longer save; give "
                "every run a folder of its own"
            )

    def remove_earlier(self, generation: int, objects: Iterable[str]) -> None:
        """Delete the objects of the writers before `generation`."""
        earlier = [each for each in generations_in(objects) if each < generation]
        self._bucket.delete(map(writer_name, earlier))

    def _generations(self) -> list[int]:
        return generations_in(self._bucket.names().objects)

    def _host_of(self, generation: int) -> str:
        try:
            about = json.loads(self._bucket.read(writer_name(generation)))
            return f" on {about['host']}"
        except (OSError, ValueError, KeyError, TypeError):
            return ""


def writer_name(generation: int) -> str:
    """Return the name of the object that a writer creates."""
    return f"writer-{generation}.json"


def generations_in(objects: Iterable[str]) -> list[int]:
    """Return the generations of the writers among the objects, in order."""
    matches = map(_NAME.fullmatch, objects)
    return sorted(int(match[1]) for match in matches if match)
