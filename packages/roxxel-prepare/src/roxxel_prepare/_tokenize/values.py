"""The values of a chat as a template gets them: JSON, from which it prints only texts.

If a template printed a list, a table, true, false or null, it would print Python's
spelling, such as `[{'type': 'text'}]` or `None`, and a model would learn that. So these
values raise an error wherever a template turns them into text: by printing, joining,
formatting, or a filter. JSON and Python spell numbers alike.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from functools import wraps
from typing import TYPE_CHECKING, Any, cast

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable


class SpellingError(ValueError):
    """A template prints a value in Python's spelling."""


class _Unprinted:
    """A value that raises an error where it becomes a text."""

    __slots__ = ()

    def __str__(self) -> str:
        raise _spelt(self)

    def __repr__(self) -> str:
        raise _spelt(self)

    def __format__(self, _: str) -> str:
        raise _spelt(self)


class _Table(_Unprinted, dict[str, Any]):
    """An object of JSON."""


class _List(_Unprinted, list[Any]):
    """An array of JSON."""


class _Literal(_Unprinted):
    """True, False or None, whose types cannot be subclassed."""

    __slots__ = ("value",)

    def __init__(self, value: bool | None) -> None:
        self.value = value

    def __bool__(self) -> bool:
        return bool(self.value)

    def __eq__(self, other: object) -> bool:
        return self.value == _bare(other)

    def __hash__(self) -> int:
        return hash(self.value)


NOTHING = _Literal(None)


def as_value(value: object) -> Any:
    """Return a value of JSON in the form that a template gets.

    Raises:
        ValueError: This is not a value of JSON; the message begins with what it is.
    """
    if isinstance(value, np.generic):
        value = cast("object", value.item())
    if value is None or isinstance(value, bool):
        return NOTHING if value is None else _Literal(value)
    is_finite = not isinstance(value, float) or math.isfinite(value)
    if isinstance(value, (str, int, float, _Literal)) and is_finite:
        return value
    if isinstance(value, (list, tuple)):
        return _List(map(as_value, cast("list[object]", value)))
    if isinstance(value, Mapping):
        table = cast("Mapping[object, object]", value)
        if not all(isinstance(key, str) for key in table):
            raise ValueError("an object whose names are not all texts")
        return _Table((str(key), as_value(each)) for key, each in table.items())
    raise ValueError(f"{value!r:.30}, which is no value of JSON")


def name_of(value: object) -> str:
    """Return JSON's word for a value, and the value itself if it is short."""
    value = _bare(value)
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, (int, float)):
        return f"the number {value}"
    kinds = {"str": "a text", "_Table": "an object", "_List": "a list"}
    kind = type(value).__name__
    return kinds.get(kind, f"a {kind}")


def printed(value: object) -> object:
    """Return a value that a template prints.

    Raises:
        SpellingError: The value is neither a text nor a number.
    """
    is_text = isinstance(value, str) or type(value).__name__.endswith("Undefined")
    if not is_text and type(value) not in (int, float):
        raise _spelt(value)
    return value


def json_default(value: object) -> object:
    """Return what `json.dumps` shall write for one of these values."""
    if isinstance(value, _Literal):
        return value.value
    raise TypeError(f"a {type(value).__name__} is no value of JSON")


def test_of_values(test: Callable[..., bool]) -> Callable[..., bool]:
    """Return a test of Jinja, such as `is none`, that knows these values."""

    @wraps(test)
    def bare(*arguments: object) -> bool:
        return test(*map(_bare, arguments))

    return bare


def _bare(value: object) -> object:
    return value.value if isinstance(value, _Literal) else value


def _spelt(value: object) -> SpellingError:
    return SpellingError(
        f"it prints {name_of(value)} as Python spells it; print its texts, or pass it "
        "through tojson"
    )
