"""Checks the values in a config file, and says in an error what a value must be.

A check (`Kind`) returns the value to store, or raises `Expected`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import Any

_SIZE_TEXT = re.compile(r"([0-9]+)([KMGT]?)")

Kind = Callable[[Any], Any]
"""Checks a value and returns the value to store, or raises `Expected`."""


class Expected(Exception):
    """A value has the wrong kind.

    The message is what follows "must be" in the error, such as "an integer".
    """


def unchanged(value: Any) -> Any:
    return value


def _kind(
    expected: str,
    accepts: Callable[[Any], bool],
    stored: Callable[[Any], Any] = unchanged,
    *,
    of: Kind = unchanged,
) -> Kind:
    """Return a check: apply `of`, require `accepts(value)`, return `stored(value)`."""

    def checked(value: Any) -> Any:
        value = of(value)
        if not accepts(value):
            raise Expected(expected)
        return stored(value)

    return checked


def one_of(*words: str) -> Kind:
    return _kind(" or ".join(f'"{word}"' for word in words), lambda v: v in words)


def _is_list_of(kind: type, value: Any) -> bool:
    return isinstance(value, list) and all(type(item) is kind for item in value)


def _is_path(value: Any) -> bool:
    return bool(value) and (isinstance(value, str) or _are_texts(value))


def _are_texts(value: Any) -> bool:
    return _is_list_of(str, value) and bool(value) and all(value)


def _is_span(value: Any) -> bool:
    return _is_list_of(int, value) and len(value) == 2 and 0 <= value[0] < value[1]


def _parsed_size(value: Any) -> int | None:
    """Return a number of bytes, given as an integer or such as "2G"; None if wrong."""
    if type(value) is int:
        return value
    found = _SIZE_TEXT.fullmatch(value) if isinstance(value, str) else None
    return int(found[1]) << 10 * " KMGT".index(found[2] or " ") if found else None


def _is_function_name(value: Any) -> bool:
    if not isinstance(value, str):
        return False
    module, _, name = value.partition(":")
    return all(part.isidentifier() for part in [*module.split("."), name])


# `type(v) is int`, because `isinstance(True, int)` holds.
INTEGER = _kind("an integer", lambda v: type(v) is int)
POSITIVE = _kind("an integer of 1 or more", lambda v: type(v) is int and v >= 1)
_NUMBER = _kind("a number of seconds", lambda v: type(v) in {int, float})
SECONDS = _kind(
    "a number of seconds, 0 or above",
    lambda v: 0 <= v <= sys.float_info.max,
    float,
    of=_NUMBER,
)
BOOLEAN = _kind("true or false", lambda v: isinstance(v, bool))
TEXT = _kind("a non-empty string", lambda v: isinstance(v, str) and v != "")
LOCAL_PATH = _kind(
    "the path of a folder on a local disk", lambda v: "://" not in v, of=TEXT
)
TEXTS = _kind("a list of non-empty strings", _are_texts, tuple)
PATHS = _kind(
    "a path, a pattern, or a list of paths and patterns",
    _is_path,
    lambda v: (v,) if isinstance(v, str) else tuple(v),
)
NUM_BYTES = _kind(
    'bytes, 1 or more, such as 4096, "64K", "1M", "2G" or "1T"',
    lambda v: v is not None and v >= 1,
    of=_parsed_size,
)
SPAN = _kind("two rising steps [start, stop]", _is_span, tuple)
KEPT = _kind(
    'a number of steps of 1 or more, or a duration such as "6h"',
    lambda v: v >= 1 if type(v) is int else isinstance(v, str) and v != "",
)
SIZE = _kind(
    "a number of devices, or -1 for all remaining devices",
    lambda v: v >= 1 or v == -1,
    of=INTEGER,
)
TABLE = _kind("a table", lambda v: isinstance(v, dict), dict)
FUNCTION = _kind('"module:function"', _is_function_name)
SINK_NAMES = ("csv", "tensorboard", "wandb")
SINKS = _kind(
    f"a list of {', '.join(SINK_NAMES)}",
    lambda v: _is_list_of(str, v) and set(v) <= set(SINK_NAMES),
    tuple,
)
SHARDING = _kind(
    '"annotated", "fsdp", or a list of names of axes',
    lambda v: v in ("annotated", "fsdp") or _are_texts(v),
    lambda v: v if isinstance(v, str) else tuple(v),
)
ABOVE_0 = _kind(
    "a number above 0",
    lambda v: type(v) in {int, float} and 0 < v <= sys.float_info.max,
    float,
)
