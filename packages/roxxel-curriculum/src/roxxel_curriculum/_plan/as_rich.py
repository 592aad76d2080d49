"""The tables of a plan for terminals; imported only when rich shows a plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich import box
from rich.console import Group
from rich.table import Table as RichTable
from rich.text import Text

if TYPE_CHECKING:
    from rich.console import RenderableType

    from roxxel_curriculum._plan.tables import PlanTables, Row, Table

_LEFT = {"source", "when it runs out"}


def render_rich(tables: PlanTables) -> Group:
    """Return tables as a headline, two tables and notes."""
    parts: list[RenderableType] = [Text(tables.headline, style="bold"), ""]
    parts += _table(tables.phases)
    parts += ["", *_table(tables.sources)]
    if tables.notes:
        parts += ["", *(Text(f"- {note}", style="yellow") for note in tables.notes)]
    return Group(*parts)


def _table(table: Table) -> list[RenderableType]:
    """Return a table, or one for each group below its heading, with equal columns."""
    if len(table.groups) == 1 and table.groups[0].heading is None:
        return [_rows(table, table.groups[0].rows)]
    parts: list[RenderableType] = [_rows(table, ())]
    for group in table.groups:
        if group.heading is not None:
            parts.append(Text(group.heading, style="bold"))
        parts.append(_rows(table, group.rows, has_head=False))
    return parts


def _rows(table: Table, rows: tuple[Row, ...], *, has_head: bool = True) -> RichTable:
    made = RichTable(
        box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, show_header=has_head
    )
    for column, width in zip(table.columns, table.widths, strict=True):
        justify = "left" if column in _LEFT else "right"
        made.add_column(column, justify=justify, min_width=width)
    for row in rows:
        made.add_row(*map(Text, row))
    return made
