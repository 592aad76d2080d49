"""The quickstart, killed at random, has the result of a quickstart without kills."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import jax
import numpy as np
from flax import nnx
from roxxel.models import llama
from roxxel_ckpt import Checkpointer

from .conftest import environment
from .runs import rows, stop_at

if TYPE_CHECKING:
    from pathlib import Path

STEPS = 12


def start(out: Path, cache: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-W", "error", "-m", "roxxel", "quickstart"]
    return subprocess.Popen(
        [*command, "--steps", str(STEPS), "--out", str(out)],
        env=environment(1, cache),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(out: Path, cache: Path) -> None:
    with start(out, cache) as process:
        _, said = process.communicate(timeout=600)
    assert process.returncode == 0, said


def arrays(out: Path) -> list[bytes]:
    model, optimizer, _ = llama(total_steps=STEPS, preset="tiny", seed=9)
    with Checkpointer(out / "checkpoints", model, optimizer) as checkpointer:
        assert checkpointer.restore(strict=True) == STEPS
    state = nnx.to_pure_dict(nnx.state((model, optimizer)))
    return [np.asarray(x).tobytes() for x in jax.tree.leaves(state)]


def test_quickstart_killed_three_times_ends_the_same(
    tmp_path: Path, compilation_cache: Path
) -> None:
    finish(tmp_path / "whole", compilation_cache)
    for step in sorted(random.Random(1).sample(range(1, STEPS), 3)):
        killed = start(tmp_path / "killed", compilation_cache)
        assert stop_at(step, signal.SIGKILL, killed) == -signal.SIGKILL
    finish(tmp_path / "killed", compilation_cache)

    assert rows(tmp_path / "killed") == rows(tmp_path / "whole")
    assert arrays(tmp_path / "killed") == arrays(tmp_path / "whole")
