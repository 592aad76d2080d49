"""Phase: consecutive steps with fixed batch size, sequence length and blend."""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003 - `check` reads the types
from dataclasses import KW_ONLY, dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import Annotated

from roxxel_store.arguments import Amount, Count, Rule, check

from roxxel_curriculum._errors import CurriculumError
from roxxel_curriculum._order import PRIMARY
from roxxel_curriculum._order.blend import integer_weights

_REQUIRED = {"is_required": True}  # in a file; Python has a default, after `steps`


@dataclass(frozen=True)
class Phase:
    """Consecutive training steps with fixed batch size, sequence length and blend.

    Exactly one of `steps`, `epochs` and `tokens` sets the number of steps.

    Attributes:
        steps: Number of training steps.
        batch_size: Number of sequences in a step, over all processes.
        seq_len: Number of tokens in a sequence.
        weights: Share of the tokens by source name; non-negative, with any sum.
            `"self"` is the primary, unless `Curriculum(primary=)` names it. A source
            without a weight is not read, and a source that no phase of a curriculum
            names is an error. With None, the phase reads only the primary.
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

    steps: Count | None = None
    batch_size: Count = field(default=0, metadata=_REQUIRED)
    seq_len: Count = field(default=0, metadata=_REQUIRED)
    weights: Mapping[str, Annotated[float, Rule(at_least=0)]] | None = None
    _: KW_ONLY
    epochs: Amount | None = None
    tokens: Count | None = None

    def __post_init__(self) -> None:
        check(self, CurriculumError)
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
        if self.tokens is not None and not self.tokens // (
            self.batch_size * self.seq_len
        ):
            raise CurriculumError(
                f"tokens={self.tokens} is less than one step of "
                f"{self.batch_size} x {self.seq_len} = "
                f"{self.batch_size * self.seq_len} tokens; "
                "a phase needs at least one step"
            )
        if self.weights is not None and not any(self.weights.values()):
            raise CurriculumError(
                f"the weights of a phase are all zero: {self.weights}; "
                "give at least one source a weight above 0"
            )

    @property
    def declared_steps(self) -> int | None:
        """Number of steps; None with `epochs`: it depends on the primary's size."""
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
