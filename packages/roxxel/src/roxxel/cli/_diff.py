"""`roxxel diff`: shows where two runs part, and why, from their logs."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

from roxxel_store.command import FOUND, Found, Progress
from roxxel_store.screen import say

from roxxel.cli._runs import add_source_argument
from roxxel.runs.diff import diff
from roxxel.runs.run import open_run

if TYPE_CHECKING:
    import argparse

DESCRIPTION = """\
Say where two runs part, and why: which keys of their configs differ, the first
step and row in which they read other data, the first update with another
learning rate or skipped step, the first loss and the first state digest that
differ. The cause stands first. Only logs are read, and a corpus where two rows
differ; the steps are those that both runs have trained. Steps count from 0, as
in `roxxel show`. `roxxel plan --diff` compares what two configs will read. Exit
code 3 means that the data, an update or a number differs.
"""

EXAMPLES = ["runs/first runs/second"]

CODES = [FOUND]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    what = "folder of a run, or its URL: the save_path"
    parser.add_argument("a", metavar="A", help=what)
    parser.add_argument("b", metavar="B", help="the other run")
    add_source_argument(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace) -> None:
    """Print where the runs part; raise Found if they do."""
    with Progress(f"comparing {options.a} and {options.b}"):
        sources = dict(options.source)
        found = diff(open_run(options.a, sources), open_run(options.b, sources))
    if options.json:
        say(json.dumps({"step": found.step, **asdict(found)}))
    else:
        say(str(found))
    if not found.is_equal:
        raise Found(
            f"{options.a} and {options.b}: part at step {found.step}; the lines above "
            "say where, the cause first"
        )
