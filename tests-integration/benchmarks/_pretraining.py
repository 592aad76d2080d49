"""What the parts of the pre-training benchmark share: corpus, trainer, loop by hand."""

from __future__ import annotations

import json
import os
from collections import deque
from contextlib import redirect_stderr
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from _decoder import SIZES, jit_update, loss_fn, make, make_state
from flax import nnx
from roxxel import Curriculum, Phase, Roxxel, Trainer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from _decoder import Size
    from roxxel import RunSummary

IN_FLIGHT = 2
SEED = 0
TIMES_APART = ("compile_s", "eval_s", "save_s")
"""Fields of a row of metrics whose seconds are not part of `step_s`."""


@dataclass(frozen=True)
class Job:
    """What one process of the benchmark does.

    Attributes:
        size: Name of the decoder, of `SIZES`.
        folder: Scratch folder that the processes of a part share.
        seconds: Time to measure for, where a part measures rates.
        share: Size of the state as a share of the memory that JAX may use, for the
            memory part.
        batch_size: Sequences of a batch, in place of the decoder's.
    """

    size: str
    folder: Path
    seconds: float = 60.0
    share: float = 0.6
    batch_size: int | None = None

    @property
    def decoder(self) -> Size:
        """The decoder's shape."""
        size = SIZES[self.size]
        if self.batch_size is None:
            return size
        return replace(size, batch_size=self.batch_size)


def open_corpus(job: Job) -> Roxxel:
    """Return the corpus, which is written first if it does not exist.

    The text consists of short sequences that grow by a constant, modulo the number of
    tokens used. The first two tokens of a sequence determine the rest, so the loss
    falls from the logarithm of the vocabulary within tens of updates.
    """
    size = job.decoder
    corpus = Roxxel(job.folder / "corpus_*.rox")
    num_tokens = 40 * size.batch_size * (size.context + 1)
    corpus.write(_documents(num_tokens, size), vocab_size=size.vocabulary, exist="keep")
    return corpus


def _documents(num_tokens: int, size: Size) -> Iterator[np.ndarray[Any, Any]]:
    random = np.random.default_rng(SEED)
    length = 4096
    # With the whole vocabulary, a short training would see most tokens only once.
    used = min(size.vocabulary, 512)
    for _ in range(-(-num_tokens // length)):
        starts_run = random.random(length) < 1 / 32
        starts_run[0] = True
        run = np.cumsum(starts_run) - 1
        first = np.flatnonzero(starts_run)
        start = random.integers(0, used, len(first))
        step = random.integers(1, 8, len(first))
        position = np.arange(length) - first[run]
        yield (start[run] + step[run] * position) % used


def phase(size: Size, steps: int, *, longer: int = 1) -> Phase:
    """Return a phase of batches with the tokens of `size`, in longer sequences.

    Args:
        size: Shape of the decoder and of the usual batch.
        steps: Updates.
        longer: Factor by which sequences are longer and batches have fewer of them.
    """
    return Phase(steps, size.batch_size // longer, size.context * longer + 1)


def new_trainer(
    job: Job,
    phases: list[Phase],
    run: Path | None,
    *,
    ballast_bytes: int = 0,
    **options: Any,
) -> Trainer:
    """Return a trainer of a new decoder; `options` go to `Trainer`."""
    longest = max(phase.seq_len - 1 for phase in phases)
    return Trainer(
        lambda: make(job.decoder, longest, ballast_bytes),
        None,
        Curriculum(open_corpus(job), phases),
        loss_fn,
        run,
        seed=SEED,
        **options,
    )


def run_quietly(trainer: Trainer) -> RunSummary:
    """Run a trainer; its lines go to its system.log and not to the terminal."""
    with Path(os.devnull).open("w") as nowhere, redirect_stderr(nowhere):
        return trainer.run()


def train_rows(run: Path) -> list[dict[str, Any]]:
    """Return the rows of training that a run has logged, in order."""
    rows = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [row for row in rows if row["kind"] == "train"]


def wall_s(row: dict[str, Any]) -> float:
    """Return the wall time of a step from its row, logged every step."""
    return row["step_s"] + sum(row.get(name, 0.0) for name in TIMES_APART)


class HandWritten:
    """A training loop written for speed alone.

    It gathers windows of a memory map, puts them on the device, runs the jitted update
    with a donated state at most two steps ahead, and logs nothing.
    """

    def __init__(self, job: Job) -> None:
        size = job.decoder
        graphdef, self._state = make_state(size, size.context)
        self._update = jit_update(graphdef)
        path = job.folder / "tokens.npy"
        tokens = np.concatenate(
            [*_documents(40 * size.batch_size * (size.context + 1), size)]
        )
        np.save(path, tokens.astype(np.uint16))
        self._tokens = np.load(path, mmap_mode="r")
        self._random = np.random.default_rng(SEED)
        self._size = size
        self.first_loss: float | None = None
        self.last_loss = float("nan")

    def _batch(self) -> jax.Array:
        size = self._size
        last = len(self._tokens) - size.context - 1
        starts = self._random.integers(0, last, size.batch_size)
        rows = [self._tokens[start : start + size.context + 1] for start in starts]
        return jax.device_put(np.stack(rows).astype(np.int32))

    def run(self, steps: int) -> float:
        """Make updates; return the seconds until the last is done."""
        waiting: deque[jax.Array] = deque()
        begin = perf_counter()
        batch = self._batch()
        for step in range(steps):
            self._state, scalars = self._update(self._state, batch)
            waiting.append(scalars["loss"])
            if self.first_loss is None:
                self.first_loss = float(scalars["loss"])
            if step + 1 < steps:
                batch = self._batch()  # while the device computes
            if len(waiting) > IN_FLIGHT:
                waiting.popleft().block_until_ready()
        jax.block_until_ready(self._state)
        seconds = perf_counter() - begin
        self.last_loss = float(waiting[-1])
        return seconds


def num_parameters(model: nnx.Module) -> int:
    """Return how many numbers the parameters of a model hold."""
    return sum(leaf.size for leaf in jax.tree.leaves(nnx.state(model, nnx.Param)))


def device_fields() -> dict[str, Any]:
    """Return the fields of a record that name the device and the versions."""
    device = jax.devices()[0]
    return {
        "platform": device.platform,
        "device_kind": device.device_kind,
        "num_devices": jax.device_count(),
        "jax": jax.__version__,
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
    }


def memory_fields() -> dict[str, int]:
    """Return the device's statistics of its memory; empty if it has none."""
    stats = jax.devices()[0].memory_stats() or {}
    names = ("bytes_in_use", "peak_bytes_in_use", "bytes_limit")
    return {name: int(stats[name]) for name in names if name in stats}
