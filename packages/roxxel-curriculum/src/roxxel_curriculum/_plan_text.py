"""A plan as a plain table."""

from __future__ import annotations

from html import escape
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from roxxel_curriculum._plan import Plan, SourcePlan


def plan_text(plan: Plan) -> str:
    """Return a plan as lines of text, without colour."""
    lines = [headline(plan), ""]
    lines += _table(PHASE_COLUMNS, phase_rows(plan))
    lines += ["", *_table(SOURCE_COLUMNS, source_rows(plan))]
    notes = plan_notes(plan)
    if notes:
        lines += ["", *notes]
    return "\n".join(lines)


def plan_html(plan: Plan) -> str:
    """Return a plan as two HTML tables, for notebooks."""
    parts = [f"<p>{escape(headline(plan))}</p>"]
    for columns, rows in (
        (PHASE_COLUMNS, phase_rows(plan)),
        (SOURCE_COLUMNS, source_rows(plan)),
    ):
        head = "".join(f"<th>{escape(column)}</th>" for column in columns)
        body = "".join(
            f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>"
            for row in rows
        )
        parts.append(f"<table><tr>{head}</tr>{body}</table>")
    parts.extend(f"<p>{escape(note)}</p>" for note in plan_notes(plan))
    return "\n".join(parts)


PHASE_COLUMNS = (
    "phase",
    "steps",
    "batch",
    "source",
    "share",
    "samples",
    "tokens",
    "epochs",
    "from-to",
    "waste",
)

SOURCE_COLUMNS = ("source", "holds", "read", "epochs", "waste", "when it runs out")


def headline(plan: Plan) -> str:
    """Return one line about the whole run."""
    return (
        f"{plan.total_steps:,} steps, {short(plan.total_tokens)} tokens, "
        f"{len(plan.phases)} phases, {len(plan.sources)} sources, seed {plan.seed}"
    )


def phase_rows(plan: Plan) -> list[tuple[str, ...]]:
    """Return a row for each source of each phase."""
    rows: list[tuple[str, ...]] = []
    for phase in plan.phases:
        for number, source in enumerate(phase.sources):
            steps = f"{phase.start:,}-{phase.stop - 1:,}"
            head = (str(phase.index), steps, f"{phase.batch_size} x {phase.seq_len}")
            rows.append(
                (
                    *(head if number == 0 else ("", "", "")),
                    source.name,
                    f"{source.share:.4g}",
                    f"{source.samples:,}",
                    short(source.tokens),
                    f"{source.epochs:.3f}",
                    _from_to(source),
                    short(source.unfinished_tokens + source.tail_tokens),
                )
            )
    return rows


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
            if not any(source.name in mix.shares for mix in phase.mixes)
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


def _table(columns: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(columns, *rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) for cell, width in zip(row, widths, strict=True)
        ).rstrip()
        for row in (columns, tuple("-" * width for width in widths), *rows)
    ]
