"""Compose the lines of a run's log, and the summary of a call of `Trainer.run`.

`Session` decides when a line is due; this module composes it. Lines go to `system.log`
and to the terminal; values of single updates are metrics rows instead. "step k" is the
moment when k updates are done, before the update that reads batch k. Lines and rows are
in order of their steps: a line about step k is written when the loss of update k is
read, after the metrics row of this update.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from dataclasses import dataclass
from datetime import UTC, datetime
from heapq import merge
from itertools import pairwise
from math import isclose
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from roxxel_ckpt import CheckpointError
from roxxel_store.records import find_object
from roxxel_store.screen import counted

from roxxel_train._files.folder import shown
from roxxel_train.errors import Preempted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from roxxel_ckpt import Checkpointer, SaveRecord
    from roxxel_curriculum import MixPlan, Sampler

    from roxxel_train._log.logger import Logger
    from roxxel_train.goodput import Goodput

Planned = tuple[int, str]
"""A number of updates, and a line that is due when these updates are done."""

Coming = dict[str, tuple[int, int] | None]
"""By source, the step at which it next begins an epoch, and the epoch; None if never.
"""


class PlannedLines:
    """The lines about the plan that are not logged yet."""

    def __init__(self, log: Logger, lines: Iterator[Planned]) -> None:
        self._log = log
        self._lines = lines
        self._next = next(lines, None)

    def log(self, step: int) -> None:
        """Log the lines that are due after `step` updates."""
        while self._next is not None and self._next[0] <= step:
            self._log.info(self._next[1])
            self._next = next(self._lines, None)


@dataclass(frozen=True)
class RunSummary:
    """The result of one call of `Trainer.run`.

    Attributes:
        start_step: Updates done before this call.
        step: Updates done now.
        total_steps: Updates in the whole curriculum.
        loss: Loss of the last update; None if this call made no update.
        eval_loss: Mean loss of the last evaluation of `eval_curriculum`; None without
            `eval_curriculum`, even if `eval_fn` returns an `"eval_loss"`.
        evaluation: Last result of `eval_fn`, or None.
        tokens: Tokens delivered by this call.
        seconds: Duration of this call.
        waited_s: Seconds of this call in which the loop waited for data.
        save_path: Folder of the run, as text if it is a URL; None if the run writes no
            files.
        stop_reason: What `Trainer.stop` was given, or that `until` is reached, if one
            of them ended this call; else None.

    Example:
        >>> print(RunSummary(0, 9, 10, 2.5, None, None, 0, 4.0, 0.1, None))
        stopped: 9 of 10 steps, loss 2.5000
    """

    start_step: int
    step: int
    total_steps: int
    loss: float | None
    eval_loss: float | None
    evaluation: Any
    tokens: int
    seconds: float
    waited_s: float
    save_path: Path | str | None
    stop_reason: str | None = None

    @property
    def complete(self) -> bool:
        """Whether all steps of the curriculum are done."""
        return self.step == self.total_steps

    def __str__(self) -> str:
        """Return the summary as one line."""
        parts = [f"{self.step} of {self.total_steps} steps"]
        if self.loss is not None:
            parts.append(f"loss {self.loss:.4f}")
        if self.eval_loss is not None:
            parts.append(f"held-out loss {self.eval_loss:.4f}")
        if self.tokens:
            share = self.waited_s / self.seconds
            parts.append(f"{self.tokens:,} tokens in {self.seconds:.1f} s")
            parts.append(f"{share:.1%} of it waiting for data")
        if self.save_path is not None:
            parts.append(shown(self.save_path))
        how = "done" if self.complete else "stopped"
        if self.stop_reason is not None:
            how += f" ({self.stop_reason})"
        return f"{how}: {', '.join(parts)}"


def opening(
    sampler: Sampler,
    step: int,
    coming: Coming,
    first: int,
    origin: Mapping[str, Any] | None,
    seconds: float,
) -> list[str]:
    """Return the first lines of a run, which starts or resumes after `step` updates.

    `coming` has the next epochs. `first` is the step of the checkpoint from which a
    branch begins, else 0. `seconds` is how long the start took so far, most of it to
    restore a checkpoint. `origin` has the path and the step of another run's checkpoint
    from which this run starts.
    """
    total = sampler.total_steps
    if step == total:
        more = _because(sampler)
        return [f"already complete: {total} of {total} steps are done{more}"]
    if step > first:
        lines = [f"resumed from step {step} of {total} in {seconds:.2f} s"]
    else:
        phases = counted(len({phase.index for phase in sampler.phases}), "phase")
        lines = [f"starts: {total} steps in {phases}"]
    lines.append(_epochs(sampler, step, coming))
    if sampler.ended is not None:
        lines.append(f"ends early: {sampler.ended}")
    if step == first and origin is not None:
        how = "as a branch" if first else "with the weights"
        step_of = "" if origin["step"] is None else f"step {origin['step']} of "
        lines.append(f"begins {how} of {step_of}{origin['path']}")
    return lines


def end_row(
    step: int,
    error: BaseException | None,
    spent: Goodput | None,
    *,
    is_complete: bool,
) -> dict[str, Any]:
    """Return the row of an ending; see `roxxel_train.starts`."""
    status = "complete" if is_complete else "stopped"
    if error is not None and not isinstance(error, Preempted):
        status = "ended with an error"
    row: dict[str, Any] = {"step": step, "time": _now(), "status": status}
    if error is not None:
        row["error"] = type(error).__name__
    if spent is not None:
        row["kept"] = spent.share
    return row


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


UNSAVED = (
    "nothing is saved: if this program ends early, all is lost; give save_path= to "
    "write checkpoints and metrics"
)
"""The line at the start of a run without a folder and without checkpoints."""

IN_THREAD = (
    "signals are the caller's, because run() is not in the main thread: call "
    "trainer.stop() to save and end the run, from any thread or signal handler"
)
"""The line at the start of a run in a thread, in which Python handles no signals."""


def trained_before(num_updates: int) -> str | None:
    """Return a line about updates that a new run did not make; None if there are none.

    A program may make several trainers of one model by mistake.
    """
    if not num_updates:
        return None
    return (
        f"the optimizer has already counted {counted(num_updates, 'update')}, so this "
        "new run begins with weights that were trained; to begin afresh, make a new "
        "model and optimizer"
    )


def changed_rate(before: float | None, now: float | None, step: int) -> str | None:
    """Return a line about a learning rate that this start has changed, or None.

    Both are rates of the update after `step`: one by the settings at the restored
    checkpoint, one by the settings of this start.
    """
    if before is None or now is None or isclose(before, now, rel_tol=1e-6):
        return None
    line = (
        f"step {step}: the learning rate of the next update is {now:.4g}; with the "
        f"settings of the checkpoint it would be {before:.4g}. The schedule changed, "
        "or follows the new end of the run"
    )
    if now < before:
        return line
    return (
        f"{line}. If its decay had begun, the loss may rise first; to avoid this, "
        "branch from a checkpoint before the decay"
    )


def changed_model(before: str | None, now: str | None, step: int) -> str | None:
    """Return a line about what makes another model than the checkpoint's, or None.

    Both are what a model's attribute `made_by` says, None if it says nothing.
    """
    old, new = (find_object((text or "").encode()) or {} for text in (before, now))
    if not all(isinstance(each.get("args"), dict) for each in (old, new)):
        return None
    old, new = ({**x["args"], "function": x.get("function")} for x in (old, new))
    # The steps of a schedule change with every longer run; `changed_rate` looks at it.
    changed = [
        f"{name} = {json.dumps(new.get(name))} (before: {json.dumps(old.get(name))})"
        for name in sorted({*old, *new} - {"total_steps"})
        if old.get(name) != new.get(name)
    ]
    if not changed:
        return None
    return (
        f"step {step}: the model is not made as that of the checkpoint: "
        f"{', '.join(changed)}"
    )


def ended_rate(
    rate_at: Callable[[int], float], start: int, total: int
) -> Iterator[str]:
    """Yield a line if the learning rate has decayed long before the run ends.

    `rate_at` maps a number of updates to the rate of the next. The line is about the
    updates after `start`; `total` is the number of all updates.
    """
    final = float(rate_at(total - 1))

    def is_final(step: int) -> bool:
        return isclose(rate_at(step), final, rel_tol=1e-6)

    end = start + bisect_left(range(start, total - 1), x=True, key=is_final)
    left = total - end
    # A few of the earlier rates tell a decay from a rate that was always this one.
    earlier = (rate_at(end * part // 64) for part in range(64))
    if left > max(1, total // 100) and max(map(float, earlier)) > final * (1 + 1e-6):
        yield (
            f"the learning rate has decayed to {final:.4g} by step {end}, and stays "
            f"there for {left} steps; let the schedule end at step {total} if that is "
            "not what you want"
            + ("" if end > start else ", and branch from a checkpoint before the decay")
        )


def uploads(folder: Path, url: Path | str) -> str:
    """Return the line about the local files of a run in a bucket."""
    return f"writes to {folder} and uploads to {url} at every checkpoint and at the end"


def next_epochs(sampler: Sampler, step: int) -> Coming:
    """Return where each source next begins an epoch, at `step` or later."""
    return {name: sampler.next_epoch(name, step) for name in sampler.source_names}


def planned(
    sampler: Sampler, start: int, coming: Coming, every: int
) -> Iterator[Planned]:
    """Yield the lines about phases, blends, skipped data and epochs, in order of steps.

    The first line is about step `start` or later; `coming` has the next epochs. The
    iterator is lazy. A source has at most one line about epochs in `every` steps.
    """
    at_step = itemgetter(0)
    rest = sorted(
        [
            *_of_phases(sampler, start),
            *_of_withdrawals(sampler, start),
        ],
        key=at_step,
    )
    epochs = (_of_epochs(sampler, *each, every) for each in coming.items())
    return merge(rest, *epochs, key=at_step)


def evaluation(step: int, seconds: float, values: Mapping[str, Any]) -> str:
    """Return the line of an evaluation: duration, numbers, then texts."""
    numbers = [f"{n} {x:.5g}" for n, x in values.items() if isinstance(x, float)]
    texts = [
        x if name == "text" else f"{name}: {x}"
        for name, x in values.items()
        if not isinstance(x, float)
    ]
    line = ", ".join([f"step {step}: evaluated in {seconds:.1f} s", *numbers])
    return "; ".join([line, *texts])


def spent(goodput: Goodput) -> str:
    """Return the line that says where most of the wall time of all starts went."""
    return f"wall time: {goodput.line(2)}"


def failed_log(step: int, reason: str, is_saved: bool) -> str:
    """Return the error of a run whose log cannot be written, with the `reason`."""
    saved = "which is saved with the missing rows of metrics; " if is_saved else ""
    return (
        f"the log cannot be written ({reason}), so the run stopped after step {step}, "
        f"{saved}repair or empty the disk and start the run again"
    )


def requested_save(step: int) -> str:
    """Return the line of a checkpoint that a signal or `Trainer.save` requested."""
    return f"step {step}: saves a checkpoint on request"


def saved(record: SaveRecord) -> str:
    """Return the line of the first save, and of a save that copies in another way."""
    seconds = f"{record.blocking_s:.2f} s"
    if record.is_snapshot:
        return (
            f"step {record.step}: copied in {seconds} on the devices; the copy is "
            "saved behind the next steps"
        )
    return (
        f"step {record.step}: waited {seconds} for the copy to the host, because the "
        "devices have no room for a second one"
    )


def failed_save(step: int, after: BaseException, error: Exception) -> str:
    """Return the line of a save that failed while the run ended with an error."""
    return f"step {step} could not be saved after {type(after).__name__}: {error}"


def ending(error: BaseException | None, sampler: Sampler, saved: str) -> str:
    """Return the last line of a run; `saved` says what is saved."""
    if isinstance(error, Preempted):
        return str(error)
    if error is not None:
        return f"{type(error).__name__} ended the run; {saved}"
    total = sampler.total_steps
    return f"complete: {total} of {total} steps are done{_because(sampler)}; {saved}"


def stopped(step: int, reason: str, saved: str) -> str:
    """Return the last line of a run that `Trainer.stop` or `until=` ended."""
    return f"stopped after step {step}: {reason}; {saved}"


def what_is_saved(checkpointer: Checkpointer | None) -> str:
    """Return which step is saved, to end a sentence."""
    try:
        latest = None if checkpointer is None else checkpointer.latest_step
    except (CheckpointError, OSError):  # must not replace the error of the run
        return "which step is saved cannot be read now"
    return "nothing is saved" if latest is None else f"step {latest} is saved"


def _because(sampler: Sampler) -> str:
    return "" if sampler.ended is None else f", because {sampler.ended}"


def _epochs(sampler: Sampler, step: int, coming: Coming) -> str:
    """Return the line with the epochs of every source, in total and so far."""
    read, all_read = sampler.epochs(step), sampler.epochs(sampler.total_steps)
    parts: list[str] = []
    for name, epochs in all_read.items():
        part = f"{name} {epochs:.3g}"
        if step:
            part = f"{name} {read[name]:.3g} of {epochs:.3g}"
        found = coming[name]
        if found is not None:
            at, epoch = found
            part += f" (begins its {_ordinal(epoch + 1)} epoch at step {at})"
        parts.append(part)
    return f"epochs {'read so far' if step else 'to read'}: {', '.join(parts)}"


def _of_phases(sampler: Sampler, start: int) -> Iterator[Planned]:
    for phase in sampler.phases:
        begin = max(start, phase.start)
        steps = phase.stop - begin
        if steps <= 0:
            continue
        does = "begins"
        if begin > phase.start or phase.is_edited:
            does = "continues, edited" if phase.is_edited else "continues"
        # A source may run out within the last step. No mix then covers this step, and
        # `<=` finds the mix that stops before it.
        mixes = phase.mixes
        blend = next(mix for mix in mixes if begin <= mix.stop)
        line = (
            f"step {begin}: phase {phase.index} {does}: {steps} "
            f"step{'' if steps == 1 else 's'} of {phase.batch_size} x {phase.seq_len} "
            f"tokens, {_percent(sampler, blend)}"
        )
        spent = ", ".join(phase.spent)
        if spent:
            line += f"; {spent} has no data left"
        yield begin, line
        for before, after in pairwise(mixes):
            if after.start >= begin:
                gone = ", ".join(sorted(before.shares.keys() - after.shares.keys()))
                left = _percent(sampler, after)
                yield after.start, f"step {after.start}: {gone} runs out; then {left}"
        for skip in phase.skips:
            at = phase.start + skip.at
            if at >= start:
                yield at, f"step {at}: skips the data of {skip.steps} steps"


def _of_withdrawals(sampler: Sampler, start: int) -> Iterator[Planned]:
    for each in sampler.withdrawals:
        if each.step >= start:
            line = (
                f"{each.amount} of {each.source} withdrawn: loss_mask is 0 on the "
                "tokens from here on"
            )
            if each.is_empty:
                line = f"all documents of {each.source} are learned again from here on"
            yield each.step, f"step {each.step}: {line}"


def _of_epochs(
    sampler: Sampler, name: str, coming: tuple[int, int] | None, every: int
) -> Iterator[Planned]:
    while coming is not None:
        at, epoch = coming
        begins = f"begins its {_ordinal(epoch + 1)} epoch (epoch {epoch})"
        yield at, f"step {at}: {name} {begins}: its tokens repeat"
        # A source has at most one line between two metrics rows.
        step = min(at - at % every + every, sampler.total_steps)
        coming = sampler.next_epoch(name, step)


def _ordinal(number: int) -> str:
    """Return a positive number as text, such as `2nd`."""
    is_teen = number % 100 in range(11, 14)
    ending = "th" if is_teen else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def _percent(sampler: Sampler, mix: MixPlan) -> str:
    """Return the shares of a mix, with the sources in the order of the sampler."""
    names = [name for name in sampler.source_names if name in mix.shares]
    return ", ".join(f"{name} {100 * mix.shares[name]:.3g}%" for name in names)
