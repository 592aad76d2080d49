"""The bucket of a run's checkpoints: its manifest lists steps, and files of the run.

    {"steps": [{"name": "500.3-1-<token>", "files": {...}}, ...],
     "files": {"metrics.jsonl": [["files/3-2-<token>", 16777216, 123456789], ...], ...}}

A step is the folder of objects with its name; the objects are those of a step on a
disk. A step's `files` are the files of its run at the time of the save, as pieces. The
`files` at the end are the newest. A step that a restore could not use is marked as
damaged: it keeps its files, and no reader takes it for a step.

`roxxel_train` uses this module too; user programs need not.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from roxxel_store.client import Bucket
from roxxel_store.swap import MANIFEST, SwapErrors, is_name

from roxxel_ckpt.errors import (
    CheckpointBucketError,
    CheckpointDamagedError,
    CheckpointTimeoutError,
    CheckpointWriteError,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    Piece = tuple[str, int, int]
    """Name of an object, number of its bytes, and their CRC-32."""
    Files = Mapping[str, Sequence[Piece]]
    """The pieces of each file, by the file's path."""

SWAP_ERRORS = SwapErrors(
    CheckpointDamagedError, CheckpointTimeoutError, CheckpointWriteError
)
"""The errors of the manifest."""


def checkpoint_bucket(url: str, timeout_s: float) -> Bucket:
    """Return the objects below a URL, with the errors of this package.

    A request gets half of `timeout_s`, because a save or a restore makes several.
    """
    return Bucket(url, timeout_s / 2, error=CheckpointBucketError, option="timeout")


class Entry(NamedTuple):
    """A step in a manifest.

    Example:
        >>> Entry("500.3-1-00112233445566aa", {}).step
        500
    """

    name: str
    files: Files
    is_damaged: bool = False

    @property
    def step(self) -> int:
        """The number of the step."""
        return int(self.name.partition(".")[0])


class Contents(NamedTuple):
    """The steps and files that a manifest lists.

    Example:
        >>> first = Contents().committed("1.1-1-00aa", {})
        >>> then = first.committed("2.1-2-00bb", {}, drops={1})
        >>> then.names()
        {2: '2.1-2-00bb'}
    """

    steps: tuple[Entry, ...] = ()
    files: Files = MappingProxyType({})

    @classmethod
    def of(cls, listed: Mapping[str, Any], where: str = MANIFEST) -> Contents:
        """Return what a manifest lists; `where` is its URL, for messages.

        Raises:
            CheckpointDamagedError: No program of this package made the manifest.
        """
        try:
            steps = tuple(map(_entry, listed.get("steps", ())))
            return cls(steps, _files(listed.get("files", {})))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise CheckpointDamagedError(
                f"{where}: does not list steps and files as roxxel-ckpt does "
                f"({error!r:.200}); put an earlier version of this object back, if the "
                "bucket keeps versions, or give another folder"
            ) from error

    def to_json(self) -> dict[str, Any]:
        """Return the JSON that `of` reads."""
        return {
            "steps": [entry._asdict() for entry in self.steps],
            "files": dict(self.files),
        }

    def names(self) -> dict[int, str]:
        """Return the names of the steps by their numbers, oldest first."""
        return {each.step: each.name for each in self.steps if not each.is_damaged}

    def committed(
        self,
        name: str,
        files: Files,
        *,
        drops: Collection[int] = (),
        damaged: Collection[str] = (),
    ) -> Contents:
        """Add a step; without `files`, the run's files stay as they are.

        The steps `drops`, and an earlier save of the step, are dropped. The steps named
        in `damaged` are marked.
        """
        new = Entry(name, files)
        marked = self._replace(
            steps=tuple(
                each._replace(is_damaged=each.is_damaged or each.name in damaged)
                for each in self.steps
            )
        )
        kept = marked.without({new.step, *drops}).steps
        return Contents(
            tuple(sorted([*kept, new], key=lambda entry: entry.step)),
            files or self.files,
        )

    def without(self, steps: Collection[int]) -> Contents:
        """Drop steps, except those that are marked as damaged."""
        kept = (e for e in self.steps if e.is_damaged or e.step not in steps)
        return self._replace(steps=tuple(kept))


def _entry(found: Mapping[str, Any]) -> Entry:
    is_damaged = bool(found.get("is_damaged", False))
    entry = Entry(str(found["name"]), _files(found["files"]), is_damaged)
    if not is_name(entry.name) or "/" in entry.name or entry.step < 0:
        raise ValueError(f"{entry.name!r} is no name of a step")
    return entry


def _files(found: Mapping[str, Any]) -> Files:
    return {
        path: [(str(name), int(size), int(crc)) for name, size, crc in pieces]
        for path, pieces in found.items()
    }
