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
    headline,
    phase_rows,
    plan_notes,
    source_rows,
)

if TYPE_CHECKING:
    from roxxel_curriculum._plan import Plan

_LEFT = {"phase", "source", "when it runs out"}


def plan_renderable(plan: Plan) -> Group:
    """Return a plan as its headline, two tables and its notes."""
    phases = _table(PHASE_COLUMNS)
    for row in phase_rows(plan):
        if row[0]:
            phases.add_section()
        phases.add_row(*map(Text, row))
    sources = _table(SOURCE_COLUMNS)
    for row in source_rows(plan):
        sources.add_row(*map(Text, row))
    notes = [Text(f"- {note}", style="yellow") for note in plan_notes(plan)]
    return Group(Text(headline(plan), style="bold"), phases, sources, *notes)


def _table(columns: tuple[str, ...]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(column, justify="left" if column in _LEFT else "right")
    return table
