"""The errors of schedules, apart from errors of the program."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


class CurriculumError(ValueError):
    """A phase, schedule or curriculum that cannot be met, or a changed past.

    The message is one sentence for the person who wrote the schedule, so a command
    line can print it without a traceback.
    """


class StateMismatch(CurriculumError):
    """The past in a state differs from the past of a curriculum.

    Attributes:
        differences: One sentence for each difference.
    """

    def __init__(self, differences: Sequence[str]) -> None:
        self.differences = tuple(differences)
        listed = "; ".join(self.differences)
        super().__init__(
            f"this state belongs to another past: {listed}; resume with what the run "
            "was started with, and change only what comes after the state's step"
        )

    def __reduce__(self) -> tuple[type[StateMismatch], tuple[tuple[str, ...]]]:
        return StateMismatch, (self.differences,)
