"""Is a run what its folder says? Some of its steps, trained again and compared."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from roxxel_ckpt import CheckpointDamagedError
from roxxel_train import RunFolderError

from roxxel.runs.again import (
    Difference,
    common_steps,
    compare_checkpoints,
    compare_rows,
    compare_saves,
    config_of,
    explanations,
    scratch_folder,
    trained_again,
)
from roxxel.runs.run import Run, open_run

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping

    from roxxel.runs.run import Corpus


_MOST_SHOWN = 6


@dataclass(frozen=True)
class Verification:
    """What `verify` found of an interval.

    Attributes:
        run: Folder or URL of the run.
        start: Updates done at the checkpoint from which it was trained again; 0 for
            the beginning.
        stop: Updates done at its end.
        num_rows: Rows of the log that were compared.
        num_saves: Digests of the state that were compared.
        num_leaves: Leaves of checkpoints that are equal.
        differences: What differs at the first step that does; empty if the interval is
            bit-equal.
        explanations: What may explain it: where devices, releases, mesh or flags are
            others than in the run.
        seconds: Duration of the call.

    Example:
        >>> print(Verification("run", 8, 16, 8, 2, 41, (), (), 3.0))
        run: steps 8 to 16, trained again from the checkpoint of step 8: bit-equal \
(8 rows, 2 state digests, 41 leaves)
    """

    run: str
    start: int
    stop: int
    num_rows: int
    num_saves: int
    num_leaves: int
    differences: tuple[Difference, ...]
    explanations: tuple[str, ...]
    seconds: float

    @property
    def is_equal(self) -> bool:
        """Whether nothing differs."""
        return not self.differences

    def __str__(self) -> str:
        """Return the verdict, and on further lines what differs and may explain it."""
        begin = (
            f"the checkpoint of step {self.start}" if self.start else "the beginning"
        )
        head = (
            f"{self.run}: steps {self.start} to {self.stop}, trained again from {begin}"
        )
        if self.is_equal:
            compared = (
                f"{self.num_rows} rows, {self.num_saves} state digests, "
                f"{self.num_leaves} leaves"
            )
            lines = [f"{head}: bit-equal ({compared})"]
        else:
            first = self.differences[0]
            lines = [f"{head}: differs from step {first.step} on"]
            lines += [f"  {each}" for each in self.differences[:_MOST_SHOWN]]
            more = len(self.differences) - _MOST_SHOWN
            lines += [f"  and {more} more"] * (more > 0)
        return "\n".join([*lines, *(f"  {each}" for each in self.explanations)])


def verify(
    run: str | os.PathLike[str] | Run,
    steps: range | None = None,
    *,
    sample: int | None = None,
    sources: Mapping[str, Corpus] | None = None,
    trust: bool = False,
    say: Callable[[str], object] = lambda _: None,
) -> list[Verification]:
    """Train intervals of a run again in a scratch folder, and compare bit for bit.

    Losses, data digests, state digests and, where a checkpoint stands, every leaf are
    compared. With several processes, all of them make the same call.

    Args:
        run: Folder of a run that `roxxel train` started, or its URL, or the open run.
        steps: Steps to verify, counted as batches. The interval begins at the
            checkpoint at or before the first, and ends where the log has a row or a
            save after the last. None for the whole run from its first checkpoint on.
        sample: Verify this many intervals between checkpoints, the same at every call.
        sources: New locations of sources that moved, as for `open_run`.
        trust: As for `open_run`.
        say: Called with a line before each interval.

    Returns:
        One result for each interval.

    Raises:
        RunFolderError: The run has no config, or has not trained the steps.
        ConfigError: The config is invalid.

    Example:
        >>> try:
        ...     verify("nowhere")
        ... except RunFolderError as error:
        ...     print(error)
        nowhere: there is no such folder; give the folder of a run
    """
    opened = run if isinstance(run, Run) else open_run(run, sources, trust=trust)
    found: list[Verification] = []
    for start, stop in _intervals(opened, steps, sample):
        say(f"training steps {start} to {stop} again")
        found.append(_verified(opened, start, stop))
    return found


def _intervals(
    run: Run, steps: range | None, sample: int | None
) -> list[tuple[int, int]]:
    """Return where each interval begins and ends, in updates done."""
    parent = run.parent
    first = parent.step if parent is not None and parent.is_branch else 0
    saved = [each.step for each in run.checkpoints]
    done = max([*saved, *run.files.saves()], default=0)
    if done <= first:
        raise RunFolderError(
            f"{run.path}: has saved no step, so there is nothing to verify; train the "
            "run until it saves"
        )
    bounds = sorted({first, *saved, done})
    if sample is not None:
        pairs = [*pairwise(bounds)]
        chosen = random.Random(0).sample(pairs, min(sample, len(pairs)))
        return sorted(chosen)
    if steps is None:
        return [(bounds[0] if len(bounds) == 2 else bounds[1], done)]
    if not first <= steps.start < steps.stop <= done:
        raise RunFolderError(
            f"{run.path}: steps {steps.start}:{steps.stop} are not among those that "
            f"the run has saved; choose steps in {first}:{done}"
        )
    start = max(step for step in bounds if step <= steps.start)
    # A step that neither has a row nor was saved has nothing to compare.
    ends = {done, *run.files.saves(), *(row["step"] for row in run.metrics)}
    return [(start, min(step for step in ends if step >= steps.stop))]


def _verified(run: Run, start: int, stop: int) -> Verification:
    began_s = time.monotonic()
    with scratch_folder("verify") as folder:
        again = trained_again(run, start, stop, folder)
        rows = [_rows(each, start, stop) for each in (run, again)]
        different, num_rows = compare_rows(*rows)
        saves = [_saves(each, start, stop) for each in (run, again)]
        if not _saves_at(run, stop):
            saves[1].pop(stop)
        different += compare_saves(*saves)
        leaves, num_leaves = _compare_steps(run, again, start, stop)
        different += leaves
        first = min((each.step for each in different), default=None)
        different = [each for each in different if each.step == first]
        why = tuple(explanations(run, again)) if different else ()
    return Verification(
        run=str(run.path),
        start=start,
        stop=stop,
        num_rows=num_rows,
        num_saves=len(saves[0].keys() & saves[1].keys()),
        num_leaves=num_leaves,
        differences=tuple(different),
        explanations=why,
        seconds=time.monotonic() - began_s,
    )


def _compare_steps(
    run: Run, again: Run, start: int, stop: int
) -> tuple[list[Difference], int]:
    """Compare the checkpoints of an interval; return also how many leaves are equal."""
    found = [
        Difference(step, "checkpoint", "is damaged, and does not say what it holds")
        for step in run.files.checkpoints()[1]
        if start < step <= stop
    ]
    num_leaves = 0
    for step in common_steps(run.files, again.files, start):
        try:
            leaves, equal = compare_checkpoints(run.files, again.files, step)
        except CheckpointDamagedError as error:
            found.append(Difference(step, "checkpoint", f"is damaged ({error})"))
            continue
        found += leaves
        num_leaves += equal
    return found, num_leaves


def _saves(run: Run, start: int, stop: int) -> dict[int, str]:
    saves = run.files.saves().items()
    return {step: digest for step, digest in saves if start <= step <= stop}


def _saves_at(run: Run, step: int) -> bool:
    """Return whether the run has saved a step, or must have; its end is not known."""
    every = config_of(run, step).trainer.saved_every
    is_due = every is not None and step % every == 0
    kept = {each.step for each in run.checkpoints}
    return is_due or step in kept or step in run.files.saves()


def _rows(run: Run, start: int, stop: int) -> list[dict[str, Any]]:
    return [row for row in run.metrics if start < row["step"] <= stop]
