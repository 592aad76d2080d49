"""Estimate how long a run takes: try a few steps of each batch shape, and undo them."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import jax
from roxxel_loader import device_stream

from roxxel_train._observe.fitting import REMEDY

if TYPE_CHECKING:
    from collections.abc import Sequence

    from roxxel_train._observe.preflight import Preflight
    from roxxel_train._run.state import RunState
    from roxxel_train._step.compiled import CompiledAhead
    from roxxel_train._step.fed import FedRows
    from roxxel_train._step.placement import BatchPlacement

_NUM_TIMED = 3
"""Number of timed steps, after one that warms up: few, because a step may be long."""


def with_times(
    found: Preflight,
    updates: CompiledAhead,
    shapes: Sequence[Any],
    state: RunState,
    rows: FedRows,
    placement: BatchPlacement,
) -> Preflight:
    """Train a few steps of each batch shape, undo them, and add their times.

    `shapes` has shape, dtype and sharding of the batches of each phase. Every shape
    trains on the next batch of its phase, so this also tests reading these batches.
    """
    done = max(state.step, state.found_step)
    seconds: dict[tuple[int, ...], float] = {}
    steps, training_s = 0, 0.0
    with state.unchanged():
        for phase, shape in zip(state.sampler.phases, shapes, strict=True):
            first, size = max(phase.start, done), (phase.batch_size, phase.seq_len)
            if first >= phase.stop:
                continue
            if size not in seconds:
                with device_stream(rows, first, first + 1, placement) as batches:
                    batch = next(batches)
                try:
                    seconds[size] = _time_of(updates.program(shape), state, batch)
                except jax.errors.JaxRuntimeError as error:
                    is_alone = jax.process_count() == 1
                    if not is_alone or "RESOURCE_EXHAUSTED" not in str(error):
                        raise
                    what = " x ".join(map(str, size))
                    problem = f"a step of {what} runs out of memory"
                    return replace(found, problems=(f"{problem}; {REMEDY}",))
            steps += phase.stop - first
            training_s += (phase.stop - first) * seconds[size]
    compiled = tuple(
        replace(shape, step_s=seconds.get(shape.shape)) for shape in found.compiled
    )
    return replace(
        found, compiled=compiled, steps=steps, training_s=training_s if steps else None
    )


def _time_of(update: Any, state: RunState, batch: Any) -> float:
    """Return the mean seconds of an update in a sequence of updates."""
    state.arrays, *_ = update(state.arrays, batch)
    jax.block_until_ready(state.arrays)
    began_s = time.perf_counter()
    for _ in range(_NUM_TIMED):
        state.arrays, *_ = update(state.arrays, batch)
    jax.block_until_ready(state.arrays)
    return (time.perf_counter() - began_s) / _NUM_TIMED
