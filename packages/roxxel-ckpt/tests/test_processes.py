"""Two real processes save and restore one checkpoint together."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import forked
import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from roxxel_ckpt import Checkpointer

from .golden_states import Model, on_one_device
from .helpers import names

pytestmark = pytest.mark.first

PROGRAM = Path(__file__).with_name("two_processes.py")
GOLDEN = Path(__file__).with_name("golden")
TIMEOUT_S = 600

DAMAGED = (
    "CheckpointDamagedError: run/3: cannot be used because state/model/weights/c/2/0 "
    "is damaged between its bytes 0 and 61 (found by process 1); restore() without a "
    "step uses the newest sound checkpoint"
)
FAILED = (
    "CheckpointWriteError: run: the save of step {} failed ({}); earlier checkpoints "
    "are unchanged"
)
FULL = FAILED.format(4, "File too large") + (
    "; make room there, or give checkpoint_path a folder that this program can write"
)
UNREADABLE = (
    "CheckpointError: run/4: the arrays cannot be read ({}OSError: [Errno 5] "
    "Input/output error); restore another step"
)
LOST = (
    "CheckpointStateLostError: run/4: the arrays cannot be read ({}OSError: [Errno 5] "
    "Input/output error) after the live arrays were deleted, so the state in memory is "
    "lost, and the checkpoint is unchanged; remove the cause and restore again"
)
DIFFERENT = (
    "CheckpointError: process 0 calls save step 5 and process 1 calls {}; every "
    "process must make the same calls in the same order"
)
REFUSED = (
    "CheckpointWriteError: {}file/run: cannot hold checkpoints (Not a directory); give "
    "checkpoint_path a folder that this process may write to"
)
LATE = (
    "CheckpointTimeoutError: peek: process 1 did not answer within 0.5 seconds; read "
    "its log, or give a larger timeout"
)
LATE_AGAIN = (
    "CheckpointTimeoutError: two: process 1 did not answer within 0.2 seconds; read "
    "its log, or give a larger timeout"
)
NO_THREAD = "RuntimeError: can't start new thread"
NOT_STARTED = (
    f"CheckpointWriteError: run: the save of step 5 cannot begin ({NO_THREAD}); "
    "earlier checkpoints are unchanged"
)
LOST_FILES = (
    "the files of all processes are not in run (digests/1.json is missing), so the "
    "step could not be restored; give checkpoint_path a folder on a disk that all "
    "processes share"
)
REPLACED = (
    "CheckpointDamagedError: {}/2: cannot be used because it was replaced while the "
    "processes verified it; restore() without a step uses the newest sound checkpoint"
)
NOT_SHARED = (
    "CheckpointWriteError: link-{}/run: process 1 does not see the file that process 0 "
    "wrote here, so no checkpoint could be restored; give checkpoint_path a folder on "
    "a disk that all processes share"
)
DAMAGED_TREE = (
    "CheckpointDamagedError: tree/3: cannot be used because state/state/params/w/c/2/0 "
    "is damaged between its bytes 0 and 61 (found by process 1); restore() without a "
    "step uses the newest sound checkpoint"
)
FIRST_SAYS = [
    DAMAGED,
    FAILED.format(4, "process 1: File too large"),
    FULL,
    UNREADABLE.format("process 1: "),
    LOST.format("process 1: "),
    DIFFERENT.format("save step 6"),
    DIFFERENT.format("restore"),
    REFUSED.format(""),
    LATE,
    LATE_AGAIN,
    FAILED.format(5, f"process 1: {NO_THREAD}"),
    FAILED.format(5, LOST_FILES),
    REPLACED.format("one_process"),
    NOT_SHARED.format(0),
    NOT_SHARED.format(0),
    DAMAGED_TREE,
]
SECOND_SAYS = [
    DAMAGED,
    FULL,
    FAILED.format(4, "process 0: File too large"),
    UNREADABLE.format(""),
    LOST.format(""),
    DIFFERENT.format("save step 6"),
    DIFFERENT.format("restore"),
    REFUSED.format("process 0: "),
    LATE,
    NOT_STARTED,
    FAILED.format(5, f"process 0: {LOST_FILES}"),
    REPLACED.format("golden_one"),
    NOT_SHARED.format(1),
    NOT_SHARED.format(1),
    DAMAGED_TREE,
]


def on_two_devices(numbers: np.ndarray[Any, Any]) -> jax.Array:
    mesh = Mesh(np.array(jax.devices()[:2]), ("data",))
    return jax.device_put(numbers, NamedSharding(mesh, PartitionSpec("data")))


def test_two_processes_save_restore_and_fail_together(
    tmp_path: Path, port: int
) -> None:
    with Checkpointer(tmp_path / "one_process", Model(2, on_two_devices)) as saving:
        saving.save(2)
    shutil.copytree(GOLDEN / "v2_one_process", tmp_path / "golden_one")
    shutil.copytree(GOLDEN / "v2_two_processes", tmp_path / "golden_two")
    flags = "--xla_force_host_platform_device_count=2"
    programs = [
        forked.Popen(
            [sys.executable, str(PROGRAM), str(port), str(index), str(tmp_path)],
            env={**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for index in range(2)
    ]
    try:
        errors = [program.communicate(timeout=TIMEOUT_S)[1] for program in programs]
    finally:
        for program in programs:
            program.kill()

    assert [program.returncode for program in programs] == [0, 0], errors
    said = [(tmp_path / f"said-{index}").read_text().splitlines() for index in (0, 1)]
    assert said[0][-1] == said[1][-1] == "done"
    assert said[0][: len(FIRST_SAYS)] == FIRST_SAYS
    assert said[1][: len(SECOND_SAYS)] == SECOND_SAYS
    # Each process verifies the files that its devices read.
    damaged = said[0][len(FIRST_SAYS) : -1]
    assert damaged == said[1][len(SECOND_SAYS) : -1]
    assert ["found by process 0" in line for line in damaged] == [True, False]
    assert ["found by process 1" in line for line in damaged] == [False, True]
    assert "run/3: cannot be used" in errors[0]
    assert "cannot be used" not in errors[1]
    assert names(tmp_path / "run") == ["2", "3", "3.damaged", "4"]

    alone = Model(0, on_one_device)
    assert Checkpointer(tmp_path / "run", alone).restore(strict=True) == 4
    assert (alone.weights[...] == np.arange(32.0).reshape(8, 4) + 3).all()

    rows = np.arange(32.0, dtype=np.float32).reshape(8, 4)
    like = {"params": {"w": jax.numpy.zeros((8, 4)), "half": half(0)}, "count": 0}
    tree = Checkpointer(tmp_path / "tree").load(like=like)
    assert (tree["params"]["w"] == rows + 2).all()
    assert (tree["params"]["half"] == half(2)).all()
    assert tree["count"] == 2


def half(offset: int) -> jax.Array:
    return jax.numpy.arange(3.0, dtype=jax.numpy.bfloat16) + offset
