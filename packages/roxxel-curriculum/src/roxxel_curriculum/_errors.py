"""Errors that the author of a schedule can correct."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


class CurriculumError(ValueError):
    """An invalid phase, schedule or curriculum, or a schedule too large for its data.

    The message is one sentence for the schedule's author, so a command can print it
    without a traceback.

    Example:
        >>> try:
        ...     Phase(steps=0, batch_size=4, seq_len=129)
        ... except CurriculumError as error:
        ...     print(error)
        steps must be an integer of 1 or more or None (false in TOML), got 0
    """


_MAX_LISTED = 3
"""Number of differences that the message of a `StateMismatch` lists."""


class StateMismatch(CurriculumError):
    """A state was modified, or differs from a curriculum in data, seed or past phases.

    Attributes:
        differences: One sentence for each difference; the message has the first three.
        steps: Number of steps that the run has trained, if these differ; None
            otherwise.

    Example:
        >>> from roxxel_curriculum.testing import PositionReader
        >>> curriculum = Curriculum(PositionReader(10_000), [Phase(9, 4, 129)])
        >>> state = curriculum.sampler(seed=1).state(5)
        >>> try:
        ...     curriculum.sampler(seed=2, state=state)
        ... except StateMismatch as error:
        ...     print(*error.differences)
        seed is 2 instead of 1
    """

    def __init__(self, differences: Sequence[str], steps: int | None = None) -> None:
        self.differences = tuple(differences)
        self.steps = steps
        first = self.differences[:_MAX_LISTED]
        more = len(self.differences) - len(first)
        listed = "; ".join([*first, *([f"{more} more differences"] if more else [])])
        after = f", after {steps:,} steps," if steps else ""
        super().__init__(
            f"this state{after} cannot be resumed: {listed}; resume with the run's "
            "data, seed and phases, and change only later steps"
        )

    def __reduce__(
        self,
    ) -> tuple[type[StateMismatch], tuple[tuple[str, ...], int | None]]:
        return StateMismatch, (self.differences, self.steps)
