"""Whole programs: ended without close(), killed, and what they print."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
from flax import nnx
from roxxel_ckpt import Checkpointer

from .helpers import checkpointer, run_program

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from pathlib import Path

    import pytest

# The program of the reference documentation, shorter by the steps between the saves.
REFERENCE = """
import jax
import jax.numpy as jnp
import optax
from flax import nnx
from roxxel_ckpt import Checkpointer

class SimpleModel(nnx.Module):
    def __init__(self, rngs):
        self.linear = nnx.Linear(10, 5, rngs=rngs)
    def __call__(self, x):
        return self.linear(x)

rngs = nnx.Rngs(42)
model = SimpleModel(rngs)
tx = optax.adam(1e-3)
optimizer = nnx.Optimizer(model, tx, wrt=nnx.Param)

checkpointer = Checkpointer(
    checkpoint_path="./checkpoints",
    model=model,
    optimizer=optimizer,
    max_to_keep=3
)

start_step = checkpointer.restore()
print(f"Resumed from step: {start_step}")

for step in range(start_step, 1000):
    loss_val = 0.52
    if step % 100 == 0:
        checkpointer.save(
            step=step,
            metrics_dict={"loss": loss_val}
        )
"""


def test_the_reference_program_resumes_from_its_last_save(tmp_path: Path) -> None:
    first = run_program(REFERENCE, tmp_path)
    second = run_program(REFERENCE, tmp_path)

    assert first.stdout == "Resumed from step: 0\n"
    assert first.returncode == second.returncode == 0
    if sys.version_info < (3, 12) or not first.stderr:
        assert first.stderr == ""
        assert second.stdout == "Resumed from step: 900\n"
        assert second.stderr == ""
    else:
        # No thread can be started any more when the interpreter ends.
        assert "step 900 was not saved" in first.stderr
        assert "use `with Checkpointer(...)` or call close()" in first.stderr
        assert second.stdout == "Resumed from step: 800\n"


IMPORT_ALONE = """
import logging, sys, threading
import jax, flax.nnx, orbax.checkpoint
before = threading.active_count(), list(logging.getLogger().handlers)
import roxxel_ckpt
roxxel_ckpt.Checkpointer
assert (threading.active_count(), list(logging.getLogger().handlers)) == before
assert not sys.modules["jax._src.xla_bridge"]._backends, "a device was touched"
"""


def test_an_import_starts_nothing_and_an_exception_loses_nothing(
    tmp_path: Path,
) -> None:
    ended = run_program(IMPORT_ALONE + REFERENCE + "raise KeyError('mine')", tmp_path)

    assert ended.returncode == 1
    assert "KeyError: 'mine'\n" in ended.stderr
    if sys.version_info < (3, 12) or "was not saved" not in ended.stderr:
        assert checkpointer(tmp_path / "checkpoints").latest_step == 900


def save_until_killed(folder: Path, pipe: Connection) -> None:
    """Restore, check what was restored, and save for ever."""
    state = Numbers()
    checkpointer = Checkpointer(folder, state, max_to_keep=2)
    start = checkpointer.restore()
    assert int(state.step[...]) == start
    assert (state.data[...] == start).all()
    pipe.send(start)
    for step in range(start + 1, 10_000):
        state.step.set_value(np.int64(step))
        state.data.set_value(np.full(100_000, float(step)))
        checkpointer.save(step, {"loss": float(step % 7)}, {"step": step})
        pipe.send(step)


class Numbers(nnx.Module):
    """A state whose values tell its step."""

    def __init__(self) -> None:
        self.step: nnx.Variable[Any] = nnx.Variable(np.int64(0))
        self.data: nnx.Variable[Any] = nnx.Variable(np.zeros(100_000))


def test_a_kill_at_any_moment_leaves_a_folder_that_restores(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # The fork server imports once; every program is then a process of its own.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, "roxxel_ckpt"])
    rng, whole = random.Random(1), 0
    for _ in range(int(os.environ.get("ROXXEL_CKPT_KILLS", "5"))):
        listener, pipe = context.Pipe(duplex=False)
        program = context.Process(target=save_until_killed, args=(tmp_path, pipe))
        program.start()
        pipe.close()
        try:
            assert listener.recv() >= whole
            asked = [listener.recv() for _ in range(rng.randint(2, 6))]
            # The moment itself is the point, so here a clock is needed.
            program.join(rng.uniform(0, 0.2))
        finally:
            program.kill()
            program.join()
        while listener.poll():
            with contextlib.suppress(EOFError):
                asked.append(listener.recv())
                continue
            break
        # A save begins only when the one before it is whole.
        whole = asked[-1] - 1

    state = Numbers()
    with Checkpointer(tmp_path, state) as reading:
        step = reading.restore()
        assert step >= whole
        assert (state.data[...] == step).all()
        assert reading.peek() == (step, {"step": step})
    names = {path.name for path in tmp_path.iterdir()}
    assert all(name.isdigit() for name in names), names
    assert not caplog.records
