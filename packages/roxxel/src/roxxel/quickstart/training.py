"""What the quickstart trains: a decoder, AdamW and a curriculum of two phases."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from flax import nnx
from roxxel_train import Trainer

from roxxel.quickstart import report, settings
from roxxel.quickstart.config import write_config
from roxxel.quickstart.curriculum import make_curriculum
from roxxel.quickstart.data import open_corpora
from roxxel.quickstart.heldout import HeldOut, next_byte_loss
from roxxel.quickstart.model import Decoder, make_optimizer
from roxxel.quickstart.sample import sample_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from roxxel_train import ModelState

    from roxxel.quickstart.commands import Commands
    from roxxel.quickstart.folder import QuickstartFolder, Record

    Say = Callable[[str], None]

PROMPT = "def "
"""What the text sample begins with."""

SAMPLE_BYTES = 240


def train(
    folder: QuickstartFolder,
    record: Record,
    steps: int,
    commands: Commands,
    say: Say,
) -> None:
    """Show what is planned, do it, and say what came out.

    Args:
        folder: The run's folder; its corpora are there.
        record: The run so far.
        steps: Steps that it shall have in all.
        commands: How the user goes on.
        say: Gets every line for the user.
    """
    schedule = record.schedule
    corpora = open_corpora(folder.data)
    model = Decoder(rngs=nnx.Rngs(record.seed))
    held_out = HeldOut(corpora.held_out, settings.LONG)

    def evaluate(state: ModelState) -> dict[str, float]:
        return {"eval_loss": held_out.loss(state.model)}

    curriculum = make_curriculum(corpora, schedule, steps)
    is_new = not folder.is_trained
    trainer = Trainer(
        model=model,
        optimizer=nnx.Optimizer(model, make_optimizer(schedule), wrt=nnx.Param),
        curriculum=curriculum,
        loss_fn=next_byte_loss,
        save_path=folder.path,
        eval_fn=evaluate,
        eval_every=schedule.eval_every,
        checkpoint_every=schedule.checkpoint_every,
        log_every=schedule.log_every,
        best_metric="eval_loss",
        seed=record.seed,
    )
    plan = trainer.plan()
    is_longer = steps != record.steps
    record = replace(record, steps=steps)
    folder.write(record)  # nothing stands in the way of training any more
    if is_longer or not folder.has_config:
        write_config(folder, record)

    report.say_beginning(corpora, record, model, plan, say)
    before = held_out.loss(model)
    if is_new:
        say(f"Held-out loss of the untrained model: {before:.2f} nats a byte.")
    summary = trainer.run()
    after = held_out.loss(model)
    sample = sample_text(
        model,
        PROMPT,
        num_bytes=SAMPLE_BYTES,
        temperature=settings.TEMPERATURE,
        seed=record.seed,
    )
    report.say_ending(summary, before, after, sample, say)
    report.say_farewell(folder, record, commands, say)
