"""The folder of a quickstart run: whose it is, and what was fixed at the first start.

`quickstart.json` marks the folder as a quickstart's and keeps what must not change
afterwards: the seed, the step where the phases meet and the horizon of the learning
rate. A folder without it that holds anything is somebody else's and is left alone.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from roxxel.quickstart.settings import DEFAULT_STEPS, MIN_STEPS, Schedule

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

RECORD = "quickstart.json"
DATA = "data"
CONFIG = "config.toml"
_STAGED = "data.new"
_LOCK = "quickstart.lock"
_VERSION = 1
_BEFORE_THE_RECORD = frozenset({_STAGED, _LOCK, RECORD + ".tmp"})
_OURS = frozenset(
    {
        RECORD,
        RECORD + ".tmp",
        DATA,
        _STAGED,
        _LOCK,
        CONFIG,
        # What `roxxel train` and `roxxel report` write.
        CONFIG + ".tmp",
        "configs",
        "report.html",
        "report.html.tmp",
        # What the trainer writes.
        "checkpoints",
        "metrics.jsonl",
        "system.log",
        "run.json",
        "run.json.tmp",
        "run.lock",
        "profile",
    }
)


class QuickstartError(ValueError):
    """The quickstart cannot do what it was asked for; nothing was changed."""


@dataclass(frozen=True)
class Record:
    """What a run keeps from start to start.

    Attributes:
        seed: Seed of the model, of the order of the data and of the text sample.
        python: Version of the Python whose library is the corpus.
        steps: Steps asked for so far.
        schedule: Where the phases meet and the learning rate ends.
        is_begun: Whether what lay in the folder before is gone, and the data in place.
    """

    seed: int
    python: str
    steps: int
    schedule: Schedule
    is_begun: bool = True


class QuickstartFolder:
    """A folder that is, or is about to be, one quickstart run.

    Args:
        path: The folder; it need not exist.

    Raises:
        QuickstartError: It is a file, or holds something that is no quickstart run.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        if path.exists() and not path.is_dir():
            raise QuickstartError(
                f"{path}: is a file, and a run needs a folder; give another --out"
            )
        names = self._names()
        foreign = names - _BEFORE_THE_RECORD
        if foreign and RECORD not in names:
            raise QuickstartError(
                f"{path}: holds {_shown(foreign)}, which is no quickstart run; "
                "give another --out"
            )

    @property
    def data(self) -> Path:
        """Where the shards lie."""
        return self.path / DATA

    @property
    def is_trained(self) -> bool:
        """Whether training has begun here."""
        return (self.path / "run.json").exists()

    @property
    def has_config(self) -> bool:
        """Whether the run lies there as a config file too."""
        return (self.path / CONFIG).exists()

    @property
    def staged(self) -> Path:
        """Where a new run's shards wait until it is known that it can be trained."""
        return self.path / _STAGED

    @contextmanager
    def claimed(self) -> Generator[None]:
        """Make the folder and keep other quickstarts out of it.

        Raises:
            QuickstartError: Another one is running there, or it cannot be written.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock = (self.path / _LOCK).open("a")
        except OSError as error:
            raise QuickstartError(
                f"{self.path}: cannot be written ({error.strerror}); give another --out"
            ) from error
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise QuickstartError(
                    f"{self.path}: another quickstart is running there; "
                    "wait for it or give another --out"
                ) from error
            yield

    def check_removable(self) -> None:
        """Check that the folder holds a run and nothing else, or nothing.

        Raises:
            QuickstartError: It holds files of somebody else's too.
        """
        foreign = self._names() - _OURS
        if foreign:
            raise QuickstartError(
                f"{self.path}: holds {_shown(foreign)} beside the run, so --fresh "
                "leaves it alone; move that away or give another --out"
            )

    def begin(self, record: Record) -> Record:
        """Make the folder a new run on the staged data; a run in it is removed.

        The folder must be claimed. Killed before the record is in its place, this
        leaves the old run as it was; killed later, the next start settles the new one.

        Returns:
            The record of the run that stands in the folder now.

        Raises:
            QuickstartError: The folder holds files of somebody else's too.
        """
        self.check_removable()
        record = replace(record, is_begun=False)
        self.write(record)
        return self.settle(record)

    def settle(self, record: Record) -> Record:
        """Finish a beginning that was cut short, if it was.

        Returns:
            The record of the run that stands in the folder now.
        """
        if record.is_begun:
            return record
        if self.staged.exists():
            for name in sorted(_OURS - {RECORD, _LOCK, _STAGED}):
                path = self.path / name
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                else:
                    path.unlink(missing_ok=True)
            self.staged.rename(self.data)
        record = replace(record, is_begun=True)
        self.write(record)
        return record

    def read(self) -> Record | None:
        """Return the record of the run, None where none has started yet.

        Raises:
            QuickstartError: The record is damaged or of another version.
        """
        path = self.path / RECORD
        if not path.exists():
            return None
        try:
            fields = json.loads(path.read_text(encoding="utf-8"))
            version = fields["version"]
            record = _parse(fields) if version == _VERSION else None
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise QuickstartError(
                f"{path}: is not the record of a quickstart run; "
                "give another --out, or start over with --fresh"
            ) from error
        if record is None:
            raise QuickstartError(
                f"{path}: has version {version}, this roxxel reads {_VERSION}; "
                "give another --out, or start over with --fresh"
            )
        return record

    def write(self, record: Record) -> None:
        """Put the record in its place, whole or not at all."""
        fields: dict[str, Any] = {"version": _VERSION, **asdict(record)}
        temporary = self.path / (RECORD + ".tmp")
        with temporary.open("w", encoding="utf-8") as file:
            file.write(json.dumps(fields, indent=2) + "\n")
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self.path / RECORD)

    def _names(self) -> set[str]:
        """Return the names of what the folder holds."""
        if not self.path.exists():
            return set()
        return {entry.name for entry in self.path.iterdir()}


def _parse(fields: dict[str, Any]) -> Record:
    """Return the record that was written as `fields`."""
    schedule = fields["schedule"]
    return Record(
        seed=int(fields["seed"]),
        python=str(fields["python"]),
        steps=int(fields["steps"]),
        schedule=Schedule(int(schedule["boundary"]), int(schedule["horizon"])),
        is_begun=bool(fields["is_begun"]),
    )


def check_seed(record: Record, seed: int | None, path: Path) -> None:
    """Check that the seed asked for is the run's.

    Raises:
        QuickstartError: The run was started with another seed.
    """
    if seed is not None and seed != record.seed:
        raise QuickstartError(
            f"{path}: this run was started with --seed {record.seed}, not {seed}; "
            "leave --seed out to go on, or give another --out"
        )


def resolve_steps(record: Record | None, steps: int | None, path: Path) -> int:
    """Return how many steps the run shall have in all.

    Args:
        record: The run so far, None for a new one.
        steps: What was asked for; None means the default for a new run, and as many as
            before for one that exists.
        path: The run's folder, for the message.

    Raises:
        QuickstartError: There are too few of them, or fewer than asked for before.
    """
    if steps is not None and steps < MIN_STEPS:
        raise QuickstartError(
            f"--steps must be {MIN_STEPS} or more, one for each phase, got {steps}"
        )
    if record is None:
        return DEFAULT_STEPS if steps is None else steps
    if steps is None:
        return record.steps
    if steps < record.steps:
        raise QuickstartError(
            f"{path}: this run was started with --steps {record.steps}, and {steps} is "
            f"less; give {record.steps} or more, or start over with --fresh"
        )
    return steps


def _shown(names: set[str]) -> str:
    """Return a few names for a message."""
    first = sorted(names)[:3]
    more = len(names) - len(first)
    return ", ".join(first) + (f" and {more} more" if more else "")
