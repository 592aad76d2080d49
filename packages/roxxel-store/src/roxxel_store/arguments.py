"""Which values a user may give: one check, one wording, in Python and in files.

`as_integer` checks an argument of a call. A declaration is a dataclass whose
annotations say which values its fields may have, with a `Rule` for what a type cannot
say. It calls `check(self)` when it is made. `read` makes a declaration from a parsed
TOML table by the same annotations, so a program and a file get the same message.
"""

from __future__ import annotations

import math
import operator
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from difflib import get_close_matches
from functools import cache
from numbers import Integral, Real
from types import NoneType, SimpleNamespace, UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    NamedTuple,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

Key = str | int
"""A key of a table, or the index of an entry of an array."""

Hints = Mapping[str, Mapping[str, str]]
"""What to do about unknown keys: a sentence by dotted table and by key."""

_T = TypeVar("_T")

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_MAX_LISTED = 12


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


@dataclass(frozen=True)
class Rule:
    """What a type does not say, as in `Annotated[int, Rule(at_least=1)]`.

    Attributes:
        at_least: Least integer or number.
        at_most: Largest integer or number.
        above: Bound that a number exceeds.
        pattern: Regular expression that a text matches from its beginning.
        must_be: What a message says a value must be, instead of what its type says.
        is_filled: Whether a table or an array must have an entry.

    Example:
        >>> described(Annotated[int, Rule(at_least=1)])
        'an integer of 1 or more'
    """

    at_least: float | None = None
    at_most: float | None = None
    above: float | None = None
    pattern: str = ""
    must_be: str = ""
    is_filled: bool = False


Count = Annotated[int, Rule(at_least=1)]
Amount = Annotated[float, Rule(above=0)]


class Entry(NamedTuple):
    """A key of a table.

    Example:
        >>> Entry(int, is_required=True).kind
        <class 'int'>
    """

    kind: Any
    is_required: bool = False


class Table:
    """A table whose keys in a file differ from the fields of its declaration.

    Example:
        >>> find_wrong({"b": 1}, Table({"a": Entry(int)})).sentence()
        "the file has no key 'b'; it has a"
    """

    def __init__(self, keys: Mapping[str, Entry]) -> None:
        self.keys = keys


@dataclass(frozen=True)
class Wrong:
    """The first wrong value of a declaration.

    Attributes:
        keys: The keys that lead to it.
        problem: What is wrong with it.
        is_type: Whether its type is wrong.
        unknown: An unknown key of the table at `keys`, and the keys that it may have.
        is_missing: Whether the table at `keys` lacks a key that it must have.

    Example:
        >>> Wrong(("seed",), "must be an integer, got 'x'").sentence(["a"])
        "a.seed must be an integer, got 'x'"
    """

    keys: tuple[Key, ...]
    problem: str
    is_type: bool = False
    unknown: tuple[str, tuple[str, ...]] | None = None
    is_missing: bool = False

    def under(self, key: Key) -> Wrong:
        """Return this fault with `key`, which leads to it from an outer table."""
        return replace(self, keys=(key, *self.keys))

    def sentence(self, where: Sequence[Key] = (), hints: Hints | None = None) -> str:
        """Return the sentence of an error: the key, what it must be, and what it is."""
        keys = [*where, *self.keys]
        if self.unknown is None:
            *parents, last = keys or [""]
            place = named(keys) if self.is_missing or not keys else dotted(keys)
            sentence = f"{place} {self.problem}"
            more = (hints or {}).get(dotted(parents) + ".*", {}).get(str(last))
            if more is None:
                return sentence
            return f"{sentence}; if {last!r} is not one of {dotted(parents)}, {more}"
        key, known = self.unknown
        hint = (hints or {}).get(dotted(keys), {}).get(key) or nearest(key, known)
        return f"{named(keys)} has no key {key!r}; {hint or _listed(key, known)}"


def check(declared: Any, error: type[Exception] = ValueError) -> None:
    """Raise an error unless each field of a dataclass has a value of its type.

    A NumPy number becomes a Python number, because a narrow type may overflow, and
    False becomes None where None turns something off, as in a file. A field whose
    metadata has `is_object` is not checked.

    Raises:
        TypeError: A value has a wrong type.
        ValueError: A value is out of range, or an unknown word. An `error` is raised
            instead.
    """
    for name, entry in entries(type(declared)).items():
        value = plain(getattr(declared, name))
        wrong = find_wrong(value, entry.kind)
        if wrong is not None:
            raise (TypeError if wrong.is_type else error)(wrong.under(name).sentence())
        object.__setattr__(
            declared, name, None if _is_off(value, entry.kind) else value
        )


def read(
    kind: type[_T], table: Any, where: Sequence[Key] = (), hints: Hints | None = None
) -> _T:
    """Return the declaration that a table of a file declares.

    Args:
        kind: A dataclass.
        table: The table, as TOML is parsed. TOML has no None, so `false` stands for it.
        where: The keys that lead to the table in its file.
        hints: What to do about some unknown keys.

    Raises:
        ValueError: A value is wrong; the message names its key, its value and, for an
            unknown word, the nearest known one.

    Example:
        >>> @dataclass(frozen=True)
        ... class Blend:
        ...     parts: Count
        >>> read(Blend, {"parts": 4})
        Blend(parts=4)
    """
    check_table(kind, table, where, hints)
    return built(kind, table, where)


def check_table(
    kind: Any, table: Any, where: Sequence[Key] = (), hints: Hints | None = None
) -> None:
    """Raise ValueError unless a table may be read; arguments as for `read`."""
    wrong = find_wrong(table, kind)
    if wrong is not None:
        raise ValueError(wrong.sentence(where, hints))


def built(kind: Any, value: Any, where: Sequence[Key] = ()) -> Any:
    """Return a checked value as a value of `kind`; tables become declarations.

    Raises:
        ValueError: A declaration refuses its values; the message begins with the keys.
    """
    if _is_off(value, kind):
        return None
    several = kinds(kind)
    for one in several:
        if len(several) > 1 and find_wrong(value, one) is not None:
            continue
        _, plain_kind, origin, inner = _parts(one)
        if origin is Mapping:
            items = cast("dict[str, Any]", value).items()
            return {key: built(inner[1], x, [*where, key]) for key, x in items}
        if origin in {tuple, Sequence}:
            of_each = inner if origin is tuple and inner[1] is not ... else None
            return tuple(
                built(of_each[n] if of_each else inner[0], x, [*where, n])
                for n, x in enumerate(cast("Sequence[Any]", value))
            )
        if is_dataclass(plain_kind) and isinstance(value, Mapping):
            own = entries(cast("type[Any]", plain_kind))
            given = {
                key: built(own[key].kind, x, [*where, key])
                for key, x in cast("Mapping[str, Any]", value).items()
            }
            try:
                return cast("Any", plain_kind)(**given)
            except (TypeError, ValueError) as error:
                text = f"{dotted(where)}: {error}" if where else str(error)
                raise ValueError(text) from error
        break
    return value


@cache
def entries(declared: type[Any]) -> dict[str, Entry]:
    """Return the keys of a dataclass: all fields that a file can hold.

    A key is required if its field has no default, or says so in its metadata. The
    metadata may also give another `kind`, if the declaration checks the values itself.
    """
    own = [each for each in fields(declared) if "is_object" not in each.metadata]
    hints: dict[str, Any] = {}
    for one in reversed(declared.__mro__):
        noted = vars(one).get("__annotations__", {})
        names = [x.name for x in own if x.name in noted and "kind" not in x.metadata]
        noted = {name: noted[name] for name in names}
        space = vars(sys.modules[one.__module__])
        hints |= get_type_hints(
            SimpleNamespace(__annotations__=noted), space, include_extras=True
        )
    return {
        each.name: Entry(
            each.metadata.get("kind") or hints[each.name],
            "is_required" in each.metadata
            or (each.default is MISSING and each.default_factory is MISSING),
        )
        for each in own
    }


def find_wrong(value: Any, kind: Any) -> Wrong | None:
    """Return what is wrong with a value of a kind; None if nothing is."""
    inner: list[Wrong] = []
    for one in kinds(kind):
        wrong = _find_wrong(value, one)
        if wrong is None:
            return None
        inner.append(wrong)
    deeper = [x for x in inner if x.keys or x.unknown or x.is_missing]
    if deeper:
        return deeper[0]
    text = f"must be {described(kind)}, got {shown_value(value)}"
    if isinstance(value, str) and (hint := nearest(value, _words(kind))):
        text = f"{text}; {hint}"
    return Wrong((), text, is_type=all(x.is_type for x in inner))


@cache
def kinds(kind: Any) -> tuple[Any, ...]:
    """Return the kinds of a union, each with its own rule."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Annotated and get_origin(inner[0]) in {Union, UnionType}:
        return kinds(inner[0])
    if origin not in {Union, UnionType}:
        return (kind,)
    return tuple(one for each in inner for one in kinds(each))


def described(kind: Any, nothing: str = "None (false in TOML)") -> str:
    """Return what a value of a kind must be, in English.

    `nothing` is what the user writes for None.
    """
    rule, kind, origin, inner = _parts(kind)
    if rule.must_be:
        return rule.must_be
    if origin in {Union, UnionType}:
        shown = [described(each, nothing) for each in inner if _is_value(each)]
        return " or ".join(shown + [nothing] * (NoneType in inner))
    if origin is Literal:
        return " or ".join(f'"{word}"' for word in sorted(map(str, inner)))
    if origin in {tuple, Sequence}:
        is_any = origin is Sequence or inner[1] is ...
        each = f", each entry {described(inner[0])}" if is_any else ""
        return f"a list{each or f' of {len(inner)} values'}"
    simple: dict[Any, str] = {
        bool: "true or false",
        str: "a non-empty string",
        int: _described_integer(rule),
        float: _described_number(rule),
    }
    return simple.get(kind, "a table")


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


def plain(value: Any) -> Any:
    """Return a NumPy number as a Python number, in lists and tables too."""
    if isinstance(value, list | tuple):
        made = map(plain, cast("Sequence[Any]", value))
        return [*made] if isinstance(value, list) else tuple(made)
    if isinstance(value, dict):
        return {key: plain(x) for key, x in cast("dict[Any, Any]", value).items()}
    kind = getattr(getattr(value, "dtype", None), "kind", "")
    if kind and kind in "biuf" and getattr(value, "shape", None) == ():
        return value.item()
    return value


def _is_off(value: Any, kind: Any) -> bool:
    """Return whether a value is the None of a kind: `false` in TOML, which has none."""
    return value is False and NoneType in kinds(kind)


def _find_wrong(value: Any, kind: Any) -> Wrong | None:
    """Return what is wrong with a value of a kind that is no union."""
    rule, kind, origin, inner = _parts(kind)
    if isinstance(kind, Table):
        return _in_table(value, kind.keys)
    if is_dataclass(kind) and isinstance(value, Mapping):
        table = cast("Mapping[str, Any]", value)
        return _in_table(table, entries(cast("type[Any]", kind)))
    if origin is Mapping:
        return _in_mapping(value, inner[1], rule)
    if origin in {tuple, Sequence}:
        return _in_array(value, origin, inner, rule)
    return None if kind is Any else _simple(value, kind, rule)


def _simple(value: Any, kind: Any, rule: Rule) -> Wrong | None:
    """Return what is wrong with a value that is neither a list nor a table."""
    origin = get_origin(kind)
    if origin is Literal:
        is_text = isinstance(value, str)
        return (
            None if is_text and value in get_args(kind) else Wrong((), "", not is_text)
        )
    if kind is str:
        return _text(value, rule)
    if kind in {int, float}:
        return _number(value, kind, rule)
    is_off = kind is NoneType and value is False
    is_one = is_off or isinstance(value, kind if origin is None else origin)
    return None if is_one else Wrong((), "", is_type=True)


def _in_table(table: Any, keys: Mapping[str, Entry]) -> Wrong | None:
    if not isinstance(table, Mapping):
        return Wrong((), "", is_type=True)
    values = cast("Mapping[str, Any]", table)
    for key, value in values.items():
        if key not in keys:
            return Wrong((), "", unknown=(key, tuple(keys)))
        wrong = find_wrong(value, keys[key].kind)
        if wrong is not None:
            return wrong.under(key)
    for key, entry in keys.items():
        if entry.is_required and key not in values:
            return Wrong((), f"has no {key}; write {key} = ...", is_missing=True)
    return None


def _in_mapping(value: Any, kind: Any, rule: Rule) -> Wrong | None:
    if not isinstance(value, Mapping):
        return Wrong((), "", is_type=True)
    values = cast("Mapping[Any, Any]", value)
    if not all(isinstance(key, str) for key in values):
        return Wrong((), "", is_type=True)
    if rule.is_filled and not values:
        return Wrong((), "")
    found = ((key, find_wrong(x, kind)) for key, x in values.items())
    return next((x.under(key) for key, x in found if x is not None), None)


def _in_array(
    value: Any, origin: Any, inner: tuple[Any, ...], rule: Rule
) -> Wrong | None:
    if not isinstance(value, list | tuple):
        return Wrong((), "", is_type=True)
    values = cast("Sequence[Any]", value)
    is_pair = origin is tuple and inner[1] is not ...
    if (is_pair and len(values) != len(inner)) or (rule.is_filled and not values):
        return Wrong((), "", is_type=is_pair)
    of_each = inner if is_pair else inner[:1] * len(values)
    pairs = enumerate(zip(values, of_each, strict=True))
    found = ((n, find_wrong(x, kind)) for n, (x, kind) in pairs)
    return next((x.under(n) for n, x in found if x is not None), None)


def _text(value: Any, rule: Rule) -> Wrong | None:
    if not isinstance(value, str):
        return Wrong((), "", is_type=True)
    return None if value and re.match(rule.pattern, value) else Wrong((), "")


def _number(value: Any, kind: Any, rule: Rule) -> Wrong | None:
    if isinstance(value, bool) or not isinstance(
        value, Integral if kind is int else Real
    ):
        return Wrong((), "", is_type=True)
    try:
        number = operator.index(cast("Any", value)) if kind is int else float(value)
    except OverflowError:
        return Wrong((), "")
    is_within = (
        (kind is int or math.isfinite(number))
        and (rule.at_least is None or number >= rule.at_least)
        and (rule.at_most is None or number <= rule.at_most)
        and (rule.above is None or number > rule.above)
    )
    return None if is_within else Wrong((), "")


@cache
def _parts(kind: Any) -> tuple[Rule, Any, Any, tuple[Any, ...]]:
    """Return the rule of a kind, the kind without it, its origin and its arguments."""
    rule = Rule()
    if get_origin(kind) is Annotated:
        kind, *extras = get_args(kind)
        rule = next((each for each in extras if isinstance(each, Rule)), rule)
    return rule, kind, get_origin(kind), get_args(kind)


def _is_value(kind: Any) -> bool:
    """Return whether TOML can hold a value of this kind: not None, not an object."""
    is_protocol = getattr(kind, "_is_protocol", False)
    return not (kind is NoneType or get_origin(kind) is os.PathLike or is_protocol)


def _words(kind: Any) -> list[str]:
    return [
        str(word)
        for each in kinds(kind)
        if get_origin(each) is Literal
        for word in get_args(each)
    ]


def _described_integer(rule: Rule) -> str:
    least = rule.at_least
    return "an integer" if least is None else f"an integer of {least} or more"


def _described_number(rule: Rule) -> str:
    if rule.above is not None:
        most = "" if rule.at_most is None else f" and at most {rule.at_most:g}"
        return f"a finite number above {rule.above:g}{most}"
    if rule.at_least is not None:
        return f"a finite number of {rule.at_least:g} or more"
    return "a finite number"


def _listed(word: str, known: Sequence[str]) -> str:
    """Return the known keys; if they are many, the three most like the word."""
    if len(known) <= _MAX_LISTED:
        return f"it has {', '.join(known)}"
    near = get_close_matches(word, known, n=3, cutoff=0)
    return (
        f"the nearest of its {len(known)} keys are {', '.join(near)}; "
        "docs/reference/config lists all"
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
