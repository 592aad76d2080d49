"""Runs the quickstart: reads the library, trains, and prints a sample of the model."""

from __future__ import annotations

import platform
from math import log
from typing import TYPE_CHECKING

import numpy as np
from roxxel_curriculum.run_log import EVAL_LOSS
from roxxel_train import Preempted, RunFolder

from roxxel.config import ConfigError, make_trainer, open_curriculum
from roxxel.quickstart.corpus import (
    SEPARATOR,
    VOCAB_SIZE,
    find_library,
    read_library,
    write_corpora,
)
from roxxel.quickstart.folder import (
    DATA,
    DEFAULT_STEPS,
    MIN_STEPS,
    QuickstartError,
    QuickstartFolder,
    lengthened,
    new_config,
    steps_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from roxxel_train import RunSummary, Trainer

    from roxxel.config import RunConfig
    from roxxel.quickstart.corpus import Library

    Say = Callable[[str], None]

_PROMPT = "def "
_SAMPLE_BYTES = 240
_SAMPLE_COLUMNS = 76
_TEMPERATURE = 0.7


def quickstart(out: Path, steps: int | None, *, fresh: bool, say: Say) -> int:
    """Train a small model on the standard library, or continue the run.

    Args:
        out: Folder of the run.
        steps: Steps of the whole run. None means the steps of the run in the folder, or
            the default for a new run.
        fresh: Whether to remove the run in the folder first.
        say: Receives every line for the user.

    Returns:
        The steps of the whole run.

    Raises:
        QuickstartError: A request is invalid or does not fit the folder. Nothing was
            changed, except that `fresh` removes a run before it counts the new steps.
        CorpusError: The standard library cannot be read.
        ConfigError: The config of the run is damaged.
        Preempted: A signal stopped the run before its end.
    """
    folder = QuickstartFolder(out)
    # Refuse a bad request before the quickstart creates or removes a file.
    config = _requested(folder, steps, fresh=fresh)
    say("Roxxel quickstart: a small language model learns to write Python from the")
    say("sources of Python's own standard library.")
    say("")
    if config is None:
        config = _begin(folder, steps or DEFAULT_STEPS, _read(say))
    else:
        say(f"Continuing the run in {folder.path}.")
    trainer = make_trainer(config)
    folder.write(config)
    _say_beginning(config, trainer, say)
    try:
        summary = trainer.run()
    except Preempted as end:
        if not end.complete:
            raise
        say(str(end))  # no sample: the user does not want to wait
    else:
        _say_ending(folder, trainer, summary, say)
    return steps_of(config)


def _requested(
    folder: QuickstartFolder, steps: int | None, *, fresh: bool
) -> RunConfig | None:
    """Return the config of the folder's run, with new `steps`; None for a new run."""
    if steps is not None and steps < MIN_STEPS:
        raise QuickstartError(
            f"--steps must be {MIN_STEPS} or more, one for each phase, got {steps}"
        )
    if fresh:
        folder.check_removable()
        return None
    config = folder.config()
    if config is None:
        return None
    for (source,) in config.sources.values():
        if not config.path(source).is_file():
            raise QuickstartError(
                f"{config.path(source)}: this training file of the run is missing; "
                "restore the file, or start over with --fresh"
            )
    before = steps_of(config)
    if steps is None or steps == before:
        return config
    if steps < before:
        raise QuickstartError(
            f"{folder.path}: this run was started with --steps {before}, and {steps} "
            f"is less; give {before} or more, or start over with --fresh"
        )
    config = lengthened(config, steps)
    _check_steps(config)
    return config


def _check_steps(config: RunConfig) -> None:
    try:
        open_curriculum(config)
    except ConfigError as error:
        reason = error.__cause__ or error
        raise QuickstartError(f"--steps {steps_of(config)}: {reason}") from error


def _read(say: Say) -> Library:
    source = find_library()
    say(f"Reading the library of Python {platform.python_version()} from")
    say(f"  {source}")
    return read_library(source)


def _begin(folder: QuickstartFolder, steps: int, library: Library) -> RunConfig:
    """Write the corpora of a new run, which replaces the folder's run."""
    folder.begin()
    write_corpora(folder.path / DATA, library)
    config = new_config(folder.path, steps)
    _check_steps(config)
    return config


def _say_beginning(config: RunConfig, trainer: Trainer, say: Say) -> None:
    import jax
    from roxxel_format import Roxxel

    from roxxel.models import Llama

    assert isinstance(trainer.model, Llama)  # noqa: S101 - the config names this model
    primary = config.schedule.primary
    uses = {
        primary: (config.sources[primary], "its source code"),
        "docstrings": (config.sources["docstrings"], "the prose in it"),
        "held out": (config.held_out[""].sources["self"], "never trained on"),
    }
    devices = jax.devices()
    say("")
    say("Corpus  the library of Python, its bytes as tokens")
    for name, ((path,), use) in uses.items():
        corpus = Roxxel(config.path(path))
        files, tokens = corpus.num_documents, corpus.num_tokens
        say(f"        {name:<10} {files:>4} files {tokens:>11,} tokens  {use}")
    say(
        f"Model   a transformer with {trainer.model.config.num_parameters:,} parameters"
    )
    say(f"Where   {len(devices)} x {devices[0].device_kind}; seed {config.seed}")
    say("")
    say("The plan (a sample is a context and the next byte):")
    say("")
    for line in str(trainer.plan()).splitlines():
        say(line)
    say("")


def _say_ending(
    folder: QuickstartFolder, trainer: Trainer, summary: RunSummary, say: Say
) -> None:
    from roxxel.evaluate.sampling import sample_tokens
    from roxxel.models import Llama

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
    rows, _ = RunFolder(folder.path).rows()
    loss = [float(row[EVAL_LOSS]) for row in rows if EVAL_LOSS in row][-1]
    say(
        f"Held-out loss: {loss:.2f} nats a byte after {summary.step} steps "
        f"({log(VOCAB_SIZE):.2f} for a uniform guess)."
    )
    say("")
    say("A text by the model (the first word is the prompt):")
    assert isinstance(trainer.model, Llama)  # noqa: S101 - the config names this model
    added = sample_tokens(
        trainer.model,
        [*_PROMPT.encode()],
        _SAMPLE_BYTES,
        seed=trainer.seed,
        temperature=_TEMPERATURE,
        stop=SEPARATOR,
    )
    sample = _PROMPT + added.astype(np.uint8).tobytes().decode(errors="replace")
    for line in sample.expandtabs().splitlines():
        for start in range(0, max(len(line), 1), _SAMPLE_COLUMNS):
            say(f"  | {line[start : start + _SAMPLE_COLUMNS]}")
