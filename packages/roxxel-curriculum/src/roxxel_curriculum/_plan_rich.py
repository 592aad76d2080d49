"""A plan as tables of rich, for terminals; imported only when rich asks for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from roxxel_curriculum._plan_text import (
    PHASE_COLUMNS,
    SOURCE_COLUMNS,
    column_widths,
    headline,
    phase_heading,
    phase_rows,
    plan_notes,
    source_rows,
)

if TYPE_CHECKING:
    from rich.console import RenderableType

    from roxxel_curriculum._plan import Plan

_LEFT = {"source", "when it runs out"}


def plan_renderable(plan: Plan) -> Group:
    """Return a plan as its headline, two tables and its notes."""
    blocks = [phase_rows(phase) for phase in plan.phases]
    widths = column_widths(PHASE_COLUMNS, [row for block in blocks for row in block])
    parts: list[RenderableType] = [
        Text(headline(plan), style="bold"),
        "",
        _table(PHASE_COLUMNS, widths, []),
    ]
    for phase, block in zip(plan.phases, blocks, strict=True):
        parts.append(Text(phase_heading(phase), style="bold"))
        parts.append(_table(PHASE_COLUMNS, widths, block, has_head=False))
    rows = source_rows(plan)
    parts += ["", _table(SOURCE_COLUMNS, column_widths(SOURCE_COLUMNS, rows), rows)]
    notes = plan_notes(plan)
    if notes:
        parts += ["", *(Text(f"- {note}", style="yellow") for note in notes)]
    return Group(*parts)


def _table(
    columns: tuple[str, ...],
    widths: list[int],
    rows: list[tuple[str, ...]],
    *,
    has_head: bool = True,
) -> Table:
    """Return a table whose columns stand where those of its neighbours do."""
    table = Table(
        box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, show_header=has_head
    )
    for column, width in zip(columns, widths, strict=True):
        justify = "left" if column in _LEFT else "right"
        table.add_column(column, justify=justify, min_width=width)
    for row in rows:
        table.add_row(*map(Text, row))
    return table
