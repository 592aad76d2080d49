"""Draw a plan's tokens by source; needs matplotlib, the `plot` extra."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from roxxel_store import missing_extra
from roxxel_store.screen import short_count

try:
    from matplotlib.figure import Figure
except ModuleNotFoundError as error:
    raise missing_extra(
        "a picture of a plan", "matplotlib", "roxxel-curriculum", "plot"
    ) from error

if TYPE_CHECKING:
    from collections.abc import Sequence

    from roxxel_curriculum._plan.solution import ResolvedPhase


def draw(phases: Sequence[ResolvedPhase], names: Sequence[str], title: str) -> Figure:
    """Return a figure: tokens per step by source above, cumulative tokens below.

    `names` are the sources that the phases read.
    """
    # The stubs of matplotlib leave most keyword arguments untyped.
    figure: Any = Figure(figsize=(9, 6), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    colors = {name: f"C{index % 10}" for index, name in enumerate(names)}
    for axes, curves in zip((above, below), _curves(phases, names), strict=True):
        axes.stackplot(
            # A point at both ends of each mix, so that a change is a vertical line.
            [
                step
                for phase in phases
                for mix in phase.mixes
                for step in (mix.start, mix.stop)
            ],
            [curves[name] for name in names],
            labels=names,
            colors=list(colors.values()),
            linewidth=0,
        )
        axes.set_xlim(0, phases[-1].stop)
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_formatter(_as_tick)
        axes.spines[["top", "right"]].set_visible(False)
        for phase in phases:
            if phase.start:
                axes.axvline(phase.start, color="0.3", linestyle="--", linewidth=0.8)
    above.set_ylabel("tokens a step")
    below.set_ylabel("tokens so far")
    below.set_xlabel("step")
    above.set_title(title, fontsize=10, loc="left")
    for phase in phases:
        label = f"phase {phase.index}\n{phase.batch_size} x {phase.seq_len}"
        _annotate_phase(above, phase.start, label)
        for name, step in phase.exhausted.items():
            _annotate_exhaustion(below, step, name, colors.get(name, "0.3"))
    # Reverse the legend: the stacked areas begin at the bottom, the legend at the top.
    handles, labels = above.get_legend_handles_labels()
    figure.legend(handles[::-1], labels[::-1], loc="outside right upper")
    return figure


def _curves(
    phases: Sequence[ResolvedPhase], names: Sequence[str]
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Return tokens per step and cumulative tokens, at both ends of every mix."""
    per_step: dict[str, list[float]] = {name: [] for name in names}
    so_far: dict[str, list[float]] = {name: [] for name in names}
    total = dict.fromkeys(names, 0.0)
    for phase in phases:
        for mix in phase.mixes:
            for name in names:
                rate = mix.shares.get(name, 0.0) * phase.batch_size * phase.seq_len
                per_step[name] += [rate, rate]
                before = total[name]
                total[name] += rate * (mix.stop - mix.start)
                so_far[name] += [before, total[name]]
    return per_step, so_far


def _as_tick(value: float, _: int) -> str:
    return short_count(int(value))


def _annotate_phase(axes: Any, start: int, label: str) -> None:
    axes.annotate(
        label,
        (start, 1),
        xycoords=("data", "axes fraction"),
        xytext=(3, -3),
        textcoords="offset points",
        fontsize=8,
        va="top",
        bbox={"facecolor": "white", "alpha": 0.7, "edgecolor": "none", "pad": 1},
    )


def _annotate_exhaustion(axes: Any, step: int, name: str, color: str) -> None:
    axes.plot(
        [step],
        [0],
        marker="^",
        markersize=9,
        color=color,
        markeredgecolor="black",
        clip_on=False,
    )
    axes.annotate(
        f"{name} runs out",
        (step, 0),
        xytext=(5, 6),
        textcoords="offset points",
        fontsize=8,
        bbox={"facecolor": "white", "alpha": 0.7, "edgecolor": "none"},
    )
