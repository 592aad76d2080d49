"""Which data a run has read and plans to read, according to its folder.

The row of a start holds the paths of the corpora, and the state of the sampler at the
last planned step, which determines all batches of the run. From this row alone a
program can compute every past and planned batch. This module does not import JAX, so
programs without an accelerator can read the data state.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roxxel_ckpt import (
    CheckpointDamagedError,
    CheckpointNotFoundError,
    read_description,
)

from roxxel_train._files.mirror import fetch_run
from roxxel_train._files.records import RECORD, RECORD_OF_RUN, find_record
from roxxel_train._files.reference import Reference, parse_reference
from roxxel_train.errors import RunMismatchError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from roxxel_ckpt import Description


def data_state(
    path: str | os.PathLike[str], *, needs_checkpoint: bool = False
) -> dict[str, Any]:
    """Return the recorded data state of a run, from which to recompute its batches.

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
    state = Descriptions(found.checkpoints).data_state(found.step)
    if state is not None:
        return state
    state = begun_data(Path(found.path))
    if state is None:
        raise FileNotFoundError(
            f"{path}: holds no run (neither {RECORD} nor a checkpoint); "
            "give the save_path of a run"
        )
    if needs_checkpoint:
        raise FileNotFoundError(
            f"{path}: holds no checkpoint; "
            "give the folder of a run that has saved a checkpoint"
        )
    return state


def begun_data(folder: Path) -> dict[str, Any] | None:
    """Return the data state with which a run began; None without `run.json`."""
    record = find_record(folder / RECORD, RECORD_OF_RUN)
    return None if record is None else record["data"]


@dataclass(frozen=True)
class RunData:
    """The data of a run, as recorded in its folder.

    Attributes:
        sources: Location of each source at the last start of the run: an absolute path,
            a list of paths, or a URL; None for a reader that is not a `Roxxel`.
        state: `Sampler.state` at the last step that the last start planned.
        trained: `data_state` of the run, which determines the trained batches.

    Example:
        >>> data = RunData({"self": "web_*.rox"}, {"step": 8}, {"step": 6})
        >>> data.state["step"]
        8
    """

    sources: Mapping[str, str | list[str] | None]
    state: Mapping[str, Any]
    trained: Mapping[str, Any]


class Descriptions:
    """The descriptions of the checkpoints in a folder; each is read once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._read: dict[int, Description] = {}

    def steps(self) -> list[int]:
        """Return the steps that the folder holds now, damaged ones too, ascending."""
        folder = self.folder
        names = [entry.name for entry in folder.iterdir()] if folder.is_dir() else []
        return sorted(int(name) for name in names if name.isdecimal())

    def of(self, step: int) -> Description:
        """Return the description of a step; raises the errors of `read_description`."""
        if step not in self._read:
            self._read[step] = read_description(self.folder / str(step))
        return self._read[step]

    def data_state(self, step: int | None = None) -> dict[str, Any] | None:
        """Return the data state at a step, or at the newest sound checkpoint, or None.

        Raises:
            CheckpointNotFoundError: The folder has no such step.
        """
        steps = self.steps()
        if step is not None and step not in steps:
            held = f"steps {', '.join(map(str, steps))}" if steps else "no step"
            raise CheckpointNotFoundError(
                f"{self.folder}: has no step {step}; it holds {held}"
            )
        damage: CheckpointDamagedError | None = None
        for number in reversed(steps) if step is None else [step]:
            try:
                extra = self.of(number).extra
            except CheckpointDamagedError as error:
                damage = damage or error
                continue
            if not extra or "data" not in extra:
                raise RunMismatchError(
                    f"{self.folder / str(number)}: has no data state, so a trainer did "
                    "not write this checkpoint; give the folder of a run"
                )
            return extra["data"]
        if damage is not None:
            raise damage
        return None
