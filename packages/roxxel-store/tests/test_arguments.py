"""An integer is an int of any width; nothing else is taken for one."""

from __future__ import annotations

from operator import index

import pytest
from roxxel_store.arguments import as_integer, nearest


class Narrow:
    """An integer of another library."""

    def __index__(self) -> int:
        return 7


def test_an_integer_of_any_library_becomes_an_int() -> None:
    assert type(as_integer("steps", Narrow())) is int
    assert as_integer("steps", Narrow(), 7) == index(Narrow())
    assert as_integer("seed", -5) == -5


@pytest.mark.parametrize("value", [True, 1.0, "1", None, [1]])
def test_what_is_no_integer_is_named(value: object) -> None:
    with pytest.raises(TypeError, match=r"^steps must be an integer, got ") as error:
        as_integer("steps", value, 1)
    assert repr(value) in str(error.value)


def test_a_value_that_prints_as_many_lines_is_named_by_its_type() -> None:
    with pytest.raises(TypeError, match=r"^seed must be an integer, got a Lines$"):
        as_integer("seed", type("Lines", (), {"__repr__": lambda _: "a\nb"})())


def test_an_integer_below_the_least_raises_the_error_of_the_caller() -> None:
    with pytest.raises(ValueError, match=r"^steps must be at least 1, got 0$"):
        as_integer("steps", 0, 1)
    with pytest.raises(IndexError, match=r"^row must be at least 0, got -1$"):
        as_integer("row", -1, 0, error=IndexError)


@pytest.mark.parametrize(
    ("typed", "known", "meant"),
    [
        ("--id", ["--field", "--document-id"], "--document-id"),
        ("--chat-template", ["--chat", "--tokenizer"], "--chat"),
        ("--bytes", ["--unit-bytes", "--max-shard-bytes"], None),
        # The dashes of an option make it like no other one.
        ("--prompt", ["--out", "--check"], None),
        ("compact", ["cat", "copy", "clean"], None),
    ],
)
def test_a_word_is_suggested_only_if_it_was_probably_meant(
    typed: str, known: list[str], meant: str | None
) -> None:
    assert nearest(typed, known) == (f"did you mean {meant!r}?" if meant else "")
