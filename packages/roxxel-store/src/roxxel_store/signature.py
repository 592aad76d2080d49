"""A command's arguments and help, from the signature and docstring of its function.

Each argument is told once. A parameter that may be passed by position becomes a word in
capitals, one by keyword only an option. `bool` becomes a flag (`--no-x` if `x` is true
by default), `Literal` choices, `Sequence` an argument that repeats. `Annotated` adds
what the type does not say: a function that parses the text, the name of the value in
capitals, how a user writes the value, a short option. A parameter whose type is a
dataclass stands for a group of options. An argument that several commands share is told
by its type alone.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import types
from collections.abc import Sequence
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_type_hints
from typing import get_args as args_of
from typing import get_origin as origin_of

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Mapping

    Build = Callable[[argparse.Namespace], Any]

_SECTION = re.compile(r"^(\w+):\n((?: {4}.*(?:\n|\Z)|\n)+)", re.MULTILINE)
_ENTRY = re.compile(r"^ {4}(\w+): (.*(?:\n {8}.*)*)", re.MULTILINE)


@dataclasses.dataclass(frozen=True)
class Told:
    """What the docstring of a command says.

    Attributes:
        text: All before the sections.
        examples: What a user types after the command's name, from `Example`.
        entries: The entries of all other sections, such as `Args`, by name.

    Example:
        >>> Told("Verify a step.", ["runs/first@10"], {"step": "The step."}).text
        'Verify a step.'
    """

    text: str
    examples: Sequence[str]
    entries: Mapping[str, str]


def told(act: Callable[..., Any]) -> Told:
    """Read the docstring of a command.

    Example:
        >>> def verify(step: str) -> None:
        ...     '''Verify a step.
        ...
        ...     Args:
        ...         step: The step.
        ...
        ...     Example:
        ...         roxxel ckpt verify runs/first@10
        ...     '''
        >>> told(verify).examples, told(verify).entries
        (['runs/first@10'], {'step': 'The step.'})
    """
    act = function_of(act)
    doc = inspect.getdoc(act) or ""
    sections: dict[str, str] = dict(_SECTION.findall(doc))
    typed = sections.pop("Example", "").splitlines()
    entries = _ENTRY.findall("\n".join(sections.values()))
    return Told(
        text=_SECTION.split(doc, maxsplit=1)[0].strip(),
        examples=[line.partition(f"{act.__name__} ")[2] for line in typed if line],
        entries={name: " ".join(said.split()) for name, said in entries},
    )


def function_of(act: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function without the arguments that `functools.partial` has bound.

    Example:
        >>> function_of(partial(print, end=""))
        <built-in function print>
    """
    return act.func if isinstance(act, partial) else act


def add_arguments(parser: Any, act: Callable[..., Any]) -> Build:
    """Add the parameters of a function, or the fields of a dataclass, to a parser.

    What a `functools.partial` has bound is no argument of the command.

    Returns:
        A function that calls `act` with what was parsed.
    """
    bound = act.keywords if isinstance(act, partial) else {}
    hints = get_type_hints(function_of(act), include_extras=True)
    said = told(act).entries
    builds: dict[str, Build] = {}
    for name, each in inspect.signature(act).parameters.items():
        if name in bound:
            continue
        if dataclasses.is_dataclass(hints[name]):
            group = parser.add_argument_group(as_phrase(said[name]))
            builds[name] = add_arguments(group, hints[name])
        else:
            words, settings = _argument(each, hints[name], said.get(name, ""))
            parser.add_argument(*words, **settings)
            builds[name] = attrgetter(name)
    return lambda options: act(
        **{name: build(options) for name, build in builds.items()}
    )


def given(*groups: Any) -> list[str]:
    """Return the options of groups whose value is another than the default.

    Example:
        >>> @dataclasses.dataclass(frozen=True, kw_only=True)
        ... class Work:
        ...     unit_bytes: int = 64
        ...     workers: int = 1
        >>> given(Work(unit_bytes=8))
        ['--unit-bytes']
    """
    return [
        f"--{_spelled(field.name)}"
        for group in groups
        for field in dataclasses.fields(group)
        if getattr(group, field.name) != field.default
    ]


def as_phrase(sentence: str) -> str:
    """Return a sentence as the help of an argument: without capital and full stop.

    Example:
        >>> as_phrase("A file."), as_phrase("HTML file.")
        ('a file', 'HTML file')
    """
    is_word = not sentence[1:2].isupper()
    first = sentence[:1].lower() if is_word else sentence[:1]
    return first + sentence[1:].removesuffix(".")


def _argument(
    each: inspect.Parameter, hint: Any, said: str
) -> tuple[Sequence[str], Mapping[str, Any]]:
    """Return the names of an argument, and the settings of `add_argument`."""
    kind, is_many, notes = _unwrapped(hint)
    texts = [note for note in notes if isinstance(note, str)]
    short = [text for text in texts if text.startswith("-")]
    metavar = next((text for text in texts if text.isupper()), None)
    written = [text for text in texts if text not in {*short, metavar}]
    default = each.default
    parse = next((note for note in notes if callable(note)), kind)
    has_default = each.default is not each.empty
    said = ": ".join([*filter(None, [as_phrase(said)]), *written])
    is_plain = kind is bool or not has_default or str(default) in {"None", "", "()"}
    if not is_plain and "(default" not in said:
        said += f" (default: {default})"
    settings: dict[str, Any] = {"help": said.replace("%", "%%")}
    if kind is not bool:
        settings["metavar"] = metavar
        settings["type"] = None if parse is str else parse
    if origin_of(kind) is Literal:
        settings["choices"], settings["type"] = args_of(kind), None
    if has_default:
        settings["default"] = [*default] if is_many else default
    name = _spelled(each.name)
    if each.kind is not each.KEYWORD_ONLY:
        settings["metavar"] = metavar or name.upper()
        if is_many:
            settings["nargs"] = "*" if has_default else "+"
        elif has_default:
            settings["nargs"] = "?"
        return [each.name], settings
    if kind is bool:
        settings["action"] = "store_false" if default else "store_true"
        name = f"no-{name}" if default else name
    elif is_many:
        settings["action"] = "append"
    settings["required"] = not has_default
    return [*short, f"--{name}"], {**settings, "dest": each.name}


def _spelled(name: str) -> str:
    return name.rstrip("_").replace("_", "-")


def _unwrapped(hint: Any) -> tuple[Any, bool, Sequence[Any]]:
    """Return the type of one value, whether there are several, and what was noted."""
    is_many, notes = False, []
    while not any(callable(note) for note in notes):
        inner = args_of(hint)
        if origin_of(hint) is Annotated:
            hint, notes = inner[0], [*notes, *inner[1:]]
        elif origin_of(hint) in {Union, types.UnionType}:
            [hint] = (each for each in inner if each is not types.NoneType)
        elif origin_of(hint) is Sequence:
            hint, is_many = inner[0], True
        else:
            break
    return hint, is_many, notes
