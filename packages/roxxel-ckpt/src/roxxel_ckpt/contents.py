"""What the manifest of a bucket lists: steps, and the files of the run.

    {"steps": [{"name": "500.3-1-<token>", "files": {...}}, ...],
     "aside": [...],
     "files": {"metrics.jsonl": [["files/3-2-<token>", 16777216, 123456789], ...], ...}}

A step is the folder of objects with its name; the objects are those of a step on a
disk. `files` of a step are the files of its run at the time of the save, as pieces; the
last `files` are the newest. `aside` are steps that a run replaced when it continued
from an older step; they keep their files, so a step can be brought back with its rows.

`roxxel_train` uses this module too; user programs need not.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from roxxel_store.swap import MANIFEST, is_name

from roxxel_ckpt.errors import CheckpointDamagedError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    Piece = tuple[str, int, int]
    """Name of an object, number of its bytes, and their CRC-32."""
    Files = Mapping[str, Sequence[Piece]]
    """The pieces of each file, by the file's path."""


class Entry(NamedTuple):
    """A step in a manifest.

    Example:
        >>> Entry("500.3-1-00112233445566aa", {}).step
        500
    """

    name: str
    files: Files

    @property
    def step(self) -> int:
        """The number of the step."""
        return int(self.name.partition(".")[0])


class Contents(NamedTuple):
    """The steps and files that a manifest lists.

    Example:
        >>> first = Contents().committed("1.1-1-00aa", {}, base=0, drops=())
        >>> then = first.committed("2.1-2-00bb", {}, base=1, drops={1})
        >>> [entry.step for entry in then.steps]
        [2]
    """

    steps: tuple[Entry, ...] = ()
    aside: tuple[Entry, ...] = ()
    files: Files = MappingProxyType({})

    @classmethod
    def of(cls, listed: Mapping[str, Any], where: str = MANIFEST) -> Contents:
        """Return what a manifest lists; `where` is its URL, for messages.

        Raises:
            CheckpointDamagedError: No program of this package made the manifest.
        """
        try:
            steps, aside = (
                tuple(map(_entry, listed.get(kind, ()))) for kind in ("steps", "aside")
            )
            return cls(steps, aside, _files(listed.get("files", {})))
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
            "aside": [entry._asdict() for entry in self.aside],
            "files": dict(self.files),
        }

    def committed(
        self, name: str, files: Files, *, base: int, drops: Collection[int]
    ) -> Contents:
        """Add a step; without `files`, those of the run stay.

        Steps after `base` are from a run that the step's run replaces, so they are set
        aside. The steps `drops`, and an earlier save of the step, are dropped.
        """
        new = Entry(name, files)
        gone = {new.step, *drops}
        kept = [e for e in self.steps if e.step <= base and e.step not in gone]
        return Contents(
            tuple(sorted([*kept, new], key=lambda entry: entry.step)),
            (*self.aside, *(entry for entry in self.steps if entry.step > base)),
            files or self.files,
        )

    def brought_back(self, step: int) -> Contents:
        """Make a step that was set aside the newest step again.

        Of several such steps, the one that was set aside last is taken. Steps from its
        number on are set aside in exchange. The step brings its files back, and the
        newest of the others keeps those of the run.

        Raises:
            KeyError: No step with this number is set aside.
        """
        found = [entry for entry in self.aside if entry.step == step]
        if not found:
            raise KeyError(step)
        back = found[-1]
        others = list(self.steps)
        if others:
            others[-1] = others[-1]._replace(files=self.files)
        return Contents(
            (*(entry for entry in others if entry.step < step), back),
            (
                *(entry for entry in self.aside if entry is not back),
                *(entry for entry in others if entry.step >= step),
            ),
            back.files or self.files,
        )


def _entry(found: Mapping[str, Any]) -> Entry:
    entry = Entry(str(found["name"]), _files(found["files"]))
    if not is_name(entry.name) or "/" in entry.name or entry.step < 0:
        raise ValueError(f"{entry.name!r} is no name of a step")
    return entry


def _files(found: Mapping[str, Any]) -> Files:
    return {
        path: [(str(name), int(size), int(crc)) for name, size, crc in pieces]
        for path, pieces in found.items()
    }
