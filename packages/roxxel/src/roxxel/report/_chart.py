"""Charts as inline SVG: lines or stacked areas, with marks for phases and spikes.

Colours are CSS variables, which the page sets for light and dark themes. Each figure
has a wide and a narrow SVG, because scaling an SVG also scales its text.

pygal would not suffice: version 3.1 joins lines across a gap, stacks areas only at
equal distances, cannot mark phases, and adds 8 kB of styles and a script per chart.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape
from itertools import islice
from typing import TYPE_CHECKING, Any

from roxxel.report._axis import Axis, axis_over

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from roxxel.report._series import Series

_LETTER = 6.4
"""Width of a letter in a chart, in pixels."""

_COLORS = 8
"""Number of colours; the page defines them as `--c0` to `--c7`."""


def short(value: float) -> str:
    """Return a number as a short text: 1.5 k, 20 M, 0.003."""
    for unit, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= size * 0.9995:
            return f"{value / size:.4g} {unit}"
    return f"{value:.4g}"


@dataclass(frozen=True)
class Line:
    """One series of a chart, with its name in the legend."""

    name: str
    series: Series
    is_faint: bool = False
    has_dots: bool = False  # draw a dot at every point; for short series
    color: int | None = None  # index of the colour; None: index of the line


@dataclass(frozen=True)
class Spot:
    """A highlighted point of a chart, such as a spike, with its tooltip."""

    x: int
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
    lines: Sequence[Line]  # not empty; the lines of a stack have the same `x`
    is_stack: bool = False
    from_zero: bool = True
    may_be_log: bool = False
    shown: Callable[[float], str] = field(default=short)  # returns the text of a value
    height: int = 220  # pixels
    x_name: str = "step"
    spots: Sequence[Spot] = ()

    @property
    def is_constant(self) -> bool:
        """Whether every line is constant."""
        return all(line.series.is_constant for line in self.lines)

    def html(self, last_x: int, marks: Sequence[Mark] = (), first_x: int = 0) -> str:
        """Return the figure from `first_x` to `last_x`."""
        x = Axis(float(first_x), float(max(first_x + 1, last_x)))
        y = self._values_axis()
        keys = "".join(
            f'<span><i style="background:{_color(line, index)}"'
            f"{' class=faint' if line.is_faint else ''}></i>{escape(line.name)}</span>"
            for index, line in enumerate(self.lines)
        )
        if self.spots:
            keys += '<span><i class="spot"></i>spike</span>'
        has_legend = len(self.lines) > 1 or self.is_stack or bool(self.spots)
        legend = f'<p class="legend">{keys}</p>' if has_legend else ""
        drawn = "".join(
            _Drawing(self, x, y, width, name).svg(marks)
            for width, name in ((860, "wide"), (380, "narrow"))
        )
        scale = " (logarithmic)" if y.is_log else ""
        return (
            f'<figure id="{self.key}"><figcaption>{escape(self.title)}{scale}'
            f"</figcaption>{legend}{drawn}</figure>"
        )

    def data(self) -> dict[str, Any]:
        """Return the numbers of the chart, for the page's script."""
        return {
            line.name: {"x": line.series.x, "y": line.series.values}
            for line in self.lines
        }

    def _values_axis(self) -> Axis:
        if self.is_stack:
            rows = zip(*(line.series.values for line in self.lines), strict=True)
            tops = [sum(value or 0.0 for value in row) for row in rows]
            return axis_over(tops, from_zero=True)
        values = [value for line in self.lines for value in line.series.finite]
        return axis_over(values, from_zero=self.from_zero, may_be_log=self.may_be_log)


class _Drawing:
    """Draws a chart at one width, in pixels."""

    def __init__(self, chart: Chart, x: Axis, y: Axis, width: int, name: str) -> None:
        self.chart, self.x, self.y = chart, x, y
        self.width, self.height, self.name = width, chart.height, name
        self.left, self.right = 58, width - 12
        self.top, self.bottom = 20, chart.height - 26

    def svg(self, marks: Sequence[Mark]) -> str:
        parts = [*self._grid(), *self._marks(marks)]
        parts += self._areas() if self.chart.is_stack else self._lines()
        parts += self._spots()
        parts.append(
            f'<line class="cross" y1="{self.top}" y2="{self.bottom}" x1="-9" x2="-9"/>'
        )
        share = " data-share" if self.chart.shown(1.0).endswith("%") else ""
        return (
            f'<svg class="{self.name}" viewBox="0 0 {self.width} {self.height}" '
            f'role="img" aria-label="{escape(self.chart.title)}" '
            f'data-left="{self.left}" data-right="{self.right}" '
            f'data-low="{self.x.low}" data-high="{self.x.high}" '
            f'data-name="{escape(self.chart.x_name)}"{share}>'
            + "".join(parts)
            + "</svg>"
        )

    def _at_x(self, x: float) -> float:
        return round(self.left + self.x.position(x) * (self.right - self.left), 1)

    def _at_y(self, value: float) -> float:
        return round(self.bottom - self.y.position(value) * (self.bottom - self.top), 1)

    def _grid(self) -> list[str]:
        parts: list[str] = []
        for tick in self.y.ticks(5):
            at = self._at_y(tick)
            parts.append(
                f'<line class="grid" x1="{self.left}" x2="{self.right}" y1="{at}" '
                f'y2="{at}"/><text class="y" x="{self.left - 7}" y="{at + 4}">'
                f"{escape(self.chart.shown(tick))}</text>"
            )
        found = self.x.ticks(8 if self.width > 500 else 4)
        ticks = [(self._at_x(t), short(t)) for t in found if t == int(t)]
        parts += [
            f'<text class="x" x="{at}" y="{self.bottom + 18}">{text}</text>'
            for at, text in ticks
        ]
        # Align the name to the right, before the axis and the label of the first tick.
        edges = [at - len(text) * _LETTER / 2 - 6 for at, text in ticks[:1]]
        name_at = round(min([self.left - 7.0, *edges]), 1)
        parts.append(
            f'<text class="y" x="{name_at:g}" y="{self.bottom + 18}">'
            f"{escape(self.chart.x_name)}</text>"
        )
        return parts

    def _marks(self, marks: Sequence[Mark]) -> list[str]:
        parts: list[str] = []
        starts = [self._at_x(mark.step) for mark in marks]
        stops = [*starts, self.right + 10][1:]
        for mark, at, stop in zip(marks, starts, stops, strict=True):
            if mark.step > self.x.low:
                parts.append(
                    f'<line class="mark" x1="{at}" x2="{at}" y1="{self.top - 12}" '
                    f'y2="{self.bottom}"/>'
                )
            fitting = (
                text for text in mark.labels if at + _LETTER * len(text) + 8 <= stop
            )
            parts += [
                f'<text class="label" x="{at + 4}" y="{self.top - 7}">'
                f"{escape(label)}</text>"
                for label in islice(fitting, 1)
            ]
        return parts

    def _spots(self) -> list[str]:
        return [
            f'<circle class="spot" cx="{self._at_x(spot.x)}" '
            f'cy="{self._at_y(spot.value)}" r="6"><title>{escape(spot.words)}</title>'
            "</circle>"
            for spot in self.chart.spots
        ]

    def _lines(self) -> list[str]:
        return [
            part
            for index, line in enumerate(self.chart.lines)
            for part in self._line(line, _color(line, index))
        ]

    def _line(self, line: Line, color: str) -> list[str]:
        pieces: list[list[str]] = [[]]
        for x, value in zip(line.series.x, line.series.values, strict=True):
            if value is None:
                pieces.append([])
            else:
                pieces[-1].append(f"{self._at_x(x)},{self._at_y(value)}")
        faint = " faint" if line.is_faint else ""
        drawn = [
            f'<polyline class="line{faint}" stroke="{color}" points="{" ".join(p)}"/>'
            for p in pieces
            if len(p) > 1
        ]
        points = [point.split(",") for piece in pieces for point in piece]
        # A polyline of one point is invisible, so draw a dot.
        if line.has_dots or len(points) == 1:
            drawn += [
                f'<circle cx="{x}" cy="{y}" r="3" fill="{color}"/>' for x, y in points
            ]
        return drawn

    def _areas(self) -> list[str]:
        all_x = self.chart.lines[0].series.x
        below = [0.0] * len(all_x)
        parts: list[str] = []
        for index, line in enumerate(self.chart.lines):
            color = _color(line, index)
            above = [
                base + (value or 0.0)
                for base, value in zip(below, line.series.values, strict=True)
            ]
            edge = zip(all_x, above, strict=True)
            back = [*zip(all_x, below, strict=True)][::-1]
            # Before step 0 the run has read no tokens, so each area starts at (0, 0).
            # A branch starts where the series begin.
            origin = [] if self.x.low else [(0, 0.0)]
            points = [*origin, *edge, *back]
            text = " ".join(f"{self._at_x(x)},{self._at_y(v)}" for x, v in points)
            parts.append(f'<polygon fill="{color}" points="{text}"/>')
            below = above
        return parts


def _color(line: Line, index: int) -> str:
    return f"var(--c{(index if line.color is None else line.color) % _COLORS})"
