"""The values of a chat as a template gets them: JSON that is printed as JSON, or never.

If a template printed a list or an object, it would print Python's spelling, such as
`[{'type': 'text'}]`: the template is for texts, and the chat has lists of parts. So
these values raise an error wherever a template turns them into text. The types of null,
true and false cannot be subclassed. `printed` raises it where one stands alone, and
`problem_of_words` looks for their words where a template has joined them to other text.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Collection


class SpellingError(ValueError):
    """A template prints a value in Python's spelling."""


class _Unprinted:
    """A value that raises an error where it becomes a text."""

    __slots__ = ()

    def __str__(self) -> str:
        raise SpellingError(_spelt(self))

    def __format__(self, _: str) -> str:
        return str(self)

    __repr__ = __str__


class _Table(_Unprinted, dict[str, Any]):
    """An object of JSON."""


class _List(_Unprinted, list[Any]):
    """An array of JSON."""


def as_value(value: object) -> Any:
    """Return a value of JSON in the form that a template gets.

    Raises:
        ValueError: This is not a value of JSON; the message begins with what it is.
    """
    if isinstance(value, np.generic):
        value = cast("object", value.item())
    is_finite = not isinstance(value, float) or math.isfinite(value)
    if value is None or (isinstance(value, (str, int, float)) and is_finite):
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
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, (int, float)):
        return f"the number {value}"
    kinds = {"str": "a text", "_Table": "an object", "_List": "a list"}
    kind = type(value).__name__
    return kinds.get(kind, f"a {kind}")


def printed(value: Any) -> Any:
    """Return a value that a template prints alone.

    Raises:
        SpellingError: This is null, true or false.
    """
    if value is None or isinstance(value, bool):
        raise SpellingError(_spelt(value))
    return value


def problem_of_words(text: str, others: Collection[str]) -> str:
    """Describe a null, true or false that a template printed; empty if it did not.

    Args:
        text: What the template has rendered, with other words for the texts of a chat.
        others: Texts in which Python's words may stand: those of the template, and what
            else the chat says.
    """
    for value in (None, True, False):
        word = str(value)
        if word in text and not any(word in each for each in others):
            return _spelt(value)
    return ""


def _spelt(value: object) -> str:
    return (
        f"it prints {name_of(value)} as Python spells it; print its texts, or pass "
        "it through tojson"
    )
