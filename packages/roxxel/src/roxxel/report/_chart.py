"""Charts as inline SVG: lines or stacked areas over the steps, phases marked.

Colours are the page's variables, so that a chart is readable in the light and in the
dark. Each chart is drawn twice, for a wide window and for a phone, since text in a
picture shrinks with it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING, Any

from roxxel.report._axis import Axis, axis_over, short

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from roxxel.report._series import Series

COLORS = 8
"""Colours that the page defines as `--c0` and so on."""


@dataclass(frozen=True)
class Line:
    """One series of a chart.

    Attributes:
        name: In the legend.
        series: What is drawn.
        is_faint: Whether it stands behind the others.
        has_dots: Whether each point is marked, for few points.
    """

    name: str
    series: Series
    is_faint: bool = False
    has_dots: bool = False


@dataclass(frozen=True)
class Mark:
    """A step at which something begins.

    Attributes:
        step: From 0.
        labels: What to write there, the longest first: the first one that fits is.
    """

    step: int
    labels: tuple[str, ...]


@dataclass(frozen=True)
class Chart:
    """Some series over the steps.

    Attributes:
        key: Name of the chart in the page.
        title: What is drawn, with its unit.
        lines: At least one, with a point each.
        is_stack: Whether the lines are areas upon each other.
        from_zero: Whether the values' axis begins at 0.
        may_be_log: Whether it may be logarithmic.
        shown: Returns a value as text.
        height: Of the picture, in pixels.
    """

    key: str
    title: str
    lines: Sequence[Line]
    is_stack: bool = False
    from_zero: bool = True
    may_be_log: bool = False
    shown: Callable[[float], str] = field(default=short)
    height: int = 220

    def html(self, last_step: int, marks: Sequence[Mark]) -> str:
        """Return the chart.

        Args:
            last_step: Where the steps' axis ends.
            marks: Where phases begin.
        """
        x = Axis(0.0, float(max(1, last_step)))
        y = self._values_axis()
        keys = self._keys() if len(self.lines) > 1 or self.is_stack else []
        legend = f'<p class="legend">{"".join(keys)}</p>' if keys else ""
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
            line.name: {"x": line.series.steps, "y": line.series.values}
            for line in self.lines
        }

    def _values_axis(self) -> Axis:
        if self.is_stack:
            tops = [sum(v or 0.0 for v in row) for row in _rows(self.lines)]
            return axis_over(tops, from_zero=True)
        values = [value for line in self.lines for value in line.series.finite]
        return axis_over(values, from_zero=self.from_zero, may_be_log=self.may_be_log)

    def _keys(self) -> list[str]:
        return [
            f'<span><i style="background:{_color(index)}"'
            f"{' class=faint' if line.is_faint else ''}></i>{escape(line.name)}</span>"
            for index, line in enumerate(self.lines)
        ]


class _Drawing:
    """One chart at one width."""

    def __init__(self, chart: Chart, x: Axis, y: Axis, width: int, name: str) -> None:
        self.chart, self.x, self.y = chart, x, y
        self.width, self.height, self.name = width, chart.height, name
        self.left, self.right, self.top, self.bottom = 58, width - 12, 20, 0
        self.bottom = self.height - 26

    def svg(self, marks: Sequence[Mark]) -> str:
        parts = [*self._grid(), *self._marks(marks)]
        parts += self._areas() if self.chart.is_stack else self._lines()
        parts.append(
            f'<line class="cross" y1="{self.top}" y2="{self.bottom}" x1="-9" x2="-9"/>'
        )
        return (
            f'<svg class="{self.name}" viewBox="0 0 {self.width} {self.height}" '
            f'role="img" aria-label="{escape(self.chart.title)}" '
            f'data-left="{self.left}" data-right="{self.right}" '
            f'data-low="{self.x.low}" data-high="{self.x.high}">'
            + "".join(parts)
            + "</svg>"
        )

    def _at_x(self, step: float) -> float:
        return round(self.left + self.x.place(step) * (self.right - self.left), 1)

    def _at_y(self, value: float) -> float:
        return round(self.bottom - self.y.place(value) * (self.bottom - self.top), 1)

    def _grid(self) -> list[str]:
        parts: list[str] = []
        for tick in self.y.ticks(5):
            at = self._at_y(tick)
            parts.append(
                f'<line class="grid" x1="{self.left}" x2="{self.right}" y1="{at}" '
                f'y2="{at}"/><text class="y" x="{self.left - 7}" y="{at + 4}">'
                f"{escape(self.chart.shown(tick))}</text>"
            )
        ticks = self.x.ticks(8 if self.width > 500 else 4)
        parts += [
            f'<text class="x" x="{self._at_x(tick)}" y="{self.bottom + 18}">'
            f"{short(tick)}</text>"
            for tick in ticks
            if tick == int(tick)
        ]
        return parts

    def _marks(self, marks: Sequence[Mark]) -> list[str]:
        parts: list[str] = []
        places = [self._at_x(mark.step) for mark in marks]
        stops = [*places, self.right + 10][1:]
        for mark, at, stop in zip(marks, places, stops, strict=True):
            if mark.step:
                parts.append(
                    f'<line class="mark" x1="{at}" x2="{at}" y1="{self.top - 12}" '
                    f'y2="{self.bottom}"/>'
                )
            fitting = (text for text in mark.labels if at + _width(text) <= stop)
            label = next(fitting, None)
            if label is not None:
                parts.append(
                    f'<text class="label" x="{at + 4}" y="{self.top - 7}">'
                    f"{escape(label)}</text>"
                )
        return parts

    def _lines(self) -> list[str]:
        return [
            part
            for index, line in enumerate(self.chart.lines)
            for part in self._line(line, _color(index))
        ]

    def _line(self, line: Line, color: str) -> list[str]:
        pieces: list[list[str]] = [[]]
        dots: list[str] = []
        for step, value in zip(line.series.steps, line.series.values, strict=True):
            if value is None:
                pieces.append([])
                continue
            at = f"{self._at_x(step)},{self._at_y(value)}"
            pieces[-1].append(at)
            x, _, y = at.partition(",")
            dots.append(f'<circle cx="{x}" cy="{y}" r="3" fill="{color}"/>')
        faint = " faint" if line.is_faint else ""
        drawn = [
            f'<polyline class="line{faint}" stroke="{color}" points="{" ".join(p)}"/>'
            for p in pieces
            if len(p) > 1
        ]
        # A single point makes no line.
        is_few = line.has_dots or len(dots) == 1
        return drawn + (dots if is_few else [])

    def _areas(self) -> list[str]:
        steps = self.chart.lines[0].series.steps
        below = [0.0] * len(steps)
        parts: list[str] = []
        for index, line in enumerate(self.chart.lines):
            above = [
                base + (value or 0.0)
                for base, value in zip(below, line.series.values, strict=True)
            ]
            edge = [*zip(steps, above, strict=True)]
            back = [*zip(steps, below, strict=True)][::-1]
            # Nothing was delivered before the first step.
            points = [(0, 0.0), *edge, *back]
            text = " ".join(f"{self._at_x(s)},{self._at_y(v)}" for s, v in points)
            parts.append(f'<polygon fill="{_color(index)}" points="{text}"/>')
            below = above
        return parts


def _width(text: str) -> float:
    """Return about how many pixels a label takes."""
    return 6.4 * len(text) + 8


def _color(index: int) -> str:
    return f"var(--c{index % COLORS})"


def _rows(lines: Sequence[Line]) -> list[tuple[float | None, ...]]:
    return list(zip(*(line.series.values for line in lines), strict=True))
