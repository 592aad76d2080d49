"""What the quickstart tells its user, in lines of at most 80 columns."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import jax

from roxxel.quickstart.model import count_parameters

if TYPE_CHECKING:
    from collections.abc import Callable

    from roxxel_curriculum import Plan
    from roxxel_train import RunSummary

    from roxxel.quickstart.commands import Commands
    from roxxel.quickstart.data import Corpora
    from roxxel.quickstart.folder import QuickstartFolder, Record
    from roxxel.quickstart.model import Decoder

    Say = Callable[[str], None]


_SAMPLE_COLUMNS = 76


def say_beginning(
    corpora: Corpora, record: Record, model: Decoder, plan: Plan, say: Say
) -> None:
    """Tell what is going to be trained, on what, and in which order."""
    devices = jax.devices()
    say("")
    say(f"Corpus  the library of Python {record.python}, its bytes as tokens")
    for name, corpus, use in (
        ("self", corpora.library, "its source code"),
        ("docstrings", corpora.docstrings, "the prose in it"),
        ("held out", corpora.held_out, "never trained on"),
    ):
        files, tokens = corpus.num_documents, corpus.num_tokens
        say(f"        {name:<10} {files:>4} files {tokens:>11,} tokens  {use}")
    say(f"Model   a transformer with {count_parameters(model):,} parameters")
    say(f"Where   {len(devices)} x {devices[0].device_kind}; seed {record.seed}")
    say("")
    say("The plan (a sample is its context and the byte that follows):")
    say("")
    for line in str(plan).splitlines():
        say(line)
    say("")


def say_ending(
    summary: RunSummary, before: float, after: float, sample: str, say: Say
) -> None:
    """Tell what came out."""
    say("")
    if summary.start_step == summary.total_steps:
        say(f"This run is already complete: {summary.total_steps} steps are done.")
    else:
        done = summary.step - summary.start_step
        say(
            f"Done: {done} steps in {summary.seconds:.0f} s, "
            f"{summary.waited_s / max(summary.seconds, 1e-9):.1%} of it waiting for "
            f"data; {summary.step} steps in all."
        )
    say(
        f"Held-out loss: {before:.2f} nats a byte untrained, {after:.2f} after "
        f"{summary.step} steps."
    )
    say("")
    say("What the model writes now (the first word was given):")
    for line in sample.expandtabs().splitlines():
        for start in range(0, max(len(line), 1), _SAMPLE_COLUMNS):
            say(f"  | {line[start : start + _SAMPLE_COLUMNS]}")


def say_farewell(
    folder: QuickstartFolder, record: Record, commands: Commands, say: Say
) -> None:
    """Tell where everything is and how to go on."""
    say("")
    say(f"In {shlex.quote(str(folder.path))}:")
    say("  checkpoints/   model and optimizer: the newest three and the best")
    say("  data/          the corpora (look at one with `roxxel format info`)")
    say("  metrics.jsonl  loss, tokens/s, waiting time and held-out loss by step")
    say("  system.log     what happened when")
    say("  config.toml    this run as a file for `roxxel plan` and `roxxel train`")
    say(f"Look at it:       {commands.report}")
    say(f"Train it longer:  {commands.quickstart} --steps {2 * record.steps}")
    say(f"Start over:       {commands.quickstart} --fresh")
