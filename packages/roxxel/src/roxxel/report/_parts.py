"""The parts of which every page is made: the document, its tables and its charts.

A chart is a description: its lines, their colours, and its axis. The page's script
makes Plotly's traces from it, because the axis of the steps, the theme and the hidden
sources change while the page is open.
"""

from __future__ import annotations

import gzip
import json
import re
from dataclasses import dataclass
from datetime import datetime
from importlib import resources
from typing import TYPE_CHECKING, Any

from roxxel_store.screen import in_html

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from roxxel.report._series import Clock, Series

_NO_NETWORK = (
    "default-src 'none'; img-src data: blob:; "
    "script-src 'unsafe-inline'; style-src 'unsafe-inline'"
)
"""What the browser may load: nothing. The page holds all that it needs."""

_LOG_FROM = 2.5
"""An axis is logarithmic if maximum / minimum of its values exceeds this ratio."""

_FOLDED = "More charts: where waits come from, memory, operations a second"


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


@dataclass(frozen=True)
class Line:
    """One series of a chart, with its name in the legend.

    Attributes:
        name: Name in the legend.
        series: The values.
        color: Index of the colour; the page defines eight.
        of: What the line belongs to, such as a source. The legend hides and shows all
            lines of the page with the same `of` together. Default: `name`.
        is_faint: Whether the line is thin.
        has_dots: Whether every point has a dot; for short series.
        clock: Index of the run's clock.
    """

    name: str
    series: Series
    color: int = 0
    of: str = ""
    is_faint: bool = False
    has_dots: bool = False
    clock: int = 0


@dataclass(frozen=True)
class Spot:
    """A highlighted point of a chart, such as a spike, with its text."""

    step: int
    value: float
    words: str


@dataclass(frozen=True)
class Mark:
    """A step at which a phase begins, with labels of different lengths."""

    step: int
    labels: tuple[str, ...]  # longest first; the chart shows the first label that fits


@dataclass(frozen=True)
class Chart:
    """Series drawn as lines or as a stack of areas."""

    key: str  # id of the figure in the page
    title: str
    lines: Sequence[Line]  # not empty; the lines of a stack have the same steps
    is_stack: bool = False
    from_zero: bool = True
    may_be_log: bool = False
    is_share: bool = False  # show the values in percent
    is_wide: bool = False  # twice as wide as the others
    is_folded: bool = False  # below the others, and shown when it is asked for
    spots: Sequence[Spot] = ()

    @property
    def axis(self) -> str:
        """The axis of the values: `log`, `zero` if it begins at 0, or `free`."""
        values = [value for line in self.lines for value in line.series.finite]
        low, high = min(values, default=0.0), max(values, default=0.0)
        if self.may_be_log and 0 < low * _LOG_FROM < high:
            return "log"
        return "zero" if self.is_stack or (self.from_zero and low >= 0) else "free"

    @property
    def html(self) -> str:
        """The figure, in which the page's script draws the chart."""
        scale = " (logarithmic)" if self.axis == "log" else ""
        return _figure(self.key, self.title, scale, is_wide=self.is_wide)

    @property
    def data(self) -> dict[str, Any]:
        """The chart as JSON values, for the page's script."""
        return {
            "axis": self.axis,
            "stack": self.is_stack,
            "share": self.is_share,
            "lines": [
                {
                    "name": line.name,
                    "of": line.of or line.name,
                    "color": line.color,
                    "faint": line.is_faint,
                    "dots": line.has_dots or len(line.series.steps) == 1,
                    "clock": line.clock,
                    "x": line.series.steps,
                    "y": line.series.values,
                }
                for line in self.lines
            ],
            "spots": [[spot.step, spot.value, spot.words] for spot in self.spots],
        }


@dataclass(frozen=True)
class Cloud:
    """The points of one colour in a `Scatter`, each with the text that it shows."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    words: Sequence[str]
    color: int = 0


@dataclass(frozen=True)
class Scatter:
    """Points over another axis than the steps, such as losses over shares.

    Attributes:
        key: Id of the figure in the page.
        title: Its heading.
        axes: What the horizontal and the vertical axis show.
        clouds: The points.
        is_share: Whether the horizontal axis is in percent.
        has_diagonal: Whether the line of equal values is drawn.
    """

    key: str
    title: str
    axes: tuple[str, str]
    clouds: Sequence[Cloud]
    is_share: bool = False
    has_diagonal: bool = False

    @property
    def html(self) -> str:
        """The figure, in which the page's script draws the points."""
        return _figure(self.key, self.title)

    @property
    def data(self) -> dict[str, Any]:
        """The points as JSON values, for the page's script."""
        return {
            "axes": self.axes,
            "share": self.is_share,
            "diagonal": self.has_diagonal,
            "clouds": [vars(cloud) for cloud in self.clouds],
        }


@dataclass(frozen=True)
class Drawn:
    """All charts of a page, and the marks in each of them.

    Attributes:
        charts: The charts over the steps, in order.
        clocks: Tokens and time over the steps, of each run on the page.
        scatters: The other charts, which follow.
        phases: Where phases begin.
        evaluations: Steps of the evaluations.
    """

    charts: Sequence[Chart] = ()
    clocks: Sequence[Clock] = ()
    scatters: Sequence[Scatter] = ()
    phases: Sequence[Mark] = ()
    evaluations: Sequence[int] = ()

    @property
    def html(self) -> str:
        """The grid of the charts; a menu chooses the axis of charts over the steps."""
        open_, folded = (
            [chart for chart in self.charts if chart.is_folded is kind]
            for kind in (False, True)
        )
        figures = _grid([*open_, *self.scatters])
        more = _grid(folded)
        if not figures and not more:
            return ""
        if more:
            more = f"\n<details><summary>{_FOLDED}</summary>{more}</details>"
        return (
            f"{self._axes() if self.charts else ''}"
            "<noscript><p>The charts need JavaScript; the numbers and tables do not."
            f"</p></noscript>\n{figures}{more}"
        )

    def _axes(self) -> str:
        """Return the choice of the horizontal axis."""
        axes = {
            "step": "steps",
            "tokens": "tokens",
            "time": "training time",
        }
        missing = {
            "tokens": not all(clock.tokens for clock in self.clocks),
            "time": not all(clock.seconds for clock in self.clocks),
        }
        choices = "".join(
            f'<label><input type="radio" name="axis" value="{axis}"'
            f"{' checked' if axis == 'step' else ''}"
            f"{' disabled' if missing.get(axis) else ''}> {words}</label>"
            for axis, words in axes.items()
        )
        return (
            f'<form id="axes"><span>Over</span>{choices}'
            '<button type="button" id="whole" hidden>Show the whole run</button></form>'
        )

    @property
    def data(self) -> dict[str, Any]:
        """Everything that the page's script draws, as JSON values."""
        return {
            "clocks": [
                {"step": c.steps, "tokens": c.tokens, "time": c.seconds}
                for c in self.clocks
            ],
            "phases": [[mark.step, mark.labels] for mark in self.phases],
            "evaluations": self.evaluations,
            "charts": {chart.key: chart.data for chart in self.charts},
            "scatters": {each.key: each.data for each in self.scatters},
        }


def when(time: str) -> str:
    """Return an ISO 8601 time in UTC as `YYYY-MM-DD HH:MM:SS UTC`.

    A text that cannot be parsed is returned unchanged.
    """
    try:
        return f"{datetime.fromisoformat(time):%Y-%m-%d %H:%M:%S} UTC"
    except ValueError:
        return time


def short(value: float) -> str:
    """Return a number as a short text: 1.5 k, 20 M, 0.003."""
    for unit, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= size * 0.9995:
            return f"{value / size:.4g} {unit}"
    return f"{value:.4g}"


def percent(share: float) -> str:
    return f"{100 * share:.3g} %"


def _grid(charts: Sequence[Chart | Scatter]) -> str:
    figures = "\n".join(each.html for each in charts)
    return f'<div class="charts">\n{figures}\n</div>' if figures else ""


def _figure(key: str, title: str, scale: str = "", *, is_wide: bool = False) -> str:
    words, kind = in_html(title), " class=wide" if is_wide else ""
    return (
        f'<figure id="{in_html(key)}"{kind}><figcaption>{words}{scale}</figcaption>'
        f'<div class="plot" role="img" aria-label="{words}"></div></figure>'
    )


def _breakable(text: str) -> str:
    """Return a text as HTML that may break within a long name or path."""
    return re.sub(r"(?<=[./_-])(?=[^\W\d])", "<wbr/>", in_html(text))


def _json(value: object) -> str:
    """Return JSON without `<`, so that no string can close the script element."""
    return json.dumps(value, separators=(",", ":")).replace("<", "\\u003c")


def _chart_library() -> str:
    packed = resources.files("roxxel.report") / "plotly-basic.min.js.gz"
    return gzip.decompress(packed.read_bytes()).decode()


def _file(name: str) -> str:
    return (resources.files("roxxel.report") / name).read_text(encoding="utf-8")
