from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from roxxel.quickstart.corpus import (
    HELD_OUT_BYTES,
    CorpusError,
    Document,
    docstrings,
    find_library,
    read_library,
)

from .helpers import write_library

if TYPE_CHECKING:
    from pathlib import Path


def test_the_running_interpreter_has_a_library() -> None:
    assert (find_library() / "argparse.py").is_file()


def test_every_source_is_trained_on_or_held_out(tmp_path: Path) -> None:
    sources = write_library(tmp_path, 200)

    library = read_library(tmp_path)

    names = [d.name for d in library.train] + [d.name for d in library.held_out]
    assert sorted(names) == sorted(sources)
    assert [d.name for d in library.train] == sorted(d.name for d in library.train)


def test_the_held_out_part_is_small_and_never_empty(tmp_path: Path) -> None:
    write_library(tmp_path, 200)

    library = read_library(tmp_path)

    held_out = sum(len(d.content) for d in library.held_out)
    assert HELD_OUT_BYTES <= held_out < HELD_OUT_BYTES + 20_000


def test_the_choice_of_held_out_files_depends_on_content_alone(tmp_path: Path) -> None:
    write_library(tmp_path / "a", 200)
    for path in (tmp_path / "a").glob("*.py"):
        target = tmp_path / "b" / f"other_{path.name}"
        target.parent.mkdir(exist_ok=True)
        target.write_bytes(path.read_bytes())

    one, other = read_library(tmp_path / "a"), read_library(tmp_path / "b")

    assert {d.content for d in one.held_out} == {d.content for d in other.held_out}


def test_a_copy_of_a_held_out_file_is_held_out_too(tmp_path: Path) -> None:
    write_library(tmp_path, 200)
    first = read_library(tmp_path).held_out[0]
    (tmp_path / "copy.py").write_bytes(first.content)

    library = read_library(tmp_path)

    assert "copy.py" in {d.name for d in library.held_out}
    assert not {d.content for d in library.train} & {
        d.content for d in library.held_out
    }


@pytest.mark.parametrize(
    "name",
    [
        "test/test_os.py",
        "idlelib/idle_test/test_text.py",
        "site-packages/thing.py",
        "__pycache__/thing.py",
        "_sysconfigdata__linux_.py",
        "data.txt",
    ],
)
def test_what_is_not_the_library_is_left_out(tmp_path: Path, name: str) -> None:
    write_library(tmp_path, 200)
    before = read_library(tmp_path)
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text("x = 1\n")

    assert read_library(tmp_path) == before


@pytest.mark.parametrize("content", [b"", b"# \xe9t\xe9, in Latin 1\n"])
def test_files_without_utf8_text_are_passed_over(
    tmp_path: Path, content: bytes
) -> None:
    write_library(tmp_path, 200)
    before = read_library(tmp_path)
    (tmp_path / "odd.py").write_bytes(content)

    assert read_library(tmp_path) == before


def test_an_empty_library_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=r"0 source files with 0 bytes are too few"):
        read_library(tmp_path)


def test_docstrings_are_taken_from_modules_classes_and_functions() -> None:
    source = b'''"""Module."""
class A:
    """Class."""
    def f(self):
        """Method.

        More.
        """
        text = """not a docstring"""
async def g():
    """Coroutine."""
'''
    assert docstrings(Document("a.py", source)) == (
        b"Module.\n\nClass.\n\nMethod.\n\nMore.\n\nCoroutine."
    )


@pytest.mark.parametrize("source", [b"x = 1\n", b"def broken(:\n", b"x = '\x00'\n"])
def test_a_file_without_docstrings_gives_none(source: bytes) -> None:
    assert docstrings(Document("a.py", source)) == b""


def test_old_escapes_in_a_source_warn_nobody() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert docstrings(Document("a.py", b'"""One \\d."""\n')) == b"One \\d."


@given(st.binary())
@example(b'"\\ud800"')  # Half of a pair, which UTF-8 cannot hold.
def test_docstrings_of_anything_are_utf8(content: bytes) -> None:
    docstrings(Document("a.py", content)).decode("utf-8")
