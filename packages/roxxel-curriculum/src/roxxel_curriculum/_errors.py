"""The errors of a schedule, which its author can correct, and its integers."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence


class CurriculumError(ValueError):
    """A phase, schedule or curriculum that cannot be met, or a changed past.

    The message is one sentence for the person who wrote the schedule, so a command
    line can print it without a traceback.

    Example:
        >>> try:
        ...     Phase(steps=0, batch_size=4, seq_len=129)
        ... except CurriculumError as error:
        ...     print(error)
        steps of a phase must be at least 1, got 0
    """


class StateMismatch(CurriculumError):
    """The past in a state differs from the past of a curriculum.

    Attributes:
        differences: One sentence for each difference.

    Example:
        >>> from roxxel_curriculum.testing import PositionReader
        >>> curriculum = Curriculum(PositionReader(10_000), [Phase(9, 4, 129)])
        >>> state = curriculum.sampler(seed=1).state(5)
        >>> try:
        ...     curriculum.sampler(seed=2, state=state)
        ... except StateMismatch as error:
        ...     print(*error.differences)
        seed was 1 and is now 2
    """

    def __init__(self, differences: Sequence[str]) -> None:
        self.differences = tuple(differences)
        listed = "; ".join(self.differences)
        super().__init__(
            f"this state cannot be resumed: {listed}; resume with the data, seed "
            "and phases of the run, and change only what comes after the state's step"
        )

    def __reduce__(self) -> tuple[type[StateMismatch], tuple[tuple[str, ...]]]:
        return StateMismatch, (self.differences,)


def as_integer(value: Any, message: str) -> int:
    """Return an integer of Python or numpy as an int; refuse bools and floats.

    Errors begin with `message`.
    """
    if isinstance(value, bool):
        raise TypeError(f"{message}, got {value!r}")
    try:
        return operator.index(value)
    except TypeError as error:
        raise TypeError(f"{message}, got {value!r}") from error
