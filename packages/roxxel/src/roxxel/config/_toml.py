"""Checks a TOML table by the types of a dataclass, and says what is wrong with it.

msgspec checks the values and names the place of a wrong one. From its error and from
the types comes one sentence: which key, what the key must be, what it is, and the
nearest key or word.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import fields
from difflib import get_close_matches
from typing import Any, TypeVar

import msgspec
from roxxel_store.arguments import nearest
from roxxel_train.settings import (
    Key,
    dotted,
    member,
    place_of,
    types_of,
    wrong_value,
)

from roxxel.config._declaration import ConfigError

Hints = Mapping[str, Mapping[str, str]]
"""What to do about a key that a table does not have, by dotted table and by key."""

_Table = TypeVar("_Table", bound=msgspec.Struct)

_MAX_LISTED = 12
_MOST_SHOWN = 60
_REMEDIES = {
    "Invalid value": "put text in quotes, and write true and numbers as true and 0.5",
    "Expected newline": "end the line after the value, without a comma",
    "Expected '='": "write key = value, and the name of a table in brackets",
    "Expected ']'": "close the bracket after the name of the table",
    "Invalid statement": "write key = value, and the name of a table in brackets",
    "Invalid initial character": "write a name before =, and quote an odd one",
    "Unclosed array": "separate the entries by commas, and close the ]",
    "Unclosed inline table": "separate the entries by commas, and close the }",
    "Illegal character": "end the text with its quote in the same line",
    "Unterminated string": "end the text with its quote",
    "Unescaped": "write a path with / or in single quotes",
    "Cannot overwrite": "write each key once",
    "Cannot declare": "write each table once, or each of a list as in [[phases]]",
    "Cannot mutate": "write each table in one place",
}
"""What to do, by the beginning of the error of `tomllib`."""


def parsed(text: str, where: str = "") -> dict[str, Any]:
    """Return the table of a TOML text; errors begin with `where`.

    Raises:
        ConfigError: The text is not TOML; the message says what to write instead.
    """
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        problem = str(error)
        found = (x for start, x in _REMEDIES.items() if problem.startswith(start))
        remedy = next(found, "see https://toml.io for what a file may hold")
        if line := re.search(r"at line (\d+)", problem):
            shown = text.split("\n")[int(line[1]) - 1].strip()
            problem = f"{problem}, `{shown[:_MOST_SHOWN]}`"
        raise ConfigError(f"{where}not TOML: {problem}; {remedy}") from error


def keys_of(
    declared: type[Any], *, can_be_off: bool = False, **spelt: Any
) -> dict[str, Any]:
    """Return the type that each field of a dataclass has in TOML, as `types_of` does.

    Args:
        declared: The dataclass.
        can_be_off: Whether `false` in the file means the None of a field.
        spelt: Types of fields that TOML spells otherwise; None leaves a field out.
    """
    names = [each.name for each in fields(declared)]
    own = [name for name in names if name not in spelt]
    types = types_of(declared, own, may_be_none=can_be_off)
    types |= {name: kind for name, kind in spelt.items() if kind is not None}
    return {name: types[name] for name in names if name in types}


def given(table: msgspec.Struct) -> dict[str, Any]:
    """Return the keys that a table sets, with their values."""
    values = {name: getattr(table, name) for name in table.__struct_fields__}
    return {name: value for name, value in values.items() if value is not None}


def checked(
    table: Any,
    kind: type[_Table],
    where: Sequence[Key] = (),
    hints: Hints | None = None,
) -> _Table:
    """Return a table as a value of `kind`, or raise a `ConfigError`.

    Args:
        table: The table, as TOML is parsed.
        kind: Its type; see `table_of`.
        where: The keys that lead to the table in its file.
        hints: What to do about some unknown keys.
    """
    try:
        return msgspec.convert(table, kind)
    except msgspec.ValidationError as error:
        raise ConfigError(
            _sentence(str(error), table, kind, where, hints or {})
        ) from error


def named(keys: Sequence[Key]) -> str:
    """Return what an error calls the table at these keys."""
    if not keys:
        return "the file"
    is_header = all(isinstance(key, str) for key in keys)
    return f"[{dotted(keys)}]" if is_header else dotted(keys)


def _sentence(
    message: str,
    table: Any,
    kind: type[msgspec.Struct],
    where: Sequence[Key],
    hints: Hints,
) -> str:
    """Return one sentence for an error of msgspec."""
    keys, value, expected = place_of(message, table, kind)
    place = dotted([*where, *keys])
    if (wrong := re.search(r"(unknown|required) field `(.*?)`", message)) is not None:
        holder, key = named([*where, *keys]), wrong[2]
        if wrong[1] == "required":
            return f"{holder} has no {key}; write {key} = ..."
        known = [each.name for each in member(expected, value).fields]
        hint = hints.get(place, {}).get(key) or nearest(key, known)
        return f"{holder} has no key {key!r}; {hint or _listed(key, known)}"
    sentence = wrong_value(place or "the file", value, expected, nothing="false")
    *parents, last = [*where, *keys] or [""]
    if (hint := hints.get(dotted(parents) + ".*", {}).get(str(last))) is not None:
        return f"{sentence}; if {last!r} is not one of {dotted(parents)}, {hint}"
    return sentence


def _listed(word: str, known: Sequence[str]) -> str:
    """Return the known keys, or of many keys the three most like a word."""
    if len(known) <= _MAX_LISTED:
        return f"it has {', '.join(known)}"
    near = get_close_matches(word, known, n=3, cutoff=0)
    return (
        f"the nearest of its {len(known)} keys are {', '.join(near)}; "
        "docs/reference/config lists all"
    )
