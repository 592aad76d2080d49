"""Two real processes save and restore one checkpoint together."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from roxxel_ckpt import Checkpointer

from .golden_states import Model, on_one_device

PROGRAM = Path(__file__).with_name("two_processes.py")
GOLDEN = Path(__file__).with_name("golden")
TIMEOUT_S = 180
FAILED = "CheckpointWriteError: run: the save"
UNCHANGED = "earlier checkpoints are unchanged"
REASON = f"{FAILED} of step 4 failed (File too large); {UNCHANGED}"
UNREADABLE = (
    "the arrays cannot be read (process 1: OSError: [Errno 5] Input/output error"
)
SAME_CALLS = "every process must make the same calls in the same order"


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def on_two_devices(numbers: np.ndarray[Any, Any]) -> jax.Array:
    mesh = Mesh(np.array(jax.devices()[:2]), ("data",))
    return jax.device_put(numbers, NamedSharding(mesh, PartitionSpec("data")))


def test_two_processes_save_restore_and_fail_together(tmp_path: Path) -> None:
    with Checkpointer(tmp_path / "one_process", Model(2, on_two_devices)) as saving:
        saving.save(2)
    shutil.copytree(GOLDEN / "v1_one_process", tmp_path / "golden_one")
    shutil.copytree(GOLDEN / "v1_two_processes", tmp_path / "golden_two")
    port = free_port()
    flags = "--xla_force_host_platform_device_count=2"
    programs = [
        subprocess.Popen(
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
    expected = [
        (
            "CheckpointDamagedError: run/3: cannot be used, state/model/weights/c/2/0 "
            "is damaged between its bytes 0 and 61 (found by process 1); restore() "
            "without a step uses the newest sound checkpoint",
            None,
        ),
        (f"{FAILED} of step 4 failed (process 1: File too large); {UNCHANGED}", REASON),
        (REASON, f"{FAILED} of step 4 failed (process 0: File too large); {UNCHANGED}"),
        (
            f"{FAILED} of step 5 failed (process 1: KeyError: 'mine'); {UNCHANGED}",
            "gave up",
        ),
        (
            f"CheckpointError: run/4: {UNREADABLE}); restore another step",
            "CheckpointError: run/4: the arrays cannot be read (OSError: [Errno 5] "
            "Input/output error); restore another step",
        ),
        (
            f"CheckpointStateLostError: run/4: {UNREADABLE}) and the live arrays were "
            "deleted before; make a new model and optimizer and restore again",
            "CheckpointStateLostError: run/4: the arrays cannot be read (OSError: "
            "[Errno 5] Input/output error) and the live arrays were deleted before; "
            "make a new model and optimizer and restore again",
        ),
        (
            "CheckpointError: process 0 calls save step 5 and process 1 calls save step "
            f"6; {SAME_CALLS}",
            None,
        ),
        (
            "CheckpointError: process 0 calls save step 5 and process 1 calls restore; "
            f"{SAME_CALLS}",
            None,
        ),
        (
            "CheckpointWriteError: file/run: cannot hold checkpoints (Not a directory); "
            "give checkpoint_path a folder that this process may write to",
            "CheckpointWriteError: process 0: file/run: cannot hold checkpoints (Not a "
            "directory); give checkpoint_path a folder that this process may write to",
        ),
    ]
    for number, (first, second) in enumerate(expected):
        assert said[0][number] == first
        assert said[1][number] == (second or first)
    # Each process verifies a share of the files that version 0.1 wrote.
    damaged = said[0][len(expected) : -1]
    assert damaged == said[1][len(expected) : -1]
    assert ["found by process 0" in line for line in damaged] == [True, False]
    assert ["found by process 1" in line for line in damaged] == [False, True]
    assert "run/3: cannot be used" in errors[0]
    assert "cannot be used" not in errors[1]
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert names == {"2", "3", "4", "abandoned"}

    alone = Model(0, on_one_device)
    assert Checkpointer(tmp_path / "run", alone).restore(strict=True) == 4
    assert (alone.weights[...] == np.arange(32.0).reshape(8, 4) + 3).all()
