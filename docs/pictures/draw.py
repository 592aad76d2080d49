"""Draws the pictures of arithmetic.md: `python docs/pictures/draw.py [FOLDER]`.

They are drawn from the package itself, so they show what it does, not what was meant.
`report.png` is no drawing but the page of a run as a browser shows it.
"""

from __future__ import annotations

import sys
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


if __name__ == "__main__":
    spans()
    shuffle()
    blend()
    plan()
