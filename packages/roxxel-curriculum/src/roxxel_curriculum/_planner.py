"""From a solved run to its plan."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from roxxel_curriculum._plan import CorpusPlan, MixPlan, PhasePlan, Plan, SourcePlan

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from roxxel_curriculum._declaration import SolvedRun
    from roxxel_curriculum._rounds import Run
    from roxxel_curriculum._solved import SolvedPhase


def make_plan(schedule: SolvedRun, seed: int) -> Plan:
    """Return the plan of a schedule; reads no tokens."""
    phases: list[PhasePlan] = []
    tokens: dict[str, int] = {}
    waste: dict[str, int] = {}
    epochs: dict[str, float] = {}
    runs: dict[str, tuple[Run, int]] = {}
    last_phases = {
        name: index
        for index, phase in enumerate(schedule.phases)
        for name, given in phase.counts(phase.num_samples).items()
        if given
    }
    for index, phase in enumerate(schedule.phases):
        ending = {name for name, last in last_phases.items() if last == index}
        planned = _plan_phase(phase, runs, epochs, ending)
        phases.append(planned)
        for source in planned.sources:
            lost = source.unfinished_tokens + source.tail_tokens
            tokens[source.name] = tokens.get(source.name, 0) + source.tokens
            waste[source.name] = waste.get(source.name, 0) + lost
            epochs[source.name] = source.epochs
    ended = schedule.ended
    return Plan(
        seed=seed,
        total_steps=schedule.total_steps,
        total_tokens=sum(phase.tokens for phase in phases),
        longest=schedule.longest,
        overlap=schedule.declaration.overlap,
        phases=tuple(phases),
        sources=tuple(
            CorpusPlan(
                name=source.name,
                fingerprint=source.reader.fingerprint,
                num_tokens=source.reader.num_tokens,
                num_spans=schedule.spans[source.name].num_spans,
                policy=str(source.policy),
                tokens=tokens.get(source.name, 0),
                epochs=epochs.get(source.name, 0.0),
                waste_tokens=waste.get(source.name, 0),
            )
            for source in schedule.declaration.sources
        ),
        skips=tuple((skip.at, skip.steps) for skip in schedule.declaration.skips),
        ended=None
        if ended is None
        else f"source {ended.source!r} runs out in {ended.declared_phase} and its "
        f"policy stops the run before step {ended.step}",
    )


def _delivered(phase: SolvedPhase) -> Iterator[tuple[int, int, int]]:
    """Yield training step, first and one past last sample of each unbroken stretch."""
    size = phase.piece.batch_size
    marks = sorted({0, *(skip.at for skip in phase.skips), phase.steps})
    for start, stop in pairwise(marks):
        first = phase.data_step(start) * size
        yield start, first, first + (stop - start) * size


def _plan_phase(
    phase: SolvedPhase,
    runs: dict[str, tuple[Run, int]],
    epochs: Mapping[str, float],
    ending: Collection[str],
) -> PhasePlan:
    """Return the plan of one phase.

    Args:
        phase: The phase.
        runs: The run that each source drew from before, and what it had given; brought
            up to the end of the phase.
        epochs: Passes over each source before it.
        ending: Sources that give nothing after it.
    """
    piece = phase.piece
    stretches = list(_delivered(phase))
    counts = [
        (start, first, phase.counts(first), phase.counts(stop))
        for start, first, stop in stretches
    ]
    passed = phase.counts(phase.num_samples)
    total_weight = sum(piece.weights.values())
    exhausted = {
        leg.ended_by: phase.start + phase.steps_within(leg.stop - 1)
        for leg in phase.legs
        if leg.ended_by is not None
        and leg.stop is not None
        and leg.stop <= phase.num_samples
    }
    sources: list[SourcePlan] = []
    for name, weight in piece.weights.items():
        run, base = phase.runs[name], phase.bases[name]
        samples = 0
        first_step: int | None = None
        last_step: int | None = None
        for start, first, low, high in counts:
            given = high[name] - low[name]
            if not given:
                continue
            samples += given
            begin = phase.start + start
            last_place = phase.place(name, high[name] - 1)
            last_step = begin + (last_place - first) // piece.batch_size
            if first_step is None:
                first_place = phase.place(name, low[name])
                first_step = begin + (first_place - first) // piece.batch_size
        unfinished = 0
        if passed[name]:
            before = runs.get(name)
            if before is not None and before[0] is not run and base == 0:
                stride = run.spans.stride(before[0].seq_len)
                unfinished = before[0].unfinished(before[1]) * stride
            runs[name] = run, base + passed[name]
        sources.append(
            SourcePlan(
                name=name,
                weight=weight,
                share=weight / total_weight,
                samples=samples,
                tokens=samples * piece.seq_len,
                skipped=passed[name] - samples,
                # A source that gives nothing stands where it stood.
                epochs=_epochs(run, base + passed[name])
                if passed[name]
                else epochs.get(name, 0.0),
                first_step=first_step,
                last_step=last_step,
                exhausted_step=exhausted.get(name),
                unfinished_tokens=unfinished,
                tail_tokens=run.tail_tokens(
                    base, base + passed[name], is_last=name in ending
                ),
                is_spent=name not in phase.legs[0].blend.sources,
            )
        )
    return PhasePlan(
        index=piece.index,
        start=phase.start,
        steps=phase.steps,
        batch_size=piece.batch_size,
        seq_len=piece.seq_len,
        tokens=phase.steps * piece.batch_size * piece.seq_len,
        skipped_steps=sum(skip.steps for skip in phase.skips),
        sources=tuple(sources),
        mixes=tuple(_mixes(phase)),
    )


def _mixes(phase: SolvedPhase) -> Iterator[MixPlan]:
    for leg in phase.legs:
        weights = {name: phase.piece.weights[name] for name in leg.blend.sources}
        total = sum(weights.values())
        last = phase.num_samples if leg.stop is None else leg.stop
        start = phase.start + phase.steps_within(leg.start)
        stop = phase.start + min(phase.steps, phase.steps_within(last))
        if start < stop:
            shares = {name: weight / total for name, weight in weights.items()}
            yield MixPlan(start, stop, shares)


def _epochs(run: Run, given: int) -> float:
    """Return passes over a source by the depth reached: whole ones and a part."""
    spans = run.spans
    stride = spans.stride(run.seq_len)
    first = run.first_epoch_samples
    if given < first or not given:
        used = run.depth * spans.num_spans + given * stride
        return run.epoch + used / spans.num_tokens
    whole, rest = divmod(given - first, spans.windows_per_epoch(run.seq_len))
    return run.epoch + 1 + whole + rest * stride / spans.num_tokens
