"""The names of the sources: each has one, from the declaration to a run's log."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from roxxel_curriculum._errors import CurriculumError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

_Value = TypeVar("_Value")


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


def checked_source(name: str, known: Collection[str]) -> str:
    """Return the name of one of the known sources; raise KeyError for another name."""
    if name not in known:
        names = ", ".join(map(repr, known))
        raise KeyError(f"{name!r} is not a source; there are {names}")
    return name
