"""Phase: a run of steps with fixed batch size, length of sample and mixture."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from fractions import Fraction
from typing import Any, cast

from roxxel_curriculum._errors import CurriculumError
from roxxel_curriculum._integers import as_integer


@dataclass(frozen=True)
class Phase:
    """A run of training steps that draw samples of one length in one mixture.

    Exactly one of `steps`, `epochs` and `tokens` says how long it is.

    Attributes:
        steps: Training steps.
        batch_size: Sequences in a step, over all processes.
        seq_len: Tokens of a sequence.
        weights: Share of tokens by source name, non-negative, of any sum; `"self"`
            names the primary, a source that is not named gives nothing. None draws from
            the primary alone.
        epochs: Instead of `steps`: as many whole steps as it takes the primary to give
            this many epochs of samples, skips left out of account. May be a fraction.
        tokens: Instead of `steps`: the whole steps in this many tokens.

    Raises:
        TypeError: A field has a type it cannot be read from.
        CurriculumError: A field is out of range, or not exactly one length is given.
    """

    steps: int | None = None
    batch_size: int = 0
    seq_len: int = 0
    weights: Mapping[str, float] | None = None
    _: KW_ONLY
    epochs: float | None = None
    tokens: int | None = None

    def __post_init__(self) -> None:
        lengths = [
            name
            for name in ("steps", "epochs", "tokens")
            if getattr(self, name) is not None
        ]
        if len(lengths) != 1:
            got = " and ".join(lengths) if lengths else "none of them"
            raise CurriculumError(
                f"a phase takes exactly one of steps, epochs and tokens, got {got}"
            )
        for name in ("steps", "tokens", "batch_size", "seq_len"):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, _positive_integer(name, value))
        if self.epochs is not None:
            _check_epochs(self.epochs)
        if self.tokens is not None and not self.tokens // (
            self.batch_size * self.seq_len
        ):
            raise CurriculumError(
                f"tokens={self.tokens} is less than one step of "
                f"{self.batch_size} x {self.seq_len} = "
                f"{self.batch_size * self.seq_len} tokens; "
                "a phase needs at least one step"
            )
        if self.weights is not None:
            object.__setattr__(self, "weights", _checked_weights(self.weights))

    @property
    def declared_steps(self) -> int | None:
        """Steps where they follow from the phase alone; None with `epochs`."""
        if self.tokens is not None:
            return self.tokens // (self.batch_size * self.seq_len)
        return self.steps


@dataclass(frozen=True)
class ResolvedPhase:
    """A phase with its place in the run: what `Curriculum.phases` holds.

    Attributes:
        index: Which declared phase it is; one edited in place is in several pieces.
        start: First training step.
        steps: Training steps.
        batch_size: Sequences in a step, over all processes.
        seq_len: Tokens of a sequence.
        weights: Share of tokens by source name, as the smallest integers of that ratio.
    """

    index: int
    start: int
    steps: int
    batch_size: int
    seq_len: int
    weights: Mapping[str, int]

    @property
    def stop(self) -> int:
        """One past the last training step."""
        return self.start + self.steps


def exact(number: float | Fraction) -> int | Fraction:
    """Return a number as it is, a float as the decimal it prints as: 0.2 is a fifth."""
    return Fraction(repr(float(number))) if isinstance(number, float) else number


def _positive_integer(name: str, value: Any) -> int:
    number = as_integer(value, f"{name} of a phase must be an integer")
    if number < 1:
        raise CurriculumError(f"{name} of a phase must be at least 1, got {number}")
    return number


def _check_epochs(epochs: Any) -> None:
    if isinstance(epochs, bool) or not isinstance(epochs, int | float | Fraction):
        raise TypeError(f"epochs of a phase must be a number, got {epochs!r}")
    if not 0 < epochs < math.inf:
        raise CurriculumError(f"epochs of a phase must be above 0, got {epochs}")


def _checked_weights(weights: Any) -> dict[str, float]:
    if not isinstance(weights, Mapping):
        raise TypeError(
            "weights of a phase must map source names to shares, "
            f"got {type(weights).__name__}"
        )
    checked: dict[str, float] = {}
    for name, weight in cast("Mapping[Any, Any]", weights).items():
        if not isinstance(name, str):
            raise TypeError(f"weights must be keyed by source name, got {name!r}")
        number = _number(name, weight)
        if not 0 <= number < math.inf:
            raise CurriculumError(
                f"the weight of source {name!r} is {weight}; "
                "weights must be finite and not negative"
            )
        checked[name] = number
    if not any(checked.values()):
        raise CurriculumError(
            f"the weights of a phase are all zero: {checked}; "
            "give at least one source a weight above 0"
        )
    return checked


def _number(source: str, weight: Any) -> float:
    message = f"the weight of source {source!r} must be a number, got {weight!r}"
    if isinstance(weight, bool | str | bytes):
        raise TypeError(message)
    if isinstance(weight, int | Fraction):
        return cast("float", weight)
    try:
        return float(weight)
    except (TypeError, ValueError) as error:
        raise TypeError(message) from error
