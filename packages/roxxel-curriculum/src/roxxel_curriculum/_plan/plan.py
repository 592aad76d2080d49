"""Plan: what every phase reads from every source, known before the first step."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, cast

from roxxel_curriculum._plan.as_html import render_html
from roxxel_curriculum._plan.as_text import render_text
from roxxel_curriculum._plan.diff import compare_plans
from roxxel_curriculum._plan.figures import PlanFigures
from roxxel_curriculum._plan.tables import make_curves, make_tables

if TYPE_CHECKING:
    from os import PathLike

    from matplotlib.figure import Figure

    from roxxel_curriculum._plan.diff import PlanDiff


@dataclass(frozen=True, slots=True)
class Plan(PlanFigures):
    """What a run will read.

    `str(plan)` is a table of plain text. Notebooks and `rich.print(plan)` show the same
    table.

    Attributes:
        seed: Seed of the run; the numbers are the same for every seed.
        total_steps: Training steps of the run.
        total_tokens: Tokens delivered.
        longest: Length of the longest sequence that the sources are cut for.
        overlap: Tokens that neighbouring windows share.
        phases: In order.
        sources: The primary first.
        skips: Pairs of a training step and the number of steps whose data is skipped
            before it.
        ended: Why the run ends before its last declared step; None if it does not.
    """

    def __str__(self) -> str:
        return render_text(make_tables(self))

    def __rich__(self) -> Any:
        from roxxel_curriculum._plan.as_rich import render_rich

        return render_rich(make_tables(self))

    def _repr_html_(self) -> str:
        return render_html(make_tables(self))

    def diff(self, other: Plan) -> PlanDiff:
        """Return what `other` changes, and from which step on."""
        return compare_plans(self, other)

    def plot(self, path: str | PathLike[str] | None = None) -> Figure:
        """Draw the tokens of each source over the steps.

        Args:
            path: File to save the picture to; its suffix selects the format.

        Returns:
            A matplotlib figure that is not registered with pyplot.

        Raises:
            ModuleNotFoundError: matplotlib is missing; install the `plot` extra.
        """
        from roxxel_curriculum._plan.as_picture import draw

        figure: Any = draw(make_curves(self))
        if path is not None:
            figure.savefig(path)
        return figure

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as dicts, lists, numbers and strings, for JSON."""
        return _plain(asdict(self))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        pairs = cast("dict[str, Any]", value)
        return {key: _plain(item) for key, item in pairs.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in cast("tuple[Any, ...]", value)]
    return value
