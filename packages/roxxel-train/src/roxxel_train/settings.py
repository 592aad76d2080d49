"""Which values a setting may have: one check for Python and for config files.

The type of a dataclass's field, and the metadata that says what the type does not, give
a type of msgspec. `TrainConfig` checks each of its values by this type, and
`roxxel.config` the tables of a file, so both refuse the same values in the same words.
"""

from __future__ import annotations

import operator
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache, reduce
from types import NoneType, SimpleNamespace, UnionType
from typing import (
    Annotated,
    Any,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec
import numpy as np
from msgspec import Meta, inspect
from roxxel_store.arguments import nearest

Key = str | int
"""A key of a table, or the index of an entry of an array."""

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_STEP = re.compile(r"\.(\w+)|\[(\d+|\.\.\.)\]")
_TABLES = (inspect.StructType, inspect.DictType)
_ARRAYS = (inspect.VarTupleType, inspect.TupleType)
_SIMPLE = {inspect.BoolType: "true or false", inspect.StrType: "a non-empty string"}


def types_of(
    declared: type[Any], names: Sequence[str], *, may_be_none: bool = False
) -> dict[str, Any]:
    """Return the type of msgspec that each named field of a dataclass has.

    Text must not be empty, and a float must be finite. Paths and objects that know how
    to load themselves are text here. The metadata of a field bounds its numbers by
    `at_least` and `above` and its text by a regular expression, `pattern`, and
    describes its value for errors by `must_be`. None is a value only if asked for:
    TOML cannot spell it.
    """
    own = [each for each in fields(declared) if each.name in names]
    hints = get_type_hints(
        SimpleNamespace(__annotations__={each.name: each.type for each in own}),
        vars(sys.modules[declared.__module__]),
        include_extras=True,
    )
    types: dict[str, Any] = {}
    for each in own:
        types[each.name] = type_of(hints[each.name], each.metadata)
        if "must_be" in each.metadata:
            meaning = Meta(description=each.metadata["must_be"])
            types[each.name] = Annotated[types[each.name], meaning]
        if may_be_none and NoneType in get_args(hints[each.name]):
            types[each.name] |= None
    return types


def type_of(hint: Any, rule: Mapping[str, Any]) -> Any:
    """Return the type of msgspec for a type hint with the metadata of its field."""
    origin, arguments = get_origin(hint), get_args(hint)
    if is_dataclass(hint):
        kind = cast("type[Any]", hint)
        names = [each.name for each in fields(kind)]
        return table_of(kind.__name__, types_of(kind, names))
    if origin in {Union, UnionType}:
        kinds = [each for each in arguments if _is_value(each)]
        return reduce(operator.or_, (type_of(each, rule) for each in kinds))
    if origin in {Sequence, tuple}:
        kinds = arguments if origin is tuple else (*arguments, ...)
        return tuple[tuple(x if x is ... else type_of(x, {}) for x in kinds)]
    if origin is Mapping:
        return dict[arguments[0], type_of(arguments[1], {})]
    bounds = {
        str: Meta(min_length=1, pattern=rule.get("pattern")),
        int: Meta(ge=rule.get("at_least")),
        float: Meta(gt=rule.get("above"), le=sys.float_info.max),
    }
    return Annotated[hint, bounds[hint]] if hint in bounds else hint


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


def check_settings(declared: Any, names: Sequence[str]) -> None:
    """Raise an error unless each named field of a dataclass has a value of its type.

    A number of NumPy counts as Python's.

    Raises:
        TypeError: A value has a wrong type.
        ValueError: A value is out of range, or an unknown word.
    """
    kind = _kind_of(type(declared), tuple(names))
    table = {name: plain(getattr(declared, name)) for name in names}
    try:
        msgspec.convert(table, kind)
    except msgspec.ValidationError as error:
        keys, value, expected = place_of(str(error), table, kind)
        sentence = wrong_value(dotted(keys), value, expected, nothing="None")
        is_type = ", got `" in str(error)
        raise (TypeError if is_type else ValueError)(sentence) from error


def wrong_value(name: str, value: Any, expected: Any, nothing: str) -> str:
    """Return the sentence about a value that a setting may not have.

    Args:
        name: What the error calls the setting.
        value: The value that was given.
        expected: The type that the setting has, as msgspec describes it.
        nothing: How the user would write None.
    """
    sentence = f"{name} must be {described(expected, nothing)}, got {_shown(value)}"
    hint = nearest(value, _words(expected)) if isinstance(value, str) else ""
    return f"{sentence}; {hint}" if hint else sentence


def described(expected: Any, nothing: str) -> str:
    """Return what a value must be, in English; the arguments of `wrong_value`."""
    match expected:
        case inspect.Metadata(extra_json_schema={"description": str(text)}):
            return text
        case inspect.Metadata():
            return described(expected.type, nothing)
        case inspect.UnionType():
            return " or ".join(described(each, nothing) for each in expected.types)
        case inspect.VarTupleType():
            return f"a list, each entry {described(expected.item_type, nothing)}"
        case inspect.NoneType():
            return nothing
        case _:
            return _described_simply(expected)


def place_of(
    message: str, table: Any, kind: type[msgspec.Struct]
) -> tuple[list[Key], Any, Any]:
    """Return the keys to a wrong value, the value, and what it should be.

    msgspec does not name the keys of a dict. The key is one that alone has the error.
    """
    _, has_path, path = message.rpartition(" - at `$")
    keys: list[Key] = []
    value, expected = table, inspect.type_info(kind)
    for name, index in _STEP.findall(path if has_path else ""):
        if index == "...":
            key = next(
                key
                for key in value
                if _error(_with(table, keys, {key: value[key]}), kind) == message
            )
        else:
            key = name or int(index)
        expected = _inside(member(expected, value), key)
        value = value[key]
        keys.append(key)
    return keys, value, expected


def dotted(keys: Sequence[Key]) -> str:
    """Return keys as one dotted key of TOML; an index is a key too, as in `--set`."""
    return ".".join(
        key if _BARE.fullmatch(key) else repr(key) for key in map(str, keys)
    )


def member(expected: Any, value: Any) -> Any:
    """Return the type that a table or an array must have, of several types."""
    kinds = _TABLES if isinstance(value, dict) else _ARRAYS
    return next(each for each in members(expected) if isinstance(each, kinds))


def plain(value: Any) -> Any:
    """Return a number of NumPy as Python's, and a path as its text; of a list, each."""
    if isinstance(value, list | tuple):
        made = map(plain, cast("Sequence[Any]", value))
        return [*made] if isinstance(value, list) else tuple(made)
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, os.PathLike):
        return os.fspath(cast("os.PathLike[str]", value))
    return value


def members(expected: Any) -> Iterator[Any]:
    """Yield the types that a value may have, of a type as msgspec describes it."""
    match expected:
        case inspect.Metadata():
            yield from members(expected.type)
        case inspect.UnionType():
            for each in expected.types:
                yield from members(each)
        case _:
            yield expected


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


@cache
def _kind_of(declared: type[Any], names: tuple[str, ...]) -> type[msgspec.Struct]:
    types = types_of(declared, names, may_be_none=True)
    return table_of(declared.__name__, types)


def _is_value(kind: Any) -> bool:
    """Return whether a file can hold a value of this kind: no None, path or object."""
    is_protocol = getattr(kind, "_is_protocol", False)
    return not (kind is NoneType or get_origin(kind) is os.PathLike or is_protocol)


def _words(expected: Any) -> list[str]:
    literals = [x for x in members(expected) if isinstance(x, inspect.LiteralType)]
    return [str(word) for each in literals for word in each.values]


def _described_simply(expected: Any) -> str:
    match expected:
        case inspect.LiteralType():
            return " or ".join(f'"{word}"' for word in expected.values)
        case inspect.IntType():
            least = expected.ge
            return "an integer" if least is None else f"an integer of {least} or more"
        case inspect.FloatType():
            above = expected.gt
            return "a number" if above is None else f"a finite number above {above:g}"
        case inspect.TupleType():
            return f"a list of {len(expected.item_types)} values"
        case _:
            return _SIMPLE.get(type(expected), "a table")


def _shown(value: Any) -> str:
    """Return a value for an error of one line: an array prints as many."""
    text = repr(value)
    return text if "\n" not in text else f"a {type(value).__name__}"
