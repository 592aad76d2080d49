"""`roxxel verify`: trains steps of a run again, and compares them bit for bit."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

from roxxel_store.command import FOUND, Found
from roxxel_store.screen import note, say

from roxxel.cli._launch import (
    add_launch_arguments,
    connect,
    ended_once,
    from_first,
    run_several,
    starts_several,
)
from roxxel.cli._receipts import add_check_argument, check_alone, say_checked
from roxxel.cli._runs import add_run_arguments, add_trust_argument, opened
from roxxel.cli._words import at_least_1, step_range, tell

if TYPE_CHECKING:
    import argparse

DESCRIPTION = """\
Find out whether a run is what its folder says. The command goes back to the
checkpoint at or before step A, trains the steps again in a scratch folder with the
run's own config and data, and compares every loss, the digests of the data and of
the state, and each leaf where a checkpoint stands, bit for bit. If something
differs, the output names the first step and what differs there, and where the
machine or software is another than that of the run. Exit code 3 means that
something differs.
"""

EXAMPLES = [
    "runs/first --steps 100:120",
    "runs/first --sample 2 --receipt receipt.json",
    "runs/first --check receipt.json",
]

CODES = [FOUND]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run_arguments(parser, reads_text=False, needs_run=False)
    add_trust_argument(parser)
    chosen = parser.add_mutually_exclusive_group()
    chosen.add_argument(
        "--steps",
        type=step_range,
        metavar="A:B",
        help=(
            "verify the steps A to B - 1 (default: from the first checkpoint that the "
            "run has kept)"
        ),
    )
    chosen.add_argument(
        "--sample",
        type=at_least_1,
        metavar="N",
        help="verify N intervals between checkpoints, the same at every call",
    )
    parser.add_argument(
        "--receipt",
        metavar="FILE",
        help="write what came out into this file, for --check",
    )
    add_check_argument(parser, "verify the intervals of this receipt again")
    add_launch_arguments(parser)


def run(options: argparse.Namespace) -> None:
    """Print the verdict on each interval; raise Found if one differs."""
    check_alone(
        options,
        {
            "--steps": options.steps,
            "--sample": options.sample,
            "--receipt": options.receipt,
        },
    )
    if starts_several(options):
        run_several(options)
        return
    connect(options)
    with ended_once():
        _verify(options)


def _verify(options: argparse.Namespace) -> None:
    from roxxel.runs.verify import check_verify, verify

    tell_first = from_first(note if options.json else tell)
    unconfirmed: list[str] = []
    if options.check is None:
        found = verify(
            opened(options),
            options.steps,
            sample=options.sample,
            receipt=options.receipt,
            say=tell_first,
        )
    else:
        found, unconfirmed = check_verify(
            options.check,
            options.run,
            sources=dict(options.source),
            trust=options.trust,
            say=tell_first,
        )
    for each in found:
        say(json.dumps(asdict(each)) if options.json else str(each))
    if options.check is not None:
        say_checked(options, unconfirmed)
    if not all(each.is_equal for each in found):
        raise Found(
            f"{found[0].run}: is not bit for bit what its folder says, as the lines "
            "above say; on another kind of device, release or mesh the bits may "
            "differ, so verify where the run was trained"
        )
