"""Reads which modules of a package import which, and draws it for architecture.md.

    python tests-integration/tools/imports.py

writes `docs/pictures/imports-PACKAGE.svg`, one drawing for each package, and
`docs/pictures/batch.svg`, the path of one batch. A test compares the files with the
sources. The program reads the sources and imports none of them. Imports for types and
imports inside functions count too, because a reader must follow them as well.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from dataclasses import dataclass, field
from functools import cache
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

ROOT = Path(__file__).parents[2]
PICTURES = ROOT / "docs" / "pictures"
PACKAGES = [
    source.parent for source in sorted(ROOT.glob("packages/*/src/*/__init__.py"))
]

NOT_DRAWN = {"errors", "_errors", "_version", "__main__"}
"""Modules that nearly all others import, or that start a program."""

BATCH = (
    ("train", "roxxel_train.trainer", "needs the batch of step k"),
    ("loader", "roxxel_loader._pipeline.iterate", "has it ready, made ahead"),
    ("loader", "roxxel_loader._device_stream", "which rows this process needs"),
    ("train", "roxxel_train._step.fed", "adds the source of each row"),
    ("curriculum", "roxxel_curriculum.sampler", "from step to rows"),
    ("curriculum", "roxxel_curriculum._bind.samples", "which windows"),
    ("curriculum", "roxxel_curriculum._plan.solution", "which source; for many steps"),
    ("curriculum", "roxxel_curriculum._order", "which positions; for many steps"),
    ("format", "roxxel_format._read.reader", "reads the windows"),
    ("format", "roxxel_format._read.line", "which bytes of which shard"),
    ("loader", "roxxel_loader.sharding._global_arrays", "host rows to a jax.Array"),
    ("train", "roxxel_train._step.compiled", "updates the model"),
)
"""The path of a batch: package, module, and what the module does for the batch."""


@cache
def modules(package: Path) -> dict[str, Path]:
    """Return the files of a package by the name of their module."""
    found: dict[str, Path] = {}
    for path in package.rglob("*.py"):
        parts = path.relative_to(package.parent).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = path
    return found


def imported(path: Path, name: str) -> Iterator[tuple[str, str]]:
    """Yield every import of a file: a module, and the name taken from it or nothing."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                module = ".".join([*above, *filter(None, [module])])
            yield from ((module, alias.name) for alias in node.names)


@cache
def graph(package: Path) -> dict[str, set[str]]:
    """Return which modules of a package each of its modules imports."""
    names = modules(package)
    edges: dict[str, set[str]] = {name: set() for name in names}
    for name, path in names.items():
        for module, attribute in imported(path, name):
            inner = f"{module}.{attribute}"
            target = inner if inner in names else module
            if target in names and target != name:
                edges[name].add(target)
    return edges


def units(package: Path) -> dict[str, set[str]]:
    """Return which folders and modules at the top of a package import which."""
    edges: defaultdict[str, set[str]] = defaultdict(set)
    for name, targets in graph(package).items():
        unit = name.split(".")[1:2]
        if not unit or unit[0] in NOT_DRAWN:
            continue
        others = {other for target in targets for other in target.split(".")[1:2]}
        edges[unit[0]] |= others - {unit[0]} - NOT_DRAWN
    return dict(edges)


def without_detours(edges: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """Return the edges that no longer path replaces; there must be no circle."""

    def reaches(start: str, goal: str) -> bool:
        return start == goal or any(reaches(middle, goal) for middle in edges[start])

    return {
        name: {
            target
            for target in targets
            if not any(reaches(other, target) for other in targets - {target})
        }
        for name, targets in edges.items()
    }


def alone(edges: Mapping[str, set[str]]) -> set[str]:
    """Return the names that import none of the others and are imported by none."""
    return {name for name in edges if not edges[name]} - set().union(*edges.values())


@dataclass(eq=False)
class Box:
    """A box of a drawing, or a bend of an arrow that passes a row.

    Attributes:
        label: Text; empty for a bend.
        row: Row, counted from 0 at the bottom.
        x: Middle.
        below: Boxes and bends of the next row to which arrows go.
        above: Those from which arrows come.
    """

    label: str
    row: int
    x: float = 0.0
    below: list[Box] = field(default_factory=list["Box"])
    above: list[Box] = field(default_factory=list["Box"])

    @property
    def width(self) -> float:
        """Width, with the space to the next box."""
        return 7.9 * len(self.label) + 34 if self.label else 16.0


def rows_of(edges: Mapping[str, set[str]]) -> list[list[Box]]:
    """Return the boxes row by row, each as far down as its arrows allow."""

    @cache
    def level(name: str) -> int:
        return 1 + max(map(level, edges[name]), default=-1)

    boxes = {name: Box(name, level(name)) for name in sorted(edges)}
    rows: list[list[Box]] = [[] for _ in range(1 + max(map(level, edges)))]
    for box in boxes.values():
        rows[box.row].append(box)
    for name in sorted(edges):
        for target in sorted(edges[name]):
            upper = boxes[name]
            for row in range(upper.row - 1, boxes[target].row, -1):
                bend = Box("", row)
                rows[row].append(bend)
                connect(upper, bend)
                upper = bend
            connect(upper, boxes[target])
    return rows


def connect(upper: Box, lower: Box) -> None:
    """Draw an arrow from one row to the next."""
    upper.below.append(lower)
    lower.above.append(upper)


def mean(values: Sequence[float], otherwise: float) -> float:
    """Return the mean, or the other value where there are none."""
    return sum(values) / len(values) if values else otherwise


def arrange(rows: list[list[Box]]) -> None:
    """Set the order and the middles of the boxes, so that few arrows cross."""
    for _ in range(12):
        for direction in (rows, rows[::-1]):
            for row in direction:
                at = {box: place for place, box in enumerate(row)}
                for box in row:
                    near = box.below if direction is rows else box.above
                    box.x = mean([other.x for other in near], at[box])
                row.sort(key=lambda box: (box.x, box.label))
                for place, box in enumerate(row):
                    box.x = place - len(row) / 2
    for row in rows:
        spread(row, [0.0] * len(row))
    for _ in range(40):
        for row in (*rows, *rows[::-1]):
            wanted = [
                mean([other.x for other in (*box.above, *box.below)], box.x)
                for box in row
            ]
            spread(row, wanted)


def spread(row: list[Box], wanted: list[float]) -> None:
    """Place boxes in their order as near as possible to where they are wanted."""
    groups: list[tuple[list[Box], list[float]]] = []  # and the first middle each wants
    for box, place in zip(row, wanted, strict=True):
        members, starts = [box], [place]
        while groups:
            before, their = groups[-1]
            width = sum(each.width for each in before)
            gap = (members[0].width - before[0].width) / 2
            if mean(their, 0) + width + gap <= mean(starts, 0):
                break
            groups.pop()
            starts = [*their, *(start - width - gap for start in starts)]
            members = [*before, *members]
        groups.append((members, starts))
    for members, starts in groups:
        left = mean(starts, 0) - members[0].width / 2
        for box in members:
            box.x = left + box.width / 2
            left += box.width


STYLE = """<style>
text { font: 13px ui-monospace, "DejaVu Sans Mono", Menlo, monospace; fill: #24292f }
.note, .lane { font-family: system-ui, "DejaVu Sans", sans-serif; fill: #57606a }
.lane { font-size: 14px; fill: #24292f }
rect { fill: #fff; stroke: #9aa3ad }
.folder { fill: #dce8f5; stroke: #3b6ea8 }
.arrow { fill: none; stroke: #57606a; marker-end: url(#head) }
</style>
<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7"
markerHeight="7" orient="auto"><path d="M0 0 8 4 0 8z" fill="#57606a"/></marker></defs>
"""


def svg(width: float, height: float, title: str, parts: Sequence[str]) -> str:
    """Return a drawing as the text of an SVG file."""
    size = f'width="{width:.0f}" height="{height:.0f}"'
    view = f'viewBox="0 0 {width:.0f} {height:.0f}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} {view} role="img">\n'
    title = f"<title>{escape(title)}</title>\n"
    return "".join([head, title, STYLE, *(f"{part}\n" for part in parts), "</svg>\n"])


def drawn_box(label: str, at: tuple[float, float], width: float, kind: str) -> str:
    """Return a box with its label, by its middle and the height of its top."""
    x, y = at
    place = f'x="{x - width / 2:.1f}" y="{y:.1f}" width="{width:.1f}" height="26"'
    text = f'<text x="{x:.1f}" y="{y + 17.5:.1f}" text-anchor="middle">{label}</text>'
    return f'<rect class="{kind}" {place} rx="4"/>{text}'


def drawing_of_imports(package: Path) -> str:
    """Return which folders and modules at the top of a package import which, as SVG."""
    edges = without_detours(units(package))
    joined = {*edges} - alone(edges)
    rows = rows_of({name: edges[name] for name in joined})
    arrange(rows)
    for name in sorted(alone(edges)):
        last, box = rows[0][-1], Box(name, 0)
        box.x = last.x + (last.width + box.width) / 2
        rows[0].append(box)
    boxes = [box for row in rows for box in row]
    left = min(box.x - box.width / 2 for box in boxes)
    right = max(box.x + box.width / 2 for box in boxes)
    step = 58

    def top(box: Box) -> float:
        return 4.0 + step * (len(rows) - 1 - box.row)

    arrows: list[str] = []
    drawn: list[str] = []
    for box in boxes:
        x = box.x - left
        if box.label:
            folder = (package / box.label).is_dir()
            label = f"{box.label}/" if folder else box.label
            kind = "folder" if folder else "module"
            drawn.append(drawn_box(label, (x, top(box)), box.width - 14, kind))
        for other in box.below:
            arrows += [] if not box.label else [arrow(box, other, top, left)]
    return svg(
        right - left,
        8 + step * (len(rows) - 1) + 26,
        f"Which folders and modules of {package.name} import which",
        [*arrows, *drawn],
    )


def arrow(box: Box, other: Box, top: Callable[[Box], float], left: float) -> str:
    """Return an arrow from a box through its bends to the box where it ends."""
    x, y = box.x - left, top(box) + 26
    path = f"M{x:.1f} {y:.1f}"
    while True:
        x, y = other.x - left, top(other)
        path += f"S{x:.1f} {y - 24:.1f} {x:.1f} {y:.1f}"
        if other.label:
            return f'<path class="arrow" d="{path}"/>'
        path += f"V{y + 26:.1f}"
        other = other.below[0]


def half_width(module: str) -> float:
    """Return half the width of the box of a module on the path of a batch."""
    return 7.9 / 2 * len(module.partition(".")[2]) + 8


def drawing_of_batch() -> str:
    """Return the path of one batch through the packages, as SVG."""
    lanes = {"train": 0, "loader": 1, "curriculum": 2, "format": 3}
    wide, step, head = 184, 56, 30
    parts = [
        f'<text class="lane" x="{wide * (lane + 0.5)}" y="18" text-anchor="middle">'
        f"roxxel-{name}</text>"
        for name, lane in lanes.items()
    ]
    places = [
        (wide * (lanes[lane] + 0.5), head + step * row)
        for row, (lane, _, _) in enumerate(BATCH)
    ]
    for place, (x, y) in enumerate(places[:-1]):
        later_x, later_y = places[place + 1]
        side = half_width(BATCH[place][1]) * (1 if later_x > x else -1)
        start = f"M{x:.1f} {y + 44:.1f}"
        if x != later_x:
            start = f"M{x + side:.1f} {y + 13:.1f}H{later_x:.1f}"
        parts.append(f'<path class="arrow" d="{start}V{later_y:.1f}"/>')
    for (x, y), (_, module, note) in zip(places, BATCH, strict=True):
        label = module.partition(".")[2]
        place = f'x="{x:.1f}" y="{y + 40:.1f}" text-anchor="middle"'
        parts += [
            drawn_box(label, (x, y), 2 * half_width(module), "folder"),
            f'<text class="note" {place}>{escape(note)}</text>',
        ]
    height = head + step * len(BATCH)
    return svg(wide * len(lanes), height, "The path of one batch", parts)


def drawings() -> dict[Path, str]:
    """Return the drawings of today's sources by the path of their file."""
    found = {
        PICTURES / f"imports-{package.parents[1].name}.svg": drawing_of_imports(package)
        for package in PACKAGES
        if any(units(package).values())
    }
    return {**found, PICTURES / "batch.svg": drawing_of_batch()}


def main() -> None:
    """Write the drawings."""
    for path, text in drawings().items():
        path.write_text(text, "utf-8")
        print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
