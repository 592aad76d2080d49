"""The folder of a run: the lock, `run.json`, and the recorded state of the data.

`run.json` records the data and the model with which the run started. `data.json`
records the corpora and the planned data of the last start. The folder also holds
`checkpoints/`, `metrics.jsonl` and `system.log`. If the folder is in a bucket, a local
folder has these files too, except the checkpoints. This module does not import JAX, so
programs without an accelerator can read the data state.
"""

from __future__ import annotations

import json
import os
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roxxel_ckpt import (
    CheckpointDamagedError,
    CheckpointNotFoundError,
    read_description,
)
from roxxel_store.output import replace_file

from roxxel_train._files.data import DATA, read_data_record
from roxxel_train._files.identity import copied, new_id, place_of, registered
from roxxel_train._files.log import METRICS_FILE, check_writable
from roxxel_train._files.mirror import RECORD, Mirror, fetch_run, locked
from roxxel_train._files.reference import CHECKPOINTS, Reference, parse_reference
from roxxel_train._together.texts import shown
from roxxel_train.errors import RunMismatchError

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

    from roxxel_ckpt.contents import Files

_VERSION = 1
_RECORDED_VERSIONS = ("jax", "flax", "optax", "orbax-checkpoint", "numpy")


class RunFolder:
    """The folder of a run; `run_lock` creates the folder.

    Attributes:
        path: The folder; for a URL, the local folder with the files of the run.
        location: The path, or the URL as text.
        checkpoints: The folder of the checkpoints.
        record: Content of `run.json`; None if the file does not exist. `run_lock`
            updates this attribute.
        warning: What `run_lock` found out about the folder; None if nothing.
    """

    def __init__(self, path: str | os.PathLike[str], timeout_s: float = 60.0) -> None:
        self._mirror: Mirror | None = None
        self.record: dict[str, Any] | None
        self.checkpoints: Path | str
        self.warning: str | None = None
        if _is_url(path):
            self._mirror = mirror = Mirror(os.fspath(path), timeout_s)
            self.path, self.location = mirror.folder, mirror.url
            self.checkpoints = f"{mirror.url}/{CHECKPOINTS}"
            content = mirror.record()
            self.record = None
            if content is not None:
                self.record = _parsed_record(content, f"{self}/{RECORD}")
        else:
            self.path = self.location = check_writable(path, "save_path")
            self.checkpoints = self.path / CHECKPOINTS
            self.record = self._read()

    def __str__(self) -> str:
        return shown(self.location)

    @property
    def is_in_bucket(self) -> bool:
        """Whether the files of the run are uploaded."""
        return self._mirror is not None

    @contextmanager
    def run_lock(self, newest_step: int = 0, **record: Any) -> Generator[None]:
        """Hold `run.lock`, and write `run.json` at the first start.

        An existing `run.json` stays as it is, even if another program wrote the file
        after this object was made. But a copied folder gets an id of its own, with
        which its checkpoints after `newest_step` are saved. In a bucket, this program
        becomes the writer, the files of the run are fetched, and they are uploaded at
        the start and at the end.

        Raises:
            RunMismatchError: Another process holds the lock.
            CheckpointWriteError: A later program has begun to run in the bucket.
            CheckpointBucketError: The bucket refuses, fails, or does not answer.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        with locked(self.path) as is_free:
            if not is_free:
                raise RunMismatchError(
                    f"{self}: another process is running in this folder; "
                    "wait until it ends, or give another save_path"
                )
            if self._mirror is not None:
                self._mirror.take_over()
            self._register(newest_step, record)
            if self._mirror is None:
                yield
                return
            self._mirror.commit()
            try:
                yield
            except BaseException:
                # An error of the upload must not replace the error of the run.
                with suppress(OSError):
                    self._mirror.commit()
                raise
            self._mirror.commit()

    def _register(self, newest_step: int, record: Mapping[str, Any]) -> None:
        """Write `run.json` at the first start, and after a move or a copy."""
        place, found = place_of(self.location), self._read()
        if found is None:
            # Without `run.json` the folder is not a run, so this file comes first.
            versions = {name: metadata.version(name) for name in _RECORDED_VERSIONS}
            head = {"version": _VERSION, "id": new_id(), "place": place}
            content = {**head, **record, "versions": versions}
        else:
            content = registered(found, place, newest_step)
        if content != found:
            self._write(RECORD, content)
        if found is not None and content["id"] != found["id"]:
            self.warning = copied(content, self.path)
        self.record = content

    def has_step_after(self, step: int) -> bool:
        """Return whether a newer checkpoint is in the folder, or was set aside.

        In a bucket the files of every checkpoint are kept beside it.
        """
        if not isinstance(self.checkpoints, Path):
            return False
        folders = (self.checkpoints, self.checkpoints / "abandoned")
        names = [each.name for one in folders if one.is_dir() for each in one.iterdir()]
        numbers = (name.partition(".")[0] for name in names)
        return any(number.isdecimal() and int(number) > step for number in numbers)

    def write_data(self, record: Mapping[str, Any]) -> None:
        """Write `data.json`, at every start, after all checks of the start."""
        self._write(DATA, record)

    def commit(self) -> None:
        """In a bucket, upload the files that have changed, and commit them.

        Raises:
            CheckpointWriteError, CheckpointBucketError: As in `run_lock`.
        """
        if self._mirror is not None:
            self._mirror.commit()

    def files_of_step(self, checkpoint_path: str) -> Files:
        """In a bucket, upload the files that have changed, for a checkpoint to commit.

        Checkpoints in another folder than `checkpoints` do not list the run's files, so
        for these the files are committed now, and the result is empty.

        Raises:
            CheckpointWriteError, CheckpointBucketError: As in `run_lock`.
        """
        if self._mirror is not None and checkpoint_path == self.checkpoints:
            return self._mirror.upload()
        self.commit()
        return {}

    def fetch_folder(self, name: str) -> None:
        """Copy a subfolder of a run in a bucket to this machine.

        Processes other than process 0 call this method. Process 0 fetches all files in
        `run_lock`.
        """
        if self._mirror is not None:
            self._mirror.fetch_folder(name)

    def _write(self, name: str, content: Mapping[str, Any]) -> None:
        text = f"{json.dumps(content, indent=2)}\n"
        replace_file(self.path / name, text.encode(), self.path / f"{name}.tmp")

    def _read(self) -> dict[str, Any] | None:
        record = _read_record(self.path / RECORD)
        if record is None:
            weights = f", and init_from={str(self)!r} to start with its weights"
            for name, more in ((CHECKPOINTS, weights), (METRICS_FILE, "")):
                if _has_content(self.path / name):
                    raise RunMismatchError(
                        f"{self}: holds {name} but no {RECORD}, so it is not a "
                        f"run of this trainer; give another save_path{more}"
                    )
        return record


def data_state(
    path: str | os.PathLike[str], *, needs_checkpoint: bool = False
) -> dict[str, Any]:
    """Return the recorded data state of a run, from which its batches are recomputed.

    The state holds the seed, the versions of the corpora, the curriculum's `longest`,
    and the trained phases. With this state a curriculum returns the batches that the
    run has read, even if the curriculum was edited since::

        sampler = curriculum.sampler(state=data_state("run"))

    Args:
        path: Folder of the run, its `save_path`, or the folder of its checkpoints. For
            a run in a bucket, the URL of the run. A suffix `@STEP` selects a step.
        needs_checkpoint: Whether a run without a checkpoint is an error. A branch can
            only start from a checkpoint.

    Returns:
        The result of `Sampler.state` at the selected checkpoint; without `@STEP`, at
        the newest sound checkpoint, or at the start of a run that has none. Later steps
        follow the current curriculum.

    Raises:
        FileNotFoundError: The folder does not hold a run, lacks the selected step, or
            has no checkpoint although `needs_checkpoint` is True.
        RunMismatchError: `run.json` is damaged or of another version, or a checkpoint
            was not written by a trainer.
        roxxel_ckpt.CheckpointError: All checkpoints are damaged.
    """
    found = parse_reference(os.fspath(path))
    if isinstance(found.path, str):
        found = Reference(fetch_run(found.path), found.step)
    folder = Path(found.path)
    state = _of_checkpoint(found.checkpoints, found.step)
    if state is not None:
        return state
    record = _read_record(folder / RECORD)
    if record is None:
        raise FileNotFoundError(
            f"{path}: holds no run (neither {RECORD} nor a checkpoint); "
            "give the save_path of a run"
        )
    if needs_checkpoint:
        raise FileNotFoundError(
            f"{path}: holds no checkpoint; "
            "give the folder of a run that has saved a checkpoint"
        )
    return record["data"]


@dataclass(frozen=True)
class RunData:
    """The data of a run, as recorded in its folder.

    Attributes:
        sources: Location of each source at the last start of the run: an absolute path,
            a list of paths, or a URL; None for a reader that is not a `Roxxel`. Empty
            for a run of an earlier release, which did not record locations.
        state: `Sampler.state` at the last step that the last start planned. For a run
            of an earlier release, at the newest checkpoint.
        trained: `data_state` of the run, which determines the trained batches.
        primary: Name of the primary source at the last start. `sources` and the states
            call the primary `"self"`.

    Example:
        >>> data = RunData({"self": "web_*.rox"}, {"step": 8}, {"step": 6})
        >>> data.state["step"]
        8
    """

    sources: Mapping[str, str | list[str] | None]
    state: Mapping[str, Any]
    trained: Mapping[str, Any]
    primary: str = "self"


def run_data(path: str | os.PathLike[str]) -> RunData:
    """Return the sources and the data state of a run, from the files in its folder.

    From the result, `roxxel_curriculum.recorded_sampler` computes every past and
    planned batch of the run, without the program or the config that trains the run.

    Args:
        path: As for `data_state`, but not the folder of checkpoints.

    Raises:
        FileNotFoundError: The folder does not hold a run.
        RunMismatchError: A file of the run is damaged or of another version.
        roxxel_ckpt.CheckpointError: All checkpoints are damaged.
    """
    folder = fetch_run(os.fspath(path)) if _is_url(path) else _expanded(path)
    # Read `data.json` after the checkpoint. Each start writes `data.json` before its
    # first checkpoint, so the file is then not older than the checkpoint.
    trained = data_state(folder)
    record = read_data_record(folder)
    if record is None:
        return RunData({}, trained, trained)
    primary = record.get("primary", "self")
    return RunData(record["sources"], record["state"], trained, primary)


def run_record(path: Path | str) -> dict[str, Any] | None:
    """Return `run.json` of the run that owns a folder of checkpoints, or None."""
    if isinstance(path, str):
        content = Mirror(path.removesuffix(f"/{CHECKPOINTS}"), 60.0).record()
        return None if content is None else _parsed_record(content, f"{path}")
    return _read_record(path.parent / RECORD)


def _of_checkpoint(folder: Path, step: int | None) -> dict[str, Any] | None:
    """Return the data state at a step, or at the newest sound checkpoint, or None.

    Raises:
        CheckpointNotFoundError: The folder has no such step.
    """
    names = [entry.name for entry in folder.iterdir()] if folder.is_dir() else []
    damage: CheckpointDamagedError | None = None
    steps = sorted((int(name) for name in names if name.isdecimal()), reverse=True)
    if step is not None and step not in steps:
        held = f"steps {', '.join(map(str, steps[::-1]))}" if steps else "no step"
        raise CheckpointNotFoundError(f"{folder}: has no step {step}; it holds {held}")
    for number in steps if step is None else [step]:
        try:
            extra = read_description(folder / str(number)).extra
        except CheckpointDamagedError as error:
            damage = damage or error
            continue
        if not extra or "data" not in extra:
            raise RunMismatchError(
                f"{folder / str(number)}: has no data state, so a trainer did not "
                "write this checkpoint; give the folder of a run"
            )
        return extra["data"]
    if damage is not None:
        raise damage
    return None


def _read_record(path: Path) -> dict[str, Any] | None:
    """Return the content of a `run.json`; None if the file does not exist."""
    if not path.exists():
        return None
    if not path.is_file():  # opening a named pipe would block
        raise RunMismatchError(
            f"{path}: is not a regular file, so it is not the record of a run; "
            "restore the file or give another save_path"
        )
    return _parsed_record(path.read_bytes(), str(path))


def _parsed_record(text: bytes, path: str) -> dict[str, Any]:
    try:
        content = json.loads(text)
        version = content["version"]
        if version == _VERSION:
            _ = content["data"], content["model"]
    except (ValueError, KeyError, TypeError) as error:
        raise RunMismatchError(
            f"{path}: is not the record of a run ({error}); "
            "restore the file or give another save_path"
        ) from error
    if version != _VERSION:
        raise RunMismatchError(
            f"{path}: has version {version}, this trainer reads {_VERSION}; "
            "resume with the version of roxxel-train that began the run"
        )
    return content


def _is_url(path: str | os.PathLike[str]) -> bool:
    return isinstance(path, str) and "://" in path


def _expanded(path: str | os.PathLike[str]) -> Path:
    return Path(os.path.expanduser(path))  # noqa: PTH111 - raises no error


def _has_content(path: Path) -> bool:
    """Return whether a path is a folder, or a file that is not empty."""
    return path.is_dir() or (path.exists() and path.stat().st_size > 0)
