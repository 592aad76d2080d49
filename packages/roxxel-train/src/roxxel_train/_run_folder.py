"""The folder of a run: its lock, and `run.json`.

`run.json` names the data and the model that the run began with. `checkpoints/`,
`metrics.jsonl` and `system.log` are beside it.
"""

from __future__ import annotations

import fcntl
import json
import os
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roxxel_train._log.files import METRICS_FILE
from roxxel_train._paths import check_writable
from roxxel_train.errors import RunMismatchError

if TYPE_CHECKING:
    from collections.abc import Generator

CHECKPOINTS = "checkpoints"
_RECORD = "run.json"
_LOCK = "run.lock"
_VERSION = 1
_RECORDED_VERSIONS = ("jax", "flax", "optax", "orbax-checkpoint", "numpy")


class RunFolder:
    """The folder of one run; created when the run starts.

    Args:
        path: The folder.

    Attributes:
        record: Content of `run.json`; None before the run began.

    Raises:
        RunMismatchError: The folder holds files of a run but no `run.json`, or one of
            an unknown version.
        OSError: The path is not a folder, or cannot be written.
        ValueError: The path is a URL.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        check_writable(path, "save_path")
        self.path = Path(path)
        self.checkpoints = self.path / CHECKPOINTS
        self.record: dict[str, Any] | None = self._read()

    def __str__(self) -> str:
        """Return the path, for errors."""
        return str(self.path)

    def begin(
        self,
        *,
        seed: int,
        data: dict[str, Any],
        model: str,
        init_from: dict[str, Any] | None = None,
    ) -> None:
        """Write `run.json` at the first start; later starts do not change it.

        Call this inside `claimed()`. A run that another process began since this object
        was made is kept.

        Args:
            seed: Seed of the order of the data.
            data: State of the sampler at step 0.
            model: Signature of the model and the optimizer.
            init_from: Path and step of the checkpoint that gave the first weights.
        """
        self.record = self._read()
        if self.record is not None:
            return
        self.record = {
            "version": _VERSION,
            "seed": seed,
            "model": model,
            "data": data,
            "init_from": init_from,
            "versions": {name: metadata.version(name) for name in _RECORDED_VERSIONS},
        }
        temporary = self.path / (_RECORD + ".tmp")
        with temporary.open("w", encoding="utf-8") as file:
            json.dump(self.record, file, indent=2)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self.path / _RECORD)

    @contextmanager
    def claimed(self) -> Generator[None]:
        """Create the folder and lock it against other programs.

        Raises:
            RunMismatchError: Another running program holds the lock.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        with (self.path / _LOCK).open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise RunMismatchError(
                    f"{self.path}: another process is running in this folder; "
                    "wait until it ends, or give another save_path"
                ) from error
            yield

    def _read(self) -> dict[str, Any] | None:
        record = self.path / _RECORD
        if not record.exists():
            for name in (METRICS_FILE, CHECKPOINTS):
                if _has_content(self.path / name):
                    raise RunMismatchError(
                        f"{self.path}: holds {name} but no {_RECORD}, so it is not a "
                        "run of this trainer; give another save_path"
                    )
            return None
        try:
            content = json.loads(record.read_text(encoding="utf-8"))
            version = content["version"]
            if version == _VERSION:
                _ = content["data"], content["model"]
        except (ValueError, KeyError, TypeError) as error:
            raise RunMismatchError(
                f"{record}: is not the record of a run ({error}); "
                "restore the file or give another save_path"
            ) from error
        if version != _VERSION:
            raise RunMismatchError(
                f"{record}: has version {version}, this trainer reads {_VERSION}; "
                "resume with the version of roxxel-train that began the run"
            )
        return content


def _has_content(path: Path) -> bool:
    """Return whether a path is a folder, or a file that is not empty."""
    return path.is_dir() or (path.exists() and path.stat().st_size > 0)
