"""Changes of a config by `KEY=VALUE` texts, as `--set` gives them.

`KEY` is a dotted TOML key; an integer selects an entry of an array of tables, as in
`phases.0.steps`. `VALUE` is a TOML value; text that is not TOML is a string.
"""

from __future__ import annotations

import tomllib
from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Sequence


def change_all(table: MutableMapping[str, Any], changes: Sequence[str]) -> None:
    """Make these changes in a table, in the given order.

    The table may be a document of tomlkit, which keeps its comments.

    Raises:
        ValueError: A change is not `KEY=VALUE`, or its key leads into a value that is
            neither a table nor an array, or to an entry that does not exist.
    """
    for change in changes:
        keys, value = _parsed(change)
        inside: Any = table
        while len(keys) > 1:
            if isinstance(inside, MutableMapping) and keys[0] not in inside:
                # One assignment: tomlkit loses what is put into a new table later.
                value = _nested(keys[1:], value)
                break
            inside = inside[_key(inside, keys.pop(0), change)]
        inside[_key(inside, keys[0], change)] = value


def _nested(keys: Sequence[str], value: Any) -> Any:
    return {keys[0]: _nested(keys[1:], value)} if keys else value


def _key(inside: Any, key: str, change: str) -> str | int:
    """Return the key of a table, or the index of an array."""
    if isinstance(inside, MutableMapping):
        return key
    entries: list[Any] = cast("list[Any]", inside) if isinstance(inside, list) else []
    try:
        return range(len(entries))[int(key)]
    except (ValueError, IndexError):
        raise ValueError(
            f"{change!r} sets the key {key!r} of {inside!r}, which is neither a table "
            "nor an array with this entry; set what exists, or the whole value"
        ) from None


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


def _toml(text: str) -> dict[str, Any] | None:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return None
