"""Checks a TOML table by the types of a dataclass, and says what is wrong with it.

msgspec checks the values and names the place of a wrong one. From its error and from
the types comes one sentence: which key, what the key must be, what it is, and the
nearest key or word.
"""

from __future__ import annotations

import operator
import os
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from functools import reduce
from types import NoneType, SimpleNamespace, UnionType
from typing import (
    Annotated,
    Any,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec
from msgspec import Meta, inspect
from roxxel_store.arguments import nearest

from roxxel.config._declaration import ConfigError

Key = str | int
"""A key of a table, or the index of an entry of an array."""

Hints = Mapping[str, Mapping[str, str]]
"""What to do about a key that a table does not have, by dotted table and by key."""

_Table = TypeVar("_Table", bound=msgspec.Struct)

_TABLES = (inspect.StructType, inspect.DictType)
_ARRAYS = (inspect.VarTupleType, inspect.TupleType)
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
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_ERROR = re.compile(r"(?P<text>.*?)(?: - at `\$(?P<path>.*)`)?", re.DOTALL)
_STEP = re.compile(r"\.(\w+)|\[(\d+|\.\.\.)\]")


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


def keys_of(declared: type[Any], **spelt: Any) -> dict[str, Any]:
    """Return the type that each field of a dataclass has in TOML.

    TOML has no null and no paths; text must not be empty, and a float must be finite.
    The metadata of a field bounds its numbers by `at_least` and `above` and its text
    by a regular expression, `pattern`, and describes its value for errors by `must_be`.

    Args:
        declared: The dataclass.
        spelt: Types of fields that TOML spells otherwise; None leaves a field out.
    """
    own = [each for each in fields(declared) if each.name not in spelt]
    hints = get_type_hints(
        SimpleNamespace(__annotations__={each.name: each.type for each in own}),
        vars(sys.modules[declared.__module__]),
        include_extras=True,
    )
    types: dict[str, Any] = {}
    for each in own:
        types[each.name] = _in_toml(hints[each.name], each.metadata)
        if "must_be" in each.metadata:
            meaning = Meta(description=each.metadata["must_be"])
            types[each.name] = Annotated[types[each.name], meaning]
    types |= {name: kind for name, kind in spelt.items() if kind is not None}
    order = [each.name for each in fields(declared) if each.name in types]
    return {name: types[name] for name in order}


def table_of(
    name: str, keys: Mapping[str, Any], required: Sequence[str] = ()
) -> type[msgspec.Struct]:
    """Return the type of a table with these keys; an absent key has the value None."""
    return msgspec.defstruct(
        name,
        [
            *((key, keys[key]) for key in required),
            *((key, kind, None) for key, kind in keys.items() if key not in required),
        ],
        forbid_unknown_fields=True,
    )


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


def dotted(keys: Sequence[Key]) -> str:
    """Return keys as one dotted key of TOML; an index is a key too, as in `--set`."""
    return ".".join(
        key if _BARE.fullmatch(key) else repr(key) for key in map(str, keys)
    )


def named(keys: Sequence[Key]) -> str:
    """Return what an error calls the table at these keys."""
    if not keys:
        return "the file"
    is_header = all(isinstance(key, str) for key in keys)
    return f"[{dotted(keys)}]" if is_header else dotted(keys)


def _in_toml(hint: Any, rule: Mapping[str, Any]) -> Any:
    """Return the type in TOML of a value that has a type in Python."""
    origin, arguments = get_origin(hint), get_args(hint)
    if is_dataclass(hint):
        kind = cast("type[Any]", hint)
        return table_of(kind.__name__, keys_of(kind))
    if origin in {Union, UnionType}:
        kinds = [each for each in arguments if each is not NoneType]
        in_files = [each for each in kinds if get_origin(each) is not os.PathLike]
        return reduce(operator.or_, (_in_toml(each, rule) for each in in_files))
    if origin in {Sequence, tuple}:
        kinds = arguments if origin is tuple else (*arguments, ...)
        return tuple[tuple(x if x is ... else _in_toml(x, {}) for x in kinds)]
    if origin is Mapping:
        return dict[arguments[0], _in_toml(arguments[1], {})]
    bounds = {
        str: Meta(min_length=1, pattern=rule.get("pattern")),
        int: Meta(ge=rule.get("at_least")),
        float: Meta(gt=rule.get("above"), le=sys.float_info.max),
    }
    return Annotated[hint, bounds[hint]] if hint in bounds else hint


def _sentence(
    message: str,
    table: Any,
    kind: type[msgspec.Struct],
    where: Sequence[Key],
    hints: Hints,
) -> str:
    """Return one sentence for an error of msgspec."""
    found = _ERROR.fullmatch(message)
    assert found is not None  # noqa: S101 - the pattern matches every text
    keys, value, expected = _place(message, found["path"] or "", table, kind)
    place = dotted([*where, *keys])
    if (wrong := re.search(r"(unknown|required) field `(.*?)`", message)) is not None:
        holder, key = named([*where, *keys]), wrong[2]
        if wrong[1] == "required":
            return f"{holder} has no {key}; write {key} = ..."
        known = [each.name for each in _member(expected, value).fields]
        hint = hints.get(place, {}).get(key) or nearest(key, known)
        return f"{holder} has no key {key!r}; {hint or _listed(key, known)}"
    sentence = f"{place or 'the file'} must be {_described(expected)}, got {value!r}"
    *parents, last = [*where, *keys] or [""]
    if (hint := hints.get(dotted(parents) + ".*", {}).get(str(last))) is not None:
        return f"{sentence}; if {last!r} is not one of {dotted(parents)}, {hint}"
    hint = nearest(value, _words(expected)) if isinstance(value, str) else ""
    return f"{sentence}; {hint}" if hint else sentence


def _listed(word: str, known: Sequence[str]) -> str:
    """Return the known keys, or of many keys the three most like a word."""
    if len(known) <= _MAX_LISTED:
        return f"it has {', '.join(known)}"
    near = get_close_matches(word, known, n=3, cutoff=0)
    return (
        f"the nearest of its {len(known)} keys are {', '.join(near)}; "
        "docs/reference/config lists all"
    )


def _place(
    message: str, path: str, table: Any, kind: type[msgspec.Struct]
) -> tuple[list[Key], Any, Any]:
    """Return the keys to a wrong value, the value, and what it should be.

    msgspec does not name the keys of a dict. The key is one that alone has the error.
    """
    keys: list[Key] = []
    value, expected = table, inspect.type_info(kind)
    for name, index in _STEP.findall(path):
        if index == "...":
            key = next(
                key
                for key in value
                if _error(_with(table, keys, {key: value[key]}), kind) == message
            )
        else:
            key = name or int(index)
        expected = _inside(_member(expected, value), key)
        value = value[key]
        keys.append(key)
    return keys, value, expected


def _with(inside: Any, keys: Sequence[Key], value: Any) -> Any:
    """Return a copy of a table in which a value is replaced."""
    if not keys:
        return value
    copy = inside.copy()
    copy[keys[0]] = _with(inside[keys[0]], keys[1:], value)
    return copy


def _error(table: Any, kind: type[msgspec.Struct]) -> str:
    try:
        msgspec.convert(table, kind)
    except msgspec.ValidationError as error:
        return str(error)
    return ""


def _member(expected: Any, value: Any) -> Any:
    """Return the type that a table or an array must have, of several types."""
    kinds = _TABLES if isinstance(value, dict) else _ARRAYS
    return next(each for each in _members(expected) if isinstance(each, kinds))


def _members(expected: Any) -> Iterator[Any]:
    """Yield the types that a value may have."""
    match expected:
        case inspect.Metadata():
            yield from _members(expected.type)
        case inspect.UnionType():
            for each in expected.types:
                yield from _members(each)
        case _:
            yield expected


def _inside(expected: Any, key: Key) -> Any:
    """Return the type of a value in a table or an array."""
    match expected:
        case inspect.StructType():
            return next(each.type for each in expected.fields if each.name == key)
        case inspect.DictType():
            return expected.value_type
        case inspect.TupleType():
            return expected.item_types[cast("int", key)]
        case _:
            return expected.item_type


def _words(expected: Any) -> list[str]:
    """Return the words that a type allows; empty for other types."""
    members = _members(expected)
    literals = [each for each in members if isinstance(each, inspect.LiteralType)]
    return [str(word) for each in literals for word in each.values]


def _described(expected: Any) -> str:
    """Return what a value must be, in English."""
    match expected:
        case inspect.Metadata(extra_json_schema={"description": str(text)}):
            return text
        case inspect.Metadata():
            return _described(expected.type)
        case inspect.UnionType():
            return " or ".join(map(_described, expected.types))
        case inspect.LiteralType():
            return " or ".join(f'"{word}"' for word in expected.values)
        case inspect.VarTupleType():
            return f"a list, each entry {_described(expected.item_type)}"
        case _:
            return _described_simply(expected)


def _described_simply(expected: Any) -> str:
    match expected:
        case inspect.BoolType():
            return "true or false"
        case inspect.IntType():
            least = expected.ge
            return "an integer" if least is None else f"an integer of {least} or more"
        case inspect.FloatType():
            above = expected.gt
            return "a number" if above is None else f"a number above {above:g}"
        case inspect.StrType():
            return "a non-empty string"
        case inspect.TupleType():
            return f"a list of {len(expected.item_types)} values"
        case _:
            return "a table"
