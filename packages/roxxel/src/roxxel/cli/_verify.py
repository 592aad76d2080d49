"""`roxxel verify`: finds out whether a run is what its folder says.

The steps are trained again and compared bit for bit, or with `--data` only read again.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

from roxxel_ckpt.values import STATE_DIGEST
from roxxel_store.command import Found, Progress, check_one
from roxxel_store.screen import note, say
from roxxel_train import RunFolderError

from roxxel.cli._arguments import (
    AtLeast1,
    Json,
    Receipt,
    RunName,
    Sources,
    Trust,
    check_alone,
    opened,
    say_checked,
)
from roxxel.cli._launch import Launch, from_first, run_launched, tell

if TYPE_CHECKING:
    from collections.abc import Iterator

    from roxxel_train.audit import Audit

    from roxxel.runs.run import Run


def step_range(text: str) -> range:
    """Return the steps that `A:B` names."""
    found = re.fullmatch(r"(\d+):(\d+)", text)
    if found is None or int(found[1]) >= int(found[2]):
        raise argparse.ArgumentTypeError(f"{text!r} is not A:B with A < B")
    return range(int(found[1]), int(found[2]))


def verify(
    run: RunName | None = None,
    *,
    data: bool = False,
    steps: Annotated[range | None, step_range, "A:B"] = None,
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
        _audit(opened(str(run), source), steps, sample, is_json=json_)
        return

    def work() -> None:
        from roxxel.runs import verify as verifying

        tell_first = from_first(note if json_ else tell)
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
            say(json.dumps(asdict(each)) if json_ else str(each))
        if check is not None:
            say_checked(check, unconfirmed)
        if not all(each.is_equal for each in found):
            raise Found(
                f"{found[0].run}: is not bit for bit what its folder says, as the "
                "lines above say; on another kind of device, release or mesh the bits "
                "may differ, so verify where the run was trained"
            )

    run_launched(launch, typed, work)


def _audit(run: Run, steps: range | None, sample: int | None, *, is_json: bool) -> None:
    """Compare what a run was fed with its corpora, and its saves with its log.

    Raises:
        Found: A batch or a checkpoint differs.
    """
    from roxxel_train.audit import audit

    sampler = run.sampler(check="blocks")
    if run.has_masks:
        # The digest of a batch covers its tokens only. This call raises an error if a
        # mask is not the one that the run read.
        run.sampler(["tokens", "loss_mask"])
    with Progress("reading steps") as progress:
        try:
            result = audit(
                sampler,
                run.metrics,
                steps=steps,
                sample=sample,
                progress=progress,
            )
        except (ValueError, IndexError) as error:
            raise RunFolderError(f"{run.path}: {error}") from error
    strange = [*_strange_checkpoints(run, steps)]
    _show(result, strange, is_json=is_json)
    if strange:
        raise Found(
            f"{run.path}: {len(strange)} checkpoints are not those that its log "
            "speaks of; restore the run's own folder, or branch from a step before them"
        )
    if not result.is_sound:
        num = len(result.differences)
        differ = (
            "intervals of its log differ" if num > 1 else "interval of its log differs"
        )
        raise Found(
            f"{run.path}: {num} {differ} from what the corpora hold now; verify the "
            "corpora, and find the steps of a damaged block with `roxxel where`"
        )


def _strange_checkpoints(run: Run, steps: range | None) -> Iterator[str]:
    """Yield a line for each checkpoint whose digest differs from the log's."""
    saves = run.files.saves()
    for each in run.checkpoints:
        if steps is not None and not steps.start <= each.step <= steps.stop:
            continue
        logged, recorded = saves.get(each.step), each.extra.get(STATE_DIGEST)
        if logged == recorded:
            continue
        known = "no save" if logged is None else f"the state digest {logged}"
        yield (
            f"checkpoint of step {each.step}: has the state digest {recorded}, and the "
            f"log has {known} at this step, so this run did not save it"
        )


def _show(result: Audit, strange: Sequence[str], *, is_json: bool) -> None:
    if is_json:
        differences = [
            {"start": each.start, "stop": each.stop, "damage": dict(each.damage)}
            for each in result.differences
        ]
        found = {"num_steps": result.num_steps, "differences": differences}
        say(json.dumps({**found, "checkpoints": strange}))
        return
    for line in strange:
        say(line)
    for difference in result.differences:
        say(str(difference))
    if result.is_sound:
        say(f"{result.num_steps} steps: the corpora hold what the run was fed")
