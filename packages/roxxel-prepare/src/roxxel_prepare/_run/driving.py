"""Choose who runs the units of a job, run those that are not done, show the progress.

A job writes a corpus, or searches one. Both divide their work into units, which a
runner gives to processes. A unit that is done is never done again.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol, cast

from roxxel_store.arguments import as_integer
from roxxel_store.output import is_full
from roxxel_store.screen import note

from roxxel_prepare._run.progress import Progress
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


class SizedUnit(Protocol):
    """A unit of a job; its text names its input in messages."""

    @property
    def num_bytes(self) -> int:
        """Size of its input."""
        ...


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
    show = progress or _ignore
    show(state)
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
            show(state)
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


def _ignore(_: Progress) -> None:
    """Show nothing."""
