"""A plan as a plain table."""

from __future__ import annotations

from html import escape
from itertools import pairwise
from textwrap import wrap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from roxxel_curriculum._plan import PhasePlan, Plan, SourcePlan


_WIDTH = 80


def plan_text(plan: Plan) -> str:
    """Return a plan as lines of text, without colour, 80 columns wide if it can be."""
    lines = [headline(plan), ""]
    blocks = [phase_rows(phase) for phase in plan.phases]
    widths = column_widths(PHASE_COLUMNS, [row for block in blocks for row in block])
    lines += _head(PHASE_COLUMNS, widths)
    for phase, block in zip(plan.phases, blocks, strict=True):
        lines.append(phase_heading(phase))
        lines += [_line(row, widths) for row in block]
    rows = source_rows(plan)
    widths = column_widths(SOURCE_COLUMNS, rows)
    lines += ["", *_head(SOURCE_COLUMNS, widths)]
    lines += [_line(row, widths) for row in rows]
    notes = [
        line
        for note in plan_notes(plan)
        for line in wrap(note, _WIDTH, subsequent_indent="  ", break_on_hyphens=False)
    ]
    if notes:
        lines += ["", *notes]
    return "\n".join(lines)


def plan_html(plan: Plan) -> str:
    """Return a plan as two HTML tables, for notebooks."""
    phases = [_html_row("th", PHASE_COLUMNS)]
    for phase in plan.phases:
        heading = escape(phase_heading(phase))
        phases.append(f'<tr><th colspan="{len(PHASE_COLUMNS)}">{heading}</th></tr>')
        phases += [_html_row("td", row) for row in phase_rows(phase)]
    sources = [_html_row("th", SOURCE_COLUMNS)]
    sources += [_html_row("td", row) for row in source_rows(plan)]
    return "\n".join(
        [
            f"<p>{escape(headline(plan))}</p>",
            f"<table>{''.join(phases)}</table>",
            f"<table>{''.join(sources)}</table>",
            *(f"<p>{escape(note)}</p>" for note in plan_notes(plan)),
        ]
    )


PHASE_COLUMNS = ("source", "share", "samples", "tokens", "epochs", "from-to", "waste")

SOURCE_COLUMNS = ("source", "holds", "read", "epochs", "waste", "when it runs out")


def headline(plan: Plan) -> str:
    """Return one line about the whole run."""
    return (
        f"{plan.total_steps:,} steps, {short(plan.total_tokens)} tokens, "
        f"{_counted(len(plan.phases), 'phase')}, "
        f"{_counted(len(plan.sources), 'source')}, seed {plan.seed}"
    )


def phase_heading(phase: PhasePlan) -> str:
    """Return what a phase is, above the rows of its sources."""
    return (
        f"phase {phase.index}: steps {phase.start:,}-{phase.stop - 1:,} of "
        f"{phase.batch_size} x {phase.seq_len}"
    )


def phase_rows(phase: PhasePlan) -> list[tuple[str, ...]]:
    """Return a row for each source of a phase."""
    return [
        (
            source.name,
            f"{source.share:.4g}",
            f"{source.samples:,}",
            short(source.tokens),
            f"{source.epochs:.3f}" if source.samples or source.skipped else "-",
            _from_to(source),
            short(source.unfinished_tokens + source.tail_tokens),
        )
        for source in phase.sources
    ]


def source_rows(plan: Plan) -> list[tuple[str, ...]]:
    """Return a row for each source."""
    return [
        (
            source.name,
            short(source.num_tokens),
            short(source.tokens),
            f"{source.epochs:.3f}",
            _share(source.waste_tokens, source.num_tokens),
            source.policy,
        )
        for source in plan.sources
    ]


def plan_notes(plan: Plan) -> list[str]:
    """Return sentences about what a reader of the table should not miss."""
    notes: list[str] = []
    for phase in plan.phases:
        notes.extend(
            f"phase {phase.index}: {source.name} runs out in step "
            f"{source.exhausted_step:,}; the others share its weight from there"
            for source in phase.sources
            if source.exhausted_step is not None
        )
        notes.extend(
            f"phase {phase.index}: {source.name} has nothing left and gives nothing"
            for source in phase.sources
            if source.is_spent
        )
    notes.extend(
        f"{source.name} is read {source.epochs:.2f} times"
        for source in plan.sources
        if source.epochs > 1
    )
    notes.extend(
        f"before step {at:,} the data of {count:,} steps is passed over"
        for at, count in plan.skips
    )
    if plan.ended is not None:
        notes.append(plan.ended)
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
        notes.append(
            f"phase {phase.index} has samples longer than longest={plan.longest:,}: "
            f"a round of it is up to {100 * cost:.1f} % of a source"
        )
    changes = sum(
        before.seq_len != after.seq_len for before, after in pairwise(plan.phases)
    )
    if changes > 4:
        notes.append(
            f"the length of sample changes {changes} times, "
            "and each change leaves a round unfinished"
        )
    return notes


def short(number: int) -> str:
    """Return a count with at most four figures and its unit of a thousand."""
    for unit, size in (
        ("E", 10**18),
        ("P", 10**15),
        ("T", 10**12),
        ("G", 10**9),
        ("M", 10**6),
        ("k", 10**3),
    ):
        if number >= size:
            return f"{number / size:.4g} {unit}"
    return str(number)


def _share(part: int, whole: int) -> str:
    return f"{short(part)} ({100 * part / whole:.2f} %)"


def _from_to(source: SourcePlan) -> str:
    if source.first_step is None or source.last_step is None:
        return "-"
    return f"{source.first_step:,}-{source.last_step:,}"


def column_widths(columns: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[int]:
    """Return the characters of the widest cell of each column."""
    return [max(map(len, column)) for column in zip(columns, *rows, strict=True)]


def _head(columns: tuple[str, ...], widths: list[int]) -> list[str]:
    rule = tuple("-" * width for width in widths)
    return [_line(columns, widths), _line(rule, widths)]


def _line(cells: tuple[str, ...], widths: list[int]) -> str:
    padded = [cell.ljust(width) for cell, width in zip(cells, widths, strict=True)]
    return "  ".join(padded).rstrip()


def _html_row(tag: str, cells: tuple[str, ...]) -> str:
    return f"<tr>{''.join(f'<{tag}>{escape(cell)}</{tag}>' for cell in cells)}</tr>"


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
