"""Is a run what its folder says? Train some of its steps again, and compare."""

from __future__ import annotations

import os
import random
import time
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from roxxel_ckpt import CheckpointDamagedError
from roxxel_store.screen import counted
from roxxel_store.urls import check_on_disk, expanded
from roxxel_train import RunFolderError

from roxxel.runs._receipts import (
    VERIFY_RECEIPTS,
    Environment,
    Interval,
    TheRun,
    VerifyReceipt,
    run_of,
    unconfirmed,
)
from roxxel.runs.again import (
    config_of,
    explanations,
    scratch_folder,
    trained_again,
)
from roxxel.runs.compared import (
    Parting,
    common_steps,
    compare_checkpoints,
    compare_rows,
    compare_saves,
    of_checkpoint,
)
from roxxel.runs.run import Run, open_run

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from roxxel.runs.run import Corpus


_MOST_SHOWN = 6


@dataclass(frozen=True)
class Verification:
    """The result of `verify` for an interval.

    Attributes:
        run: Folder or URL of the run.
        start: Updates done at the checkpoint from which the interval was trained again;
            0 for the beginning.
        stop: Updates done at its end.
        num_rows: Number of compared rows of the log.
        num_saves: Number of compared digests of the state.
        num_leaves: Number of equal leaves of checkpoints.
        differences: The differences at the first step with any; empty if the interval
            is equal bit for bit.
        explanations: What may explain the differences: devices, releases, mesh or flags
            that differ from the run's.
        seconds: Duration of the call.
        losses: The losses that were computed now, by step.
        feeds: The digests of the data that was read now, by step.
        states: The digests of the state that were computed now, by step.

    Example:
        >>> print(Verification("run", 8, 16, 8, 2, 41, (), (), 3.0))
        run: steps 8 to 16, trained again from the checkpoint of step 8: bit-equal \
(8 rows of the log, 2 digests of the state, 41 arrays of checkpoints)
    """

    run: str
    start: int
    stop: int
    num_rows: int
    num_saves: int
    num_leaves: int
    differences: tuple[Parting, ...]
    explanations: tuple[str, ...]
    seconds: float
    losses: Mapping[int, float] = field(default_factory=dict[int, float], repr=False)
    feeds: Mapping[int, str] = field(default_factory=dict[int, str], repr=False)
    states: Mapping[int, str] = field(default_factory=dict[int, str], repr=False)

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
                f"{counted(self.num_rows, 'row')} of the log, "
                f"{counted(self.num_saves, 'digest')} of the state, "
                f"{counted(self.num_leaves, 'array')} of checkpoints"
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
    receipt: str | os.PathLike[str] | None = None,
    sources: Mapping[str, Corpus] | None = None,
    trust: bool = False,
    say: Callable[[str], object] = lambda _: None,
) -> list[Verification]:
    """Train intervals of a run again in a scratch folder, and compare bit for bit.

    Losses, data digests, state digests and, where a checkpoint stands, every leaf are
    compared. With several processes, all of them make the same call.

    Args:
        run: Folder of a run, or its URL, or the open run. If a Python program started
            it, `roxxel.models.llama` has made its model, optimizer and loss function.
        steps: Steps to verify, counted as batches. The interval begins at the
            checkpoint at or before the first, and ends where the log has a row or a
            save after the last. None for the whole run from its first checkpoint on.
        sample: Verify this many intervals between checkpoints, the same at every call.
        receipt: File for the results, which `check_verify` compares. With several
            processes, the first one writes it.
        sources: New locations of sources that moved, as for `open_run`.
        trust: As for `open_run`.
        say: Called with a line before each interval, and a few about its progress.

    Returns:
        One result for each interval.

    Raises:
        RunFolderError: The run has no config and does not follow from its log, or it
            has not trained the steps.
        ConfigError: The config is invalid.

    Example:
        >>> try:
        ...     verify("nowhere")
        ... except RunFolderError as error:
        ...     print(error)
        nowhere: there is no such folder; give the folder of a run
    """
    opened = run if isinstance(run, Run) else open_run(run, sources, trust=trust)
    if receipt is not None:
        check_on_disk(os.fspath(receipt), "give --receipt a file there", RunFolderError)
    found, made = _all_verified(opened, _intervals(opened, steps, sample), say)
    if receipt is not None:
        VERIFY_RECEIPTS.write(expanded(receipt), made)
    return found


def check_verify(
    receipt: str | os.PathLike[str],
    run: str | os.PathLike[str] | None = None,
    *,
    sources: Mapping[str, Corpus] | None = None,
    trust: bool = False,
    say: Callable[[str], object] = lambda _: None,
) -> tuple[list[Verification], list[str]]:
    """Verify the intervals of a receipt again, and compare all its facts.

    Args:
        receipt: The file that `verify` wrote, on this or on another machine.
        run: Where the run is now; None means the folder of its name next to the
            receipt.
        sources: As for `verify`.
        trust: As for `verify`.
        say: As for `verify`; also gets what differs in machine and software.

    Returns:
        What `verify` returns now, and the facts of the receipt that are not confirmed,
        after those by which machine and software differ.

    Raises:
        RunFolderError: The file is not a receipt of `verify`, its run is not next to it
            and no `run` is given, or the run has lost a checkpoint from which an
            interval began.

    Example:
        >>> try:
        ...     check_verify("receipt.json")
        ... except RunFolderError as error:
        ...     print(error)
        receipt.json: there is no such file; give the receipt that `roxxel verify` wrote
    """
    path = expanded(receipt)
    then = VERIFY_RECEIPTS.read(path)
    opened, other = run_of(path, then, run, sources, trust=trust)
    if other:
        return [], other
    intervals = [(start, each.stop) for start, each in then.intervals.items()]
    bounds = _bounds(opened)
    for start, stop in intervals:
        if start not in bounds or not start < stop <= bounds[-1]:
            raise RunFolderError(
                f"{path}: steps {start} to {stop} cannot be trained again, because "
                f"{opened.path} begins at step {bounds[0]}, is saved up to step "
                f"{bounds[-1]} and has the checkpoints "
                f"{', '.join(map(str, bounds[1:]))}; give a copy of the run with a "
                f"checkpoint of step {start}"
            )
    found, now = _all_verified(opened, intervals, say)
    return found, unconfirmed(then, now, say)


def _all_verified(
    run: Run, intervals: Sequence[tuple[int, int]], say: Callable[[str], object]
) -> tuple[list[Verification], VerifyReceipt]:
    found: list[Verification] = []
    environment = Environment({}, {}, [], None, "")
    for start, stop in intervals:
        result, environment = _verified(run, start, stop, say)
        found.append(result)
    names = Interval.__struct_fields__
    receipt = VerifyReceipt(
        run=TheRun.of(run),
        corpora=run.fingerprints(),
        environment=environment,
        intervals={
            each.start: Interval(**{name: getattr(each, name) for name in names})
            for each in found
        },
    )
    return found, receipt


def _intervals(
    run: Run, steps: range | None, sample: int | None
) -> list[tuple[int, int]]:
    """Return where each interval begins and ends, in updates done."""
    bounds = _bounds(run)
    first, done = bounds[0], bounds[-1]
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


def _bounds(run: Run) -> list[int]:
    """Return where intervals may begin, and last where the newest one ends."""
    first = run.files.first_step
    saved = [each.step for each in run.checkpoints]
    done = max([*saved, *run.files.saves()], default=0)
    if done <= first:
        raise RunFolderError(
            f"{run.path}: has no checkpoint of ours, so no step can be trained again; "
            "verify a run of `roxxel train` or of `Trainer`, after its first save"
        )
    return sorted({first, *saved, done})


def _verified(
    run: Run, start: int, stop: int, say: Callable[[str], object]
) -> tuple[Verification, Environment]:
    began_s = time.monotonic()
    with scratch_folder("verify") as folder:
        again = trained_again(run, start, stop, folder, say)
        rows = [_rows(each, start, stop) for each in (run, again)]
        different, num_rows = compare_rows(*rows)
        saves = [_saves(each, start, stop) for each in (run, again)]
        if not _saves_at(run, stop):
            saves[1].pop(stop)
        different += compare_saves(*saves)[0]
        leaves, num_leaves = _compare_steps(run, again, start, stop)
        different += leaves
        first = min((each.step for each in different), default=None)
        different = [each for each in different if each.step == first]
        why = tuple(explanations(run, again)) if different else ()
        environment = Environment.of(again)
    trained = [row for row in rows[1] if row["kind"] == "train"]
    found = Verification(
        run=str(run.path),
        start=start,
        stop=stop,
        num_rows=num_rows,
        num_saves=len(saves[0].keys() & saves[1].keys()),
        num_leaves=num_leaves,
        differences=tuple(different),
        explanations=why,
        seconds=time.monotonic() - began_s,
        losses={row["step"]: row["loss"] for row in trained},
        feeds={row["step"]: row["digest"] for row in trained},
        states=saves[1],
    )
    return found, environment


def _compare_steps(
    run: Run, again: Run, start: int, stop: int
) -> tuple[list[Parting], int]:
    found = [
        of_checkpoint(step, "description", "is damaged")
        for step in run.files.checkpoints()[1]
        if start < step <= stop
    ]
    num_leaves = 0
    for step in common_steps(run.files, again.files, start):
        try:
            leaves, equal = compare_checkpoints(run.files, again.files, step)
        except CheckpointDamagedError as error:
            found.append(of_checkpoint(step, "files", f"are damaged ({error})"))
            continue
        found += leaves
        num_leaves += equal
    return found, num_leaves


def _saves(run: Run, start: int, stop: int) -> dict[int, str]:
    saves = run.files.saves().items()
    return {step: digest for step, digest in saves if start <= step <= stop}


def _saves_at(run: Run, step: int) -> bool:
    """Return whether the run has, or must have, saved a step."""
    every = config_of(run, step).trainer.saved_every
    is_due = every is not None and step % every == 0
    kept = {each.step for each in run.checkpoints}
    return is_due or step in kept or step in run.files.saves()


def _rows(run: Run, start: int, stop: int) -> list[dict[str, Any]]:
    return [row for row in run.metrics if start < row["step"] <= stop]
