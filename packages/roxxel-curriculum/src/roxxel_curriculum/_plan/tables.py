"""Render the tables and notes of a plan as plain text."""

from __future__ import annotations

from itertools import pairwise
from textwrap import wrap
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from roxxel_store.screen import aligned, counted, short_count

from roxxel_curriculum._order.rounds import cut_spans

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from roxxel_curriculum._plan.figures import PhasePlan, PlanFigures, SourcePlan

Row: TypeAlias = "tuple[str, ...] | str"
"""The cells of a table's row, or the heading of the rows below."""

_PHASE_COLUMNS = (
    *("source", "share", "samples", "tokens", "epochs so far", "from-to", "waste"),
)
_MOST_EPOCHS = 4
_TOO_OFTEN = (
    f"; more than about {_MOST_EPOCHS} passes help less and less (Muennighoff et al., "
    "Scaling Data-Constrained Language Models, 2023, arXiv 2305.16264), so add text, "
    "train fewer steps, or set max_epochs"
)
_MOST_WASTE = 0.25
_SOURCE_COLUMNS = ("source", "holds", "read", "epochs", "waste", "when it runs out")
_WIDTH = 80
_MOST_SOURCES = 4
"""Number of sources that a brief plan names."""


class _Table(NamedTuple):
    columns: tuple[str, ...]
    rows: list[Row]

    @property
    def widths(self) -> list[int]:
        """Width of each column, in characters."""
        rows = [self.columns, *(row for row in self.rows if not isinstance(row, str))]
        return [max(map(len, column)) for column in zip(*rows, strict=True)]


def render_text(plan: PlanFigures) -> str:
    """Return the tables and notes as plain text; notes wrap at 80 columns."""
    lines = [headline(plan)]
    for table in _tables(plan):
        rules = tuple("-" * width for width in table.widths)
        rows = (table.columns, rules, *table.rows)
        cells = iter(aligned([row for row in rows if not isinstance(row, str)]))
        texts = (row if isinstance(row, str) else next(cells) for row in rows)
        lines += ["", *texts]
    notes = [
        line
        for note in _notes(plan)
        for line in wrap(note, _WIDTH, subsequent_indent="  ", break_on_hyphens=False)
    ]
    if notes:
        lines += ["", *notes]
    return "\n".join(lines)


def _tables(plan: PlanFigures) -> tuple[_Table, _Table]:
    """Return two tables: sources within phases, and sources over the whole run."""
    order = {source.name: index for index, source in enumerate(plan.sources)}
    phases: list[Row] = []
    before = None
    for phase in plan.phases:
        # An edit of the phase that was trained divides it.
        edited = ", edited" if phase.index == before else ""
        before = phase.index
        phases.append(
            f"phase {phase.index}{edited}: steps {phase.start:,}-{phase.stop - 1:,} of "
            f"{phase.batch_size} x {phase.seq_len}"
        )
        phases += _phase_rows(phase, order)
    sources: list[Row] = [
        (
            source.name,
            short_count(source.num_tokens),
            short_count(source.tokens),
            f"{source.epochs:.3f}",
            f"{short_count(source.waste_tokens)} ({100 * source.waste_share:.2f} %)",
            source.policy,
        )
        for source in plan.sources
    ]
    return _Table(_PHASE_COLUMNS, phases), _Table(_SOURCE_COLUMNS, sources)


def headline(plan: PlanFigures) -> str:
    """Return one line: steps, tokens, phases, sources and seed."""
    return (
        f"{plan.total_steps:,} steps, {short_count(plan.total_tokens)} tokens, "
        f"{counted(len({phase.index for phase in plan.phases}), 'phase')}, "
        f"{counted(len(plan.sources), 'source')}, seed {plan.seed}"
    )


def render_brief(plan: PlanFigures) -> str:
    """Return two lines: the headline, and what the run reads from each source."""
    parts = [
        f"{each.name} {short_count(each.tokens)} of {short_count(each.num_tokens)}"
        for each in plan.sources[:_MOST_SOURCES]
    ]
    left = len(plan.sources) - len(parts)
    more = f" and {left} more sources" if left else ""
    num_notes = sum(1 for _ in _notes(plan))
    notes = f"; {counted(num_notes, 'note')}" if num_notes else ""
    return f"{headline(plan)}\ntokens: {', '.join(parts)}{more}{notes}"


def _phase_rows(phase: PhasePlan, order: Mapping[str, int]) -> Iterator[Row]:
    for source in sorted(phase.sources, key=lambda source: order[source.name]):
        yield (
            source.name,
            f"{source.share:.4g}",
            f"{source.samples:,}",
            short_count(source.tokens),
            f"{source.epochs:.3f}" if source.samples or source.skipped else "-",
            _from_to(source),
            short_count(source.unfinished_tokens + source.tail_tokens),
        )


def _from_to(source: SourcePlan) -> str:
    if source.first_step is None or source.last_step is None:
        return "-"
    return f"{source.first_step:,}-{source.last_step:,}"


def _notes(plan: PlanFigures) -> Iterator[str]:
    for phase in plan.phases:
        yield from _notes_on_phase(phase)
    yield from _notes_on_reading(plan)
    for source in plan.sources:
        if source.unit > 1:
            share = 100 * source.padding_tokens / source.num_tokens
            yield (
                f"{source.name} is packed in bins of {source.unit:,} tokens; "
                f"{share:.3g} % of its tokens are padding, which loss_mask leaves out"
            )
    for at, count in plan.skips:
        yield f"before step {at:,} the data of {count:,} steps is skipped"
    for each in plan.withdrawn:
        yield (
            f"from step {each.step:,} on, {each.amount} of {each.source} "
            f"{'is' if each.documents + each.tokens <= 1 else 'are'} withdrawn: "
            "loss_mask is 0 on the tokens"
            + ("" if each.is_read else "; the run reads no tokens of this source then")
        )
    if plan.ended is not None:
        yield plan.ended
    yield from notes_on_longest(plan)
    yield from plan.notes_on_sources
    changes = sum(
        before.seq_len != after.seq_len for before, after in pairwise(plan.phases)
    )
    if changes > 4:
        yield (
            f"the sequence length changes {changes} times, "
            "and each change leaves a round unfinished"
        )


def _notes_on_reading(plan: PlanFigures) -> Iterator[str]:
    for source in plan.sources:
        if source.epochs > 1:
            too_often = _TOO_OFTEN if source.epochs > _MOST_EPOCHS else ""
            yield f"{source.name} is read {source.epochs:.2f} times{too_often}"
        if source.waste_share > _MOST_WASTE:
            yield (
                f"{source.name} leaves {100 * source.waste_share:.0f} % of each pass "
                "unread, because it is small for sequences of this length; use shorter "
                "sequences or more text"
            )


def _notes_on_phase(phase: PhasePlan) -> Iterator[str]:
    for source in phase.sources:
        if source.exhausted_step is not None:
            yield (
                f"phase {phase.index}: {source.name} runs out in step "
                f"{source.exhausted_step:,}; the others share its weight from there"
            )
    for source in phase.sources:
        if source.is_spent:
            name = f"phase {phase.index}: {source.name}"
            yield f"{name} has run out and gives no samples"


def notes_on_longest(plan: PlanFigures) -> tuple[str, ...]:
    """Return a sentence for each phase with sequences longer than `longest`."""
    long = (phase for phase in plan.phases if phase.seq_len > plan.longest)
    # An edited phase has several entries, which often give the same sentence; keep one.
    return tuple(dict.fromkeys(_note_on_longest(plan, phase) for phase in long))


def _note_on_longest(plan: PlanFigures, phase: PhasePlan) -> str:
    corpora = {source.name: source for source in plan.sources}
    length = phase.seq_len
    sizes = [
        (corpora[source.name].num_tokens, corpora[source.name].unit)
        for source in phase.sources
    ]
    now, declared = (
        max(
            100 * cut_spans(size, longest, plan.overlap, unit).num_spans * length / size
            for size, unit in sizes
        )
        for longest in (plan.longest, length)
    )
    return (
        f"phase {phase.index} has sequences of {length} tokens, longer than "
        f"longest={plan.longest}, which is fixed at the first step of a run: a round "
        f"of the phase is up to {now:.1f} % of a source ({declared:.1f} % with "
        f"longest={length}), and a change of length leaves the rest of a round unread; "
        f"declare longest={length} at the start of a run that may get such a phase"
    )
