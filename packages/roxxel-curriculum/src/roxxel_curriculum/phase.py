"""Phase: consecutive steps with fixed batch size, sequence length and blend."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any, cast

import numpy as np
from roxxel_store.arguments import as_integer

from roxxel_curriculum._errors import CurriculumError
from roxxel_curriculum._order import PRIMARY
from roxxel_curriculum._order.blend import integer_weights


@dataclass(frozen=True)
class Phase:
    """Consecutive training steps with fixed batch size, sequence length and blend.

    Exactly one of `steps`, `epochs` and `tokens` sets the number of steps.

    Attributes:
        steps: Number of training steps.
        batch_size: Number of sequences in a step, over all processes.
        seq_len: Number of tokens in a sequence.
        weights: Share of the tokens by source name; non-negative, with any sum.
            `"self"` is the primary, which may also have a name; see `Curriculum`. A
            source without a weight is not read, and a source that no phase of a
            curriculum names is an error. With None, the phase reads only the primary.
        epochs: Alternative to `steps`: the phase has the whole steps that fit into this
            many epochs of the primary. May be a fraction. The skips of a `Curriculum`
            do not reduce the number of steps.
        tokens: Alternative to `steps`: the whole steps that fit into this many tokens.

    Raises:
        TypeError: A field has the wrong type.
        CurriculumError: A field is out of range, or none or several of `steps`,
            `epochs` and `tokens` are given.

    Example:
        >>> phase = Phase(tokens=1_000_000, batch_size=8, seq_len=129)
        >>> phase.declared_steps
        968
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
                f"a phase needs exactly one of steps, epochs and tokens, got {got}"
            )
        for name in ("steps", "tokens", "batch_size", "seq_len"):
            value = getattr(self, name)
            if value is not None:
                number = as_integer(
                    f"{name} of a phase", value, 1, error=CurriculumError
                )
                object.__setattr__(self, name, number)
        if self.epochs is not None:
            object.__setattr__(self, "epochs", _checked_epochs(self.epochs))
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
        """Number of steps; None with `epochs`, which depend on the primary's size."""
        if self.tokens is not None:
            return self.tokens // (self.batch_size * self.seq_len)
        return self.steps

    @cached_property
    def integer_weights(self) -> dict[str, int]:
        """The weights above 0 as the smallest integers in the same ratio."""
        return {PRIMARY: 1} if self.weights is None else integer_weights(self.weights)

    @property
    def exact_epochs(self) -> int | Fraction:
        """`epochs` as an exact number: 0.2 is 1/5. 0 if `epochs` is None."""
        epochs = self.epochs or 0
        # `repr` returns the decimal 0.2; the float itself is a nearby binary fraction.
        return Fraction(repr(float(epochs))) if isinstance(epochs, float) else epochs


def _checked_epochs(epochs: Any) -> int | float | Fraction:
    given = cast("object", epochs)
    if hasattr(given, "dtype"):  # a NumPy scalar or a zero-dimensional array
        given = epochs = np.asarray(epochs)[()]
    if isinstance(given, np.integer):
        epochs = int(cast("Any", given))
    elif isinstance(given, np.floating):
        # `str` of a float32 is "0.2"; `float` of a float32 would be 0.200000003.
        epochs = float(str(cast("Any", given)))
    if isinstance(epochs, bool) or not isinstance(epochs, int | float | Fraction):
        raise TypeError(f"epochs of a phase must be a number, got {epochs!r}")
    if not 0 < epochs < math.inf:
        raise CurriculumError(f"epochs of a phase must be above 0, got {epochs}")
    return epochs


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
