"""The record of a run's identity, and the names of the files next to it.

`run.json` is written at the first start: the id of the run, the place of its folder,
and the data and the model with which it began. The data of later starts stand in their
rows of the log.

A copied folder has the id of its original. If somebody then copied a checkpoint from
one to the other, the run there would resume it, with another past. So a copy gets a new
id at its first start, and each checkpoint records the id of the run that saved it.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roxxel_store.records import RecordKind

from roxxel_train.errors import RunMismatchError

if TYPE_CHECKING:
    from collections.abc import Mapping

RECORD, CONFIG = "run.json", "config.toml"
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


def find_record(folder: Path) -> dict[str, Any] | None:
    """Return the record of the run in a folder; None if there is none.

    Raises:
        RunMismatchError: The record is damaged, or of another version.
    """
    path = folder / RECORD
    return RECORD_OF_RUN.read(path) if path.exists() else None


def new_id() -> str:
    """Return a random id for a run."""
    return secrets.token_hex(8)


def place_of(location: Path | str) -> dict[str, Any]:
    """Return where a folder is: its path or URL, and its inode on a disk.

    A folder that is renamed keeps its inode, and a mounted folder keeps one of both.
    """
    if isinstance(location, str):
        return {"path": location, "inode": None}
    path = os.path.realpath(location)
    return {"path": path, "inode": Path(path).stat().st_ino}


def registered(
    record: Mapping[str, Any], place: Mapping[str, Any], newest_step: int
) -> dict[str, Any]:
    """Return the content of `run.json` for a folder that is at `place` now.

    A copy gets a new id. Its checkpoints up to `newest_step` belong to the original.
    """
    was = record["place"]
    moved = was["path"] != place["path"]
    if not moved or was["inode"] == place["inode"] is not None:
        return {**record, "place": dict(place)}
    copied = {"id": record["id"], "path": was["path"], "step": newest_step}
    copies = [*record.get("copied_from", []), copied]
    return {**record, "id": new_id(), "place": dict(place), "copied_from": copies}


def known_ids(record: Mapping[str, Any] | None) -> set[str]:
    """Return the id of a run, and the ids of the runs of which its folder is a copy."""
    if record is None:
        return set()
    return {record["id"], *(each["id"] for each in record.get("copied_from", []))}


def check_owner(
    record: Mapping[str, Any] | None, owner: str | None, step: int, where: str
) -> None:
    """Raise RunMismatchError if another run saved a checkpoint of this folder.

    `owner` is the id that the checkpoint of `step` records.
    """
    if record is None or owner in {None, record["id"]}:
        return
    copies = record.get("copied_from", [])
    if any(each["id"] == owner and step <= each["step"] for each in copies):
        return
    raise RunMismatchError(
        f"{where}: the checkpoint of step {step} was saved in a copy of this folder, "
        "or in the folder that this one is a copy of, after both went their own ways; "
        f"move checkpoints/{step} elsewhere to continue this run, or bring run.json "
        "and metrics.jsonl of the other folder along to continue that run here"
    )


def copied(record: Mapping[str, Any]) -> str:
    """Return a warning for the first start of a copied folder."""
    last = record["copied_from"][-1]
    return (
        f"this folder is a copy of {last['path']}, or has moved to another disk: it "
        "has an id of its own from now on, and refuses checkpoints that are saved "
        f"there after step {last['step']}"
    )
