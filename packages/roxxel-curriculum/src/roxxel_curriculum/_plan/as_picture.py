"""The curves of a plan as a picture; needs matplotlib, the `plot` extra."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

try:
    from matplotlib.figure import Figure
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        'Plan.plot needs matplotlib: pip install "roxxel-curriculum[plot]"',
        name="matplotlib",
    ) from error

from roxxel_curriculum._plan.figures import short_count

if TYPE_CHECKING:
    from roxxel_curriculum._plan.tables import PlanCurves


def draw(curves: PlanCurves) -> Figure:
    """Return a figure of the tokens of each source over the steps.

    The upper part stacks the tokens of a step by source, the lower part the tokens
    delivered so far. Dashed lines mark the starts of phases, triangles the steps in
    which a source runs out.
    """
    # The stubs of matplotlib leave most keyword arguments untyped.
    figure: Any = Figure(figsize=(9, 6), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    names = list(curves.per_step)
    colors = {name: f"C{index % 10}" for index, name in enumerate(names)}
    for axes, stacked in ((above, curves.per_step), (below, curves.so_far)):
        axes.stackplot(
            curves.steps,
            [stacked[name] for name in names],
            labels=names,
            colors=list(colors.values()),
            linewidth=0,
        )
        axes.set_xlim(0, curves.total_steps)
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_formatter(_as_tick)
        axes.spines[["top", "right"]].set_visible(False)
        for start, _ in curves.phases:
            if start:
                axes.axvline(start, color="0.3", linestyle="--", linewidth=0.8)
    above.set_ylabel("tokens a step")
    below.set_ylabel("tokens so far")
    below.set_xlabel("step")
    above.set_title(curves.headline, fontsize=10, loc="left")
    for start, label in curves.phases:
        _annotate_phase(above, start, label)
    for step, name in curves.exhaustions:
        _annotate_exhaustion(below, step, name, colors.get(name, "0.3"))
    # Outside, so that it hides no curve; reversed, so that it has the stack's order.
    handles, labels = above.get_legend_handles_labels()
    figure.legend(handles[::-1], labels[::-1], loc="outside right upper")
    return figure


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
