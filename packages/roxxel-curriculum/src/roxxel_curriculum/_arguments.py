"""Checks the arguments of a curriculum."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from roxxel_store.arguments import as_integer

from roxxel_curriculum._errors import CurriculumError
from roxxel_curriculum._names import of_sources
from roxxel_curriculum._order import PRIMARY
from roxxel_curriculum._plan.solution import Skip
from roxxel_curriculum.phase import Phase

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

# A blend rounds shares to multiples of 2**-48: shares below 1e-12 would be inexact.
_SMALLEST_SHARE_INVERSE = 10**12


def checked_seed(seed: Any) -> int:
    """Return `seed` as an int; any integer is valid."""
    return as_integer("seed", seed)


def checked_phases(
    phases: Iterable[Phase], source_names: Collection[str]
) -> tuple[Phase, ...]:
    """Return the phases; raise an error if none is given, or a weight names no source.

    The first of `source_names` is the primary, which a phase without weights reads.
    """
    if not _is_iterable(phases):
        raise TypeError(
            f"phases must be a list of Phase, got {type(phases).__name__}; "
            "write [Phase(steps, batch_size, seq_len)]"
        )
    checked = tuple(phases)
    if not checked:
        raise CurriculumError("a curriculum needs at least one phase, got none")
    for index, phase in enumerate(checked):
        if not isinstance(cast("Any", phase), Phase):
            raise TypeError(
                f"phase {index} is a {type(phase).__name__}; "
                "write Phase(steps, batch_size, seq_len)"
            )
    primary = next(iter(source_names))
    if primary != PRIMARY:
        only = {primary: 1.0}
        checked = tuple(
            replace(phase, weights=only) if phase.weights is None else phase
            for phase in checked
        )
    for index, phase in enumerate(checked):
        _check_weights(phase, f"phase {index}", source_names)
    return checked


def checked_overlap(overlap: Any) -> int:
    """Return `overlap` as an int; raise an error unless it is 0 or 1."""
    number = as_integer("overlap", overlap, what="0 or 1 tokens")
    if number not in (0, 1):
        raise CurriculumError(f"overlap must be 0 or 1 tokens, got {number}")
    return number


def checked_count(name: str, value: Any) -> int | None:
    """Return `value` as an int of at least 1; None stays None."""
    if value is None:
        return None
    what = "an integer or None"
    return as_integer(name, value, 1, what=what, error=CurriculumError)


def merged_skips(skips: Any) -> tuple[Skip, ...]:
    """Sort skips by step, and add up the counts of skips at the same step."""
    if not _is_iterable(skips):
        raise TypeError(f"skips must be a list of pairs (at, count), got {skips!r}")
    merged: dict[int, int] = {}
    for skip in skips:
        at, count = _skip_pair(skip)
        if at < 0 or count < 1:
            raise CurriculumError(
                f"a skip is (at, count), at >= 0 and count >= 1, got ({at}, {count})"
            )
        merged[at] = merged.get(at, 0) + count
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
    listed = ", ".join(map(repr, unread))
    why = (
        f"a phase without weights reads only the primary, {primary!r}"
        if any(phase.weights is None for phase in phases)
        else "the weights of no phase name it"
    )
    remedy = "or leave it out" if unread[0] != primary else "or choose another primary"
    raise CurriculumError(
        f"no phase reads {'sources' if unread[1:] else 'source'} {listed}: {why}; give "
        f"{unread[0]!r} a share in the weights of a phase, {remedy} (the weight 0 "
        "declares that a source stays unread)"
    )


def _is_iterable(value: object) -> bool:
    """Return whether `type(value)` has `__iter__`.

    `iter(value)` would accept a corpus, too, and read it through `__getitem__`.
    """
    return hasattr(type(value), "__iter__")


def _skip_pair(skip: Any) -> tuple[int, int]:
    what = "a pair of integers (at, count)"
    try:
        at, count = (skip.at, skip.steps) if isinstance(skip, Skip) else skip
    except (TypeError, ValueError) as error:
        raise TypeError(f"a skip must be {what}, got {skip!r}") from error
    return as_integer("a skip", at, what=what), as_integer("a skip", count, what=what)


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
