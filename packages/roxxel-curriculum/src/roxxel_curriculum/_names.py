"""The two names of the primary source: its own name, and `"self"`.

The order of the samples depends on the names of the sources. So the order and the state
of a run always call the primary `"self"`. A run may therefore change the primary's own
name without any effect on its batches. Arguments may use both names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from roxxel_curriculum._errors import CurriculumError
from roxxel_curriculum._order import PRIMARY

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

_Value = TypeVar("_Value")


def checked_primary(primary: Any, others: Collection[str]) -> str:
    """Return the name of the primary; raise if another source has this name."""
    if not isinstance(primary, str) or not primary:
        raise TypeError(f"primary must be the name of a source, got {primary!r}")
    if primary in others:
        raise CurriculumError(
            f"primary={primary!r} is also the name of a source in mix_streamers; "
            "give the primary another name"
        )
    return primary


def by_name(values: Mapping[str, _Value], primary: str, what: str) -> dict[str, _Value]:
    """Return values by source name; `"self"` becomes the name of the primary.

    If `values` has both names, the error begins with `what`.
    """
    if primary != PRIMARY and primary in values and PRIMARY in values:
        raise CurriculumError(
            f"{what} name the primary source twice, as {PRIMARY!r} and as "
            f"{primary!r}; keep one of them"
        )
    return {as_name(name, primary): value for name, value in values.items()}


def of_sources(
    values: Mapping[str, _Value], names: Sequence[str], what: str
) -> dict[str, _Value]:
    """Return values by source name; raise if one is not the name of a source.

    The first of `names` is the primary. The error begins with `what`.
    """
    found = by_name(values, names[0], what)
    for name in found:
        if name not in names:
            raise CurriculumError(
                f"{what} name unknown source {name!r}; "
                f"the sources are {', '.join(map(repr, names))}"
            )
    return found


def as_name(name: str, primary: str) -> str:
    """Return the name of a source; `"self"` stands for the primary."""
    return primary if name == PRIMARY else name


def named_source(name: str, primary: str, known: Collection[str]) -> str:
    """Return the name of one of the known sources; raise KeyError for another name."""
    found = as_name(name, primary)
    if found not in known:
        names = ", ".join(map(repr, known))
        raise KeyError(f"{name!r} is not a source; there are {names}")
    return found
