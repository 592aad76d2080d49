"""Nothing that a document, a name or a file holds controls a terminal."""

from __future__ import annotations

import ast
import contextlib
import unicodedata
from io import BytesIO, TextIOWrapper
from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from roxxel_store.command import CommandParser, Progress, run_command
from roxxel_store.screen import note, printable, put, say, shown

if TYPE_CHECKING:
    from collections.abc import Callable

CONTROLS = [
    *map(chr, range(0x20)),
    *map(chr, range(0x7F, 0xA0)),
    *"\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069",
    *"\u2028\u2029\ufff9\ufffa\ufffb\ud800\udcff\U000e0001\U000e007f",
]
JOINED = [
    "\u200d",
    "\u200c",
    "\u0645\u06cc\u200c\u062e",
    "👩\u200d🔬",
    "क्\u200dष",
    "❤\ufe0f",
]
PRINTED = ["e\u0301", "\u3000全角", "\u00a0", "\\x1b", "\ue000", "ไทย\u200bไทย"]

TEXTS = st.text(
    st.one_of(
        st.sampled_from([*CONTROLS, *PRINTED]).map(lambda text: text[0]),
        st.characters(exclude_categories=()),
    )
)


@given(text=TEXTS)
@example("".join(CONTROLS))
def test_no_control_character_is_left_and_every_other_character_stays(
    text: str,
) -> None:
    for escaped, kept in ((printable(text), ""), (shown(text), "\n\t")):
        assert not [each for each in escaped if each in CONTROLS and each not in kept]
        assert not [
            each
            for each in escaped
            if unicodedata.category(each) in {"Cc", "Cs", "Zl", "Zp"}
            and each not in kept
        ]
        parts = [
            each if each in kept or printable(each) == each else ascii(each)[1:-1]
            for each in text
        ]
        assert escaped == "".join(parts)
    assert printable(printable(text)) == printable(text)


@given(text=TEXTS.map(lambda text: text.replace("\\", "")))
def test_an_escape_says_which_character_it_is(text: str) -> None:
    escaped = printable(text).replace('"', '\\"')

    assert ast.literal_eval(f'"{escaped}"') == text


@pytest.mark.parametrize("text", [*JOINED, *PRINTED])
def test_joiners_and_other_characters_of_scripts_stay(text: str) -> None:
    assert printable(text) == text


def commands_that_print(text: str) -> dict[str, Callable[[], object]]:
    def fail() -> None:
        raise OSError(text)

    parser = CommandParser(prog="tool")
    return {
        "say": lambda: say(text),
        "note": lambda: note(text),
        "an error": lambda: run_command("tool", fail, lambda _: True),
        "an argument": lambda: parser.error(text),
    }


@pytest.mark.parametrize("kind", commands_that_print(""))
def test_whatever_a_command_prints_controls_no_terminal(
    kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = f"web\x1b]0;title\x07\x9b2J{CONTROLS[-9]}\n\tname"

    with contextlib.suppress(SystemExit):
        commands_that_print(text)[kind]()

    printed = "".join(capsys.readouterr())
    assert printed == shown(printed)
    assert r"web\x1b]0;title\x07\x9b2J" in printed
    assert "\n\tname" in printed


class Screen(TextIOWrapper):
    """A terminal that keeps what is written to it."""

    def __init__(self) -> None:
        self.held = BytesIO()
        super().__init__(self.held, encoding="utf-8")

    def isatty(self) -> bool:
        return True

    def text(self) -> str:
        self.flush()
        return self.held.getvalue().decode()


def test_a_status_line_moves_by_its_own_characters_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    screen = Screen()
    monkeypatch.setattr("sys.stderr", screen)

    with Progress("reading web\x1b[2J") as progress:
        progress(1, 2)

    lines = screen.text().replace("\x1b[K", "").split("\r")
    assert lines == ["", r"reading web\x1b[2J ...", r"reading web\x1b[2J: 50%", ""]


def test_documents_reach_a_file_as_they_are_and_a_terminal_escaped(
    monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    content = b"\x1b[2J\xff\n\ttext\n"
    put(content)
    screen = Screen()
    monkeypatch.setattr("sys.stdout", screen)

    put(content)

    assert capfdbinary.readouterr().out == content
    assert screen.text() == "\\x1b[2J\ufffd\n\ttext\n"
