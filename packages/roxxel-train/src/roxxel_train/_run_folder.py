"""The folder of a run: what lies in it, and whether it is this run's.

`run.json` names the data and the model that the run began with; `checkpoints/`,
`metrics.jsonl` and `system.log` lie beside it.
"""

from __future__ import annotations

import fcntl
import json
import os
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roxxel_train._log import METRICS_FILE
from roxxel_train._writable import check_writable
from roxxel_train.errors import RunMismatchError

if TYPE_CHECKING:
    from collections.abc import Generator

CHECKPOINTS = "checkpoints"
_RECORD = "run.json"
_LOCK = "run.lock"
_VERSION = 1
_RECORDED_VERSIONS = ("jax", "flax", "optax", "orbax-checkpoint", "numpy")


class RunFolder:
    """One run's folder.

    Args:
        path: The folder; made when the run starts.

    Raises:
        RunMismatchError: It holds files of a run but no `run.json`, or one of an
            unknown version.
        OSError: It is no folder, or cannot be written.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.checkpoints = self.path / CHECKPOINTS
        check_writable(self.path, "save_path")
        self.record: dict[str, Any] | None = self._read()

    def __str__(self) -> str:
        """Return the path, which names the run in errors."""
        return str(self.path)

    def check_model(self, signature: str) -> None:
        """Check that the run began with a model and optimizer of this shape.

        Raises:
            RunMismatchError: It began with another one.
        """
        if self.record is not None and self.record["model"] != signature:
            raise RunMismatchError(
                f"{self.path}: the run in this folder was started with a model or "
                "optimizer of other shapes and has no checkpoint yet; "
                "give another save_path"
            )

    def begin(
        self,
        *,
        seed: int,
        data: dict[str, Any],
        model: str,
        init_from: dict[str, Any] | None = None,
    ) -> None:
        """Write `run.json` at the first start; later starts leave it as it is.

        The folder must be claimed: a run that began since it was looked at is kept.

        Args:
            seed: Seed of the order of the data.
            data: What the order depends on, as the sampler describes it at step 0.
            model: Signature of the model and optimizer.
            init_from: Path and step of the checkpoint whose weights it begins with.
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
        """Keep other processes from running in this folder at the same time.

        Raises:
            RunMismatchError: A running process has it.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        with (self.path / _LOCK).open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise RunMismatchError(
                    f"{self.path}: another process is running in this folder; "
                    "wait for it or give another save_path"
                ) from error
            yield

    def _read(self) -> dict[str, Any] | None:
        record = self.path / _RECORD
        if not record.exists():
            for name in (METRICS_FILE, CHECKPOINTS):
                if _holds_something(self.path / name):
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
                "go on with the version of roxxel-train that began the run"
            )
        return content


def _holds_something(path: Path) -> bool:
    """Return whether this is a file that is not empty, or a folder."""
    return path.is_dir() or (path.exists() and path.stat().st_size > 0)
