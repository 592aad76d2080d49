"""The parts of `accelerator.py` that train: speed, resumes, saves and phase changes.

The model is `roxxel.models.Llama` and the corpus is synthetic: short sequences that
grow by a constant, so the loss falls from the logarithm of the vocabulary within tens
of updates. The optimizer's schedule is the same in all stages, so they share their
compiled programs through the cache.
"""

from __future__ import annotations

import gc
import gzip
import os
import signal
import statistics
import time
from collections import deque
from contextlib import redirect_stderr
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from _accelerator_loss import loss_of_narrow_logits
from _accelerator_program import fused_attention, kernels, program_facts, reason
from _flops import flops_record
from flax import nnx
from roxxel import Curriculum, Logger, Phase, Roxxel, Trainer
from roxxel.checkpoint import Checkpointer
from roxxel.models import PRESETS, LlamaConfig, llama
from roxxel_train import RunFolder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from accelerator import Job, Record
    from roxxel import ModelState

SEED = 0
IN_FLIGHT = 2
ROUNDS = 5
SCHEDULE_STEPS = 1000
"""Steps of the learning rate's schedule, a constant of every compiled update."""
BATCHES = (64, 32, 16)
"""Sequences of a batch, tried in this order until one fits into the memory."""
DOCUMENT = 700
"""Tokens of a document on average."""
TIMES_APART = ("compile_s", "eval_s", "save_s")
"""Fields of a row of metrics whose seconds are not part of `step_s`."""


@dataclass(frozen=True)
class Setup:
    """A model, its batch, and how its loss is computed.

    Attributes:
        preset: Name of `roxxel.models.PRESETS`.
        batch_size: Sequences.
        context: Number of tokens that a sequence predicts.
        sizes: Further arguments of `roxxel.models.llama`.
        own_loss: A loss function in place of the model's.
    """

    preset: str
    batch_size: int
    context: int
    sizes: dict[str, Any]
    own_loss: Callable[..., Any] | None = None

    @property
    def config(self) -> LlamaConfig:
        """The sizes of the model."""
        known = {field.name for field in fields(LlamaConfig)}
        own = {name: x for name, x in self.sizes.items() if name in known}
        return PRESETS[self.preset](**own)

    def make(self) -> tuple[Any, Any, Callable[..., Any]]:
        """Return the model, its optimizer and its loss."""
        return llama(total_steps=SCHEDULE_STEPS, preset=self.preset, **self.sizes)

    @property
    def loss(self) -> Callable[..., Any]:
        """The loss function, without a model's arrays."""
        if self.own_loss is not None:
            return self.own_loss
        made: list[Any] = []

        def make() -> tuple[Any, Any]:
            model, optimizer, loss = self.make()
            made.append(loss)
            return model, optimizer

        nnx.eval_shape(make)
        return made[0]


def setup(
    job: Job, preset: str = "small", *, batch_size: int = 0, **more: Any
) -> Setup:
    """Return the setup of a stage; a dry job gets a tiny model instead."""
    if job.dry:
        tiny = {"vocab_size": 256, "width": 32, "hidden": 64, "num_layers": 1}
        sizes = {**tiny, "peak_rate": 1e-2, "warmup": 10, **more}
        return Setup("tiny", 8, 32, sizes)
    if jax.default_backend() == "cpu":
        raise RuntimeError("JAX found no accelerator; --dry runs on a CPU")
    right = job.found.get("attention", {}).get("right", ["cudnn"])
    paths = {"attention": "cudnn" if "cudnn" in right else "xla"}
    sizes = {**paths, "peak_rate": 6e-4, "warmup": 20, "context": 2048, **more}
    known = job.found.get("throughput", {}).get("batch_size", BATCHES[-1])
    return Setup(preset, batch_size or known, 1024, sizes)


def throughput(job: Job, save: Callable[[Record], None]) -> None:
    """Measure both loops in turn, then where a step's time goes, then other losses.

    Raises:
        RuntimeError: A loss does not fall.
    """
    of, by_hand = _largest_that_fits(job, "small", BATCHES)
    step_s = by_hand.run(6) / 6
    save(
        {
            "preset": of.preset,
            "batch_size": of.batch_size,
            "context": of.context,
            "attention": of.config.attention,
            "compile_s": by_hand.compile_s,
            "by_hand_step_s": step_s,
            "program": by_hand.facts,
            "is_fused": fused_attention(by_hand.facts),
            **_speed(job, of, step_s),
        }
    )
    by_hand.keep_program(job.out / "step.hlo.gz")
    _in_turn(job, of, by_hand, step_s, save)
    save({"profile": _profile(job, by_hand)})
    by_hand.drop()
    gc.collect()
    variants: Record = {}
    needed_s = 1.5 * sum(by_hand.compile_s.values()) + 12 * step_s
    for name, other, masked in _variants(job, of):
        if _left_s(job) < needed_s:
            variants[name] = {"failed": "no time was left for it"}
            continue
        try:
            variants[name] = _variant(job, other, masked=masked)
        except Exception as error:  # noqa: BLE001
            # A variant that does not fit is a result.
            variants[name] = {"failed": reason(error)}
        gc.collect()
        save({"variants": variants})


def _largest_that_fits(
    job: Job, preset: str, batch_sizes: tuple[int, ...]
) -> tuple[Setup, HandWritten]:
    """Return the first setup whose updates fit into memory, and its warmed-up loop."""
    of = setup(job, preset, batch_size=batch_sizes[0])
    try:
        loop = HandWritten(job, of)
        loop.run(3)
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error) or len(batch_sizes) == 1:
            raise
    else:
        return of, loop
    gc.collect()
    return _largest_that_fits(job, preset, batch_sizes[1:])


def _speed(job: Job, of: Setup, step_s: float) -> Record:
    tokens_per_s = of.batch_size * of.context / step_s
    measured = job.found.get("device", {}).get("peak")
    kind = jax.devices()[0].device_kind
    return flops_record(of.config, of.context, tokens_per_s, kind, measured)


def _in_turn(
    job: Job,
    of: Setup,
    by_hand: HandWritten,
    step_s: float,
    save: Callable[[Record], None],
) -> None:
    """Run `Trainer`, and the hand-written loop between its turns."""
    turn_s = 0.2 if job.dry else min(4.0, _left_s(job) * 0.3 / (2 * ROUNDS))
    steps = max(4, round(turn_s / step_s))
    turns = Turns(by_hand, steps)
    began = perf_counter()
    trainer = new_trainer(
        job,
        of,
        [Phase((ROUNDS + 1) * steps, of.batch_size, of.context + 1)],
        logger=Logger(job.folder / "throughput"),
        eval_fn=turns,
        eval_every=steps,
        log_every=max(1, steps // 4),
    )
    made_s = perf_counter() - began
    run_quietly(trainer)
    tokens = steps * of.batch_size * of.context
    rates = {
        "trainer": [tokens / each for each in turns.trainer_s],
        "by_hand": [tokens / each for each in turns.by_hand_s],
    }
    ratios = [one / other for one, other in zip(*rates.values(), strict=True)]
    rows = train_rows(job.folder / "throughput")
    waited_s = trained_s = 0.0
    for before, row in pairwise(rows):
        if row["step"] > steps:  # the turns that are timed
            waited_s += row["wait_s"]
            trained_s += row["step_s"] * (row["step"] - before["step"])
    median = statistics.median(rates["trainer"])
    losses: dict[str, list[Any]] = {
        "trainer": [rows[0]["loss"], rows[-1]["loss"]],
        "by_hand": [by_hand.first_loss, by_hand.last_loss],
    }
    save(
        {
            "steps_a_turn": steps,
            "tokens_per_s": rates,
            "trainer_tokens_per_s": median,
            "by_hand_tokens_per_s": statistics.median(rates["by_hand"]),
            "ratio": statistics.median(ratios),
            "ratios": ratios,
            "wait_share": waited_s / trained_s,
            "losses": losses,
            "trainer_made_s": made_s,
            "trainer_compile_s": rows[0].get("compile_s"),
            "memory_of_both": memory_fields(),
            **_speed(job, of, of.batch_size * of.context / median),
        }
    )
    if not all(last < first for first, last in losses.values()):
        raise RuntimeError(f"a loss did not fall: {losses}")


def _variants(job: Job, of: Setup) -> Iterator[tuple[str, Setup, bool]]:
    """Yield names, setups, and whether batches have segment masks."""

    def like(**more: Any) -> Setup:
        return replace(of, sizes={**of.sizes, **more})

    right = job.found.get("attention", {}).get("right", ["xla"])
    for path in right:
        yield f"segment masks, {path}", like(attention=path), True
    yield "loss in one chunk", like(loss_chunk=of.context), False
    yield "bfloat16 logits", replace(of, own_loss=loss_of_narrow_logits), False


def _variant(job: Job, of: Setup, *, masked: bool) -> Record:
    loop = HandWritten(job, of, masked=masked)
    loop.run(2)
    step_s = loop.run(8) / 8
    fields = {
        "compile_s": loop.compile_s,
        "step_s": step_s,
        "program": loop.facts,
        "is_fused": fused_attention(loop.facts),
        **_speed(job, of, step_s),
    }
    loop.drop()
    return fields


def _profile(job: Job, by_hand: HandWritten) -> Record:
    steps = 3
    try:
        return kernels(job.folder / "trace", lambda: by_hand.run(steps), steps)
    except Exception as error:  # noqa: BLE001
        # A profiler that does not run here is a result.
        return {"failed": reason(error)}


class Turns:
    """An `eval_fn` that runs the hand-written loop for one turn, and times both loops.

    A turn of the trainer is the steps between two evaluations; the hand-written loop
    makes as many. The trainer finishes its updates before it evaluates, so each turn
    begins and ends with no update in flight.
    """

    def __init__(self, by_hand: HandWritten, steps: int) -> None:
        self._by_hand = by_hand
        self._steps = steps
        self._resumed_s: float | None = None
        self.by_hand_s: list[float] = []
        self.trainer_s: list[float] = []

    def __call__(self, state: ModelState) -> None:
        """Record the trainer's turn, then run and record a turn of the other loop."""
        del state
        now = perf_counter()
        if self._resumed_s is not None:  # the first turn includes the start of the run
            self.trainer_s.append(now - self._resumed_s)
            self.by_hand_s.append(self._by_hand.run(self._steps))
        self._resumed_s = perf_counter()


class HandWritten:
    """A training loop written for speed alone.

    It gathers windows of a memory map, puts them on the device, runs the jitted update
    with a donated state at most two steps ahead, and logs nothing.

    Attributes:
        compile_s: Time to trace and to compile the update.
        facts: What the compiled update holds.
        first_loss: Loss of the first update.
        last_loss: Loss of the newest update.
    """

    def __init__(self, job: Job, of: Setup, *, masked: bool = False) -> None:
        path = job.folder / "tokens.npy"
        if not path.exists():
            tokens = np.concatenate([*_documents(of)])
            np.save(path, tokens.astype(np.uint16))
        self._tokens = np.load(path, mmap_mode="r")
        self._random = np.random.default_rng(SEED)
        self._of = of
        self._masked = masked
        loss = of.loss
        graphdef, state = nnx.split(of.make()[:2])
        self._state = nnx.to_pure_dict(state)
        del state

        def update(state: Any, batch: Any) -> tuple[Any, dict[str, jax.Array]]:
            model, optimizer = nnx.merge(graphdef, state)
            (value, _), grads = nnx.value_and_grad(loss, has_aux=True)(model, batch)
            optimizer.update(model, grads)
            scalars = {"loss": value, "grad_norm": optax.tree.norm(grads)}
            return nnx.to_pure_dict(nnx.state((model, optimizer))), scalars

        begin = perf_counter()
        lowered = jax.jit(update, donate_argnums=0).lower(self._state, self._batch())
        traced_s = perf_counter() - begin
        self._program: Any = lowered.compile()
        self.compile_s = {
            "traced": traced_s,
            "compiled": perf_counter() - begin - traced_s,
        }
        self.facts = program_facts(self._program)
        self.first_loss: float | None = None
        self.last_loss = float("nan")

    def _batch(self) -> Any:
        of = self._of
        last = len(self._tokens) - of.context - 1
        starts = self._random.integers(0, last, of.batch_size)
        rows = [self._tokens[start : start + of.context + 1] for start in starts]
        tokens = jax.device_put(np.stack(rows).astype(np.int32))
        if not self._masked:
            return tokens
        begins = self._random.random(tokens.shape) < 1 / min(DOCUMENT, of.context)
        begins[:, 0] = True
        segments = np.cumsum(begins, axis=1)
        return {
            "tokens": tokens,
            "segment_ids": jax.device_put(segments.astype(np.int32)),
        }

    def run(self, steps: int) -> float:
        """Make updates; return the seconds until the last is done."""
        waiting: deque[jax.Array] = deque()
        begin = perf_counter()
        batch = self._batch()
        for step in range(steps):
            self._state, scalars = self._program(self._state, batch)
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

    def keep_program(self, path: Path) -> None:
        """Write the compiled program as text."""
        path.write_bytes(gzip.compress(self._program.as_text().encode()))

    def drop(self) -> None:
        """Free the state and the program."""
        self._state = self._program = None


def _documents(of: Setup) -> Iterator[np.ndarray[Any, Any]]:
    """Yield documents of about 700 tokens, enough for 40 batches."""
    random = np.random.default_rng(SEED)
    # With the whole vocabulary, a short training would see most tokens only once.
    used = min(of.config.vocab_size, 512)
    left = 40 * of.batch_size * (of.context + 1)
    while left > 0:
        length = int(random.integers(DOCUMENT // 10, 2 * DOCUMENT))
        left -= length
        starts_run = random.random(length) < 1 / 32
        starts_run[0] = True
        run = np.cumsum(starts_run) - 1
        first = np.flatnonzero(starts_run)
        start = random.integers(0, used, len(first))
        step = random.integers(1, 8, len(first))
        position = np.arange(length) - first[run]
        yield (start[run] + step[run] * position) % used


def new_trainer(
    job: Job, of: Setup, phases: list[Phase], run: Path | None = None, **options: Any
) -> Trainer:
    """Return a trainer of a new model; `options` go to `Trainer`."""
    corpus = Roxxel(job.folder / "corpus_*.rox")
    vocab_size = of.config.vocab_size
    corpus.write(_documents(of), vocab_size=vocab_size, exist="keep")
    curriculum = Curriculum(corpus, phases, policies={"self": "repeat"})
    return Trainer(
        lambda: of.make()[:2], None, curriculum, of.loss, run, seed=SEED, **options
    )


def run_quietly(trainer: Trainer) -> Any:
    """Run a trainer; its lines go to its `system.log`, not to the terminal."""
    with Path(os.devnull).open("w") as nowhere, redirect_stderr(nowhere):
        return trainer.run()


def train_rows(run: Path) -> list[Record]:
    """Return the rows of training that a run has logged, in order."""
    rows = RunFolder(run).rows()[0]
    return [row for row in rows if row["kind"] == "train"]


def wall_s(row: Record) -> float:
    """Return the wall time of a step from its row; every step has a row."""
    return row["step_s"] + sum(row.get(name, 0.0) for name in TIMES_APART)


def memory_fields() -> dict[str, int]:
    """Return the device's statistics of its memory; empty if it has none."""
    stats = jax.devices()[0].memory_stats() or {}
    names = ("bytes_in_use", "peak_bytes_in_use", "bytes_limit")
    return {name: int(stats[name]) for name in names if name in stats}


RESUME_STEPS, RESUME_EVERY, RESUME_KILLED = 14, 5, 12
"""Numbers of updates: of a run, between checkpoints, and before the kill. The second
save waits for the first, and the kill comes after both, so a whole checkpoint exists.
"""


def run_and_kill(job: Job, save: Callable[[Record], None]) -> None:
    """Make an unbroken run, then the same run again, which kills this process."""
    began = perf_counter()
    run_quietly(_resumable(job, "unbroken", checkpoint_every=RESUME_STEPS))
    save(
        {"unbroken_s": perf_counter() - began, "memory_while_training": memory_fields()}
    )
    gc.collect()  # the first trainer's state is on the device until then

    def kill(state: ModelState) -> None:
        del state
        os.kill(os.getpid(), signal.SIGKILL)

    run_quietly(_resumable(job, "killed", eval_fn=kill, eval_every=RESUME_KILLED))


def resume(job: Job, save: Callable[[Record], None]) -> None:
    """Resume the killed run, and compare its losses with the unbroken run's.

    Raises:
        RuntimeError: There is nothing to compare, or a loss differs.
    """
    began = perf_counter()
    summary = run_quietly(_resumable(job, "killed"))
    start = summary.start_step
    unbroken, killed = (
        {row["step"]: row for row in train_rows(job.folder / name)}
        for name in ("unbroken", "killed")
    )
    names = ("loss", "grad_norm")
    different = [
        step
        for step, row in unbroken.items()
        if step not in killed or any(row[x] != killed[step][x] for x in names)
    ]
    save(
        {
            "resume_s": perf_counter() - began,
            "resumed_from": start,
            "steps": len(unbroken),
            "losses": [row["loss"] for row in unbroken.values()],
            "losses_resumed": [row["loss"] for row in killed.values()],
            "different_steps": different,
            "identical": not different,
            "step_s": statistics.median(row["step_s"] for row in unbroken.values()),
            "memory_at_resume": memory_fields(),
            "xla_flags": os.environ.get("XLA_FLAGS", ""),
        }
    )
    if not 0 < start < RESUME_STEPS or len(unbroken) != RESUME_STEPS:
        raise RuntimeError(
            f"the resume began at step {start} of {len(unbroken)}, so it shows nothing"
        )
    if different:
        raise RuntimeError(f"losses or gradients differ at the steps {different}")


def _resumable(job: Job, name: str, **options: Any) -> Trainer:
    # With the deterministic flags, JAX 0.11.2 on an H100 ended the first call of a
    # program with cuDNN's attention in an IndexError of XLA.
    of = setup(job, batch_size=BATCHES[-1], attention="xla")
    phases = [Phase(RESUME_STEPS, of.batch_size, of.context + 1)]
    settings = {"log_every": 1, "checkpoint_every": RESUME_EVERY, **options}
    return new_trainer(job, of, phases, job.folder / name, **settings)


AFTERMATH = 8
"""Steps after a save that count towards its cost."""


def run_and_save(job: Job, save: Callable[[Record], None]) -> None:
    """Train with two saves before the last; time the steps around them."""
    of = setup(job)
    # Far enough apart that no save waits for the one before.
    middle = 12 if job.dry else 24
    total = 3 * middle
    trainer = new_trainer(
        job,
        of,
        [Phase(total, of.batch_size, of.context + 1)],
        job.folder / "run",
        log_every=1,
        checkpoint_every=middle,
    )
    run_quietly(trainer)
    rows = train_rows(job.folder / "run")
    walls = [wall_s(row) for row in rows]
    usual_s = statistics.median(walls[4:middle])
    # The row of the step after a save holds `save_s`; index k is step k + 1.
    after = [walls[step : step + AFTERMATH] for step in (middle, 2 * middle)]
    costs_s = [sum(each - usual_s for each in steps) for steps in after]
    held = memory_fields()
    copies, num_bytes = _copies_to_host(trainer)
    save(
        {
            "batch_size": of.batch_size,
            "usual_step_s": usual_s,
            "steps_after_s": after,
            "blocked_s": [rows[step].get("save_s") for step in (middle, 2 * middle)],
            "save_costs_s": costs_s,
            "save_cost_steps": costs_s[0] / usual_s,
            "later_save_cost_steps": costs_s[1] / usual_s,
            "said": [
                line
                for line in (job.folder / "run" / "system.log").read_text().splitlines()
                if " copied in " in line or " waited " in line
            ],
            "digests_s": _digests(job, trainer),
            "copy_to_host_s": copies,
            "state_bytes": num_bytes,
            "total_steps": total,
            "memory_while_training": held,
        }
    )


def _digests(job: Job, trainer: Trainer) -> list[float]:
    """Time digests of a trainer's state; every save waits for one."""
    checkpointer = Checkpointer(job.folder / "none", trainer.model, trainer.optimizer)
    took: list[float] = []
    for _ in range(3):
        begin = perf_counter()
        checkpointer.state_digest()
        took.append(perf_counter() - begin)
    return took


def repeat(job: Job, save: Callable[[Record], None]) -> None:
    """Train with some updates repeated; find the cost of a repetition."""
    of = setup(job, batch_size=BATCHES[-1], attention="xla")
    every, steps = 4, 24
    run = job.folder / "repeated"
    trainer = new_trainer(
        *(job, of, [Phase(steps, of.batch_size, of.context + 1)]),
        logger=Logger(run),
        log_every=1,
        verify_every=every,
    )
    run_quietly(trainer)
    walls = [wall_s(row) for row in train_rows(run)][4:]
    # Steps are dispatched ahead and a check waits for them, so only rounds tell.
    rounds = [sum(walls[k : k + every]) for k in range(0, len(walls) - every, every)]
    round_s, usual_s = statistics.median(rounds), job.found["resume"]["step_s"]
    save({"repeat_round_s": round_s, "repeat_cost_steps": round_s / usual_s - every})


def restore(job: Job, save: Callable[[Record], None]) -> None:
    """Restore the run's last checkpoint, train two more steps; record the peak.

    Raises:
        RuntimeError: Nothing was restored.
    """
    of = setup(job)
    before = job.found["run_and_save"]
    total = before["total_steps"] + 2
    began = perf_counter()
    trainer = new_trainer(
        job, of, [Phase(total, of.batch_size, of.context + 1)], job.folder / "run"
    )
    made = memory_fields()
    summary = run_quietly(trainer)
    peak = memory_fields()
    fields: Record = {
        "restore_s": perf_counter() - began,
        "memory_after_construction": made,
        "memory_after_restore": peak,
        "restored_from": summary.start_step,
    }
    trained = before["memory_while_training"].get("peak_bytes_in_use")
    if trained:
        fields["restore_over_training"] = peak["peak_bytes_in_use"] / trained
    save(fields)
    if summary.start_step != before["total_steps"]:
        raise RuntimeError(f"restored step {summary.start_step}, not {total - 2}")


def _copies_to_host(trainer: Trainer) -> tuple[list[float], int]:
    """Time bare copies of a trainer's state to the host; also return the state's bytes.

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


SETTLED = 3
"""Steps after a phase change that count as the change."""


def phase_change(job: Job, save: Callable[[Record], None]) -> None:
    """Train two phases, both compiled before the run; find the longest step."""
    of = setup(job)
    steps = 12
    run = job.folder / "run"
    trainer = new_trainer(
        job,
        of,
        [
            Phase(steps, of.batch_size, of.context + 1),
            Phase(2 * steps, of.batch_size // 2, 2 * of.context + 1),
        ],
        logger=Logger(run),
        log_every=1,
    )
    began = perf_counter()
    trainer.preflight()
    compiled_s = perf_counter() - began
    run_quietly(trainer)
    walls = [wall_s(row) for row in train_rows(run)]
    usual_s = statistics.median(walls[steps + SETTLED :])
    changing = walls[steps : steps + SETTLED]
    save(
        {
            "compile_s": compiled_s,
            "first_phase_step_s": statistics.median(walls[2:steps]),
            "usual_step_s": usual_s,
            "change_steps_s": changing,
            "change_ratio": max(changing) / usual_s,
        }
    )


def larger(job: Job, save: Callable[[Record], None]) -> None:
    """Train the model of 360 million parameters by hand."""
    of, loop = _largest_that_fits(job, "medium", BATCHES)
    step_s = loop.run(6) / 6
    save({"batch_size": of.batch_size, "step_s": step_s, **_speed(job, of, step_s)})
    seconds = 0.2 if job.dry else min(20.0, 0.5 * _left_s(job))
    steps = max(4, round(seconds / step_s))
    step_s = loop.run(steps) / steps
    save(
        {
            "steps": steps,
            "step_s": step_s,
            "compile_s": loop.compile_s,
            "losses": [loop.first_loss, loop.last_loss],
            "memory": memory_fields(),
            **_speed(job, of, step_s),
        }
    )


def long(job: Job, save: Callable[[Record], None]) -> None:
    """Train on rows of 32 768 tokens by hand."""
    rows, context = (2, 128) if job.dry else (2, 32768)
    more = setup(job, context=context)
    of = replace(more, batch_size=rows, context=context)
    loop = HandWritten(job, of)
    loop.run(2)
    step_s = loop.run(4) / 4
    save(
        {
            "batch_size": rows,
            "context": context,
            "step_s": step_s,
            "program": loop.facts,
            **_speed(job, of, step_s),
        }
    )


def _left_s(job: Job) -> float:
    return max(0.0, job.deadline - time.time())
