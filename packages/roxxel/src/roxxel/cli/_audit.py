"""`roxxel verify --data`: compares what a run was fed with its corpora."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from roxxel_ckpt.values import STATE_DIGEST
from roxxel_store.command import Found, Progress
from roxxel_store.screen import say
from roxxel_train import RunFolderError

from roxxel.cli._runs import Sources, opened

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from roxxel_train.audit import Audit

    from roxxel.runs.run import Run


def audit(
    run: str, source: Sources, steps: range | None, sample: int | None, *, is_json: bool
) -> None:
    """Compare what a run was fed with its corpora, and its saves with its log.

    Raises:
        Found: A batch or a checkpoint differs.
    """
    from roxxel_train.audit import audit as compared

    opened_run = opened(run, source)
    sampler = opened_run.sampler(check="blocks")
    if opened_run.has_masks:
        # The digest of a batch covers its tokens only. This call raises an error if a
        # mask is not the one that the run read.
        opened_run.sampler(["tokens", "loss_mask"])
    with Progress("reading steps") as progress:
        try:
            result = compared(
                sampler,
                opened_run.metrics,
                steps=steps,
                sample=sample,
                progress=progress,
            )
        except (ValueError, IndexError) as error:
            raise RunFolderError(f"{run}: {error}") from error
    strange = [*_strange_checkpoints(opened_run, steps)]
    _show(result, strange, is_json=is_json)
    if strange:
        raise Found(
            f"{run}: {len(strange)} checkpoints are not those that its log "
            "speaks of; restore the run's own folder, or branch from a step before them"
        )
    if not result.is_sound:
        num = len(result.differences)
        differ = (
            "intervals of its log differ" if num > 1 else "interval of its log differs"
        )
        raise Found(
            f"{run}: {num} {differ} from what the corpora hold now; verify the "
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
