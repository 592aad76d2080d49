"""The log of a run, written from the loop of any trainer.

A run is its log: `metrics.jsonl` in the run's folder. Each start appends a row that
says which data the run reads and after which line the log continues. Each training row
says what was read up to its step. `Trainer` and `RunLog` make their rows by the
functions of this module, so every command can read the logs of both.

This module imports no framework. A loop in PyTorch records without JAX.
"""

from __future__ import annotations

import sys
import time
import zlib
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from roxxel_store.files import make_folder
from roxxel_store.lines import LineFile, LinePosition, json_line
from roxxel_store.records import find_object

from roxxel_curriculum.digest import add_step, batch_digest, digest_text
from roxxel_curriculum.state import state_before

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Mapping
    from types import TracebackType

    import numpy.typing as npt

    from roxxel_curriculum.sampler import Sampler

METRICS = "metrics.jsonl"
"""The log's name in the folder of a run."""

START, END, SAVE = "start", "end", "save"
KINDS = (START, END, SAVE)
"""Kinds of rows that say how a run continues, not what it has trained."""

LOSS_OF = "loss/"
"""Prefix of a source's loss in a training row, as in `loss/web`."""

EVAL_LOSS = "eval_loss"
"""The held-out loss in a row of an evaluation; that of one set is `eval_loss/web`."""

_HEAD_OF_START = f'{{"kind": "{START}"'.encode()

TIMING_FIELDS = frozenset(
    {
        "time",
        "step_s",
        "tokens_per_s",
        "model_flops_per_s",
        "mfu",
        "wait_s",
        "wait_share",
        "read_s",
        "assemble_s",
        "transfer_s",
        "compile_s",
        "eval_s",
        "save_s",
        "gc_s",
        "device_bytes",
        "device_peak_bytes",
        "slowest_process",
        "lag_s",
    }
)
"""Fields of a metrics row that depend on the clock and the machine. An interrupted run
and an uninterrupted run have the same values in all other fields."""


class RunLog:
    """Writes the log of a run from your own loop, in one process.

    Then `roxxel ls`, `report`, `show`, `where` and `verify --data` answer about your
    run, and `roxxel.open_run` opens it. If several processes train, one of them writes
    the log, and the others send it what they read.

    Args:
        folder: Folder of the log. It holds no log yet, or the log of a run that a
            `RunLog` began. Your loop may keep its checkpoints there too.
        sampler: The sampler that feeds your loop.
        state: `Sampler.state` of the checkpoint from which your loop resumes; None for
            a new run. The log continues after its row of that step.
        checkpoints: Where your loop keeps its checkpoints. A run that begins anew, with
            a state of step 0, replaces the rows of its own log alone.

    Attributes:
        step: Number of steps recorded, which is also the next step.

    Raises:
        StateMismatch: The state or the log belongs to another curriculum, corpus or
            seed.
        FileExistsError: The folder holds a log, and no state says where to continue, or
            the state is of step 0 and the log of a run with other checkpoints.
        ValueError: The log has no row of the state's step.
        BlockingIOError: Another program writes the log.

    Example:
        >>> from roxxel_curriculum import Curriculum, Phase
        >>> from roxxel_curriculum.testing import PositionReader
        >>> curriculum = Curriculum(PositionReader(999), [Phase(2, 2, 8)])
        >>> sampler = curriculum.sampler(seed=0)
        >>> with RunLog("runs/torch", sampler) as log:
        ...     for step in range(log.step, sampler.total_steps):
        ...         batch = sampler.batch(step)
        ...         log.record(step, batch, loss=2.5)
        >>> log.step
        2
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        sampler: Sampler,
        *,
        state: Mapping[str, Any] | None = None,
        checkpoints: str | None = None,
    ) -> None:
        path = Path(folder) / METRICS
        if state is None and path.exists() and path.stat().st_size > 0:
            raise FileExistsError(
                f"{path}: holds the log of a run; give state= of the checkpoint from "
                "which your loop resumes, or another folder"
            )
        past: LinePosition | None = None  # the row after which the log continues
        self.step, self._digest = 0, 0
        if state is not None:
            sampler.check(state)
            self.step = state["step"]
            if self.step > 0:
                past, self._digest, start = _row_of(path, self.step)
                # The state may be of another run than the log in this folder.
                sampler.check(state_before(start["data"]["state"], self.step))
            else:
                _check_own(path, sampler, checkpoints)
        self._sampler = sampler
        make_folder(path.parent)
        self._file = LineFile(path)
        try:
            self._file.lock()
        except BlockingIOError:
            self._file.close()
            raise
        self._file.begin()
        row = {
            **start_fields(self.step, sampler),
            "command": sys.argv,
            "checkpoints": checkpoints,
        }
        self._write(linked(row, past))
        self._at_s = time.perf_counter()

    def record(
        self,
        step: int,
        tokens: npt.ArrayLike | None = None,
        *,
        digest: int | None = None,
        at_s: float | None = None,
        **values: Any,
    ) -> None:
        """Append the row of a step that your loop has trained.

        Args:
            step: Number of the batch, from 0, as in `Sampler.batch`.
            tokens: All rows of the batch as the loop received them: an array of NumPy,
                JAX or PyTorch on the CPU.
            digest: In place of tokens, the digest of the whole batch: `batch_digest`,
                or `sum_digests` of the digests of each process's rows.
            at_s: The value of `time.perf_counter()` at the end of the step, from which
                the log computes how long a step takes. None means now.
            values: Numbers of the step, such as `loss`.

        Raises:
            ValueError: The step is not the next one, both or none of `tokens` and
                `digest` are given, or the tokens do not have the planned shape, for
                example because your loop has cut a batch.
            OSError: The row cannot be written.
        """
        if step != self.step:
            raise ValueError(
                f"step={step} is not the next step, which is {self.step}; record each "
                "step once, in order"
            )
        if tokens is not None and digest is None:
            digest = self._digest_of(step, np.asarray(tokens))
        elif tokens is not None or digest is None:
            raise ValueError("give either tokens or digest")
        self._digest = add_step(self._digest, step, digest)
        self.step, before = step + 1, self._sampler.delivered_tokens(step)
        at_s = time.perf_counter() if at_s is None else at_s
        seconds, self._at_s = max(at_s - self._at_s, 1e-9), at_s
        fields = fed_fields(self._sampler, self.step)
        row = {
            **head("train", self.step),
            **values,
            **fields,
            "digest": digest_text(self._digest),
            "step_s": seconds,
            "tokens_per_s": (fields["tokens"] - sum(before.values())) / seconds,
        }
        self._write(row)

    def state(self) -> dict[str, Any]:
        """Return `Sampler.state` of the next step, for your checkpoint.

        The rows so far are on the disk when it returns, so the log can continue from
        any checkpoint that holds this state.
        """
        self._file.sync()
        return self._sampler.state(self.step)

    def close(self, error: BaseException | None = None) -> None:
        """Append how the run ended, and close the file."""
        status = "complete" if self.step == self._sampler.total_steps else "stopped"
        row = {"status": status if error is None else "ended with an error"}
        self._write({**head(END, self.step), **row})
        self._file.sync()
        self._file.close()

    def __enter__(self) -> Self:
        """Return the log."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        stack: TracebackType | None,
    ) -> None:
        """Close the log."""
        self.close(error)

    def _digest_of(self, step: int, tokens: npt.NDArray[Any]) -> int:
        planned = self._sampler.shape(step)
        if tokens.shape != planned:
            raise ValueError(
                f"step {step}: tokens has shape {tokens.shape}, and the curriculum "
                f"plans {planned}; give all rows that the curriculum has for this "
                "step, or the digest of those that each process holds"
            )
        return batch_digest(tokens)

    def _write(self, row: Mapping[str, Any]) -> None:
        self._file.write(json_line, row)
        if self._file.failure is not None:
            raise self._file.failure


def recorded_state(folder: str | os.PathLike[str], step: int) -> dict[str, Any]:
    """Return the state of the sampler at a step of a recorded run.

    Give it to `Curriculum.sampler` if your trainer's checkpoints hold only the step.

    Args:
        folder: Folder of the log.
        step: Steps done, at least 1.

    Raises:
        ValueError: The log has no row of this step.
        StateMismatch: The row of the start was changed.

    Example:
        >>> from roxxel_curriculum import Curriculum, Phase
        >>> from roxxel_curriculum.testing import PositionReader
        >>> curriculum = Curriculum(PositionReader(999), [Phase(2, 2, 8)])
        >>> sampler = curriculum.sampler(seed=0)
        >>> with RunLog("runs/levanter", sampler) as log:
        ...     log.record(0, sampler.batch(0))
        >>> recorded_state("runs/levanter", 1) == sampler.state(1)
        True
    """
    _, _, start = _row_of(Path(folder) / METRICS, step)
    return state_before(start["data"]["state"], step)


def _check_own(path: Path, sampler: Sampler, checkpoints: str | None) -> None:
    """Check that a run that begins at step 0 may continue a log: its rows are its own.

    A run that was killed before its first checkpoint begins at step 0 again. A log
    without rows of training is free.
    """
    start, newest = dict[str, Any](), dict[str, Any]()
    for line in _lines(path):
        if line.startswith(_HEAD_OF_START):
            start = find_object(line) or {}
        elif line.startswith(b'{"kind": "train"'):
            newest = start  # the newest start with rows of training
    if not newest:
        return
    sampler.check(state_before(newest["data"]["state"], 0))
    if (saved := newest.get("checkpoints")) != checkpoints:
        raise FileExistsError(
            f"{path}: holds the log of a run that keeps its checkpoints in {saved}, "
            f"and this run begins anew, with {checkpoints}; record it in another folder"
        )


def _lines(path: Path) -> Iterator[bytes]:
    if path.exists():
        with path.open("rb") as lines:
            yield from lines


def _row_of(path: Path, step: int) -> tuple[LinePosition, int, Mapping[str, Any]]:
    """Return the end of a step's newest training row, its digest, and its start.

    Abandoned rows of the same step have the same digest, because they count the same
    batches.
    """
    found: tuple[LinePosition, int, Mapping[str, Any]] | None = None
    signs = _HEAD_OF_START, f'{{"kind": "train", "step": {step},'.encode()
    at, start = 0, dict[str, Any]()
    for line in _lines(path):
        at += len(line)
        # A killed start may have torn its last line.
        row = find_object(line) if line.startswith(signs) else None
        if row and row["kind"] == START:
            start = row
        elif row:
            position = LinePosition(zlib.crc32(line), at)
            found = position, int(row["digest"], 16), start
    if found is None:
        raise ValueError(
            f"{path}: has no row of step {step}, from which the loop resumes; give the "
            "folder in which this run was recorded from its first step on"
        )
    return found


def head(kind: str, step: int) -> dict[str, Any]:
    """Return the first fields of a row that is written now.

    Example:
        >>> head("train", 3)["step"]
        3
    """
    return {"kind": kind, "step": step, "time": _now()}


def linked(row: Mapping[str, Any], past: LinePosition | None) -> dict[str, Any]:
    """Return the row of a start that continues after a line of the log.

    Example:
        >>> linked({"step": 0}, None)
        {'kind': 'start', 'step': 0, 'after': 0}
    """
    place = {"after": past.after, "at": past.at} if past else {"after": 0}
    return {"kind": START, **row, **place}


def start_fields(step: int, sampler: Sampler, seconds: float = 0.0) -> dict[str, Any]:
    """Return the fields of every start's row, after a restore that took `seconds`.

    Example:
        >>> from roxxel_curriculum import Curriculum, Phase
        >>> from roxxel_curriculum.testing import PositionReader
        >>> curriculum = Curriculum(PositionReader(999), [Phase(2, 2, 8)])
        >>> start_fields(0, curriculum.sampler(0))["total_steps"]
        2
    """
    return {
        "step": step,
        "time": _now(),
        "total_steps": sampler.total_steps,
        "seconds": round(seconds, 3),
        "data": {
            "sources": sampler.paths,
            "state": sampler.state(sampler.total_steps),
        },
    }


def fed_fields(sampler: Sampler, step: int) -> dict[str, Any]:
    """Return the fields of a training row about the data of the first `step` steps.

    Example:
        >>> from roxxel_curriculum import Curriculum, Phase
        >>> from roxxel_curriculum.testing import PositionReader
        >>> sampler = Curriculum(PositionReader(999), [Phase(2, 2, 8)]).sampler(0)
        >>> fed_fields(sampler, 1)["rows_by_source"]
        {'self': 2}
    """
    by_source = sampler.delivered_tokens(step)
    planned = sampler.planned_tokens(step)
    return {
        "phase": sampler.phase(step - 1),
        "tokens": sum(by_source.values()),
        "tokens_by_source": by_source,
        "planned_tokens_by_source": {name: round(x) for name, x in planned.items()},
        "rows_by_source": _rows_by_source(sampler, step),
    }


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _rows_by_source(sampler: Sampler, step: int) -> dict[str, int]:
    """Return the number of sequences of each source in the first `step` steps.

    A formula computes the numbers, so the cost does not depend on `step`.
    """
    rows = dict.fromkeys(sampler.source_names, 0)
    for phase in sampler.phases:
        steps = min(step, phase.stop) - phase.start
        if steps <= 0:
            break
        for name, count in phase.delivered(steps).items():
            rows[name] += count
    return rows
