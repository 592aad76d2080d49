"""A plan as a picture; needs matplotlib, the `plot` extra."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

try:
    from matplotlib.figure import Figure
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        'Plan.plot needs matplotlib: pip install "roxxel-curriculum[plot]"',
        name="matplotlib",
    ) from error

from roxxel_curriculum._plan_text import headline, short

if TYPE_CHECKING:
    from roxxel_curriculum._plan import Plan


def draw_plan(plan: Plan) -> Figure:
    """Return a figure of the tokens of each source over the steps.

    Above, the tokens of a step stacked by source; below, the tokens delivered so far.
    Dashed lines are where phases begin, triangles where a source runs out.
    """
    # matplotlib leaves most types of its keyword arguments open.
    figure: Any = Figure(figsize=(9, 6), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    names = [source.name for source in plan.sources if source.tokens]
    steps, per_step, so_far = _curves(plan, names)
    colors = [f"C{index % 10}" for index in range(len(names))]
    above.stackplot(steps, per_step, labels=names, colors=colors, linewidth=0)
    below.stackplot(steps, so_far, labels=names, colors=colors, linewidth=0)
    above.set_ylabel("tokens a step")
    below.set_ylabel("tokens so far")
    below.set_xlabel("step")
    above.set_title(headline(plan), fontsize=10, loc="left")
    for axes in (above, below):
        axes.set_xlim(0, plan.total_steps)
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_formatter(_as_tick)
        axes.spines[["top", "right"]].set_visible(False)
    _mark(plan, above, below, dict(zip(names, colors, strict=True)))
    # Outside, so that no curve is hidden; the order of the stack, top first.
    handles, labels = above.get_legend_handles_labels()
    figure.legend(handles[::-1], labels[::-1], loc="outside right upper")
    return figure


def _as_tick(value: float, _: int) -> str:
    return short(int(value))


def _curves(
    plan: Plan, names: list[str]
) -> tuple[list[int], list[list[float]], list[list[float]]]:
    """Return steps, and by source the tokens of a step and those so far."""
    steps: list[int] = []
    per_step: list[list[float]] = [[] for _ in names]
    so_far: list[list[float]] = [[] for _ in names]
    total = [0.0] * len(names)
    for phase in plan.phases:
        for mix in phase.mixes:
            # Two points each, so that a change is a step and not a slope.
            steps += [mix.start, mix.stop]
            for index, name in enumerate(names):
                rate = mix.shares.get(name, 0.0) * phase.batch_size * phase.seq_len
                per_step[index] += [rate, rate]
                so_far[index].append(total[index])
                total[index] += rate * (mix.stop - mix.start)
                so_far[index].append(total[index])
    return steps, per_step, so_far


def _mark(plan: Plan, above: Any, below: Any, colors: dict[str, str]) -> None:
    for phase in plan.phases:
        for axes in (above, below):
            if phase.start:
                axes.axvline(phase.start, color="0.3", linestyle="--", linewidth=0.8)
        above.annotate(
            f"phase {phase.index}\n{phase.batch_size} x {phase.seq_len}",
            (phase.start, 1),
            xycoords=("data", "axes fraction"),
            xytext=(3, -3),
            textcoords="offset points",
            fontsize=8,
            va="top",
            bbox={"facecolor": "white", "alpha": 0.7, "edgecolor": "none", "pad": 1},
        )
        for source in phase.sources:
            if source.exhausted_step is None:
                continue
            below.plot(
                [source.exhausted_step],
                [0],
                marker="^",
                markersize=9,
                color=colors.get(source.name, "0.3"),
                markeredgecolor="black",
                clip_on=False,
            )
            below.annotate(
                f"{source.name} runs out",
                (source.exhausted_step, 0),
                xytext=(5, 6),
                textcoords="offset points",
                fontsize=8,
                bbox={"facecolor": "white", "alpha": 0.7, "edgecolor": "none"},
            )
