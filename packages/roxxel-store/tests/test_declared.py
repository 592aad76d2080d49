"""One check of a declaration, for Python and for tables of a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence  # noqa: TC003 - `check` reads the types
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import pytest
from roxxel_store.arguments import Amount, Count, Rule, check, read


@dataclass(frozen=True)
class Leg:
    steps: Count
    rate: Amount | None = 1.0
    way: Literal["up", "down"] = "up"


@dataclass(frozen=True)
class Trip:
    name: str
    legs: tuple[Leg, ...] = ()
    ends: Annotated[tuple[int, int], Rule(must_be="two rising steps")] | None = None
    shares: Mapping[str, Annotated[float, Rule(at_least=0)]] = field(
        default_factory=dict[str, float]
    )
    words: Sequence[str] = ()
    thing: Any = field(default=None, metadata={"is_object": True})

    def __post_init__(self) -> None:
        check(self)


WRONG: list[tuple[str, Any, str]] = [
    ("name", "", "name must be a non-empty string, got ''"),
    ("name", 3, "name must be a non-empty string, got 3"),
    ("legs", [{"steps": 0}], "legs.0.steps must be an integer of 1 or more, got 0"),
    ("legs", [{"steps": True}], "legs.0.steps must be an integer of 1 or more"),
    ("legs", [{"steps": 1, "rate": 0.0}], "legs.0.rate must be a finite number above"),
    ("legs", [{"steps": 1, "way": "upp"}], "got 'upp'; did you mean 'up'?"),
    ("legs", [{"stepps": 1}], "legs.0 has no key 'stepps'; did you mean 'steps'?"),
    ("legs", [{}], "legs.0 has no steps; write steps = ..."),
    ("legs", [{"steps": 1}, 2], "legs.1 must be a table, got 2"),
    ("ends", [1, 2, 3], "ends must be two rising steps or "),
    ("ends", [1, "x"], "ends.1 must be an integer, got 'x'"),
    ("shares", {"two words": -1}, "shares.'two words' must be a finite number of 0"),
    ("shares", {"web": float("inf")}, "shares.web must be a finite number of 0"),
    ("shares", {"web": 10**400}, "shares.web must be a finite number of 0"),
    ("words", "word", "words must be a list, each entry a non-empty string"),
]


@pytest.mark.parametrize(("name", "value", "said"), WRONG)
def test_python_and_a_file_refuse_a_value_in_the_same_words(
    name: str, value: Any, said: str
) -> None:
    given: dict[str, Any] = {"name": "x", name: value}
    with pytest.raises(ValueError, match=r"\Atrips\.0\.") as from_file:
        read(Trip, given, ["trips", 0])
    with pytest.raises((TypeError, ValueError)) as from_python:
        Trip(**given)

    assert said in str(from_python.value)
    assert str(from_file.value) == f"trips.0.{from_python.value}"


def test_a_table_becomes_the_declaration_that_it_spells() -> None:
    made = read(
        Trip, {"name": "x", "legs": [{"steps": 2, "rate": False}], "ends": [3, 4]}
    )

    assert made == Trip("x", (Leg(2, None),), (3, 4))


def test_false_is_the_none_of_a_field_in_python_as_in_a_file() -> None:
    given: dict[str, Any] = {"name": "x", "ends": False}

    assert Trip(**given).ends is None
    assert read(Trip, given).ends is None


def test_a_refusal_of_the_declaration_itself_names_its_table() -> None:
    @dataclass(frozen=True)
    class Odd:
        number: int

        def __post_init__(self) -> None:
            raise ValueError("it is even")

    with pytest.raises(ValueError, match=r"\Apart\.odd: it is even"):
        read(Odd, {"number": 2}, ["part", "odd"])


def test_an_object_is_no_key_of_a_file() -> None:
    with pytest.raises(ValueError, match="has no key 'thing'"):
        read(Trip, {"name": "x", "thing": 1})
