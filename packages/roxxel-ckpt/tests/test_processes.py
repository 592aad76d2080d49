"""Two real processes save and restore one checkpoint together."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np
from roxxel_ckpt import Checkpointer

from .two_processes import State

PROGRAM = Path(__file__).with_name("two_processes.py")
TIMEOUT_S = 180


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def test_two_processes_save_restore_and_fall_back_together(tmp_path: Path) -> None:
    port, folder = free_port(), tmp_path / "run"
    flags = "--xla_force_host_platform_device_count=2"
    programs = [
        subprocess.Popen(
            [sys.executable, str(PROGRAM), str(port), str(index), str(folder)],
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
    failed = "the save of step 4 failed ({}File too large); earlier checkpoints are"
    left = "untouched 2 3 4.roxxel-staged.orbax-checkpoint-tmp abandoned"
    given_up = (
        "the save of step 5 failed (process 1: KeyError: 'mine'); "
        "earlier checkpoints are untouched"
    )
    assert said[0] == [
        "saved 2 3",
        f"{failed.format('process 1: ')} {left}",
        f"{failed.format('')} {left}",
        f"{failed.format('process 1: ')} {left}",
        f"{given_up} 2 3 4 5.roxxel-staged abandoned",
        "refused CheckpointWriteError 2 4 5 abandoned",
        "done 2 4 5 abandoned",
    ]
    assert said[1] == [
        "saved",
        f"{failed.format('')} untouched",
        f"{failed.format('process 0: ')} untouched",
        f"{failed.format('')} untouched",
        "gave up",
        "raised",
        "refused CheckpointError",
        "done",
    ]
    assert "state/manifest.ocdbt is missing" in errors[0]
    assert "manifest.ocdbt" not in errors[1]
    assert "has no digests" in errors[0]

    alone = State(jnp.zeros((8, 4)))
    assert Checkpointer(folder, alone).restore(strict=True) == 5
    assert (alone.weights[...] == np.arange(32.0).reshape(8, 4) + 2).all()
