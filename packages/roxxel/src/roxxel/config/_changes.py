"""Changes of a config by `KEY=VALUE` texts, as `--set` gives them.

`KEY` is a dotted TOML key; an integer selects an entry of an array of tables, as in
`phases.0.steps`. `VALUE` is a TOML value; text that is not TOML is a string.
"""

from __future__ import annotations

import tomllib
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def changed(table: Mapping[str, Any], changes: Sequence[str]) -> dict[str, Any]:
    """Return a copy of a TOML table with these changes, made in the given order.

    Raises:
        ValueError: A change is not `KEY=VALUE`, or its key leads into a value that is
            neither a table nor an array, or to an entry that an array does not have.
    """
    result = dict(table)
    for change in changes:
        keys, value = _parsed(change)
        result = _with(result, keys, value, change)
    return result


def _parsed(change: str) -> tuple[list[str], Any]:
    """Return the parts of the dotted key, and the value."""
    key, separator, text = change.partition("=")
    nested = _toml(f"{key} = 0") if separator and "\n" not in key else None
    if nested is None:
        raise ValueError(
            f"{change!r} is not KEY=VALUE; write for example trainer.log_every=1"
        )
    keys: list[str] = []
    inner: Any = nested
    while isinstance(inner, dict):
        [(name, inner)] = cast("dict[str, Any]", inner).items()
        keys.append(name)
    found = _toml(f"value = {text}")
    # A text of several lines could hold further keys, which are not part of the value.
    if found is None or len(found) > 1:
        return keys, text
    return keys, found["value"]


def _with(inside: Any, keys: Sequence[str], value: Any, change: str) -> Any:
    """Return a table or an array with a new value at a path of keys."""
    if not keys:
        return value
    key, *rest = keys
    if isinstance(inside, dict):
        table = cast("dict[str, Any]", inside)
        return {**table, key: _with(table.get(key, {}), rest, value, change)}
    entries: list[Any] = list(inside) if isinstance(inside, list) else []
    try:
        index = range(len(entries))[int(key)]
    except ValueError:
        raise ValueError(
            f"{change!r} sets the key {key!r} of {inside!r}, which is not a table; "
            "set the whole value"
        ) from None
    except IndexError:
        raise ValueError(
            f"{change!r} sets entry {key} of an array that has "
            f"{f'the entries 0 to {len(entries) - 1}' if entries else 'no entries'}; "
            "set an entry that exists"
        ) from None
    entries[index] = _with(entries[index], rest, value, change)
    return entries


def _toml(text: str) -> dict[str, Any] | None:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return None
