"""The tables of a plan as HTML, for notebooks."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from roxxel_curriculum._plan.tables import PlanTables, Row, Table


def render_html(tables: PlanTables) -> str:
    """Return tables as two HTML tables between paragraphs."""
    return "\n".join(
        [
            f"<p>{escape(tables.headline)}</p>",
            _table(tables.phases),
            _table(tables.sources),
            *(f"<p>{escape(note)}</p>" for note in tables.notes),
        ]
    )


def _table(table: Table) -> str:
    rows = [_row("th", table.columns)]
    for group in table.groups:
        if group.heading is not None:
            heading = escape(group.heading)
            rows.append(f'<tr><th colspan="{len(table.columns)}">{heading}</th></tr>')
        rows += [_row("td", row) for row in group.rows]
    return f"<table>{''.join(rows)}</table>"


def _row(tag: str, cells: Row) -> str:
    return f"<tr>{''.join(f'<{tag}>{escape(cell)}</{tag}>' for cell in cells)}</tr>"
