"""Policy: what happens when a source runs out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from roxxel_store.arguments import Count, check

from roxxel_curriculum._errors import CurriculumError


@dataclass(frozen=True, slots=True)
class Policy:
    """How often a run may read a source, and what happens when the source runs out.

    Attributes:
        epochs: Largest number of passes over the source, each in another order; None
            for no limit.
        then: `"drop"` divides the source's share among the other sources of the phase.
            `"stop"` ends the run with the last whole step before the source runs out.

    Raises:
        TypeError: `epochs` is not an integer.
        CurriculumError: `epochs` is below 1, or `then` is neither `"drop"` nor
            `"stop"`.

    Example:
        >>> str(Policy(2, then="stop")), Policy(None) == REPEAT
        ('stop after 2', True)
    """

    epochs: Count | None = None
    then: Literal["drop", "stop"] = "drop"

    def __post_init__(self) -> None:
        check(self, CurriculumError)

    def __str__(self) -> str:
        if self.epochs is None:
            return "repeat"
        if self.epochs == 1:
            return self.then
        word = "repeat" if self.then == "drop" else "stop after"
        return f"{word} {self.epochs}"


DROP = Policy(1)
"""Read the source once; then the other sources share its weight.

The default of the sources in `mix_streamers`."""

REPEAT = Policy(None)
"""Read the source without limit, each epoch in another order. The primary's default."""

STOP = Policy(1, "stop")
"""Read the source once; end the run with the last whole step before it runs out."""

_BY_NAME = {"drop": DROP, "repeat": REPEAT, "stop": STOP}


def repeat(epochs: int) -> Policy:
    """Return the policy that reads a source up to `epochs` times and then drops it."""
    return Policy(epochs)


def as_policy(value: Policy | str | int) -> Policy:
    """Return a policy given as a `Policy`, a name or a number of epochs."""
    if isinstance(value, str):
        return _BY_NAME[value]
    return value if isinstance(value, Policy) else Policy(value)
