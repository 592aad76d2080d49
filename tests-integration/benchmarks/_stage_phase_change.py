"""Costs of a phase change and of a save: idle time of the device, and wall time.

A traced run shows what the device did in windows of some steps: around a phase change,
around a save, and in between. A second run, without traces, measures wall times. Both
runs compile their programs before they start, because the first phase is too short to
hide the compilation of the second. The part `compile` measures this compilation.
"""

from __future__ import annotations

import gc
import statistics
from time import perf_counter
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from _pretraining import (
    Job,
    device_fields,
    new_trainer,
    phase,
    run_quietly,
    train_rows,
    wall_s,
)
from _timeline import read_timeline
from flax import nnx

if TYPE_CHECKING:
    from pathlib import Path

    from roxxel import ModelState, Trainer

WINDOW = 8
"""Steps of a traced window."""
WINDOWS = {"phase_change": WINDOW, "steady": 2 * WINDOW, "save": 4 * WINDOW}
"""First step of each traced window."""
CHANGE, SAVE, TRACED = 12, 36, 44
"""Steps of the traced run: of its phase change, of its save, and all of them."""
SETTLED = 3
"""Steps after a phase change that count as the change."""
AFTERMATH = 8
"""Steps after a save that count towards its cost."""


class Windows:
    """Traces the windows; the trainer has drained its updates when it evaluates."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._name: str | None = None

    def __call__(self, state: ModelState) -> None:
        """End the window that is traced, and begin the one that starts here."""
        if self._name is not None:
            jax.profiler.stop_trace()
        step = int(state.step)
        names = [name for name, first in WINDOWS.items() if first == step]
        self._name = names[0] if names else None
        if self._name is not None:
            options = jax.profiler.ProfileOptions()
            options.python_tracer_level = 0  # it slows the host down, most at a save
            path = str(self._folder / self._name)
            jax.profiler.start_trace(path, profiler_options=options)


def phase_change(job: Job) -> dict[str, Any]:
    """Measure both; return the fields of a record."""
    size = job.decoder
    longer = 2
    traced = job.folder / "traced"
    trainer = new_trainer(
        job,
        [phase(size, CHANGE), phase(size, TRACED - CHANGE, longer=longer)],
        traced,
        eval_fn=Windows(traced),
        eval_every=WINDOW,
        log_every=1,
        checkpoint_every=SAVE,
        max_to_keep=1,
    )
    trainer.preflight()
    run_quietly(trainer)
    windows = {name: read_timeline(traced / name).record() for name in WINDOWS}
    rows = train_rows(traced)
    step_s = statistics.median(row["step_s"] for row in rows[CHANGE + SETTLED :])
    del trainer
    gc.collect()  # its state is on the device until then

    # Far enough apart that a save does not wait for the one before.
    between = max(2 * CHANGE, round(job.seconds / 2 / step_s))
    total = 2 * between + AFTERMATH + 1
    timed = job.folder / "timed"
    trainer = new_trainer(
        job,
        [phase(size, CHANGE), phase(size, total - CHANGE, longer=longer)],
        timed,
        log_every=1,
        checkpoint_every=between,
        max_to_keep=1,
    )
    trainer.preflight()
    run_quietly(trainer)
    walls = [wall_s(row) for row in train_rows(timed)]
    usual_s = statistics.median(walls[CHANGE + SETTLED : between])
    changing = walls[CHANGE : CHANGE + SETTLED]
    saves = [
        # The row of the step after a save holds `save_s`; index k is step k + 1.
        sum(wall - usual_s for wall in walls[step : step + AFTERMATH])
        for step in (between, 2 * between)
    ]
    copies, num_bytes = _copies_to_host(trainer)
    return {
        **device_fields(),
        "windows": windows,
        "window_steps": WINDOW,
        "usual_step_s": usual_s,
        "change_steps_s": changing,
        "change_ratio": max(changing) / usual_s,
        "steps_between_saves": between,
        "save_cost_s": saves,
        "copy_to_host_s": copies,
        "save_over_copy": statistics.median(saves) / statistics.median(copies),
        "state_bytes": num_bytes,
    }


def _copies_to_host(trainer: Trainer) -> tuple[list[float], int]:
    """Time bare copies of a trainer's state to the host; return the state's bytes too.

    The arrays are new each time, because JAX keeps the host's copy of an array.
    """
    state = nnx.to_pure_dict(nnx.state((trainer.model, trainer.optimizer)))
    arrays = [leaf for leaf in jax.tree.leaves(state) if leaf.nbytes >= 1024]
    copy = jax.jit(lambda leaves: [jnp.copy(leaf) for leaf in leaves])
    took: list[float] = []
    for _ in range(3):
        fresh = jax.block_until_ready(copy(arrays))
        begin = perf_counter()
        for array in fresh:
            array.copy_to_host_async()
        held = [np.array(array) for array in fresh]
        took.append(perf_counter() - begin)
        del fresh, held
    return took, sum(array.nbytes for array in arrays)
