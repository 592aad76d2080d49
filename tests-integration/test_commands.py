"""Every command of every package follows the same conventions.

Positional arguments are in capitals, help begins with a small letter and gives defaults
in one form, descriptions are sentences, examples can be typed, and exit codes mean the
same everywhere.
"""

from __future__ import annotations

import argparse
import re
import shlex
import warnings
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from roxxel.cli import COMMANDS, PASSED_ON
from roxxel.cli import main as roxxel
from roxxel_store.command import EXIT_CODES, show_warning

from .tools.options import actions_of, commands, counted

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ROOT = Path(__file__).parents[1]
PROGRAMS = {f"roxxel-{name}": f"roxxel_{name}.cli" for name in ("prepare", *PASSED_ON)}


EVERY = dict(commands())
WORDS = "|".join({name.split()[-1] for name in EVERY})
ALONE = re.compile(rf"(?<![./\w-])roxxel-(?:prepare|format|ckpt) (?:{WORDS})\b")


def run(program: str, words: Sequence[str]) -> int:
    """Run one of the programs, and return its exit code."""
    main = roxxel if program == "roxxel" else import_module(PROGRAMS[program]).main
    with pytest.raises(SystemExit) as ended:
        main(list(words))
    assert isinstance(ended.value.code, int)
    return ended.value.code


@pytest.mark.parametrize("program", ["roxxel", *PROGRAMS])
def test_every_program_prints_a_warning_as_a_line(
    program: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warnings, "showwarning", None)

    assert run(program, ["--help"]) == 0

    assert warnings.showwarning is show_warning


def test_commands_and_options_are_few() -> None:
    num_commands, num_options = counted()

    assert num_commands <= 28, "give a command an option, or take one away"
    assert num_options <= 116, "share the type of an option, or take one away"


@pytest.mark.parametrize("name", EVERY)
def test_help_of_a_command_is_sentences_and_ends_with_the_exit_codes(name: str) -> None:
    said = " ".join((EVERY[name].description or "").split())
    codes = re.findall(r"^  (\d+) +(.*)$", EVERY[name].epilog or "", re.MULTILINE)

    assert re.match(r"[A-Z].*\.$", said), said
    assert {int(code): text for code, text in codes}.items() <= EXIT_CODES.items()
    assert {"0", "1", "2", "130"} <= {code for code, _ in codes}


@pytest.mark.parametrize("name", EVERY)
def test_examples_of_a_command_can_be_typed(name: str) -> None:
    parser: Any = EVERY[name]

    assert parser.examples
    for example in parser.examples:
        assert example in parser.format_help()
        parser.parse_args(shlex.split(example.removeprefix(name)))


def form_of(action: argparse.Action) -> Iterator[str]:
    """Yield what is wrong with the help of an argument."""
    said = action.help or ""
    if not re.match(r"([a-z0-9-]|HTML|JSON).*[^.]$", said):
        yield "begin with a small letter, and leave out the full stop"
    if re.search(r"[;,] default|by default|\(default [^:]", said):
        yield "write (default: X)"
    shown = action.metavar
    if not action.option_strings and not (shown and shown == str(shown).upper()):
        yield "write positional arguments in capitals"
    if any(re.fullmatch("--?[a-z0-9-]+", x) is None for x in action.option_strings):
        yield "write options in small letters"


@pytest.mark.parametrize("name", EVERY)
def test_help_of_arguments_has_one_form(name: str) -> None:
    wrong = [
        f"{action.dest}: {action.help!r}: {problem}"
        for action in actions_of(EVERY[name])
        if action.help != argparse.SUPPRESS and action.dest != "help"
        for problem in form_of(action)
    ]

    assert wrong == []


@pytest.mark.parametrize(
    ("program", "typed", "meant"),
    [
        ("roxxel", "tarin", "train"),
        ("roxxel-prepare", "wirte", "write"),
        ("roxxel-format", "verfy", "verify"),
        ("roxxel-ckpt", "lss", "ls"),
    ],
)
def test_a_mistyped_command_is_answered_with_the_one_that_was_meant(
    program: str, typed: str, meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(program, [typed]) == 2

    assert f"did you mean {meant!r}? `{program} --help`" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ["write", "--tokeniser", "bytes"],
        ["write", "texts", "web", "--tokeniser=bytes"],
        ["write", "texts", "web", "--tokeniser", "bytes"],
    ],
)
def test_a_mistyped_option_is_answered_with_the_one_that_was_meant(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("roxxel", words) == 2

    assert "did you mean '--tokenizer'?" in capsys.readouterr().err


@pytest.mark.parametrize("name", EVERY)
def test_an_error_of_the_command_line_shows_one_line_of_usage(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        EVERY[name].error("this is wrong")

    *usage, error = capsys.readouterr().err.splitlines()
    assert len(usage) == 1
    assert error == f"{EVERY[name].prog}: error: this is wrong"


@pytest.mark.parametrize("program", ["roxxel", *PROGRAMS])
def test_a_program_says_its_version_and_its_commands(
    program: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(program, []) == 2
    assert "commands (each has its own --help):\n" in capsys.readouterr().err
    assert run(program, ["--version"]) == 0
    assert re.fullmatch(rf"{program} \d+\.\d+\.\d+\n", capsys.readouterr().out)


def test_pages_name_commands_in_one_form() -> None:
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
    found = {
        page.name: names
        for page in pages
        if "_build" not in page.parts
        and (names := ALONE.findall(page.read_text("utf-8")))
    }

    assert len(pages) > 40
    assert found == {}, "write `roxxel format info`, which needs no second program"


def test_help_of_a_command_in_a_list_is_a_verb_without_a_full_stop() -> None:
    for said in {**COMMANDS, **PASSED_ON}.values():
        assert re.match(r"[a-z]+,? .*[^.]$", said), said


SHOWN = re.compile(r"^```console\n(.*?)^```", re.DOTALL | re.MULTILINE)
INLINE = re.compile(r"`(roxxel (?!corpus )[a-z][^`]*)`")  # "roxxel corpus 1": a record
PAGES = [
    page
    for page in (*ROOT.glob("*.md"), *ROOT.glob("*/**/*.md"))
    if not {"_build", ".venv"} & set(page.parts) and page.name != "CHANGELOG.md"
]


def named(words: Sequence[str]) -> tuple[str, Sequence[str]] | None:
    """Return the command of a line, and its arguments; None for no such command."""
    for number in (3, 2):
        name = " ".join(words[:number])
        if name in EVERY:
            return name, words[number:]
    aliased = ["roxxel", "prepare", *words[1:]] if words[1:2] == ["write"] else []
    return named(aliased) if aliased else None


def lines_of(page: Path) -> Iterator[list[str]]:
    """Yield the words of every `roxxel` line that a page shows and no test runs."""
    for shown in SHOWN.findall(page.read_text("utf-8")):
        whole = shown.replace("\\\n", " ")
        whole = re.sub(r"\$\w+_ID\b", "0", whole)
        for line in re.sub(r"\$\w+_COUNT\b", "8", whole).splitlines():
            before, found, rest = line.partition("roxxel ")
            if found and re.fullmatch(r"\$ (uv run )?|", before):
                yield shlex.split(found + rest, comments=True)


def test_every_command_line_that_pages_show_is_one() -> None:
    seen = 0
    for page in PAGES:
        for words in lines_of(page):
            found = named(words)
            assert found is not None, f"{page}: {words}"
            name, arguments = found
            EVERY[name].parse_args(arguments)  # or ends with what is wrong
            seen += 1

    assert seen > 15


def test_every_option_that_prose_names_is_one() -> None:
    seen = 0
    for page in PAGES:
        for code in INLINE.findall(page.read_text("utf-8")):
            words = " ".join(code.split()).split(" ")
            found = named(words)
            if found is None:
                assert words[1] in {*COMMANDS, *PASSED_ON}, f"{page}: {code}"
                continue
            name, arguments = found
            known = {x for each in actions_of(EVERY[name]) for x in each.option_strings}
            options = {x.partition("=")[0] for x in arguments if x.startswith("--")}
            assert options <= known, f"{page}: {code}"
            seen += bool(options)

    assert seen > 15
