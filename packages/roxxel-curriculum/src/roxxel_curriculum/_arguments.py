"""Checks the arguments of a curriculum."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

from roxxel_store.arguments import Count, Rule, check

from roxxel_curriculum._errors import CurriculumError
from roxxel_curriculum._names import of_sources
from roxxel_curriculum._order import PRIMARY
from roxxel_curriculum._plan.solution import Skip
from roxxel_curriculum.phase import Phase
from roxxel_curriculum.policy import Policy

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from roxxel_curriculum._withdrawn import Documents

# A blend rounds shares to multiples of 2**-48: shares below 1e-12 would be inexact.
_SMALLEST_SHARE_INVERSE = 10**12


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


def merged_skips(skips: Iterable[tuple[int, int]]) -> tuple[Skip, ...]:
    """Sort skips by step, and add up the counts of skips at the same step."""
    merged = Counter[int]()
    for at, count in skips:
        merged[at] += count
    return tuple(Skip(at, count) for at, count in sorted(merged.items()))


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
