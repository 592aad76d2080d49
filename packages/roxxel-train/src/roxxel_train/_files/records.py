"""The record of a run's identity, and the names of the files next to it.

`run.json` is written at the first start: the id of the run, and the data and the model
with which it began. The data of later starts stand in their rows of the log. A copied
folder has the id of its original.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from roxxel_store.records import RecordKind

from roxxel_train.errors import RunMismatchError

if TYPE_CHECKING:
    from pathlib import Path

RECORD, CONFIG = "run.json", "config.toml"
CHECKPOINTS, LOCK = "checkpoints", "run.lock"
PROFILE, AUTOTUNE, EVALS = "profile", "autotune", "evals"

RECORD_OF_RUN = RecordKind(
    "record of a run",
    1,
    remedy="restore the file, or give another save_path",
    error=RunMismatchError,
    other_remedy="resume with the version of roxxel-train that began the run",
    needs=("id", "data", "model"),
    is_sealed=False,
)


def no_record(run: str, name: str) -> RunMismatchError:
    """Return the error for a folder that holds a file of a run and no record."""
    weights = f", and init_from={run!r} to start with its weights"
    return RunMismatchError(
        f"{run}: holds {name} but no {RECORD}, so it is not a run of this trainer; "
        f"give another save_path{weights if name == CHECKPOINTS else ''}"
    )


def find_record(folder: Path) -> dict[str, Any] | None:
    """Return the record of the run in a folder; None if there is none.

    Raises:
        RunMismatchError: The record is damaged, or of another version.
    """
    path = folder / RECORD
    return RECORD_OF_RUN.read(path) if path.exists() else None
