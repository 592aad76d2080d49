"""A Sphinx extension that writes the reference from the code.

A page of docs/reference/ has lines such as `<!-- generated: config -->`. When Sphinx
reads the page, it gets the tables of the declarations that the program itself obeys in
their place: the dataclasses of a config, the parsers of the commands. So the reference
cannot be out of date, and nobody edits it. Names in docstrings link to their own entry,
and a signature spells out every type that has no entry, such as `_Every` or `Count`.

    python docs/generated.py config

prints what the site shows in place of `<!-- generated: config -->`.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import inspect
import re
import sys
from dataclasses import MISSING, fields
from functools import cache
from itertools import chain
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any, cast, get_args

from roxxel.cli import parsers
from roxxel.config import TOP_KEYS, MeshConfig, RunConfig, TrainerConfig
from roxxel.models import LlamaConfig, OptimizerConfig, llama, next_token_loss
from roxxel.recipe import KEYS
from roxxel.recipe.learning_rate import LearningRate
from roxxel_curriculum import Curriculum, Phase
from roxxel_format import foreign
from roxxel_store.arguments import Entry, described, entries
from roxxel_store.command import EXIT_CODES, CommandParser
from roxxel_train.config import TrainConfig

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

_MARK = re.compile(r"^<!-- generated: ([\w-]+) -->$", re.MULTILINE)
_SECTION = re.compile(r"^(?:Args|Attributes):\n((?:[ ]+.*\n|\n)+)", re.MULTILINE)
_ENTRY = re.compile(r"^ {4}(\w+): (.*(?:\n {8}.*)*)", re.MULTILINE)
_REQUIRED = ("batch_size", "seq_len", "sources", "phases", "model", "save_path")
_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
_EXAMPLES = {
    "Above the tables": """\
model = "roxxel.models:llama"
save_path = "runs/first"        # or s3://bucket/runs/first
longest = 4097                  # a longer phase may come
""",
    "`[sources]`": """\
[sources]
self = "data/web_*.rox"
code = { path = "data/code_*.rox", policy = "repeat" }
old = { path = "train.bin", dtype = "uint16", separator = 50256, tokenizer = "gpt2" }
""",
    "`[[phases]]`": """\
[[phases]]
steps = 1000                    # or tokens = 1_000_000_000, or epochs = 2
batch_size = 128
seq_len = 1025                  # a context of 1024, and the last target
weights = { self = 0.7, code = 0.2, old = 0.1 }
""",
    "`[trainer]`": """\
[trainer]
log_every = 10
eval_every = 500
checkpoint_every = 500
max_to_keep = false             # keep every checkpoint
fields = ["tokens", "segment_ids", "positions"]
log_to = ["wandb"]
""",
    "`[mesh]`": """\
[mesh]
preset = "fsdp"
""",
    "`[model_args]` of `roxxel.models:llama`": """\
[model_args]
preset = "small"
vocab_size = 32_000
eos_token_id = 2
peak_rate = 6e-4
""",
}
"""A piece of a config for each table, which a test reads."""

_SENTENCES = {
    "eval": "Held-out data: `sources` and `[[phases]]`, or one table for each set.",
    "trainer": "Settings of the trainer, listed below.",
    "mesh": "The mesh of devices, listed below.",
    "phases": "Phases in training order, listed below.",
    "sources": (
        "Corpora by name: a path, a pattern, a list of these, or a table with the keys "
        "listed below. The primary corpus is `self`, unless `primary` names it."
    ),
}


def documented(thing: Any) -> dict[str, str]:
    """Return what a docstring says about each argument or attribute."""
    section = _SECTION.search(inspect.getdoc(thing) or "")
    entries = _ENTRY.findall(section[1]) if section else []
    return {name: " ".join(text.split()) for name, text in entries}


def defaults(declared: Any) -> dict[str, str]:
    """Return the defaults of a dataclass or a function, as a file would write them."""
    if not inspect.isclass(declared):
        found = inspect.signature(declared).parameters.values()
        return {p.name: _toml(p.default) for p in found if p.default is not p.empty}
    return {
        each.name: _toml(each.default)
        for each in fields(declared)
        if each.default is not MISSING and each.name not in _REQUIRED
    }


def _toml(value: Any) -> str:
    if value is None or value == ():
        return ""
    shown = list(value) if isinstance(value, tuple) else value
    text = str(shown).lower() if isinstance(shown, bool) else repr(shown)
    return f"`{text}`".replace("'", '"')


def table(heads: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """Return a table of Markdown."""
    lines = [heads, ("---",) * len(heads), *rows]
    return "".join(f"| {' | '.join(map(_cell, line))} |\n" for line in lines)


def _cell(text: str) -> str:
    """Escape what Markdown would read as a mark, but in code."""
    parts = re.split(r"(`[^`]*`)", " ".join(text.split()).replace("|", r"\|"))
    return "".join(
        part if part.startswith("`") else re.sub(r"([*_<\[])", r"\\\1", part)
        for part in parts
    )


def keys(
    names: Iterable[str],
    told: Mapping[str, str],
    usual: Mapping[str, str],
    types: Mapping[str, Entry] | None = None,
) -> str:
    """Return the table of some keys: name, default, meaning, and value if known.

    Required keys stand first. TOML has no None: `false` turns a setting off where that
    is allowed, and elsewhere a key without a value is left out.
    """
    heads = ("key", "default", "meaning")
    names = sorted(names, key=lambda name: name not in _REQUIRED)
    if types is None:
        rows = ((f"`{x}`", usual.get(x, ""), _toml_of(told.get(x, ""))) for x in names)
        return table(heads, rows)
    with_types = (
        (
            f"`{name}`",
            described(types[name].kind, "`false`"),
            "required" if name in _REQUIRED else usual.get(name, ""),
            _toml_of(told.get(name, ""), types[name].kind),
        )
        for name in names
    )
    return table((heads[0], "value", *heads[1:]), with_types)


def _toml_of(meaning: str, kind: Any = None) -> str:
    """Return what a key means, in words of TOML."""
    may_be_off = NoneType in get_args(kind)
    meaning = re.sub(r"\bNone\b", "`false`" if may_be_off else "no value", meaning)
    meaning = meaning.replace(". no value", ". No value")
    return meaning[:1].upper() + meaning[1:]


def _all(describe: Callable[[Any], dict[str, str]], *declared: Any) -> dict[str, str]:
    return {name: text for each in declared for name, text in describe(each).items()}


def config() -> str:
    """Return the tables of every key of a config file."""
    top = {**documented(Curriculum), **documented(RunConfig), **_SENTENCES}
    usual = {**defaults(RunConfig), "overlap": "`0`"}
    source = ("path", "policy", "tokenizer", "format", "dtype", "offset", "separator")
    of_source = {
        **documented(foreign.open_foreign),
        "path": "A file, a folder, a pattern, a list of these, or a URL.",
        "policy": "What happens when the corpus runs out, as in `policies`.",
        "tokenizer": (
            "Name of the tokenizer of a corpus that records none, such as `gpt2`. It "
            "is compared with the names that the other corpora record, and no file is "
            "read."
        ),
        **{
            name: documented(foreign.FlatTokens).get(name, "")
            for name in ("dtype", "offset")
        },
    }
    declared = (LlamaConfig, LearningRate, OptimizerConfig, llama)
    parts = {
        "Above the tables": keys(TOP_KEYS, top, usual, TOP_KEYS),
        "`[sources]`": table(
            ("key", "meaning"), ((f"`{name}`", of_source[name]) for name in source)
        ),
        "`[[phases]]`": keys(
            entries(Phase), documented(Phase), defaults(Phase), entries(Phase)
        ),
        "`[trainer]`": keys(
            entries(TrainerConfig),
            documented(TrainConfig),
            defaults(TrainerConfig),
            entries(TrainerConfig),
        ),
        "`[mesh]`": keys(
            entries(MeshConfig),
            documented(MeshConfig),
            defaults(MeshConfig),
            entries(MeshConfig),
        ),
        "`[model_args]` of `roxxel.models:llama`": keys(
            KEYS,
            _all(documented, *declared, next_token_loss),
            _all(defaults, *declared, next_token_loss),
            KEYS,
        ),
    }
    return "".join(
        f"## {name}\n\n```toml\n{_EXAMPLES[name]}```\n\n{rows}\n"
        for name, rows in parts.items()
    )


def every_parser() -> Iterator[tuple[str, CommandParser]]:
    """Yield the parser of every command, by the words that a user types."""
    for prog, parser in parsers():
        inner = [
            *chain.from_iterable(each.choices.items() for each in _commands(parser))
        ]
        yield from ((f"{prog} {name}", each) for name, each in inner)
        if not inner:
            yield prog, parser


def _commands(parser: argparse.ArgumentParser) -> list[Any]:
    every = parser._actions  # noqa: SLF001 - argparse has no public list
    return [each for each in every if isinstance(each.choices, dict)]


def options(parser: argparse.ArgumentParser) -> Iterator[tuple[str, str]]:
    """Yield every argument of a parser, and what it does."""
    formatter = parser._get_formatter()  # noqa: SLF001 - as `--help` prints it
    for action in parser._actions:  # noqa: SLF001
        if action.help == argparse.SUPPRESS or "--help" in action.option_strings:
            continue
        names = ", ".join(f"`{name}`" for name in action.option_strings)
        value = formatter._format_args(action, action.dest.upper())  # noqa: SLF001
        if not names:
            names = f"`{value}`"
        elif value:
            names += f" `{value}`"
        yield names, formatter._expand_help(action) if action.help else ""  # noqa: SLF001


def commands() -> str:
    """Return a section for each command, with examples and its options."""
    text = ""
    for name, parser in every_parser():
        said = " ".join((parser.description or "").split())
        typed = "\n".join(parser.examples)
        text += f"## {name}\n\n{_cell(said)}\n\n```sh\n{typed}\n```\n\n"
        if rows := list(options(parser)):
            text += table(("argument", "what it does"), rows) + "\n"
    return text


def exit_codes() -> str:
    """Return the exit codes of every command."""
    rows = ((f"`{code}`", meaning) for code, meaning in EXIT_CODES.items())
    return table(("code", "meaning"), rows)


PAGES: dict[str, Callable[[], str]] = {
    "config": config,
    "commands": commands,
    "exit-codes": exit_codes,
}


def filled(page: str) -> str:
    """Return a page with its generated parts."""
    return _MARK.sub(lambda mark: PAGES[mark[1]](), page)


_SOURCES = Path(__file__).parents[1] / "packages"
_TYPE = re.compile(r"(?<![\w.\"'])(?:~?(?:\w+\.)+)?(_?[A-Z]\w*[a-z]\w*)(?![\w=(\"'])")
_FIELD = re.compile(r":(?:vartype|type|rtype)\b[^:]*: ")


@cache
def bindings() -> dict[str, dict[str, str]]:
    """Return what each module binds names of types to.

    An alias is bound to its text, an imported name to `module:name`, and any other
    name to nothing.
    """
    found: dict[str, dict[str, str]] = {}
    for source in _SOURCES.glob("*/src"):
        for path in source.rglob("*.py"):
            parts = path.relative_to(source).with_suffix("").parts
            names = found[".".join(parts).removesuffix(".__init__")] = {}
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                names.update(_bound(node, parts))
    return found


def _bound(node: ast.AST, parts: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    match node:
        case ast.ImportFrom(module=str(module), level=level):
            home = ".".join((*parts[:-level], module)) if level else module
            for each in node.names:
                yield each.asname or each.name, f"{home}:{each.name}"
        case ast.ClassDef(name=name):
            yield name, ""
        case (
            ast.Assign(targets=[ast.Name(id=name)], value=value)
            | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value)
        ):
            text = _alias(value)
            if text and _TYPE.fullmatch(name):
                yield name, text
        case _:
            pass


class _Unquoted(ast.NodeTransformer):
    """Takes the quotes off types that are written as texts."""

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if not isinstance(node.value, str):
            return node
        return ast.parse(node.value, mode="eval").body

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        match ast.unparse(node.value), node.slice:
            case "Literal", _:
                return node
            case "Annotated", ast.Tuple(elts=[first, *_]):
                return self.visit(first)
            case _:
                return self.generic_visit(node)


def _alias(value: ast.expr) -> str:
    match value:
        case ast.Subscript() | ast.BinOp(op=ast.BitOr()) | ast.Constant(value=str()):
            try:
                return ast.unparse(_Unquoted().visit(value))
            except SyntaxError:  # a text that is no type
                return ""
        case ast.Call(func=ast.Name(id="TypeVar"), keywords=keywords):
            bounds = [_alias(each.value) for each in keywords if each.arg == "bound"]
            return next(filter(None, bounds), "Any")
        case _:
            return ""


@cache
def _origin(name: str, module: str) -> tuple[str, str]:
    """Return a module and what it binds a name to, where it isn't imported."""
    if name not in bindings().get(module, {}):  # in a signature of another module
        every = {_origin(name, each) for each, has in bindings().items() if name in has}
        if name.startswith("_"):  # a private class is seen in its module alone
            every = {each for each in every if each[1]}
        return every.pop() if len(every) == 1 else ("", "")
    bound = bindings()[module][name]
    if ":" not in bound:
        return module, bound
    module, _, name = bound.partition(":")
    return _origin(name, module) if module in bindings() else (module, "")


def plain(text: str, module: str) -> str:
    """Return types in words that have an entry, or that Python has.

    A type alias such as `_Every` is spelled out, if no package exports it. Of an
    `Annotated` type remains the type: what it may be stands in the documentation.
    """

    def spelled(found: re.Match[str]) -> str:
        where, bound = _origin(found[1], module)
        is_entry = not bound or found[1] in exported()
        return found[0] if is_entry else plain(bound, where)

    text = _TYPE.sub(spelled, text)
    while (at := text.find("Annotated[")) >= 0:
        depth, comma, stop = 0, 0, at
        for stop, sign in enumerate(text[at:], at):
            depth += (sign in "[(") - (sign in "])")
            comma = comma or (stop if sign == "," and depth == 1 else 0)
            if sign == "]" and depth == 0:
                break
        inner = text[at + len("Annotated[") : comma]
        text = text[:at] + inner + text[stop + 1 :]
    return text


@cache
def exported() -> set[str]:
    """Return the names that packages export."""
    tops = [path.parent.name for path in _SOURCES.glob("*/src/*/__init__.py")]
    return {name for top in tops for name in importlib.import_module(top).__all__}


def name_role(
    role: str, rawtext: str, text: str, lineno: int, inliner: Any, **more: Any
) -> Any:
    """Link a name in a docstring to where it is documented, and show all else as code.

    The role `py:obj` alone would cut `~/.cache` and `.rox`.
    """
    from docutils.parsers.rst.roles import code_role  # a test reads this file without

    if _NAME.fullmatch(text):
        linked = inliner.document.settings.env.get_domain("py").role("obj")
        return linked("py:obj", rawtext, text, lineno, inliner, **more)
    return code_role(role, rawtext, text, lineno, inliner, **more)


def setup(app: Any) -> dict[str, bool]:
    """Connect to Sphinx."""

    def read(_: Any, name: str, source: list[str]) -> None:
        if name.startswith("reference/"):
            source[0] = filled(source[0])

    def signature(*event: Any) -> tuple[str, str]:
        *_, thing, _, arguments, returned = event
        module = getattr(thing, "__module__", None) or ""
        shown = (text and plain(text, module) for text in (arguments, returned))
        return cast("tuple[str, str]", tuple(shown))

    def docstring(*event: Any) -> None:
        *_, thing, _, lines = event
        module = getattr(thing, "__module__", None) or ""
        for number, line in enumerate(lines):
            if _FIELD.match(line):
                lines[number] = plain(line, module)

    app.connect("source-read", read)
    app.connect("autodoc-process-signature", signature)
    app.connect("autodoc-process-docstring", docstring, priority=900)  # after napoleon
    app.add_role("name", name_role)
    return {"parallel_read_safe": True}


if __name__ == "__main__":
    for each in sys.argv[1:]:
        sys.stdout.write(PAGES[each]())
