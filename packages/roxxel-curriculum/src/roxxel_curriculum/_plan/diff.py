"""Compares two plans: lists the changes, and finds the first step that changes."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from roxxel_curriculum._order.rounds import cut_spans
from roxxel_curriculum._plan.tables import notes_on_longest
from roxxel_curriculum._plan.withdrawn import amount

if TYPE_CHECKING:
    from collections.abc import Iterator

    from roxxel_curriculum._plan.figures import PhasePlan, PlanFigures


@dataclass(frozen=True, slots=True)
class PlanDiff:
    """The changes between two plans. `bool(diff)` is False if nothing changes.

    Attributes:
        step: The first step whose batch may change; None if no batch changes.
        changes: One sentence for each change.
        causes: Those of them that change batches, not totals or notes.

    Example:
        >>> from roxxel_curriculum.testing import PositionReader
        >>> curriculum = Curriculum(PositionReader(10_000), [Phase(9, 4, 129)])
        >>> longer = Curriculum(PositionReader(10_000), [Phase(12, 4, 129)])
        >>> found = curriculum.plan().diff(longer.plan())
        >>> found.step, found.changes[0]
        (9, 'phase 0 has 12 steps instead of 9')
    """

    step: int | None
    changes: tuple[str, ...]
    causes: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.changes)

    def __str__(self) -> str:
        if self.step is None:
            head = "every batch is the same"
        elif self.step == 0:
            head = "every batch changes"
        else:
            head = f"batches change from step {self.step:,} on"
        return "\n".join([head, *(f"- {change}" for change in self.changes)])


class _Change(NamedTuple):
    """A change, and the first step whose batch it changes.

    `step` is None if no batch changes, or if another `_Change` has the step.
    """

    step: int | None
    text: str


def compare_plans(before: PlanFigures, after: PlanFigures) -> PlanDiff:
    """Return the changes from `before` to `after`."""
    steps: list[int] = []
    changes: list[str] = []
    causes: list[str] = []
    for step, change in (
        *_run_changes(before, after),
        *_longest_changes(before, after),
        *_source_changes(before, after),
        *_skip_changes(before, after),
        *_withdrawn_changes(before, after),
        *_phase_changes(before, after),
        *_exhaustion_changes(before, after),
        *_total_changes(before, after),
    ):
        if step is not None:
            steps.append(step)
            causes.append(change)
        changes.append(change)
    return PlanDiff(min(steps, default=None), tuple(changes), tuple(causes))


def _run_changes(before: PlanFigures, after: PlanFigures) -> Iterator[_Change]:
    for what in ("seed", "overlap"):
        old, new = getattr(before, what), getattr(after, what)
        if old != new:
            yield _Change(0, f"{what} is {new} instead of {old}")


def _longest_changes(before: PlanFigures, after: PlanFigures) -> Iterator[_Change]:
    old, new = before.longest, after.longest
    if old != new:
        what = f"longest is {new} instead of {old}"
        if _is_cut_alike(before, new):
            yield _Change(None, f"{what}, which changes no batch of these phases")
        else:
            yield _Change(
                0,
                f"{what}, so the sources are divided differently and every batch "
                "changes; a run that has begun keeps its own longest, so plan such a "
                "run with its state",
            )
    known = {*notes_on_longest(before)}
    for note in notes_on_longest(after):
        if note not in known:
            yield _Change(None, note)


def _is_cut_alike(plan: PlanFigures, longest: int) -> bool:
    """Return whether a plan would have the same rounds with this `longest`."""
    cuts = [
        cut_spans(source.num_tokens, value, plan.overlap, source.unit)
        for source in plan.sources
        for value in (plan.longest, longest)
    ]
    pairs = zip(cuts[::2], cuts[1::2], strict=True)
    return all(
        one.num_spans == two.num_spans
        and one.windows_per_round(phase.seq_len) == two.windows_per_round(phase.seq_len)
        for one, two in pairs
        for phase in plan.phases
    )


def _source_changes(before: PlanFigures, after: PlanFigures) -> Iterator[_Change]:
    old = {source.name: source for source in before.sources}
    new = {source.name: source for source in after.sources}
    for name in sorted(old.keys() - new.keys()):
        yield _Change(_first_use(before, name), f"source {name!r} is gone")
    for name in sorted(new.keys() - old.keys()):
        yield _Change(_first_use(after, name), f"source {name!r} is new")
    for name in sorted(old.keys() & new.keys()):
        if old[name].fingerprint != new[name].fingerprint:
            yield _Change(
                _first_use(before, name),
                f"source {name!r} holds other data: "
                f"{new[name].num_tokens:,} tokens instead of "
                f"{old[name].num_tokens:,}",
            )
        if old[name].policy != new[name].policy:
            # `_exhaustion_changes` finds the steps that the policy changes.
            yield _Change(
                None,
                f"the policy of source {name!r} is {new[name].policy!r} instead of "
                f"{old[name].policy!r}",
            )


def _skip_changes(before: PlanFigures, after: PlanFigures) -> Iterator[_Change]:
    old, new = dict(before.skips), dict(after.skips)
    for at in sorted(old.keys() | new.keys()):
        if old.get(at, 0) != new.get(at, 0):
            yield _Change(
                at,
                f"before step {at:,} the data of {new.get(at, 0):,} steps is "
                f"skipped instead of {old.get(at, 0):,}",
            )


def _withdrawn_changes(before: PlanFigures, after: PlanFigures) -> Iterator[_Change]:
    old = {(each.step, each.source): each for each in before.withdrawn}
    new = {(each.step, each.source): each for each in after.withdrawn}
    for key in sorted(old.keys() | new.keys()):
        was, now = old.get(key), new.get(key)
        if was == now or (was and now and was.digest == now.digest):
            continue
        step, source = key
        here = now or was
        is_read = here is not None and here.is_read
        left = _withdrawn_at(before, step, source)
        found = _withdrawn_at(after, step, source)
        text = (
            f"withdrawn of source {source!r} from step {step:,} on: {found} instead "
            f"of {'others' if left == found else left}"
        )
        yield _Change(step if is_read else None, text)


def _withdrawn_at(plan: PlanFigures, step: int, source: str) -> str:
    """Return how much of a source a plan leaves out in a step, as text."""
    amounts = [
        each.amount
        for each in plan.withdrawn
        if each.source == source and each.step <= step
    ]
    return amounts[-1] if amounts else amount(0, 0)


def _phase_changes(before: PlanFigures, after: PlanFigures) -> Iterator[_Change]:
    all_old, all_new = _parts_of_phases(before), _parts_of_phases(after)
    for number in range(max(len(all_old), len(all_new))):
        if number >= len(all_new):
            gone = all_old[number][0].start
            yield _Change(min(gone, after.total_steps), f"phase {number} is gone")
            continue
        new = all_new[number]
        if number >= len(all_old):
            yield _Change(
                min(new[0].start, before.total_steps),
                f"phase {number} is new: {_num_steps(new):,} steps of "
                f"{new[0].batch_size} x {new[0].seq_len}",
            )
            continue
        old = all_old[number]
        start = min(old[0].start, new[0].start)
        for what in ("batch_size", "seq_len"):
            was, now = getattr(old[0], what), getattr(new[0], what)
            if was != now:
                yield _Change(
                    start, f"{what} of phase {number} is {now} instead of {was}"
                )
        for offset, left, right in _aligned(old, new):
            if _weights(left) == _weights(right):
                continue
            now, was = _shares(right, after), _shares(left, before)
            if now == was:  # the shares differ by less than their texts show
                now, was = str(_weights(right)), str(_weights(left))
            since = f"from step {new[0].start + offset:,} on, " if offset else ""
            yield _Change(
                start + offset,
                f"{since}the weights of phase {number} are {now} instead of {was}",
            )
        if _num_steps(old) != _num_steps(new):
            yield _Change(
                min(old[-1].stop, new[-1].stop),
                f"phase {number} has {_num_steps(new):,} steps instead of "
                f"{_num_steps(old):,}",
            )


def _parts_of_phases(plan: PlanFigures) -> list[list[PhasePlan]]:
    """Return the entries of each phase; a phase with changed weights has several."""
    return [list(parts) for _, parts in groupby(plan.phases, lambda part: part.index)]


def _aligned(
    old: list[PhasePlan], new: list[PhasePlan]
) -> Iterator[tuple[int, PhasePlan, PhasePlan]]:
    """Yield each offset at which an entry of a phase begins, and both plans' entries.

    `old` and `new` are the entries of the phase in the two plans. Offsets count steps
    from the start of the phase.
    """
    offsets = {part.start - parts[0].start for parts in (old, new) for part in parts}
    for offset in sorted(offsets):
        left, right = (
            [part for part in parts if part.start - parts[0].start <= offset][-1]
            for parts in (old, new)
        )
        yield offset, left, right


def _num_steps(parts: list[PhasePlan]) -> int:
    return sum(part.steps for part in parts)


def _exhaustion_changes(before: PlanFigures, after: PlanFigures) -> Iterator[_Change]:
    phases = zip(_parts_of_phases(before), _parts_of_phases(after), strict=False)
    for number, (old, new) in enumerate(phases):
        if old[0].start != new[0].start:
            return
        spent = {source.name for source in old[0].sources if source.is_spent}
        for source in new[0].sources:
            if source.is_spent != (source.name in spent):
                words = "no samples" if source.is_spent else "samples"
                yield _Change(
                    old[0].start,
                    f"source {source.name!r} has {words} left when phase {number} "
                    "begins",
                )
        was, now = _ends(old), _ends(new)
        for name in sorted(was.keys() & now.keys()):
            (step, given), (new_step, new_given) = was[name], now[name]
            steps = [each for each in (step, new_step) if each is not None]
            if step != new_step:
                yield _Change(
                    min(steps),
                    f"source {name!r} runs out in {_step(new_step)} of "
                    f"phase {number} instead of {_step(step)}",
                )
            elif steps and given != new_given:
                yield _Change(
                    min(steps),
                    f"source {name!r} runs out after {new_given:,} samples of phase "
                    f"{number} instead of {given:,}, both in {_step(step)}",
                )


def _ends(parts: list[PhasePlan]) -> dict[str, tuple[int | None, int]]:
    """Return, for each source, where it runs out in a phase, and its samples there.

    The first number is the step in which the source runs out, or None.
    """
    found: dict[str, tuple[int | None, int]] = {}
    for source in (source for part in parts for source in part.sources):
        step, given = found.get(source.name, (None, 0))
        step = source.exhausted_step if step is None else step
        found[source.name] = step, given + source.samples + source.skipped
    return found


def _total_changes(before: PlanFigures, after: PlanFigures) -> Iterator[_Change]:
    if before.total_steps != after.total_steps:
        yield _Change(
            min(before.total_steps, after.total_steps),
            f"the run has {after.total_steps:,} steps instead of "
            f"{before.total_steps:,}",
        )
    old = {source.name: source for source in before.sources}
    for source in after.sources:
        was = old.get(source.name)
        if was is not None and was.tokens != source.tokens:
            yield _Change(
                None,
                f"source {source.name!r} gives {source.tokens:,} tokens "
                f"instead of {was.tokens:,}, {source.epochs:.6g} epochs "
                f"instead of {was.epochs:.6g}",
            )


def _first_use(plan: PlanFigures, name: str) -> int | None:
    """Return the first step that reads a source; None if no step does."""
    return min(
        (
            source.first_step
            for phase in plan.phases
            for source in phase.sources
            if source.name == name and source.first_step is not None
        ),
        default=None,
    )


def _weights(phase: PhasePlan) -> dict[str, int]:
    return {source.name: source.weight for source in phase.sources}


def _shares(phase: PhasePlan, plan: PlanFigures) -> str:
    """Return the shares of a phase as text, in the order of the sources."""
    shares = {source.name: source.share for source in phase.sources}
    names = [source.name for source in plan.sources if source.name in shares]
    return ", ".join(f"{name} {shares[name]:.4g}" for name in names)


def _step(step: int | None) -> str:
    return "no step" if step is None else f"step {step:,}"
