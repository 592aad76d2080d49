"""Keys and types of a table, checked with the near name for each unknown key."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, cast

from roxxel.config._declaration import ConfigError

Kind = Callable[[Any], Any]
"""Returns a value as it is kept, or raises `Expected`."""


class Expected(Exception):
    """Says in words what a value must be."""


def read_table(
    table: Mapping[str, Any],
    kinds: Mapping[str, Kind],
    where: str = "",
    elsewhere: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Return the values of a table, each of its kind.

    Args:
        table: As TOML gives it.
        kinds: What each key must be.
        where: Name of the table, `""` for the top of the file.
        elsewhere: Where keys belong that are often written into the wrong table.

    Raises:
        ConfigError: A key is unknown, or a value is of the wrong type.
    """
    values: dict[str, Any] = {}
    for key, value in table.items():
        if key not in kinds:
            hint = (elsewhere or {}).get(key) or _near(key, kinds)
            raise ConfigError(f"{where or 'the file'} has no key {key!r}; {hint}")
        try:
            values[key] = kinds[key](value)
        except Expected as error:
            inside = f" in {where}" if where else ""
            raise ConfigError(f"{key}{inside} must be {error}, got {value!r}") from None
    return values


def _near(key: str, kinds: Mapping[str, Kind]) -> str:
    near = get_close_matches(key, list(kinds), n=1)
    return f"did you mean {near[0]!r}?" if near else f"it has {', '.join(kinds)}"


def anything(value: Any) -> Any:
    """Take what somebody else will check."""
    return value


def integer(value: Any) -> int:
    """Take an integer."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise Expected("an integer")
    return value


def positive(value: Any) -> int:
    """Take an integer of 1 or more."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise Expected("an integer of 1 or more")
    return value


def seconds(value: Any) -> float:
    """Take a finite number, 0 or above."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Expected("a number of seconds")
    if not 0 <= value < math.inf:
        raise Expected("a number of seconds, 0 or above")
    return float(value)


def boolean(value: Any) -> bool:
    """Take true or false."""
    if not isinstance(value, bool):
        raise Expected("true or false")
    return value


def text(value: Any) -> str:
    """Take a text that is not empty."""
    if not isinstance(value, str) or not value:
        raise Expected("a text")
    return value


def texts(value: Any) -> tuple[str, ...]:
    """Take a list of texts."""
    items = _items(value)
    if not items or not all(isinstance(item, str) and item for item in items):
        raise Expected("a list of texts")
    return tuple(items)


def span(value: Any) -> tuple[int, int]:
    """Take a pair of rising integers."""
    items = _items(value)
    is_pair = len(items) == 2 and not any(
        isinstance(item, bool) or not isinstance(item, int) for item in items
    )
    if not is_pair or not 0 <= items[0] < items[1]:
        raise Expected("two rising steps [start, stop]")
    return items[0], items[1]


def table(value: Any) -> dict[str, Any]:
    """Take a table."""
    if not isinstance(value, Mapping):
        raise Expected("a table")
    return dict(cast("Mapping[str, Any]", value))


def one_of(*words: str) -> Kind:
    """Return the kind of a text among `words`."""

    def take(value: Any) -> str:
        if value not in words:
            raise Expected(" or ".join(f'"{word}"' for word in words))
        return value

    return take


def function_name(value: Any) -> str:
    """Take `"module:function"`."""
    module, _, name = value.partition(":") if isinstance(value, str) else ("", "", "")
    if not all(part.isidentifier() for part in module.split(".")):
        raise Expected('"module:function"')
    if not name.isidentifier():
        raise Expected('"module:function"')
    return value


def _items(value: Any) -> Sequence[Any]:
    return cast("Sequence[Any]", value) if isinstance(value, list | tuple) else ()
