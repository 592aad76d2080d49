"""What people see of a plan: tables and notes, and the curves of its picture."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, TypeAlias

from roxxel_curriculum._plan.figures import short_count

if TYPE_CHECKING:
    from collections.abc import Iterator

    from roxxel_curriculum._plan.figures import PhasePlan, PlanFigures, SourcePlan

Row: TypeAlias = tuple[str, ...]

_PHASE_COLUMNS = ("source", "share", "samples", "tokens", "epochs", "from-to", "waste")
_SOURCE_COLUMNS = ("source", "holds", "read", "epochs", "waste", "when it runs out")


@dataclass(frozen=True, slots=True)
class RowGroup:
    """Consecutive rows of a table, below a heading if they have one."""

    heading: str | None
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """Cells of text in groups of rows."""

    columns: Row
    groups: tuple[RowGroup, ...]

    @property
    def widths(self) -> list[int]:
        """Number of characters of the widest cell of each column."""
        rows = [self.columns, *(row for group in self.groups for row in group.rows)]
        return [max(map(len, column)) for column in zip(*rows, strict=True)]


@dataclass(frozen=True, slots=True)
class PlanTables:
    """What a table of a plan shows.

    Attributes:
        headline: One line about the whole run.
        phases: A group for each phase, with a row for each of its sources.
        sources: A row for each source.
        notes: Sentences about what a reader of the tables should not miss.
    """

    headline: str
    phases: Table
    sources: Table
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PlanCurves:
    """What a picture of a plan shows.

    Attributes:
        headline: One line about the whole run.
        total_steps: Training steps of the run.
        steps: The steps at which the curves have points, ascending.
        per_step: Tokens of a step by source, at each of `steps`.
        so_far: Tokens delivered by source, at each of `steps`.
        phases: First step and label of each phase.
        exhaustions: Step and source of each exhaustion.
    """

    headline: str
    total_steps: int
    steps: list[int]
    per_step: dict[str, list[float]]
    so_far: dict[str, list[float]]
    phases: tuple[tuple[int, str], ...]
    exhaustions: tuple[tuple[int, str], ...]


def make_tables(plan: PlanFigures) -> PlanTables:
    """Return the tables of a plan."""
    phases = tuple(
        RowGroup(
            f"phase {phase.index}: steps {phase.start:,}-{phase.stop - 1:,} of "
            f"{phase.batch_size} x {phase.seq_len}",
            _phase_rows(phase),
        )
        for phase in plan.phases
    )
    sources = tuple(
        (
            source.name,
            short_count(source.num_tokens),
            short_count(source.tokens),
            f"{source.epochs:.3f}",
            _part(source.waste_tokens, source.num_tokens),
            source.policy,
        )
        for source in plan.sources
    )
    return PlanTables(
        _headline(plan),
        Table(_PHASE_COLUMNS, phases),
        Table(_SOURCE_COLUMNS, (RowGroup(None, sources),)),
        tuple(_notes(plan)),
    )


def make_curves(plan: PlanFigures) -> PlanCurves:
    """Return the curves of a plan."""
    names = [source.name for source in plan.sources if source.tokens]
    steps: list[int] = []
    per_step: dict[str, list[float]] = {name: [] for name in names}
    so_far: dict[str, list[float]] = {name: [] for name in names}
    total = dict.fromkeys(names, 0.0)
    for phase in plan.phases:
        for mix in phase.mixes:
            # Two points for each mix, so that a change is a vertical line.
            steps += [mix.start, mix.stop]
            for name in names:
                rate = mix.shares.get(name, 0.0) * phase.batch_size * phase.seq_len
                per_step[name] += [rate, rate]
                so_far[name].append(total[name])
                total[name] += rate * (mix.stop - mix.start)
                so_far[name].append(total[name])
    return PlanCurves(
        _headline(plan),
        plan.total_steps,
        steps,
        per_step,
        so_far,
        tuple(
            (
                phase.start,
                f"phase {phase.index}\n{phase.batch_size} x {phase.seq_len}",
            )
            for phase in plan.phases
        ),
        tuple(
            (source.exhausted_step, source.name)
            for phase in plan.phases
            for source in phase.sources
            if source.exhausted_step is not None
        ),
    )


def _headline(plan: PlanFigures) -> str:
    return (
        f"{plan.total_steps:,} steps, {short_count(plan.total_tokens)} tokens, "
        f"{_counted(len(plan.phases), 'phase')}, "
        f"{_counted(len(plan.sources), 'source')}, seed {plan.seed}"
    )


def _phase_rows(phase: PhasePlan) -> tuple[Row, ...]:
    return tuple(
        (
            source.name,
            f"{source.share:.4g}",
            f"{source.samples:,}",
            short_count(source.tokens),
            f"{source.epochs:.3f}" if source.samples or source.skipped else "-",
            _from_to(source),
            short_count(source.unfinished_tokens + source.tail_tokens),
        )
        for source in phase.sources
    )


def _part(part: int, whole: int) -> str:
    return f"{short_count(part)} ({100 * part / whole:.2f} %)"


def _from_to(source: SourcePlan) -> str:
    if source.first_step is None or source.last_step is None:
        return "-"
    return f"{source.first_step:,}-{source.last_step:,}"


def _notes(plan: PlanFigures) -> Iterator[str]:
    for phase in plan.phases:
        for source in phase.sources:
            if source.exhausted_step is not None:
                yield (
                    f"phase {phase.index}: {source.name} runs out in step "
                    f"{source.exhausted_step:,}; the others share its weight from there"
                )
        for source in phase.sources:
            if source.is_spent:
                yield (
                    f"phase {phase.index}: {source.name} has nothing left and gives "
                    "nothing"
                )
    for source in plan.sources:
        if source.epochs > 1:
            yield f"{source.name} is read {source.epochs:.2f} times"
    for at, count in plan.skips:
        yield f"before step {at:,} the data of {count:,} steps is skipped"
    if plan.ended is not None:
        yield plan.ended
    yield from _notes_on_lengths(plan)


def _notes_on_lengths(plan: PlanFigures) -> Iterator[str]:
    corpora = {source.name: source for source in plan.sources}
    for phase in plan.phases:
        if phase.seq_len <= plan.longest:
            continue
        cost = max(
            corpora[source.name].num_spans
            * phase.seq_len
            / corpora[source.name].num_tokens
            for source in phase.sources
        )
        yield (
            f"phase {phase.index} has sequences longer than longest={plan.longest:,}: "
            f"one of its rounds is up to {100 * cost:.1f} % of a source"
        )
    changes = sum(
        before.seq_len != after.seq_len for before, after in pairwise(plan.phases)
    )
    if changes > 4:
        yield (
            f"the sequence length changes {changes} times, "
            "and each change leaves a round unfinished"
        )


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
