"""Runs that are killed and resumed: what they log, and the memory that they take."""

from __future__ import annotations

import gc
import os
import signal
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self

import jax
from _decoder import Decoder
from _pretraining import (
    Job,
    device_fields,
    memory_fields,
    new_trainer,
    num_parameters,
    phase,
    run_quietly,
)
from flax import nnx
from roxxel import Phase

if TYPE_CHECKING:
    from roxxel import ModelState, Trainer

STEPS, CHANGE, EVERY, KILLED = 16, 8, 4, 10
"""Updates of a run, before its phase change, between checkpoints, before the kill.

The second save waits for the first to finish, and the kill comes after both, so a whole
checkpoint exists.
"""
PRETENDED_BYTES = 64 << 20
"""Memory assumed for a device without statistics, such as a CPU."""

SaveFields = Callable[[dict[str, Any]], None]
"""Writes the fields of a record to a file."""


class PeakMemory:
    """Peak memory of the device while a `with` block runs.

    A device with statistics gives its peak since the process began. For any other, a
    thread sums the live arrays every millisecond, which misses short-lived ones.
    """

    def __init__(self) -> None:
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._live_bytes = 0

    def __enter__(self) -> Self:
        if "peak_bytes_in_use" not in memory_fields():
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        if self._thread.ident is not None:
            self._thread.join()

    def fields(self) -> dict[str, Any]:
        """Return the fields of a record."""
        found = memory_fields()
        if "peak_bytes_in_use" in found:
            return {"accounting": "memory_stats", **found}
        return {"accounting": "live_arrays", "peak_bytes_in_use": self._live_bytes}

    def _watch(self) -> None:
        while not self._stopped.wait(0.001):
            live = sum(array.nbytes for array in jax.live_arrays())
            self._live_bytes = max(self._live_bytes, live)


def run_and_kill(job: Job, save: SaveFields) -> None:
    """Make an unbroken run, then the same run again, which kills this process.

    Args:
        job: What to do.
        save: Keeps the fields of the record, before the process is killed.
    """
    with PeakMemory() as memory:
        run_quietly(_trainer(job, "unbroken"))
        fields = {**device_fields(), **memory.fields()}
    gc.collect()  # the first trainer's state is on the device until then

    def kill(state: ModelState) -> None:
        del state
        save(fields)
        os.kill(os.getpid(), signal.SIGKILL)

    run_quietly(_trainer(job, "killed", eval_fn=kill, eval_every=KILLED))


def resume(job: Job) -> dict[str, Any]:
    """Resume the run that was killed, and finish it."""
    with PeakMemory() as memory:
        summary = run_quietly(_trainer(job, "killed"))
        fields = memory.fields()
    return {**device_fields(), **fields, "resumed_from": summary.start_step}


def large_run_and_kill(job: Job, save: SaveFields) -> None:
    """Train a state that takes a given share of the memory, until the kill."""
    with PeakMemory() as memory:

        def kill(state: ModelState) -> None:
            fields = {
                "device_limit_bytes": _device_bytes(),
                "state_bytes": 12 * num_parameters(state.model),
                "trained_steps": int(state.step),
            }
            save({**device_fields(), **memory.fields(), **fields})
            os.kill(os.getpid(), signal.SIGKILL)

        run_quietly(_large_trainer(job, eval_fn=kill, eval_every=KILLED))


def large_resume(job: Job) -> dict[str, Any]:
    """Resume the large run, and finish it."""
    with PeakMemory() as memory:
        summary = run_quietly(_large_trainer(job))
        fields = memory.fields()
    return {**device_fields(), **fields, "resumed_from": summary.start_step}


def _trainer(job: Job, name: str, **options: Any) -> Trainer:
    size = job.decoder
    phases = [phase(size, CHANGE), phase(size, STEPS - CHANGE, longer=2)]
    return new_trainer(
        job, phases, job.folder / name, log_every=1, checkpoint_every=EVERY, **options
    )


def _large_trainer(job: Job, **options: Any) -> Trainer:
    """Return a trainer whose parameters and AdamW moments fill the share.

    Ballast fills the rest beside the decoder; a batch has two sequences.
    """
    size = job.decoder
    parameters = num_parameters(nnx.eval_shape(lambda: Decoder(size, size.context)))
    ballast_bytes = int(job.share * _device_bytes()) // 3 - 4 * parameters
    if ballast_bytes < 0:
        raise ValueError(
            f"the state of {job.size} alone takes {12 * parameters} bytes, more than "
            f"{job.share} of the device's {_device_bytes()}; choose a smaller size"
        )
    return new_trainer(
        job,
        [Phase(STEPS, 2, size.context + 1)],
        job.folder / "large",
        ballast_bytes=ballast_bytes,
        log_every=1,
        checkpoint_every=EVERY,
        max_to_keep=1,
        **options,
    )


def _device_bytes() -> int:
    return memory_fields().get("bytes_limit", PRETENDED_BYTES)
