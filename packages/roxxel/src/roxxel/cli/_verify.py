"""`roxxel verify`: trains steps of a run again, and compares them bit for bit."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated

from roxxel_store.command import Found, check_one
from roxxel_store.screen import note, say

from roxxel.cli._audit import audit
from roxxel.cli._launch import Launch, from_first, run_launched
from roxxel.cli._receipts import Receipt, check_alone, say_checked
from roxxel.cli._runs import RunName, Sources, Trust, opened
from roxxel.cli._words import AtLeast1, Json, Steps, tell


def verify(
    run: RunName | None = None,
    *,
    data: bool = False,
    steps: Steps = None,
    sample: AtLeast1 | None = None,
    receipt: Annotated[str | None, "FILE"] = None,
    check: Receipt = None,
    source: Sources = (),
    trust: Trust = False,
    json_: Json = False,
    launch: Launch,
    typed: Sequence[str],
) -> None:
    """Find out whether a run is what its folder says.

    The command goes back to the checkpoint at or before step A, trains the steps again
    in a scratch folder with the run's own config and data, and compares every loss, the
    digests of the data and of the state, and each leaf where a checkpoint stands, bit
    for bit. If something differs, the output names the first step and what differs
    there, and where the machine or software is another than that of the run.

    Args:
        data: Train nothing, in seconds to minutes: read the batches again, and compare
            their digests with those in metrics.jsonl, which the devices computed from
            the tokens that they received. A block that does not match its checksum is
            named, with each step that reads it. Then the digest of the state in each
            checkpoint is compared with the one that the run logged at the save.
        steps: Verify the steps A to B - 1 (default: from the first checkpoint that the
            run has kept; with --data all steps).
        sample: Verify N intervals between checkpoints, or with --data between rows of
            the log, the same at every call.
        receipt: Write what came out into this file, for --check.
        check: Verify the intervals of this receipt again, and compare everything that
            the receipt says; RUN says where the run is now.
        launch: Processes.

    Raises:
        Found: Something differs.

    Example:
        roxxel verify runs/first --data
        roxxel verify runs/first --steps 100:120
        roxxel verify runs/first --sample 2 --receipt receipt.json
        roxxel verify runs/first --check receipt.json
    """
    check_one({"--steps": steps, "--sample": sample})
    given = {"--steps": steps, "--sample": sample, "--receipt": receipt}
    check_alone(check, run, given | {"--data": data})
    if data:
        several = launch.starts_several or None
        starting = "--processes or --devices-per-process"
        check_one({"--data": data, "--receipt": receipt, starting: several})
        audit(str(run), source, steps, sample, is_json=json_)
        return
    verify_again = partial(_verify, run, steps, sample, receipt, check, source)
    run_launched(launch, typed, partial(verify_again, trust=trust, is_json=json_))


def _verify(
    run: str | None,
    steps: range | None,
    sample: int | None,
    receipt: str | None,
    check: Path | None,
    source: Sources,
    *,
    trust: bool,
    is_json: bool,
) -> None:
    from roxxel.runs import verify as verifying

    tell_first = from_first(note if is_json else tell)
    unconfirmed: list[str] = []
    if check is None:
        found = verifying.verify(
            opened(str(run), source, trust=trust),
            steps,
            sample=sample,
            receipt=receipt,
            say=tell_first,
        )
    else:
        found, unconfirmed = verifying.check_verify(
            check, run, sources=dict(source), trust=trust, say=tell_first
        )
    for each in found:
        say(json.dumps(asdict(each)) if is_json else str(each))
    if check is not None:
        say_checked(check, unconfirmed)
    if not all(each.is_equal for each in found):
        raise Found(
            f"{found[0].run}: is not bit for bit what its folder says, as the lines "
            "above say; on another kind of device, release or mesh the bits may "
            "differ, so verify where the run was trained"
        )
