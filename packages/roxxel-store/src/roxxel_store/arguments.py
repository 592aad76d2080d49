"""Checks of what callers pass, with one wording for all packages."""

from __future__ import annotations

import operator
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping


def as_integer(
    name: str,
    value: Any,
    least: int | None = None,
    *,
    what: str = "an integer",
    error: Callable[[str], Exception] = ValueError,
) -> int:
    """Return an integer of Python or NumPy as an int, so that it cannot overflow.

    Args:
        name: Name of the argument, for messages.
        value: The argument.
        least: The smallest valid integer; None if all are valid.
        what: What the argument must be, for messages.
        error: Class of the error for an integer below `least`.

    Raises:
        TypeError: The value is a bool, a float or no number.
        ValueError: The integer is below `least`. An `error` is raised instead.

    Example:
        >>> as_integer("steps", 3, 1)
        3
        >>> as_integer("steps", 0, 1)
        Traceback (most recent call last):
        ValueError: steps must be at least 1, got 0
    """
    if isinstance(value, bool):
        raise TypeError(f"{name} must be {what}, got {value!r}")
    try:
        number = operator.index(value)
    except TypeError as failure:
        raise TypeError(f"{name} must be {what}, got {shown_value(value)}") from failure
    if least is not None and number < least:
        raise error(f"{name} must be at least {least}, got {number}")
    return number


def nearest(word: str, known: Iterable[str]) -> str:
    """Return a question that suggests the known word most like `word`; or nothing.

    A known word with more or fewer parts between dashes, such as `--document-id` for
    `--id`, comes before one of similar letters. Of several such words, none is named.

    Example:
        >>> nearest("sead", ["seed", "steps"])
        "did you mean 'seed'?"
        >>> nearest("--id", ["--field", "--document-id"])
        "did you mean '--document-id'?"
    """
    names = {each.lstrip("-"): each for each in known}
    bare = word.lstrip("-")
    parts = {*bare.split("-")}
    near = [
        name
        for name in names
        if parts.issubset(own := {*name.split("-")}) or own.issubset(parts)
    ] or get_close_matches(bare, names, n=1, cutoff=0.65)
    return f"did you mean {names[near[0]]!r}?" if len(near) == 1 else ""


def other_arguments(recorded: Mapping[str, Any], given: Mapping[str, Any]) -> str:
    """Describe how recorded arguments of a corpus differ from those given now.

    The description names no option, because arguments from Python and from commands
    arrive here alike.

    Example:
        >>> other_arguments({"separator": 0, "pack": None}, {"separator": 1})
        'separator is 0 in the corpus, 1 given'
    """
    return ", ".join(
        f"{name} is {_in_words(recorded.get(name))} in the corpus, "
        f"{_in_words(given.get(name))} given"
        for name in {**given, **recorded}
        if recorded.get(name) != given.get(name)
    )


def _in_words(value: object) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)


def shown_value(value: Any) -> str:
    """Return a value for a message; if it prints several lines, return its type."""
    text = repr(value)
    return text if "\n" not in text else f"a {type(value).__name__}"
