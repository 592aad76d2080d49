"""The folder of a run: where it may lie, and what its files are called.

`run.json` is written at the first start: the id of the run, and the data and the model
with which it began. The data of later starts stand in their rows of the log. A copied
folder has the id of its original.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from roxxel_store.records import RecordKind
from roxxel_store.urls import expanded, url_of

from roxxel_train.errors import RunMismatchError

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


def check_writable(path: str | os.PathLike[str], name: str) -> Path:
    """Return the absolute path of a folder, which the argument `name` gives.

    Raises:
        OSError: The folder can neither be written nor created.
        ValueError: The path is a URL.
    """
    text = os.fspath(path)
    if url_of(path, name) is not None:
        raise ValueError(
            f"{name}={text!r}: is a URL, which cannot be used here; give a folder, or "
            "save_path= a URL as text"
        )
    folder = expanded(path).absolute()
    nearest = next(path for path in (folder, *folder.parents) if path.exists())
    if not nearest.is_dir():
        raise NotADirectoryError(f"{name}={text!r}: {nearest} is a file; give a folder")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise PermissionError(
            f"{name}={text!r}: {nearest} cannot be written; "
            "give another folder or change its permissions"
        )
    return folder


def shown(path: Path | str) -> str:
    """Return a path for a message: relative if it is below the working directory."""
    if isinstance(path, str):
        return path
    with suppress(ValueError, OSError):
        return str(path.relative_to(Path.cwd()))
    return str(path)


def find_record(folder: Path) -> dict[str, Any] | None:
    """Return the record of the run in a folder; None if there is none.

    Raises:
        RunMismatchError: The record is damaged, or of another version.
    """
    path = folder / RECORD
    return RECORD_OF_RUN.read(path) if path.exists() else None


def no_record(run: str, name: str) -> RunMismatchError:
    """Return the error for a folder that holds a file of a run and no record."""
    weights = f", and init_from={run!r} to start with its weights"
    return RunMismatchError(
        f"{run}: holds {name} but no {RECORD}, so it is not a run of this trainer; "
        f"give another save_path{weights if name == CHECKPOINTS else ''}"
    )


def cache_folder() -> Path:
    """Return Roxxel's folder in `$XDG_CACHE_HOME`, or in `~/.cache`.

    Raises:
        FileNotFoundError: No home folder is known, as in many containers.
    """
    base = os.environ.get("XDG_CACHE_HOME")
    if not base:
        try:
            base = Path.home() / ".cache"
        except RuntimeError as error:
            raise FileNotFoundError(
                "no home folder is known, and XDG_CACHE_HOME is not set"
            ) from error
    return Path(base, "roxxel")
