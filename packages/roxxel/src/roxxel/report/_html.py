"""The parts that all pages of a report share: the document, tables and texts."""

from __future__ import annotations

import gzip
import json
import re
from datetime import datetime
from importlib import resources
from typing import TYPE_CHECKING

from roxxel_store.screen import in_html

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from roxxel.report._chart import Drawn

_NO_NETWORK = (
    "default-src 'none'; img-src data: blob:; "
    "script-src 'unsafe-inline'; style-src 'unsafe-inline'"
)
"""What the browser may load: nothing. The page holds all that it needs."""


def document(title: str, body: Iterable[str], drawn: Drawn | None = None) -> str:
    """Return a page as one file, with style, scripts and the values of its charts."""
    scripts = ""
    if drawn is not None and drawn.html:
        scripts = (
            f'<script type="application/json" id="numbers">{_json(drawn.data)}'
            f"</script>\n<script>{_chart_library()}</script>\n"
            f"<script>\n{_file('page.js')}</script>\n"
        )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_NO_NETWORK}">\n'
        f"<title>{in_html(title)}</title>\n"
        f"<style>\n{_file('page.css')}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(part for part in body if part)
        + f"\n</main>\n{scripts}</body>\n</html>\n"
    )


def table(
    title: str,
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    left: set[int],
    note: str = "",
    kind: str = "",
) -> str:
    """Return a section with a table; empty without rows.

    Args:
        title: Heading of the section.
        head: Names of the columns.
        rows: Cells, as text.
        left: Indices of the columns that are left-aligned and may wrap.
        note: HTML of a paragraph above the table.
        kind: CSS class of the table. With `runs`, the cells may wrap, because the table
            has a column for each run. With `checkpoints`, a long name in the last
            column may wrap. With `spikes`, the last column holds command lines.
    """
    if not rows:
        return ""

    shown = _breakable if kind == "runs" else in_html

    def cells(row: Sequence[str], tag: str) -> str:
        return "".join(
            f"<{tag}{' class=left' if index in left else ''}>{shown(text)}</{tag}>"
            for index, text in enumerate(row)
        )

    body = "".join(f"<tr>{cells(row, 'td')}</tr>" for row in rows)
    paragraph = f'<p class="note">{note}</p>' if note else ""
    return (
        f"<section><h2>{in_html(title)}</h2>{paragraph}"
        f'<div class="scroll"><table class="{kind}"><thead>'
        f"<tr>{cells(head, 'th')}</tr></thead><tbody>{body}</tbody></table></div>"
        "</section>"
    )


def _breakable(text: str) -> str:
    """Return a text as HTML that may break within a long name or path."""
    return re.sub(r"(?<=[./_-])(?=[^\W\d])", "<wbr/>", in_html(text))


def when(time: str) -> str:
    """Return an ISO 8601 time in UTC as `YYYY-MM-DD HH:MM:SS UTC`.

    A text that cannot be parsed is returned unchanged.
    """
    try:
        return f"{datetime.fromisoformat(time):%Y-%m-%d %H:%M:%S} UTC"
    except ValueError:
        return time


def _json(value: object) -> str:
    """Return JSON without `<`, so that no string can close the script element."""
    return json.dumps(value, separators=(",", ":")).replace("<", "\\u003c")


def _chart_library() -> str:
    packed = resources.files("roxxel.report") / "plotly-basic.min.js.gz"
    return gzip.decompress(packed.read_bytes()).decode()


def _file(name: str) -> str:
    return (resources.files("roxxel.report") / name).read_text(encoding="utf-8")
