"""Helpers for runs in other programs: write projects, stop runs, read their logs."""

from __future__ import annotations

import atexit
import importlib
import os
import re
import socket
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any

import numpy as np
from roxxel import Roxxel
from roxxel_train import TIMING_FIELDS, RunFolder
from roxxel_train._together.launcher import held_port

if TYPE_CHECKING:
    import signal
    import subprocess
    from collections.abc import Sequence
    from pathlib import Path


# A module for `model = "NAME:make"`: predicts a token, of 50, from the previous one. A
# run that a test stops is `PACED`, so that it has steps left when the signal arrives.
MODEL = """\
import os
import time

import optax
from flax import nnx
from roxxel import Sampler

pace_s, rows = float(os.environ.get("ROXXEL_TEST_PACE_S", "0")), Sampler.rows
if pace_s:
    def rows_slowly(*given, **named):
        time.sleep(pace_s)
        return rows(*given, **named)

    Sampler.rows = rows_slowly

def make():
    rngs = nnx.Rngs(0)
    model = nnx.Sequential(nnx.Embed(50, 4, rngs=rngs), nnx.Linear(4, 50, rngs=rngs))
    def loss_fn(model, batch):
        logits, targets = model(batch[:, :-1]), batch[:, 1:]
        return optax.softmax_cross_entropy_with_integer_labels(logits, targets).mean()
    return model, nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param), loss_fn
"""

PACED = {"ROXXEL_TEST_PACE_S": "0.3"}

# The special token of the tokenizers that tests train.
END = "<|endoftext|>"

# The ports of this process, until it ends.
_HELD = ExitStack()
atexit.register(_HELD.close)

_SMALL = """\
model = "tiny:make"
save_path = "run"

[sources]
self = "web_*.rox"
code = { path = "code.rox", policy = "repeat" }

[[phases]]
steps = 12
batch_size = 4
seq_len = 9
weights = { self = 0.75, code = 0.25 }

[[phases]]
steps = 4
batch_size = 2
seq_len = 17

[trainer]
log_every = 1
checkpoint_every = 5
eval_every = 8

[eval]
sources = { self = "code.rox" }
phases = [{ steps = 1, batch_size = 2, seq_len = 9 }]
"""


def write_small_project(folder: Path) -> Path:
    """Write `run.toml`, its model and its corpora into a new folder, and return it."""
    folder.mkdir()
    for name, count in (("web_*.rox", 40), ("code.rox", 20)):
        documents = (np.arange(start, start + 40) % 50 for start in range(count))
        Roxxel(folder / name).write(documents, vocab_size=50)
    (folder / "tiny.py").write_text(MODEL)
    (folder / "run.toml").write_text(_SMALL)
    return folder


def stop_at(step: int, sent: signal.Signals, process: subprocess.Popen[str]) -> int:
    """Send a signal once a run reports `step` on stderr; return its exit code."""
    with process:
        assert process.stderr is not None
        for line in process.stderr:
            told = re.match(r"step +(\d+)/", line)
            if told is not None and int(told[1]) >= step:
                process.send_signal(sent)
                break
        process.stderr.read()
    return process.returncode


def all_said(
    processes: Sequence[subprocess.Popen[str]], timeout: float
) -> list[tuple[str, str]]:
    """Wait for the processes of a program; return stdout and stderr of each.

    A stream that is not a pipe is None. The processes are read one after the other, so
    each must write less than a pipe can buffer.
    """
    try:
        return [process.communicate(timeout=timeout) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()


def rows(run: Path) -> list[dict[str, Any]]:
    """Return the metrics rows of a run, without the fields that measure time."""
    return [
        {name: v for name, v in row.items() if name not in TIMING_FIELDS}
        for row in RunFolder(run).rows()[0]
    ]


def write_tokenizer(path: Path, texts: Sequence[str]) -> Any:
    """Train a byte-level BPE tokenizer of 400 tokens, save it, and return it."""
    library: Any = importlib.import_module("tokenizers")
    tokenizer = library.Tokenizer(library.models.BPE())
    tokenizer.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = library.decoders.ByteLevel()
    trainer = library.trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=[END],
        initial_alphabet=library.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.save(str(path))
    return tokenizer


def slurm_step(tasks: int) -> list[dict[str, str]]:
    """Return the variables that Slurm gives each task of a step on one node.

    JAX computes the port of process 0 from the number of the job, so the number belongs
    to a free port, which no other program of these tests is given.
    """
    # Start at a number that programs running at the same time do not use.
    for job in range(os.getpid(), os.getpid() + 4096):
        address = "", 65535 - 4095 + job % 4096
        with suppress(OSError):
            with socket.socket() as finder:  # shares with nobody
                finder.bind(address)
            holder = _HELD.enter_context(socket.socket())
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            holder.bind(address)
            break
    else:
        raise AssertionError("no port is free")
    shared = {
        "SLURM_JOB_ID": str(job),
        "SLURM_JOB_NODELIST": "localhost",
        "SLURM_NTASKS": str(tasks),
        "SLURM_NNODES": "1",
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NODELIST": "localhost",
        "SLURM_STEP_NUM_NODES": "1",
        "SLURM_STEP_NUM_TASKS": str(tasks),
        "SLURM_STEP_TASKS_PER_NODE": str(tasks),
    }
    return [
        {**shared, "SLURM_PROCID": str(index), "SLURM_LOCALID": str(index)}
        for index in range(tasks)
    ]


def free_port() -> int:
    """Return a port for the processes of a run; no other program is given it."""
    return _HELD.enter_context(held_port())
