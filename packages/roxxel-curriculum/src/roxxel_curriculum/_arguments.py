"""The arguments of a curriculum besides its corpora: what a user declares, checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from math import gcd, lcm
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, TypeVar, cast

from roxxel_store.arguments import Amount, Count, Rule, check

from roxxel_curriculum._errors import CurriculumError
from roxxel_curriculum._order import PRIMARY

if TYPE_CHECKING:
    import os
    from collections.abc import Collection, Iterable, Sequence

    import numpy as np
    import numpy.typing as npt

Documents: TypeAlias = "Iterable[int | str | os.PathLike[str] | range | Sequence[int]] | npt.NDArray[np.integer[Any]] | str | os.PathLike[str]"  # noqa: E501 - pyright reads one literal
"""What to withdraw of a source: numbers of documents, from 0, and ranges of tokens.

Numbers are integers, ranges, pairs `[start, stop)`, or an array. A range of tokens is a
text such as `"tokens:[512,1024)"`. Any other text is the path of a file: a `.npy` or a
text of numbers, or the `.json` receipt of a scan. In a list, a path ends in `.npy`,
`.txt` or `.json`."""

_Value = TypeVar("_Value")

# A blend rounds shares to multiples of 2**-48: shares below 1e-12 would be inexact.
_SMALLEST_SHARE_INVERSE = 10**12

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
        """The weights above 0 as the smallest integers in the same ratio, by name.

        0.3 : 0.7 and 3 : 7 are the same blend.
        """
        if self.weights is None:
            return {PRIMARY: 1}
        exact = {
            name: _exact(weight) for name, weight in self.weights.items() if weight
        }
        scale = lcm(*(weight.denominator for weight in exact.values()))
        whole = {name: int(exact[name] * scale) for name in sorted(exact)}
        divisor = gcd(*whole.values())
        return {name: weight // divisor for name, weight in whole.items()}

    @property
    def exact_epochs(self) -> Fraction:
        """`epochs` as an exact number; 0 if it is None."""
        return _exact(self.epochs or 0)


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


_Phase = Annotated[Phase, Rule(must_be="a Phase (a table in TOML)")]
_Policy = Annotated[
    Policy | Literal["drop", "repeat", "stop"] | Count,
    Rule(must_be='"drop", "repeat", "stop", a number of epochs, or a table of both'),
]
_Overlap = Annotated[int, Rule(at_least=0, at_most=1, must_be="0 or 1")]
_Skip = Annotated[
    tuple[Annotated[int, Rule(at_least=0)], Count],
    Rule(must_be="a pair [at, count], at from 0 and count from 1"),
]


@dataclass(frozen=True)
class Arguments:
    """The arguments of a curriculum without its corpora, each checked alone."""

    phases: tuple[_Phase, ...]
    longest: Count | None = None
    policies: Mapping[str, _Policy] = field(default_factory=dict[str, "_Policy"])
    max_epochs: Count | None = None
    overlap: _Overlap = 0
    skips: tuple[_Skip, ...] = ()
    without: Mapping[str, Documents] = field(
        default_factory=dict[str, "Documents"], metadata={"kind": Mapping[str, Any]}
    )
    primary: str = PRIMARY
    tokenizers: Mapping[str, str] = field(default_factory=dict[str, str])

    def __post_init__(self) -> None:
        check(self, CurriculumError)


def listed(values: Any) -> Any:
    """Return what iterates as a tuple; a corpus does not, though `iter` reads it."""
    kind = cast("Any", type(values))
    return tuple(values) if hasattr(kind, "__iter__") else values


def checked_phases(
    phases: tuple[Phase, ...], source_names: Collection[str]
) -> tuple[Phase, ...]:
    """Return the phases; raise an error if none is given, or a weight names no source.

    The first of `source_names` is the primary, which a phase without weights reads.
    """
    if not phases:
        raise CurriculumError("a curriculum needs at least one phase, got none")
    primary = next(iter(source_names))
    if primary != PRIMARY:
        only = {primary: 1.0}
        phases = tuple(
            replace(phase, weights=only) if phase.weights is None else phase
            for phase in phases
        )
    for index, phase in enumerate(phases):
        _check_weights(phase, f"phase {index}", source_names)
    return phases


def check_all_named(phases: Iterable[Phase], source_names: Collection[str]) -> None:
    """Raise an error for a source that no phase reads: nobody would notice.

    The first of `source_names` is the primary.
    """
    phases, (primary, *_) = list(phases), source_names
    named = {name for phase in phases for name in phase.weights or (primary,)}
    unread = [name for name in source_names if name not in named]
    if not unread:
        return
    raise CurriculumError(
        f"no phase reads {', '.join(map(repr, unread))}, because no weights name it (a "
        f"phase without weights reads only the primary, {primary!r}); give it a share "
        "in the weights of a phase, or leave it out (the weight 0 declares that a "
        "source stays unread)"
    )


def of_sources(
    values: Mapping[str, _Value], names: Collection[str], what: str
) -> Mapping[str, _Value]:
    """Return values by source name; raise an error for a name that is no source.

    The error begins with `what`, a plural.
    """
    for name in values:
        if name not in names:
            raise CurriculumError(
                f"{what} name unknown source {name!r}; "
                f"the sources are {', '.join(map(repr, names))}"
            )
    return values


def _check_weights(phase: Phase, label: str, source_names: Collection[str]) -> None:
    weights = of_sources(phase.weights or {}, source_names, f"the weights of {label}")
    total = sum(phase.integer_weights.values())
    for name, weight in phase.integer_weights.items():
        if weight * _SMALLEST_SHARE_INVERSE < total:
            raise CurriculumError(
                f"the weight of source {name!r} in {label} is {weights[name]} of "
                f"{sum(weights.values())}, below 1e-12 of the total; "
                "give the source more weight or leave it out"
            )


def _exact(number: float | Fraction) -> Fraction:
    """Return a float as the decimal that `repr` prints: 0.2 is 1/5."""
    # The float itself is a nearby binary fraction.
    return Fraction(repr(float(number)) if isinstance(number, float) else number)
