"""From a solved curriculum to its plan."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from roxxel_curriculum._order.rounds import Cursor
from roxxel_curriculum._plan.figures import CorpusPlan, MixPlan, PhasePlan, SourcePlan
from roxxel_curriculum._plan.plan import Plan

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from roxxel_curriculum._plan.declaration import Solution
    from roxxel_curriculum._plan.resolved_phase import ResolvedPhase


def make_plan(solution: Solution, seed: int) -> Plan:
    """Return the plan of a solved curriculum; reads no tokens."""
    phases: list[PhasePlan] = []
    tokens: dict[str, int] = {}
    waste: dict[str, int] = {}
    epochs: dict[str, float] = {}
    cursors: dict[str, Cursor] = {}
    last_phases = {
        name: index
        for index, phase in enumerate(solution.phases)
        for name, given in phase.counts(phase.num_samples).items()
        if given
    }
    for index, phase in enumerate(solution.phases):
        ending = {name for name, last in last_phases.items() if last == index}
        planned = _plan_phase(phase, cursors, epochs, ending)
        phases.append(planned)
        for source in planned.sources:
            wasted = source.unfinished_tokens + source.tail_tokens
            tokens[source.name] = tokens.get(source.name, 0) + source.tokens
            waste[source.name] = waste.get(source.name, 0) + wasted
            epochs[source.name] = source.epochs
    early_stop = solution.early_stop
    return Plan(
        seed=seed,
        total_steps=solution.total_steps,
        total_tokens=sum(phase.tokens for phase in phases),
        longest=solution.longest,
        overlap=solution.declaration.overlap,
        phases=tuple(phases),
        sources=tuple(
            CorpusPlan(
                name=source.name,
                fingerprint=source.reader.fingerprint,
                num_tokens=source.reader.num_tokens,
                num_spans=solution.spans[source.name].num_spans,
                policy=str(source.policy),
                tokens=tokens.get(source.name, 0),
                epochs=epochs.get(source.name, 0.0),
                waste_tokens=waste.get(source.name, 0),
            )
            for source in solution.declaration.sources
        ),
        skips=tuple((skip.at, skip.steps) for skip in solution.declaration.skips),
        ended=None
        if early_stop is None
        else f"source {early_stop.source!r} runs out in phase {early_stop.phase} and "
        f"its policy stops the run before step {early_stop.step}",
    )


def _unbroken(phase: ResolvedPhase) -> Iterator[tuple[int, int, int]]:
    """Yield the step and the samples `[first, stop)` of each stretch between skips."""
    size = phase.batch_size
    marks = sorted({0, *(skip.at for skip in phase.skips), phase.steps})
    for start, stop in pairwise(marks):
        first = phase.data_step(start) * size
        yield start, first, first + (stop - start) * size


def _plan_phase(
    phase: ResolvedPhase,
    cursors: dict[str, Cursor],
    epochs: Mapping[str, float],
    ending: Collection[str],
) -> PhasePlan:
    """Return the plan of one phase.

    Args:
        phase: The phase.
        cursors: How far each source was read before the phase; moved to its end.
        epochs: Passes over each source before the phase.
        ending: Sources that give nothing after the phase.
    """
    counts = [
        (start, first, phase.counts(first), phase.counts(stop))
        for start, first, stop in _unbroken(phase)
    ]
    used = phase.counts(phase.num_samples)
    total_weight = sum(phase.weights.values())
    exhausted = {
        leg.ended_by: phase.start + phase.steps_within(leg.stop - 1)
        for leg in phase.legs
        if leg.ended_by is not None
        and leg.stop is not None
        and leg.stop <= phase.num_samples
    }
    sources: list[SourcePlan] = []
    for name, weight in phase.weights.items():
        stream, before = phase.cursors[name]
        given = before + used[name]
        samples = 0
        first_step: int | None = None
        last_step: int | None = None
        for start, first, low, high in counts:
            if high[name] == low[name]:
                continue
            samples += high[name] - low[name]
            step = phase.start + start
            last = phase.sample_index(name, high[name] - 1)
            last_step = step + (last - first) // phase.batch_size
            if first_step is None:
                earliest = phase.sample_index(name, low[name])
                first_step = step + (earliest - first) // phase.batch_size
        unfinished = 0
        if used[name]:
            earlier = cursors.get(name)
            if earlier is not None and earlier.stream is not stream and before == 0:
                unfinished = earlier.stream.unfinished_tokens(earlier.given)
            cursors[name] = Cursor(stream, given)
        sources.append(
            SourcePlan(
                name=name,
                weight=weight,
                share=weight / total_weight,
                samples=samples,
                tokens=samples * phase.seq_len,
                skipped=used[name] - samples,
                epochs=stream.passes(given) if used[name] else epochs.get(name, 0.0),
                first_step=first_step,
                last_step=last_step,
                exhausted_step=exhausted.get(name),
                unfinished_tokens=unfinished,
                tail_tokens=stream.tail_tokens(before, given, is_last=name in ending),
                is_spent=name not in phase.legs[0].blend.sources,
            )
        )
    return PhasePlan(
        index=phase.index,
        start=phase.start,
        steps=phase.steps,
        batch_size=phase.batch_size,
        seq_len=phase.seq_len,
        tokens=phase.steps * phase.batch_size * phase.seq_len,
        skipped_steps=sum(skip.steps for skip in phase.skips),
        sources=tuple(sources),
        mixes=tuple(_mixes(phase)),
    )


def _mixes(phase: ResolvedPhase) -> Iterator[MixPlan]:
    for leg in phase.legs:
        weights = {name: phase.weights[name] for name in leg.blend.sources}
        total = sum(weights.values())
        last = phase.num_samples if leg.stop is None else leg.stop
        start = phase.start + phase.steps_within(leg.start)
        stop = phase.start + min(phase.steps, phase.steps_within(last))
        if start < stop:
            shares = {name: weight / total for name, weight in weights.items()}
            yield MixPlan(start, stop, shares)
