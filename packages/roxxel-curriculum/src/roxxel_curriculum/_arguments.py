"""The arguments of a curriculum, checked where they come in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from roxxel_curriculum._errors import CurriculumError
from roxxel_curriculum._integers import as_integer
from roxxel_curriculum._phase import Phase
from roxxel_curriculum._policy import DROP, REPEAT, parse_policy
from roxxel_curriculum._solved import PRIMARY, Skip
from roxxel_curriculum._source import Source, check_sources

if TYPE_CHECKING:
    from collections.abc import Iterable

    from roxxel_format import TokenReader

    from roxxel_curriculum._policy import Policy


def checked_seed(seed: Any) -> int:
    """Return a seed, any integer.

    Raises:
        TypeError: It is none.
    """
    return as_integer(seed, "seed must be an integer")


def checked_sources(
    primary: TokenReader,
    mix: Mapping[str, TokenReader] | None,
    policies: Mapping[str, Policy | str | int] | None,
) -> tuple[Source, ...]:
    """Return the sources with their policies, the primary first.

    Raises:
        TypeError: Something is of the wrong type.
        CurriculumError: A name is taken or unknown, a policy is none, or the sources
            do not belong together.
    """
    if mix is None:
        mix = {}
    elif not isinstance(cast("Any", mix), Mapping):
        raise TypeError(
            f"mix_streamers must map names to token readers, got {type(mix).__name__}"
        )
    if PRIMARY in mix:
        raise CurriculumError(
            f"mix_streamers has a source named {PRIMARY!r}, which names the primary; "
            "give it another name"
        )
    for name in mix:
        if not isinstance(cast("Any", name), str) or not name:
            raise TypeError(f"a source's name must be a non-empty str, got {name!r}")
    names = [PRIMARY, *mix]
    if policies is None:
        policies = {}
    elif not isinstance(cast("Any", policies), Mapping):
        raise TypeError(
            f"policies must map source names to policies, got {type(policies).__name__}"
        )
    for name in policies:
        if name not in names:
            raise CurriculumError(
                f"policies name unknown source {name!r}; "
                f"the sources are {', '.join(map(repr, names))}"
            )
    sources = tuple(
        Source(name, reader, parse_policy(policies.get(name, default), name))
        for name, reader, default in (
            (PRIMARY, primary, REPEAT),
            *((name, reader, DROP) for name, reader in mix.items()),
        )
    )
    check_sources(sources)
    return sources


def checked_phases(phases: Iterable[Phase]) -> tuple[Phase, ...]:
    """Return the declared phases.

    Raises:
        TypeError: They are not phases.
        CurriculumError: There is none.
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
    return checked


def checked_overlap(overlap: Any) -> int:
    """Return the tokens that neighbouring windows share.

    Raises:
        TypeError: It is no integer.
        CurriculumError: It is neither 0 nor 1.
    """
    number = as_integer(overlap, "overlap must be 0 or 1 tokens")
    if number not in (0, 1):
        raise CurriculumError(f"overlap must be 0 or 1 tokens, got {number}")
    return number


def checked_count(name: str, value: Any) -> int | None:
    """Return a number of one or more, or None.

    Raises:
        TypeError: It is neither an integer nor None.
        CurriculumError: It is below 1.
    """
    if value is None:
        return None
    number = as_integer(value, f"{name} must be an integer or None")
    if number < 1:
        raise CurriculumError(f"{name} must be at least 1, got {number}")
    return number


def merged_skips(skips: Any) -> tuple[Skip, ...]:
    """Return skips in the order of their steps, those at one step as one.

    Raises:
        TypeError: They are not pairs of integers.
        CurriculumError: A step is negative, or nothing is passed over.
    """
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


def _is_iterable(value: object) -> bool:
    """Return whether a value is an `Iterable`; that class is slow when first asked.

    A corpus is none, though it has items: `iter` would read all of it.
    """
    return hasattr(type(value), "__iter__")


def _skip_pair(skip: Any) -> tuple[int, int]:
    message = "a skip is a pair of integers (at, count)"
    try:
        at, count = (skip.at, skip.steps) if isinstance(skip, Skip) else skip
    except (TypeError, ValueError) as error:
        raise TypeError(f"{message}, got {skip!r}") from error
    return as_integer(at, message), as_integer(count, message)
