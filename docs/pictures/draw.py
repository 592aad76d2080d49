"""Draws the pictures of the documentation: `python docs/pictures/draw.py [FOLDER]`.

The package itself computes what they show. `report.png` and `tutorial.png` are the tops
of pages of `roxxel report` in a Chromium without a window, which draws one page with
`python docs/pictures/draw.py report.html report.png`.
`tests-integration/tools/imports.py` draws those of architecture.md.
"""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import matplotlib as mpl
import numpy as np

mpl.use("agg")
from matplotlib import pyplot as plt
from roxxel_curriculum import Curriculum, Phase, Sampler
from roxxel_curriculum.testing import PositionReader

FOLDER = Path(sys.argv[1] if sys.argv[1:] else Path(__file__).parent)
BLUE, ORANGE, GREY = "#3b6ea8", "#d9822b", "#9aa3ad"
mpl.rcParams.update(
    {
        "font.size": 10,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "figure.facecolor": "white",
    }
)


def sampler(
    tokens: int, phases: list[Phase], mix: dict[str, int] | None = None
) -> Sampler:
    """Return the batches of a primary source and others, by their sizes."""
    others = {name: PositionReader(n, name) for name, n in (mix or {}).items()}
    return Curriculum(PositionReader(tokens, "web"), phases, others).sampler(seed=0)


def save(figure: plt.Figure, name: str) -> None:
    """Write a figure into the folder."""
    figure.savefig(FOLDER / f"{name}.png", dpi=120, bbox_inches="tight")
    plt.close(figure)


def spans() -> None:
    """Every window of an epoch, where it lies and when it is read."""
    short, long = Phase(24, 4, 32), Phase(12, 2, 128)
    run = sampler(12_000, [short, long])
    figure, axes = plt.subplots(figsize=(8, 3.6))
    sizes = Curriculum(PositionReader(12_000, "web"), [short, long]).plan(seed=0)
    num_spans = sizes.sources[0].num_spans
    for span in range(num_spans + 1):
        axes.axvline(span * (12_000 // num_spans), color=GREY, lw=0.5)
    for step in range(run.total_steps):
        windows = run.windows(step)
        color = BLUE if step < short.steps else ORANGE
        axes.hlines(
            [step] * len(windows.start), windows.start, windows.stop, color, lw=3
        )
    axes.set_xlabel("token of the corpus")
    axes.set_ylabel("step")
    axes.invert_yaxis()
    axes.set_title("windows read, step by step: short ones first, then long ones")
    save(figure, "spans")


def shuffle() -> None:
    """Where windows lie that are read one after the other, beside a full shuffle."""
    tokens, length, count = 1_000_000, 257, 1024
    phase = Phase(count // 16, 16, length)

    def starts(longest: int) -> np.ndarray:
        reader = PositionReader(tokens, "web")
        run = Curriculum(reader, [phase], longest=longest).sampler(seed=0)
        return np.concatenate([run.windows(step).start for step in range(phase.steps)])

    full = np.random.default_rng(0).permutation(np.arange(0, tokens, length))[:count]
    shown = {
        "longest = 257": starts(length),
        "longest = 8193": starts(8193),
        "numpy's full shuffle": full,
    }
    figure, panels = plt.subplots(1, 3, figsize=(9, 3.2), sharey=True)
    for axes, (name, values) in zip(panels, shown.items(), strict=True):
        axes.scatter(np.arange(count), values / 1e6, s=3, color=BLUE, linewidths=0)
        axes.set_title(name, fontsize=10)
        axes.set_xlabel("sample in the order of training")
    panels[0].set_ylabel("million tokens into the corpus")
    save(figure, "shuffle")


def blend() -> None:
    """How far each source is from its share, after every sample."""
    weights = {"self": 0.7, "code": 0.2, "books": 0.09, "rare": 0.01}
    sizes = dict.fromkeys(list(weights)[1:], 10_000_000)
    run = sampler(10_000_000, [Phase(500, 8, 65, weights)], sizes)
    sources = np.concatenate([run.windows(step).source for step in range(50)])
    names = run.source_names
    figure, axes = plt.subplots(figsize=(8, 3.2))
    count = np.arange(1, len(sources) + 1)
    for index, name in enumerate(names):
        off = np.cumsum(sources == index) - weights[name] * count
        axes.plot(count, off, lw=0.9, label=f"{name}, {weights[name]:g}")
    for limit in (-3, 3):
        axes.axhline(limit, color=GREY, ls="--", lw=1)
    axes.set_ylim(-4, 4)
    axes.set_xlabel("samples")
    axes.set_ylabel("samples given - asked")
    axes.legend(ncols=4, loc="upper right", frameon=False, fontsize=9)
    axes.set_title("a blend keeps its shares after every sample (dashed: the bound)")
    save(figure, "blend")


def plan() -> None:
    """Tokens per source over the steps of a run in which one source runs out."""
    web, code = PositionReader(3_000_000, "web"), PositionReader(200_000, "code")
    phases = [
        Phase(400, 16, 129, {"self": 0.8, "code": 0.2}),
        Phase(150, 4, 1025, {"self": 0.6, "code": 0.4}),
    ]
    Curriculum(web, phases, {"code": code}).plan(seed=0).plot(FOLDER / "plan.png")


def idea(name: str, paper: str, ink: str) -> None:
    """What the first program of README.md prints: a plan, a batch and its inverse."""
    step, row, per_document = 372, 0, 330
    web = PositionReader(3684 * 190, "web", document_tokens=190)
    code = PositionReader(182 * 330, "code", document_tokens=per_document)
    phases = [
        Phase(300, 8, 129, {"self": 0.8, "code": 0.2}),
        Phase(100, 4, 513, {"self": 0.6, "code": 0.4}),
    ]
    repeat = {"code": "repeat"}
    run = Curriculum(web, phases, {"code": code}, policies=repeat).sampler(seed=0)
    document = run.locate(step, row).documents[0]
    tokens = (document * per_document, (document + 1) * per_document)
    read = sorted({found.step for found in run.where("code", *tokens)})
    keys = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color")
    colors = dict.fromkeys((*keys, "ytick.color"), ink)
    with mpl.rc_context(colors | {"figure.facecolor": paper, "axes.facecolor": paper}):
        figure, panels = plt.subplots(3, 1, figsize=(8.6, 5), height_ratios=[5, 5, 0.6])
        figure.subplots_adjust(hspace=0.65)
        draw_plan(panels[0], run, phases)
        panels[0].axvline(step + 0.5, color=ink, lw=1.5)
        panels[0].text(step + 3, 1850, str(step), color="white", fontsize=9)
        draw_batch(panels[1], run, step, paper)
        panels[2].hlines(0, 0, run.total_steps, ink, lw=0.8)
        panels[2].plot(read, [0] * len(read), "D", color=ORANGE, ms=7, clip_on=False)
        panels[2].set_xlim(0, run.total_steps)
        panels[2].axis("off")
        titles = (
            ("curriculum.plan(seed=0)", "what each step will read, before the first"),
            (f"sampler.batch({step})", "any batch, without the batches before it"),
            (
                f'sampler.where("code", {tokens[0]}, {tokens[1]})',
                f"document {document}: steps " + ", ".join(map(str, read)),
            ),
        )
        for axes, (call, meaning) in zip(panels, titles, strict=True):
            axes.set_title(call, loc="left", fontsize=9.5, family="monospace")
            axes.set_title(meaning, loc="right", fontsize=9.5)
        save(figure, name)


def draw_plan(axes: plt.Axes, run: Sampler, phases: list[Phase]) -> None:
    """Draw the planned tokens of every step by source."""
    ends = np.cumsum([0, *(phase.steps for phase in phases)]).tolist()
    steps = [step for pair in pairwise(ends) for step in pair]
    shares = [
        [
            phase.batch_size * phase.seq_len * phase.weights[source]
            for phase in phases
            for _ in range(2)  # at its first and its last step
        ]
        for source in ("self", "code")
    ]
    axes.stackplot(steps, *shares, colors=[BLUE, ORANGE], lw=0)
    for start, phase in zip(ends, phases, strict=False):
        text = f"phase of {phase.batch_size} x {phase.seq_len}"
        axes.text(start + 4, 80, text, color="white", fontsize=9)
    for height, source in ((0.35, "web"), (0.85, "code")):
        place = (ends[1] - 4, height * phases[0].batch_size * phases[0].seq_len)
        axes.text(*place, source, color="white", fontsize=9, ha="right", va="center")
    axes.set_xlim(0, run.total_steps)
    axes.set_ylabel("tokens")
    axes.set_xlabel("step", labelpad=0)


def draw_batch(axes: plt.Axes, run: Sampler, step: int, paper: str) -> None:
    """Draw the rows of a batch: their sources, tokens and documents."""
    num_rows, seq_len = run.shape(step)
    for row in range(num_rows):
        place = run.locate(step, row)
        size, color = (190, BLUE) if place.source == "self" else (330, ORANGE)
        axes.barh(row, seq_len, color=color, height=0.8)
        for document in place.documents:
            left = max(document * size, place.start) - place.start
            right = min((document + 1) * size, place.stop) - place.start
            axes.plot([left, left], [row - 0.4, row + 0.4], color=paper, lw=2)
            if right - left > 100:
                middle = (left + right) / 2
                style = {"color": "white", "fontsize": 9, "ha": "center"}
                axes.text(middle, row, f"document {document}", va="center", **style)
        name = "web" if place.source == "self" else place.source
        text = f" {name}[{place.start}:{place.stop}]"
        axes.text(seq_len, row, text, va="center", fontsize=8.5, family="monospace")
    axes.set_xlim(0, seq_len * 1.25)
    axes.set_ylim(num_rows - 0.5, -0.5)
    axes.set_yticks(range(num_rows), [f"row {row}" for row in range(num_rows)])
    axes.set_xticks([])
    axes.spines[["bottom", "left"]].set_visible(False)
    axes.tick_params(length=0)


def report(page: Path, picture: Path) -> None:
    """Draw the top of a report, 1280 pixels wide, with at most 256 colours."""
    from PIL import Image

    subprocess.run(  # noqa: S603 - the browser of this machine
        [
            *("chromium-headless-shell", "--no-sandbox", "--hide-scrollbars"),
            *("--window-size=1280,1400", "--timeout=20000"),
            *(f"--screenshot={picture.resolve()}", page.resolve().as_uri()),
        ],
        check=True,
    )
    with Image.open(picture) as image:
        image.convert("RGB").quantize(256).save(picture, optimize=True)


if __name__ == "__main__":
    if sys.argv[2:]:
        report(*map(Path, sys.argv[1:]))
        sys.exit()
    spans()
    shuffle()
    blend()
    plan()
    idea("idea", "white", "#24292f")
    idea("idea-dark", "#0d1117", "#c9d1d9")
