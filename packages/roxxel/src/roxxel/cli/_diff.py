"""`roxxel diff`: shows where two runs part, and why, from their logs."""

from __future__ import annotations

import json
from dataclasses import asdict

from roxxel_store.command import Found, Progress
from roxxel_store.screen import say

from roxxel.cli._arguments import Json, RunName, Sources
from roxxel.runs.diff import diff as compared
from roxxel.runs.run import open_run


def diff(a: RunName, b: str, *, source: Sources = (), json_: Json = False) -> None:
    """Say where two runs part, and why.

    Compares which keys of their configs differ, the first step and row in which they
    read other data, the first update with another learning rate or skipped step, the
    first loss and the first state digest that differ. The cause stands first. Only logs
    are read, and a corpus where two rows differ; the steps are those that both runs
    have trained. Steps count from 0, as in `roxxel show`. `roxxel plan --diff` compares
    what two configs will read.

    Args:
        a: One run.
        b: The other run.

    Raises:
        Found: The data, an update or a number differs.

    Example:
        roxxel diff runs/first runs/second
    """
    with Progress(f"comparing {a} and {b}"):
        sources = dict(source)
        found = compared(open_run(a, sources), open_run(b, sources))
    if json_:
        say(json.dumps({"step": found.step, **asdict(found)}))
    else:
        say(str(found))
    if not found.is_equal:
        raise Found(
            f"{a} and {b}: part at step {found.step}; the lines above "
            "say where, the cause first"
        )
