"""The tables of a plan as plain text."""

from __future__ import annotations

from textwrap import wrap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from roxxel_curriculum._plan.tables import PlanTables, Row, Table

_WIDTH = 80


def render_text(tables: PlanTables) -> str:
    """Return tables as lines of text without colour, 80 columns wide if they fit."""
    lines = [tables.headline, ""]
    lines += _table(tables.phases)
    lines += ["", *_table(tables.sources)]
    notes = [
        line
        for note in tables.notes
        for line in wrap(note, _WIDTH, subsequent_indent="  ", break_on_hyphens=False)
    ]
    if notes:
        lines += ["", *notes]
    return "\n".join(lines)


def _table(table: Table) -> list[str]:
    rule = tuple("-" * width for width in table.widths)
    lines = [_line(table.columns, table), _line(rule, table)]
    for group in table.groups:
        if group.heading is not None:
            lines.append(group.heading)
        lines += [_line(row, table) for row in group.rows]
    return lines


def _line(cells: Row, table: Table) -> str:
    padded = [
        cell.ljust(width) for cell, width in zip(cells, table.widths, strict=True)
    ]
    return "  ".join(padded).rstrip()
