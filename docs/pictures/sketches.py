"""Draws the small pictures of the guides: `python docs/pictures/sketches.py [FOLDER]`.

What has data is computed by the packages; `replay.json` has the losses of the replay in
docs/guides/forensics.md, rows 41 to 160 of its two branches. Each drawing is 400 units
wide, so its letters are legible on a phone, and the site turns it in the dark.
"""

from __future__ import annotations

import json
import sys
import tempfile
from itertools import pairwise
from pathlib import Path

import numpy as np
from roxxel_curriculum import Curriculum, Phase, Sampler
from roxxel_curriculum.testing import PositionReader
from roxxel_format import Roxxel

FOLDER = Path(__file__).parent
BLUE, ORANGE, GREEN, GREY, INK = "#3b6ea8", "#d9822b", "#4f9a5b", "#c3cad1", "#24292f"


class Drawing:
    """One picture, 400 wide."""

    def __init__(self, height: int, title: str) -> None:
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="400" height="{height}" '
            f'viewBox="0 0 400 {height}" role="img" font-size="12" '
            f'font-family="system-ui, sans-serif" fill="{INK}">'
        )
        self._parts = [head, f"<title>{title}</title>"]

    def text(
        self, x: float, y: float, words: str, anchor: str = "start", color: str = INK
    ) -> None:
        """Write words whose base line begins, has its middle or ends at (x, y)."""
        self._parts.append(
            f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" fill="{color}">'
            f"{words}</text>"
        )

    def boxes(self, boxes: list[tuple[float, float, float, float]], color: str) -> None:
        """Fill boxes, each by its left, top, width and height."""
        path = "".join(f"M{x:g} {y:g}h{w:g}v{h:g}h{-w:g}z" for x, y, w, h in boxes)
        self._parts.append(f'<path d="{path}" fill="{color}"/>')

    def line(
        self,
        points: list[tuple[float, float]],
        color: str = INK,
        *,
        dashed: bool = False,
    ) -> None:
        """Draw a line through points."""
        path = "M" + "L".join(f"{x:g} {y:g}" for x, y in points)
        dash = ' stroke-dasharray="4 3"' if dashed else ""
        self._parts.append(
            f'<path d="{path}" fill="none" stroke="{color}" stroke-width="1.5"{dash}/>'
        )

    def done(self) -> str:
        """Return the drawing as SVG."""
        return "\n".join([*self._parts, "</svg>", ""])


def sampler(
    phases: list[Phase], tokens: int, mix: dict[str, int] | None = None
) -> Sampler:
    """Return the batches of stand-ins of these sizes."""
    others = {name: PositionReader(size, name) for name, size in (mix or {}).items()}
    primary = PositionReader(tokens, "web")
    return Curriculum(primary, phases, others, primary="web").sampler(seed=0)


def plan() -> str:
    """The epochs of each source at the end of the guide's plan."""
    sizes = {"web": 3_000_000_000, "code": 200_000_000, "books": 30_000_000}
    readers = {name: PositionReader(size, name) for name, size in sizes.items()}
    phases = [
        Phase(tokens=1_000_000_000, batch_size=512, seq_len=2049),
        Phase(500, 32, seq_len=32769, weights={"web": 6, "code": 3, "books": 1}),
    ]
    web = readers.pop("web")
    run = Curriculum(web, phases, readers, primary="web", policies={"books": 2})
    drawing = Drawing(122, "Epochs of each source at the end of the plan")
    left, unit = 58, 152
    for place, source in enumerate(run.plan(seed=0).sources):
        top = 8 + 32 * place
        drawing.text(0, top + 15, source.name)
        drawing.boxes([(left, top, round(unit * source.epochs, 1), 22)], BLUE)
        end = left + unit * source.epochs
        drawing.text(end + 5, top + 15, f"{source.epochs:.2f}")
    for epoch in (1, 2):
        x = left + unit * epoch
        drawing.line([(x, 2), (x, 102)], ORANGE, dashed=True)
        drawing.text(x, 117, f"{epoch} epoch{'s'[: epoch - 1]}", "middle")
    return drawing.done()


def blend() -> str:
    """The source of every row of the first steps of a blend."""
    phase = Phase(100, 8, 65, {"web": 0.7, "code": 0.2, "books": 0.1})
    run = sampler([phase], 1_000_000, {"code": 1_000_000, "books": 1_000_000})
    drawing = Drawing(142, "The source of each row of forty steps")
    colors = dict(zip(run.source_names, (BLUE, ORANGE, GREEN), strict=True))
    sources = np.array([run.windows(step).source for step in range(40)])
    for index, (name, color) in enumerate(colors.items()):
        cells = np.argwhere(sources == index).tolist()
        drawing.boxes([(10 * x, 13 * y, 9, 12) for x, y in cells], color)
        left = 130 * index
        drawing.boxes([(left, 128, 10, 10)], color)
        share = (sources == index).mean()
        drawing.text(left + 15, 138, f"{name}, {share:.0%} of all")
    drawing.text(400, 118, "step 39", "end")
    drawing.text(0, 118, "step 0")
    return drawing.done()


def shuffle() -> str:
    """Where the windows of one epoch lie, in the order in which they are read."""
    run = sampler([Phase(epochs=1, batch_size=8, seq_len=65)], 60_000)
    starts = np.concatenate(
        [run.windows(step).start for step in range(run.total_steps)]
    )
    drawing = Drawing(212, "Where the windows of an epoch lie, as they are read")
    x = 20 + 378 * np.arange(len(starts)) / len(starts)
    y = 178 - 176 * starts / 60_000
    points = zip(x.round(1).tolist(), y.round(1).tolist(), strict=True)
    drawing.boxes([(left, top, 2, 2) for left, top in points], BLUE)
    drawing.line([(18, 0), (18, 182), (400, 182)])
    drawing.text(209, 200, "windows, in the order of training", "middle")
    drawing.text(0, 12, "1")
    drawing.text(0, 180, "0")
    return drawing.done()


def replay() -> str:
    """The losses of the two branches of a replay."""
    found = json.loads((FOLDER / "replay.json").read_text("utf-8"))
    drawing = Drawing(176, "Loss with the document and without it")
    for name, color in (("control", ORANGE), ("without", BLUE)):
        losses = found[name]
        x = [30 + 368 * index / (len(losses) - 1) for index in range(len(losses))]
        points = [
            (round(a, 1), round(138 - 90 * b, 1))
            for a, b in zip(x, losses, strict=True)
        ]
        drawing.line(points, color)
    drawing.line([(28, 0), (28, 140), (400, 140)])
    for loss in (0, 1):
        drawing.text(22, 142 - 90 * loss, str(loss), "end")
    first = found["first_row"]
    drawing.text(30, 155, f"step {first}")
    drawing.text(400, 155, f"step {first + len(found['control']) - 1}", "end")
    for left, name, color in (
        (110, "with the document", ORANGE),
        (250, "without it", BLUE),
    ):
        drawing.boxes([(left, 164, 14, 4)], color)
        drawing.text(left + 20, 171, name)
    return drawing.done()


def mesh() -> str:
    """What each of eight devices holds of a batch in two phases."""
    drawing = Drawing(176, "How eight devices share a batch, in two phases")
    colors = [BLUE, ORANGE, GREEN, "#8a6bb8"] * 2
    drawing.text(0, 12, "8 rows of 513 tokens: a row each")
    drawing.text(0, 140, "1 row of 4,097 tokens: an eighth of its columns each")
    for device, color in enumerate(colors):
        drawing.boxes([(0, 20 + 12 * device, 120, 11)], color)
        drawing.text(128, 29.5 + 12 * device, f"device {device}")
        drawing.boxes([(50 * device, 148, 49, 11)], color)
        drawing.text(50 * device + 24, 173, str(device), "middle")
    return drawing.done()


def shards() -> str:
    """Windows that are cut from the line of a corpus of several shards."""
    with tempfile.TemporaryDirectory() as folder:
        corpus = Roxxel(Path(folder) / "web_*.rox")
        lengths = (90, 40, 130, 60, 30, 80, 50, 120)
        for first, stop in ((0, 3), (3, 6), (6, 8)):  # a shard for each write
            some = (np.full(length - 1, 1, np.uint8) for length in lengths[first:stop])
            corpus.write(some, separator=0, exist="append")
        sizes = [Roxxel(path).num_tokens for path in corpus.paths]
        run = Curriculum(corpus, [Phase(3, 2, 97)]).sampler(seed=0)
        places = [run.locate(step, row) for step in range(3) for row in range(2)]
    scale = 400 / sum(sizes)
    drawing = Drawing(120, "Windows cross documents and shards")
    drawing.text(0, 12, "documents")
    ends = np.cumsum([0, *lengths])
    pairs = list(zip(ends[:-1].tolist(), lengths, strict=True))
    for odd, color in ((0, GREY), (1, "#e3e7eb")):
        drawing.boxes(
            [
                (round(a * scale, 1), 17, round(b * scale, 1), 14)
                for a, b in pairs[odd::2]
            ],
            color,
        )
    drawing.text(0, 51, "shards")
    left = 0.0
    for index, size in enumerate(sizes):
        width = round(size * scale, 1)
        drawing.boxes(
            [(round(left, 1), 56, width - 1, 14)], (GREEN, "#8fc198")[index % 2]
        )
        left += width
    drawing.text(0, 90, "windows, as numbered by their step")
    for index, place in enumerate(sorted(places, key=lambda each: each.start)):
        x, width = place.start * scale, (place.stop - place.start) * scale
        color = (BLUE, "#6f9bcb")[index % 2]
        drawing.boxes([(round(x, 1), 96, round(width, 1), 20)], color)
        step = places.index(place) // 2
        drawing.text(round(x + width / 2, 1), 110, str(step), "middle", "white")
    return drawing.done()


def bins() -> str:
    """The documents of a small corpus in windows, and packed into bins."""
    random = np.random.default_rng(0)
    lengths = random.integers(6, 60, 22).tolist()
    size = 65
    with tempfile.TemporaryDirectory() as folder:
        corpus = Roxxel(Path(folder) / "packed_*.rox")
        texts = [np.full(length - 1, 1, np.uint8) for length in lengths]
        corpus.write(texts, separator=0, pack=size)
        reader = Curriculum(corpus, [Phase(epochs=1, batch_size=1, seq_len=size)])
        run = reader.sampler(0, fields=("segment_ids", "loss_mask", "tokens"))
        rows = [run.batch(step)["segment_ids"][0] for step in range(run.total_steps)]
    drawing = Drawing(232, "Documents in windows, and packed into bins")
    line = np.repeat(np.arange(len(lengths)), lengths)
    whole = [line[start : start + size] for start in range(0, len(line), size)]
    cut = len({int(row[-1]) for row in whole[:-1]} & {int(row[0]) for row in whole[1:]})
    for left, name, each in (
        (0, f"windows: {cut} documents cut", whole),
        (205, "bins: none cut, grey is padding", rows),
    ):
        drawing.text(left, 12, name)
        colored: dict[str, list[tuple[float, float, float, float]]] = {}
        for number, row in enumerate(each):
            borders = np.flatnonzero(np.diff(row)) + 1
            edges = [0, *borders.tolist(), len(row)]
            for start, stop in pairwise(edges):
                value = int(row[start])
                padding = name.startswith("bins") and value == 0
                color = GREY if padding else (BLUE, ORANGE, GREEN)[value % 3]
                box = (left + 3 * start, 20 + 18 * number, 3 * (stop - start) - 1, 15)
                colored.setdefault(color, []).append(box)
        for color, boxes in colored.items():
            drawing.boxes(boxes, color)
    return drawing.done()


def lanes(
    title: str, rows: dict[str, list[tuple[float, float, str, str]]], height: int
) -> Drawing:
    """Draw lanes of named boxes: left and width in units of 1/320, words, colour."""
    drawing = Drawing(height, title)
    for place, (lane, boxes) in enumerate(rows.items()):
        top = 6 + 34 * place
        drawing.text(0, top + 16, lane)
        for left, width, words, color in boxes:
            drawing.boxes([(80 + left, top, width - 2, 24)], color)
            ink = INK if color == GREY else "white"
            drawing.text(79 + left + width / 2, top + 16, words, "middle", ink)
    return drawing


def save() -> str:
    """What happens while a run trains on, after a save has begun."""
    later = [(53.3 * k, 53.3, f"step {40 + k}", BLUE) for k in range(2, 6)]
    steps = [(0.0, 50.0, "step 40", BLUE), (50.0, 9.0, "", ORANGE)]
    rows = {
        "devices": [*steps, (59.0, 47.6, "41", BLUE), *later],
        "thread": [
            (59.0, 90.0, "to the host", ORANGE),
            (149.0, 110.0, "to the disk", ORANGE),
            (259.0, 61.0, "commit", GREEN),
        ],
    }
    drawing = lanes("A save behind the steps", rows, 88)
    drawing.text(139, 82, "copy on the device", "middle")
    return drawing.done()


def branches() -> str:
    """The starts of a run, one that was killed, and a branch of it."""
    drawing = Drawing(134, "Starts of a run, and a branch")
    scale = 3.6
    drawing.text(0, 14, "runs/resume")
    for y, first, last, color in (
        (26, 0, 40, BLUE),
        (26, 40, 57, GREY),
        (46, 40, 80, BLUE),
        (98, 60, 90, ORANGE),
    ):
        drawing.boxes([(first * scale, y, (last - first) * scale - 2, 12)], color)
    drawing.text(58 * scale, 36.5, "killed at step 57")
    drawing.text(81 * scale, 56, "goes on from 40")
    drawing.line([(60 * scale, 58), (60 * scale, 98)], ORANGE, dashed=True)
    drawing.text(0, 108, "runs/branch, from step 60")
    for step in (0, 20, 40, 60, 80):
        drawing.text(max(step * scale, 4), 130, str(step), "middle")
    return drawing.done()


def path() -> str:
    """What a thread and the devices do at the same time, and who measures it."""
    parts = {"read": (22, GREEN), "assemble": (46, "#8a6bb8"), "transfer": (34, ORANGE)}
    boxes: list[tuple[float, float, str, str]] = []
    for k in range(3):
        left = 107.0 * k
        for width, color in parts.values():
            boxes.append((left, width, "", color))
            left += width
    steps = [(107.0 * k, 107.0, f"step {9 + k}", BLUE) for k in range(3)]
    drawing = lanes("A batch to the devices", {"thread": boxes, "devices": steps}, 104)
    for place, (name, (_, color)) in enumerate(parts.items()):
        left = 80 + 107 * place
        drawing.boxes([(left, 84, 10, 10)], color)
        drawing.text(left + 15, 93.5, f"{name}_s")
    return drawing.done()


def drawings() -> dict[str, str]:
    """Return the content of each file by its name."""
    all_of_them = (
        plan, blend, shuffle, replay, mesh, shards, bins, save, branches, path,
    )  # fmt: skip
    return {f"sketch-{each.__name__}.svg": each() for each in all_of_them}


if __name__ == "__main__":
    folder = Path(sys.argv[1] if sys.argv[1:] else FOLDER)
    for file_name, content in drawings().items():
        (folder / file_name).write_text(content, "utf-8")
