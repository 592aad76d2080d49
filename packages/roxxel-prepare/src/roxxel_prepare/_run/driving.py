"""Choose who runs the units of a job, run those that are not done, show the progress.

A job writes a corpus, or searches one. Both divide their work into units, which a
runner gives to processes. A unit that is done is never done again.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, cast

from roxxel_store.arguments import as_integer
from roxxel_store.output import is_full
from roxxel_store.screen import note, short_count, short_duration, short_size

from roxxel_prepare._run.ray_runner import RayRunner
from roxxel_prepare._run.runners import ProcessRunner

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from roxxel_prepare._plan.units import UnitDone
    from roxxel_prepare._run.runners import Runner, Writer

_MOST_ALIKE = 8
"""The run ends when this many units have failed with one kind of error and none has
succeeded.
"""

_count, _size = partial(short_count, digits=3), partial(short_size, digits=3)


class SizedUnit(Protocol):
    """A unit of a job; its text names its input in messages."""

    @property
    def num_bytes(self) -> int:
        """Size of its input."""
        ...


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of all units of a preparation, or of one part.

    Attributes:
        num_units: All units.
        num_bytes: Size of all inputs.
        num_done: Units that are done, in this run or before.
        num_failed: Units that failed in this run.
        num_retries: How often units were started again after a worker or its node died.
        done_bytes: Size of the inputs of units that are done.
        num_documents: Documents of units that are done.
        num_tokens: Tokens of units that are done.
        new_bytes: Size of the inputs of units that this run has written.
        new_tokens: Tokens that this run has written.
        duration_s: Seconds since this run began to write.
        is_stopped: Whether this run writes no further units.

    Example:
        >>> print(Progress(num_units=9, num_bytes=8000, num_tokens=5))
        0 of 9 units, 0 B of 8 kB, 5 tokens, 0 documents
    """

    num_units: int
    num_bytes: int
    num_done: int = 0
    num_failed: int = 0
    num_retries: int = 0
    done_bytes: int = 0
    num_documents: int = 0
    num_tokens: int = 0
    new_bytes: int = 0
    new_tokens: int = 0
    duration_s: float = 0.0
    is_stopped: bool = False

    @property
    def is_end(self) -> bool:
        """Whether every unit is done or failed, or this run stopped."""
        return self.is_stopped or self.num_done + self.num_failed == self.num_units

    def with_done(self, records: Sequence[UnitDone]) -> Progress:
        """Return the progress after units that were done before this run."""
        return replace(
            self,
            num_done=self.num_done + len(records),
            done_bytes=self.done_bytes + sum(each.input_bytes for each in records),
            num_documents=self.num_documents
            + sum(each.num_documents for each in records),
            num_tokens=self.num_tokens + sum(each.num_tokens for each in records),
        )

    def with_new(self, record: UnitDone, duration_s: float) -> Progress:
        """Return the progress after a unit that this run has written."""
        return replace(
            self.with_done([record]),
            new_bytes=self.new_bytes + record.input_bytes,
            new_tokens=self.new_tokens + record.num_tokens,
            duration_s=duration_s,
        )

    def __str__(self) -> str:
        # A terminal cuts the end of the line.
        parts = [f"{self.num_done} of {self.num_units} units"]
        if self.num_failed:
            parts.append(f"{self.num_failed} failed")
        if self.num_retries:
            ending = "y" if self.num_retries == 1 else "ies"
            parts.append(f"{self.num_retries} retr{ending}")
        has_rate = self.new_bytes and self.duration_s
        if has_rate:
            left_bytes = self.num_bytes - self.done_bytes
            left = short_duration(left_bytes * self.duration_s / self.new_bytes)
            end = "stopped" if self.is_stopped else "done"
            parts.append(end if self.is_end else f"{left} left")
        parts.append(f"{_size(self.done_bytes)} of {_size(self.num_bytes)}")
        if has_rate:
            rate = round(self.new_tokens / self.duration_s)
            parts.append(f"{_count(rate)} tokens/s")
        parts.append(f"{_count(self.num_tokens)} tokens")
        parts.append(f"{_count(self.num_documents)} documents")
        return ", ".join(parts)


def runner_of(workers: int | None, ray: str | None) -> Runner | None:
    """Return the runner of units; None if the size of the inputs decides."""
    if ray is not None and workers not in (None, 1):
        raise ValueError(
            f"ray={ray!r} and workers={workers}: units are written by tasks of Ray or "
            "by processes; pass only one of these"
        )
    if workers is not None:
        as_integer("workers", workers, 1)
    if ray is not None:
        return RayRunner(ray or None)
    return None if workers is None else ProcessRunner(workers)


def check_part(part: object) -> None:
    """Raise ValueError for an invalid part."""
    if part is None:
        return
    is_pair = isinstance(part, (tuple, list)) and len(cast("Any", part)) == 2
    member, count = cast("Any", part if is_pair else (0, 0))
    if not 0 <= as_integer("part", member) < as_integer("part", count):
        raise ValueError(f"part={part!r} must be (i, n) with i in [0, n), as (0, 8)")


def run_units(
    what: str,
    units: Sequence[SizedUnit],
    numbers: Sequence[int],
    done: Mapping[int, UnitDone],
    writer: Writer,
    runner: Runner,
    progress: Callable[[Progress], None] | None,
) -> None:
    """Do the units that are not done; raise the error of the first unit that failed.

    Args:
        what: The corpus, for messages.
        units: All units of the job.
        numbers: The units to do.
        done: What the units count that are done.
        writer: Does a unit, in any process.
        runner: Runs the writer.
        progress: Called before the first unit, and when a unit ends.
    """
    missing = [number for number in numbers if number not in done]
    if done:
        note(f"{what}: {len(done)} of {len(numbers)} units are done already")
    state = Progress(len(numbers), sum(units[at].num_bytes for at in numbers))
    state = state.with_done([*done.values()])
    if progress is not None:
        progress(state)
    errors: dict[int, Exception] = {}
    began = time.perf_counter()
    with contextlib.closing(runner.run(writer, missing)) as outcomes:
        for outcome in outcomes:
            elapsed = time.perf_counter() - began
            if outcome.record is not None:
                state = state.with_new(outcome.record, elapsed)
            elif outcome.error is not None:
                unit = units[outcome.number]
                errors[outcome.number] = _naming(unit, outcome.error)
                state = replace(state, num_failed=len(errors), duration_s=elapsed)
                # Every later unit would fail too, after it is tokenized.
                stops = is_full(outcome.error) or _are_alike(errors, state)
                state = replace(state, is_stopped=stops)
            else:
                retries = state.num_retries + 1
                state = replace(state, num_retries=retries, duration_s=elapsed)
            if progress is not None:
                progress(state)
            if state.is_stopped:
                break
    if not errors:
        return
    if len(units) > 1:
        note(f"{what}: {_failure(state)}")
    raise errors[min(errors)]


def _naming(unit: SizedUnit, error: Exception) -> Exception:
    """Return the error of a unit; if a worker died, add the names of the unit's inputs.

    All other errors name their input already.
    """
    if not isinstance(error, ChildProcessError):
        return error
    named = ChildProcessError(f"{unit}: {error}")
    named.__cause__ = error.__cause__
    return named


def _are_alike(errors: Mapping[int, Exception], state: Progress) -> bool:
    """Return whether units fail alike and none succeeds, as the others would too."""
    kinds = {type(error) for error in errors.values()}
    return len(errors) >= _MOST_ALIKE and len(kinds) == 1 and not state.num_done


def _failure(state: Progress) -> str:
    """Describe how many units failed, and which results are kept."""
    failed = f"{state.num_failed} of {state.num_units} units failed"
    if state.is_stopped:
        return f"{failed} and stopped the others; {state.num_done} are done and kept"
    return f"{failed}; the other {state.num_done} are kept"
