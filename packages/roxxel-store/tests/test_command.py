from __future__ import annotations

import subprocess
import sys

import pytest
from roxxel_store.command import (
    CommandParser,
    Found,
    Progress,
    as_text,
    interruptible,
    run_command,
)
from roxxel_store.screen import short_count, short_size

PROGRAM = """
import os, sys
from roxxel_store.command import prepare_streams
prepare_streams()
opened = os.open("/dev/zero", os.O_RDONLY)
print("caf\\u00e9", flush=True)
print(opened > 2, file=sys.stderr)
sys.exit(opened <= 2)
"""


@pytest.mark.parametrize(
    ("number", "count", "size"),
    [(0, "0", "0 B"), (999, "999", "999 B"), (8795, "8.795 k", "8.795 kB")],
)
def test_a_large_number_has_four_digits_and_a_unit(
    number: int, count: str, size: str
) -> None:
    assert (short_count(number), short_size(number)) == (count, size)


def test_a_command_that_finds_damage_says_so_in_a_sentence_and_ends_with_3(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def find() -> None:
        raise Found("web.rox: 2 blocks differ")

    assert run_command("tool", find, lambda _: False) == 3
    assert capsys.readouterr().err == "tool: web.rox: 2 blocks differ\n"


def test_ctrl_c_anywhere_in_a_program_is_one_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    @interruptible("tool")
    def main(*, prog: str = "tool") -> int:
        raise KeyboardInterrupt(prog)

    assert (main(), main(prog="tool write")) == (130, 130)
    assert capsys.readouterr().err == "tool: interrupted\ntool write: interrupted\n"


def test_letters_that_the_locale_lacks_are_one_sentence(
    capsys: pytest.CaptureFixture[str],
) -> None:
    parser = CommandParser(prog="tool")
    parser.add_argument("--text", type=as_text)
    in_ascii = "größe".encode().decode("ascii", "surrogateescape")

    assert parser.parse_args(["--text", "größe"]).text == "größe"
    with pytest.raises(SystemExit, match="2"):
        parser.parse_args(["--text", in_ascii])
    assert "LC_ALL=C.UTF-8" in capsys.readouterr().err


def test_help_wraps_paragraphs_and_keeps_what_is_indented(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    said = f"{'Words ' * 30}.\n\n{'More ' * 30}."
    parser = CommandParser(prog="tool", description=said)

    shown = parser.format_help()

    assert max(map(len, shown.splitlines())) <= 80
    assert ".\n\nMore More" in shown
    assert "\n\nexit codes:\n  0    done\n" in shown


def test_progress_is_one_line_that_is_erased(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "20")

    with Progress("reading a bucket of the world") as progress:
        progress(1, 2)

    *lines, last = capsys.readouterr().err.split("\r")[1:]
    assert [line.removesuffix("\x1b[K") for line in lines] == [
        "reading a bucket of"
    ] * 2
    assert last == "\x1b[K"


def run(redirection: str, encoding: str = "utf-8") -> tuple[int, bytes, bytes]:
    script = f'PYTHONIOENCODING={encoding} exec "$0" -c "$1" {redirection}'
    done = subprocess.run(
        ["/bin/sh", "-c", script, sys.executable, PROGRAM],
        capture_output=True,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def test_no_file_takes_the_place_of_a_closed_standard_output() -> None:
    assert run(">&-") == (0, b"", b"True\n")


def test_all_streams_may_be_closed() -> None:
    assert run("<&- >&- 2>&-") == (0, b"", b"")


def test_a_character_that_the_encoding_lacks_is_escaped() -> None:
    assert run("", "ascii") == (0, b"caf\\xe9\n", b"True\n")


WARNING = """
import warnings
from roxxel_store.command import prepare_streams
prepare_streams()
warnings.warn_explicit("This API\\nwill go", FutureWarning, "lib/api.py", 7)
warnings.warn("the file is old")
"""


def test_a_warning_is_one_line_without_a_place_in_the_source() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WARNING], capture_output=True, text=True, check=True
    )

    assert done.stderr == "warning: This API will go\nwarning: the file is old\n"


ENDING = """
import sys
from roxxel_store.command import prepare_streams, run_command
class Stop(SystemExit): pass
def act():
    print("x" * 100_000)
    if len(sys.argv) > 1:
        raise eval(sys.argv[1])
prepare_streams()
sys.exit(run_command("tool", act, lambda error: isinstance(error, OSError)))
"""


def ended(*arguments: str, output: str = "/dev/null") -> tuple[int, str]:
    script = f'exec "$0" -c "$@" {output}'
    done = subprocess.run(
        ["/bin/sh", "-c", script, sys.executable, ENDING, *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        ("OSError(28, 'No space left', 'a.rox')", 1, "tool: a.rox: No space left\n"),
        ("BrokenPipeError('of a socket')", 1, "tool: of a socket\n"),
        ("Stop(75)", 75, "tool: 75\n"),
    ],
)
def test_an_end_has_a_code_and_a_sentence(error: str, code: int, text: str) -> None:
    assert ended(error, output=">/dev/null") == (code, text)


def test_an_unexpected_error_has_its_traceback() -> None:
    code, text = ended("KeyError('bug')", output=">/dev/null")

    assert code == 1
    assert "Traceback" in text


def test_a_reader_that_has_gone_is_no_error() -> None:
    assert ended(output="| true") == (0, "")


def test_an_output_without_room_is_an_error() -> None:
    code, text = ended(output=">/dev/full")

    assert (code, text.count("\n")) == (1, 1)
    assert text.startswith("tool: ")
