"""Draws the chart of README.md: `python docs/pictures/speed.py [FOLDER]`.

The bars are the first column of the table "million tokens/s to `jax.Array`" of
docs/benchmarks.md, so the chart cannot say other numbers than the page. It writes
`speed.svg`, and `speed-dark.svg` for a dark page.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

PAGE = Path(__file__).parents[1] / "benchmarks.md"
NAMES = {
    "roxxel": "Roxxel",
    "memmap loop": "hand-written loop over a memory map",
    "litdata": "litData",
    "grain, memory map": "grain, over a memory map",
}
_TABLE = re.compile(r"\| million tokens/s to `jax.*?\n\n", re.DOTALL)
_ROW = re.compile(r"^\| ([^|]+) \| (\d+) \|", re.MULTILINE)
_BAR = """\
  <text x="0" y="{text}" fill="{ink}">{name}</text>
  <rect x="0" y="{top}" width="{width}" height="16" rx="2" fill="{color}"/>
  <text x="{after}" y="{middle}" fill="{ink}" font-weight="600">{speed}</text>
"""


def speeds(page: str) -> dict[str, int]:
    """Return million tokens a second by the loader's name, as a page shows them."""
    [table] = _TABLE.findall(page)
    found = {name: int(speed) for name, speed in _ROW.findall(table)}
    return {shown: found[name] for name, shown in NAMES.items()}


def drawing(of: dict[str, int], ink: str) -> str:
    """Return the chart as SVG, with letters in the colour `ink`."""
    most = max(of.values())
    bars = ""
    for index, (name, speed) in enumerate(of.items()):
        top, width = 66 + 44 * index, round(400 * speed / most)
        bars += _BAR.format(
            name=name,
            speed=speed,
            ink=ink,
            top=top,
            width=width,
            text=top - 6,
            middle=top + 13,
            after=width + 8,
            color="#2f81f7" if index == 0 else "#9aa3ad",
        )
    height = 44 + 44 * len(of)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="460" height="{height}" '
        f'viewBox="0 0 460 {height}" font-family="system-ui, sans-serif" '
        'font-size="14">\n'
        "  <title>Million tokens a second, read in a shuffled order</title>\n"
        f'  <text x="0" y="16" font-size="15" font-weight="600" fill="{ink}">'
        "Million tokens a second, shuffled, to jax.Array</text>\n"
        f'  <text x="0" y="35" font-size="12" fill="{ink}" opacity="0.75">'
        "batches of 16 x 1025, warm pages, two cores; longer is better</text>\n"
        f"{bars}</svg>\n"
    )


def drawings() -> dict[str, str]:
    """Return the content of each file by its name."""
    shown = speeds(PAGE.read_text("utf-8"))
    return {
        "speed.svg": drawing(shown, "#24292f"),
        "speed-dark.svg": drawing(shown, "#c9d1d9"),
    }


if __name__ == "__main__":
    folder = Path(sys.argv[1] if sys.argv[1:] else Path(__file__).parent)
    for file_name, content in drawings().items():
        (folder / file_name).write_text(content, "utf-8")
