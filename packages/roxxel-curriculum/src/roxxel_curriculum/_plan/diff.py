"""PlanDiff: the changes between two plans, and the first step that changes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from roxxel_curriculum._plan.tables import notes_on_longest

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from roxxel_curriculum._plan.changes import Change
    from roxxel_curriculum._plan.figures import PlanFigures


@dataclass(frozen=True, slots=True)
class PlanDiff:
    """The changes between two plans; `bool(diff)` is False if there are none.

    Attributes:
        step: The first step whose batch may change; None if no batch changes.
        changes: One sentence for each change.
        causes: The changes that change batches, not only totals or notes.

    Example:
        >>> from roxxel_curriculum.testing import PositionReader
        >>> curriculum = Curriculum(PositionReader(10_000), [Phase(9, 4, 129)])
        >>> longer = Curriculum(PositionReader(10_000), [Phase(12, 4, 129)])
        >>> found = curriculum.plan().diff(longer.plan())
        >>> found.step, found.changes[0]
        (9, 'phase 0 has 12 steps instead of 9')
    """

    step: int | None
    changes: tuple[str, ...]
    causes: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.changes)

    def __str__(self) -> str:
        if self.step is None:
            head = "every batch is the same"
        elif self.step == 0:
            head = "every batch changes"
        else:
            head = f"batches change from step {self.step:,} on"
        return "\n".join([head, *(f"- {change}" for change in self.changes)])


def plan_diff(
    before: PlanFigures, after: PlanFigures, found: Sequence[Change]
) -> PlanDiff:
    """Return the difference of two plans whose orders have these changes."""
    return PlanDiff(
        min((x.step for x in found if x.step is not None), default=None),
        (*(x.text for x in found), *_changed_figures(before, after)),
        tuple(x.text for x in found if x.step is not None),
    )


def _changed_figures(before: PlanFigures, after: PlanFigures) -> Iterator[str]:
    old = {source.name: source for source in before.sources}
    for source in after.sources:
        was = old.get(source.name)
        if was is not None and was.tokens != source.tokens:
            yield (
                f"source {source.name!r} gives {source.tokens:,} tokens "
                f"instead of {was.tokens:,}, {source.epochs:.6g} epochs "
                f"instead of {was.epochs:.6g}"
            )
    known = {*notes_on_longest(before)}
    yield from (note for note in notes_on_longest(after) if note not in known)
