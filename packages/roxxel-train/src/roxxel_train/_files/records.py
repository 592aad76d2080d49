"""The two records of a run, and the names of what lies beside them.

`run.json` is written at the first start: the data and the model with which the run
began. `data.json` is written at every start: the corpora, and the data as planned then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from roxxel_store.records import RecordKind

from roxxel_train.errors import RunMismatchError

if TYPE_CHECKING:
    from pathlib import Path

RECORD, DATA = "run.json", "data.json"
CHECKPOINTS, LOCK = "checkpoints", "run.lock"
PROFILE, AUTOTUNE, EVALS = "profile", "autotune", "evals"

RECORD_OF_RUN = RecordKind(
    "record of a run",
    1,
    remedy="restore the file, or give another save_path",
    error=RunMismatchError,
    other_remedy="resume with the version of roxxel-train that began the run",
    needs=("id", "place", "data", "model"),
    is_sealed=False,
)

RECORD_OF_DATA = RecordKind(
    "record of a run's data",
    1,
    remedy="restore the file, or resume the run, which writes the file again",
    error=RunMismatchError,
    other_remedy="read the run with the version of roxxel-train that trained last",
    needs=("sources", "state"),
    is_sealed=False,
)


def find_record(path: Path, kind: RecordKind) -> dict[str, Any] | None:
    """Return the record in a file; None if the file does not exist.

    Raises:
        RunMismatchError: The file is damaged, or of another version.
    """
    return kind.read(path) if path.exists() else None
