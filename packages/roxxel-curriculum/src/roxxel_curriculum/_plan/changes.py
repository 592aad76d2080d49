"""What differs between two orders of data: every change to a batch, and from when.

This one comparison serves for two plans, and for a run's recorded past and its present.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, NamedTuple

from roxxel_curriculum._withdrawn import amount, in_force

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from roxxel_curriculum._plan.solution import ResolvedPhase, Solution, Source
    from roxxel_curriculum._withdrawn import Withdrawal

_FROM_THE_START = -1
_MOST_SHARES = 4
"""If more sources have changed weights, only the source that changed most is named."""


class Change(NamedTuple):
    """A change from one order to another, as one sentence.

    Attributes:
        text: The sentence.
        step: The first step whose batch it may change; None if it changes no batch, or
            if another `Change` has the step.
        since: A run with more steps than this refuses the change; None if no run does.
    """

    text: str
    step: int | None
    since: int | None

    @classmethod
    def of_batches(cls, step: int | None, text: str) -> Change:
        """Return a change that a run refuses after it has trained the step."""
        return cls(text, step, step)


def changes(
    before: Solution, after: Solution, seeds: tuple[int, int]
) -> Iterator[Change]:
    """Yield the changes from `before` to `after`, which have these seeds."""
    names = _renamed(before, after)
    yield from _run_changes(before, after, seeds)
    yield from _source_changes(before, after, names)
    yield from _skip_changes(before, after)
    yield from _withdrawn_changes(before, after, names)
    yield from _phase_changes(before, after, names)
    ends = [*_exhaustion_changes(before, after, names)]
    yield from _policy_changes(before, after, names, ends)
    yield from (change for _, change in ends)
    old, new = before.total_steps, after.total_steps
    if old != new:
        text = f"the run has {new:,} steps instead of {old:,}"
        yield Change.of_batches(min(old, new), text)


def _renamed(before: Solution, after: Solution) -> dict[str, str]:
    """Return the name that each source of `before` has in `after`.

    Only the primary's name can differ: the order knows other sources by their names.
    """
    names = {name: name for name in before.source_names}
    old, new = before.declaration.primary, after.declaration.primary
    if old not in after.source_names and new not in names and old in names:
        names[old] = new
    return names


def _run_changes(
    before: Solution, after: Solution, seeds: tuple[int, int]
) -> Iterator[Change]:
    old, new = seeds
    if old != new:
        yield Change(f"seed is {new} instead of {old}", 0, _FROM_THE_START)
    old, new = before.declaration.overlap, after.declaration.overlap
    if old != new:
        yield Change(f"overlap is {new} instead of {old}", 0, _FROM_THE_START)
    old, new = before.longest, after.longest
    if old != new:
        text = (
            f"longest is {new} instead of {old}, so the sources are divided "
            "differently and every batch may change; a run that has begun keeps its "
            "own longest, so give its state to Curriculum.sampler and Curriculum.plan"
        )
        yield Change(text, 0, _FROM_THE_START)


def _source_changes(
    before: Solution, after: Solution, names: Mapping[str, str]
) -> Iterator[Change]:
    old = {names[source.name]: source for source in before.declaration.sources}
    new = {source.name: source for source in after.declaration.sources}
    for name in sorted(old.keys() - new.keys()):
        drawn = _first_step(before, name)
        kept = " (a run that has read it keeps it, with the weight 0)"
        text = f"source {name!r} is gone{'' if drawn is None else kept}"
        yield Change.of_batches(drawn, text)
    for name in sorted(new.keys() - old.keys()):
        yield Change(f"source {name!r} is new", _first_step(after, name), None)
    for name in sorted(old.keys() & new.keys()):
        one, other = old[name], new[name]
        drawn = _first_step(before, one.name)
        if one.name != name:
            text = (
                f"the primary is named {name!r} instead of {one.name!r}, which changes "
                "no batch, but a run keeps the names of its sources"
            )
            yield Change(text, None, drawn)
        if one.order_name != other.order_name:
            word = "now" if other.name == after.declaration.primary else "no longer"
            text = f"source {name!r} is {word} the primary, which changes its order"
            yield Change.of_batches(drawn, text)
        yield from _data_changes(one, other, drawn)


def _data_changes(old: Source, new: Source, drawn: int | None) -> Iterator[Change]:
    """Yield how a source differs from which the run first draws at step `drawn`."""
    facts = [
        {
            "{} tokens instead of {}": f"{source.num_tokens:,}",
            "{} tokens instead of {} ones": source.dtype.name,
            "{} instead of {}": (
                f"bins of {source.unit} tokens" if source.unit > 1 else "no bins"
            ),
            "{} are read instead of {}": (
                f"{source.part.spans} spans, chosen by seed {source.part.seed},"
                if source.part
                else "all spans"
            ),
        }
        for source in (old, new)
    ]
    parts = [
        text.format(now, was)
        for (text, was), now in zip(facts[0].items(), facts[1].values(), strict=True)
        if was != now
    ]
    was, now = old.fingerprint, new.fingerprint
    if parts or was != now:
        parts = parts or [f"fingerprint {now} instead of {was}"]
        text = f"source {new.name!r} holds other data: {', '.join(parts)}"
        yield Change.of_batches(drawn, text)
    was, now = old.tokenizer, new.tokenizer
    if was != now:
        text = f"the tokenizer of source {new.name!r} is {now} instead of {was}"
        yield Change(text, None, drawn)


def _first_step(solution: Solution, name: str) -> int | None:
    """Return where the first phase that draws from a source begins, or None."""
    starts = (phase.start for phase in solution.phases if name in phase.weights)
    return min(starts, default=None)


def _skip_changes(before: Solution, after: Solution) -> Iterator[Change]:
    old, new = (
        {skip.at: skip.steps for skip in each.declaration.skips}
        for each in (before, after)
    )
    for at in sorted(old.keys() | new.keys()):
        if old.get(at, 0) != new.get(at, 0):
            yield Change.of_batches(
                at,
                f"before step {at:,} the data of {new.get(at, 0):,} steps is "
                f"skipped instead of {old.get(at, 0):,}",
            )


def _withdrawn_changes(
    before: Solution, after: Solution, names: Mapping[str, str]
) -> Iterator[Change]:
    old = {(x.step, names.get(x.source, x.source)): x for x in before.withdrawals}
    new = {(x.step, x.source): x for x in after.withdrawals}
    for key in sorted(old.keys() | new.keys()):
        was, now = old.get(key), new.get(key)
        if was is not None and now is not None and was.digest == now.digest:
            continue
        step, name = key
        side, source = (after, name) if was is None else (before, was.source)
        is_read = any(
            source in phase.weights for phase in side.phases if phase.stop > step
        )
        left = _amount(before.withdrawals, step, name if was is None else was.source)
        found = _amount(after.withdrawals, step, name)
        text = (
            f"withdrawn of source {name!r} from step {step:,} on: {found} instead "
            f"of {'others' if left == found else left}"
        )
        yield Change(text, step if is_read else None, step)


def _amount(withdrawals: Sequence[Withdrawal], step: int, source: str) -> str:
    """Return how much of a source is left out in a step, as text."""
    found = in_force(withdrawals, step).get(source)
    return amount(0, 0) if found is None else found.amount


def _phase_changes(
    before: Solution, after: Solution, names: Mapping[str, str]
) -> Iterator[Change]:
    all_old, all_new = _phases(before, after), _phases(after, before)
    for number in range(max(len(all_old), len(all_new))):
        if number >= len(all_new):
            step = min(all_old[number][0].start, after.total_steps)
            yield Change.of_batches(step, f"phase {number} is gone")
            continue
        new = all_new[number]
        if number >= len(all_old):
            yield Change.of_batches(
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
                text = f"{what} of phase {number} is {now} instead of {was}"
                yield Change.of_batches(start, text)
        for offset, left, right in _aligned(old, new):
            weights = {names[name]: x for name, x in left.weights.items()}
            if weights == right.weights:
                continue
            since = f"from step {new[0].start + offset:,} on, " if offset else ""
            yield Change.of_batches(
                start + offset,
                f"{since}the weights of phase {number} are "
                f"{_changed_weights(weights, right.weights, after.source_names)}",
            )
        if _num_steps(old) != _num_steps(new):
            yield Change.of_batches(
                min(old[-1].stop, new[-1].stop),
                f"phase {number} has {_num_steps(new):,} steps instead of "
                f"{_num_steps(old):,}",
            )


def _phases(solution: Solution, other: Solution) -> list[list[ResolvedPhase]]:
    """Return the entries of each phase; a phase with changed weights has several.

    An entry for changed weights reads like a phase, so it counts as one where the other
    order begins a phase.
    """
    begins = {phase.start for phase in other.phases if not phase.is_edited}
    found: list[list[ResolvedPhase]] = []
    for phase in solution.phases:
        if not found or not phase.is_edited or phase.start in begins:
            found.append([])
        found[-1].append(phase)
    return found


def _aligned(
    old: list[ResolvedPhase], new: list[ResolvedPhase]
) -> Iterator[tuple[int, ResolvedPhase, ResolvedPhase]]:
    """Yield each offset at which an entry of a phase begins, and the entries there.

    `old` and `new` are the entries of the phase in the two orders. Offsets count steps
    from the start of the phase, up to the first end of the phase in either order.
    """
    offsets = {part.start - parts[0].start for parts in (old, new) for part in parts}
    for offset in sorted(offsets):
        if offset < min(_num_steps(old), _num_steps(new)):
            left, right = (
                [part for part in parts if part.start - parts[0].start <= offset][-1]
                for parts in (old, new)
            )
            yield offset, left, right


def _num_steps(parts: list[ResolvedPhase]) -> int:
    return sum([part.steps for part in parts])


def _changed_weights(
    old: Mapping[str, int], new: Mapping[str, int], names: Sequence[str]
) -> str:
    """Return the new weights and the old; of many sources, only the largest change."""
    if len({*old, *new}) > _MOST_SHARES:
        return _most_changed(old, new)
    now, was = _shares(new, names), _shares(old, names)
    if now == was:  # the shares differ by less than their texts show
        now, was = str(dict(new)), str(dict(old))
    return f"{now} instead of {was}"


def _most_changed(old: Mapping[str, int], new: Mapping[str, int]) -> str:
    old_sum, new_sum = sum(old.values()), sum(new.values())
    apart = {
        name: abs(
            Fraction(old.get(name, 0), old_sum) - Fraction(new.get(name, 0), new_sum)
        )
        for name in sorted({*old, *new})
    }
    most = max(apart, key=apart.__getitem__)
    others = sum(change > 0 for change in apart.values()) - 1
    noun = "source differs" if others == 1 else "sources differ"
    return (
        f"others: {most!r} has {new.get(most, 0)} of {new_sum} instead of "
        f"{old.get(most, 0)} of {old_sum}, and {others} more {noun}"
    )


def _shares(weights: Mapping[str, int], names: Sequence[str]) -> str:
    """Return shares as text, in the order of the sources; removed sources come last."""
    total = sum(weights.values())
    ordered = [*(x for x in names if x in weights), *sorted({*weights} - {*names})]
    return ", ".join(f"{name} {weights[name] / total:.4g}" for name in ordered)


class _End(NamedTuple):
    """Where a source runs out in a phase."""

    step: int
    next_step: int  # the first with a sample after its last, perhaps after the phase
    samples: int  # of the source in the phase


def _policy_changes(
    before: Solution,
    after: Solution,
    names: Mapping[str, str],
    ends: Sequence[tuple[str, Change]],
) -> Iterator[Change]:
    """Yield the changed policies that cause what `_exhaustion_changes` found."""
    old = {names[each.name]: each.policy for each in before.declaration.sources}
    for source in after.declaration.sources:
        was, now = old.get(source.name, source.policy), source.policy
        if was != now:
            text = (
                f"the policy of source {source.name!r} is {str(now)!r} instead of "
                f"{str(was)!r}"
            )
            steps = [each.since for name, each in ends if name == source.name]
            since = min((step for step in steps if step is not None), default=None)
            yield Change(text, None, since)


def _exhaustion_changes(
    before: Solution, after: Solution, names: Mapping[str, str]
) -> Iterator[tuple[str, Change]]:
    """Yield each source that runs out at another step, and how.

    `names` is what `_renamed` returns.
    """
    pairs = zip(_phases(before, after), _phases(after, before), strict=False)
    for number, (old, new) in enumerate(pairs):
        if old[0].start != new[0].start:
            return  # The earlier phase of another length is a change of its own.
        # A source that only one of the two draws from is a change of the weights.
        drawn = {names[name] for part in old for name in part.weights}
        drawn &= {name for part in new for name in part.weights}
        old_ends = {names[name]: end for name, end in _ends(old).items()}
        new_ends = _ends(new)
        for name in sorted(drawn & (old_ends.keys() | new_ends.keys())):
            was, now = old_ends.get(name), new_ends.get(name)
            if (was and was.samples) == (now and now.samples):
                continue
            # If the next sample would come after the phase, no batch changes.
            since = min(each.next_step for each in (was, now) if each)
            stop = min(old[-1].stop, new[-1].stop)
            text = (
                f"source {name!r} runs out in {_when(now)} of phase {number} "
                f"instead of {_when(was)}"
            )
            yield name, Change.of_batches(since if since < stop else None, text)


def _ends(parts: Sequence[ResolvedPhase]) -> dict[str, _End]:
    """Return where each source runs out in a phase that has these entries.

    A source that had run out before has no samples in it.
    """
    first = parts[0]
    found = {
        name: _End(first.start, first.start, 0)
        for name in first.weights
        if name not in first.legs[0].blend
    }
    given: dict[str, int] = {}
    for part in parts:
        for leg in part.legs:
            name, stop = leg.ended_by, leg.stop
            if name is not None and stop is not None and stop <= part.num_samples:
                last, later = (part.steps_within(x) for x in (stop - 1, stop))
                samples = given.get(name, 0) + part.counts(stop)[name]
                end = _End(part.start + last, part.start + later, samples)
                found.setdefault(name, end)
        if part is not parts[-1]:  # the next one goes on counting
            for name, count in part.counts(part.num_samples).items():
                given[name] = given.get(name, 0) + count
    return found


def _when(end: _End | None) -> str:
    if end is None:
        return "no step"
    return f"step {end.step:,} ({end.samples:,} samples)"
