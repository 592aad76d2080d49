"""`roxxel quickstart`: trains a small model, or continues its run."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

from roxxel.quickstart.folder import DEFAULT_STEPS, LIBRARY, MIN_STEPS

_DEFAULT_OUT = Path("runs") / "quickstart"


_LastStep = Annotated[
    int | None,
    "N",
    f"train to step N, {MIN_STEPS} or more (default: {DEFAULT_STEPS} for a new run, no "
    "change for an existing run); a larger N trains an existing run longer",
]


def quickstart(
    *,
    steps: _LastStep = None,
    out: Annotated[Path, "FOLDER"] = _DEFAULT_OUT,
    fresh: bool = False,
) -> None:
    """Train a small language model on Python's own standard library.

    It trains first on short texts, then on long ones. Nothing is downloaded. You may
    stop the command at any time: the same command continues the run.

    Args:
        out: Folder of the run.
        fresh: Remove the quickstart run in the folder and start over.

    Raises:
        Preempted: A signal stopped the run after a save.

    Example:
        roxxel quickstart --steps 300
    """
    from roxxel.cli._arguments import shown_command
    from roxxel.cli._launch import ended_once, tell
    from roxxel.quickstart.run import quickstart as train

    with ended_once():
        total_steps = train(out, steps, fresh=fresh, say=tell)
    extra = [] if out == _DEFAULT_OUT else ["--out", str(out)]
    again = shown_command("quickstart", *extra)
    for line in (
        "",
        f"In {shlex.quote(str(out))}:",
        "  checkpoints/   model and optimizer: the newest three and the best",
        "  data/          the corpora: library, docstrings and held_out",
        "  metrics.jsonl  loss, tokens/s, waiting time and held-out loss by step",
        "  system.log     what happened when",
        "  config.toml    this run as a file for `roxxel plan` and `roxxel train`",
        f"See a corpus:    {shown_command('format', 'info', str(out / LIBRARY))}",
        f"Write a report:  {shown_command('report', str(out))}",
        f"Train longer:    {again} --steps {2 * total_steps}",
        f"Start over:      {again} --fresh",
    ):
        tell(line)
