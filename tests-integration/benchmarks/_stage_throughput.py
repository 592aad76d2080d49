"""`Trainer` beside a loop written by hand, in turn, in one process."""

from __future__ import annotations

import statistics
from time import perf_counter
from typing import TYPE_CHECKING, Any

import jax
from _flops import flops_record
from _pretraining import (
    HandWritten,
    Job,
    device_fields,
    memory_fields,
    new_trainer,
    num_parameters,
    phase,
    run_quietly,
    train_rows,
)
from roxxel import Logger

if TYPE_CHECKING:
    from roxxel import ModelState

ROUNDS = 5
FEWEST = 4
"""Steps of a turn at least."""


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
        """Record the trainer's turn, then run and record one of the other loop."""
        del state
        now = perf_counter()
        if self._resumed_s is not None:  # the first turn includes the start of the run
            self.trainer_s.append(now - self._resumed_s)
            self.by_hand_s.append(self._by_hand.run(self._steps))
        self._resumed_s = perf_counter()


def throughput(job: Job) -> dict[str, Any]:
    """Measure tokens/s of both, their ratio, MFU, and the wait for data.

    Raises:
        RuntimeError: There are several devices: the trainer would use all of them, the
            hand-written loop one, and MFU is that of one.
    """
    if jax.device_count() != 1:
        raise RuntimeError(
            f"throughput is measured on one device, found {jax.device_count()}; make "
            "one visible, for example by CUDA_VISIBLE_DEVICES=0"
        )
    size = job.decoder
    by_hand = HandWritten(job)
    by_hand.run(3)  # compiles
    step_s = by_hand.run(FEWEST) / FEWEST
    steps = max(FEWEST, round(job.seconds / (2 * ROUNDS * step_s)))
    turns = Turns(by_hand, steps)
    run = job.folder / "throughput"
    # Rows without checkpoints: the last update would be saved for nothing.
    trainer = new_trainer(
        job,
        [phase(size, (ROUNDS + 1) * steps)],
        None,
        logger=Logger(run),
        eval_fn=turns,
        eval_every=steps,
        log_every=max(1, steps // 4),
    )
    run_quietly(trainer)
    tokens = steps * size.batch_size * size.context
    rates = {
        "trainer": [tokens / seconds for seconds in turns.trainer_s],
        "by_hand": [tokens / seconds for seconds in turns.by_hand_s],
    }
    ratios = [one / other for one, other in zip(*rates.values(), strict=True)]
    rows = train_rows(run)
    before = 0
    waited_s = trained_s = 0.0
    for row in rows:
        num_steps, before = row["step"] - before, row["step"]
        if row["step"] > steps:  # the turns that are timed
            waited_s += row["wait_s"]
            trained_s += row["step_s"] * num_steps
    median = statistics.median(rates["trainer"])
    device = device_fields()
    return {
        **device,
        "steps_a_turn": steps,
        "rounds": len(ratios),
        "tokens_a_step": size.batch_size * size.context,
        "tokens_per_s": rates,
        "trainer_tokens_per_s": median,
        "by_hand_tokens_per_s": statistics.median(rates["by_hand"]),
        "ratio": statistics.median(ratios),
        "ratios": ratios,
        "wait_share": waited_s / trained_s,
        "first_loss": rows[0]["loss"],
        "last_loss": rows[-1]["loss"],
        "by_hand_first_loss": by_hand.first_loss,
        "by_hand_last_loss": by_hand.last_loss,
        **flops_record(
            size, num_parameters(trainer.model), median, device["device_kind"]
        ),
        "memory_of_both": memory_fields(),
    }
