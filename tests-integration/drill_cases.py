"""Cases of stopped runs: few cases that cover every pair of circumstances."""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import combinations, product
from typing import TYPE_CHECKING, Any

from .conftest import REAL_DEVICES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Choice = dict[str, Any]

SIMULATED = {"1 device": (1, 1), "8 devices": (1, 8), "2 processes": (2, 2)}


def places(real_devices: str | None) -> Mapping[str, tuple[int, int]]:
    """Return the places in which runs can train: processes, and devices of each.

    On real devices there is one process, because processes cannot share a device.
    """
    if real_devices is None:
        return SIMULATED
    counts = sorted({1, int(real_devices.split(":")[1])})
    return {f"{count} devices": (1, count) for count in counts}


PLACES = places(REAL_DEVICES)

PARTS = ("blend", "phases", "dropout", "accumulation")

FACTORS: dict[str, tuple[Any, ...]] = {
    "where": tuple(PLACES),
    "accident": ("SIGKILL", "SIGTERM", "OSError"),
    "goes_on": ("there", "elsewhere")[: len(PLACES)],
    # Each set is compiled for each place, so the covering cases have few of them.
    "parts": ((), PARTS),
}


@dataclass(frozen=True)
class Case:
    """A run that is stopped by an accident.

    Attributes:
        where: Place in which the run begins.
        then: Place in which the run continues.
        accident: Signal, or the error that the data raises.
        parts: The features of the run, from `PARTS`.
        step: Step, from 0, whose batch is being read when the accident happens.
        row: Row of this batch. The accident happens in the process that reads the row.
    """

    where: str
    then: str
    accident: str
    parts: tuple[str, ...]
    step: int
    row: int

    def __str__(self) -> str:
        parts = "+".join(self.parts) or "plain"
        at = f"{self.step}.{self.row}"
        return f"{parts}, {self.accident}@{at}, {self.where} to {self.then}"

    @property
    def ends_the_program(self) -> bool:
        """Whether the accident ends the program, so that no other run follows in it."""
        return self.accident != "OSError" or PLACES[self.where][0] > 1


def cover(
    factors: Mapping[str, Sequence[Any]], generator: random.Random
) -> list[Choice]:
    """Return few choices of values such that every pair of values is in one of them.

    A choice has one value for each factor. The search is greedy: the next choice is one
    with the most pairs that no earlier choice has.
    """
    everything = [
        dict(zip(factors, values, strict=True)) for values in product(*factors.values())
    ]
    generator.shuffle(everything)
    missing = {pair for choice in everything for pair in pairs(choice)}
    chosen: list[Choice] = []
    while missing:
        best = max(everything, key=lambda choice: len(missing & pairs(choice)))
        chosen.append(best)
        missing -= pairs(best)
    return chosen


def pairs(choice: Choice) -> set[tuple[Any, ...]]:
    """Return every pair of factors of a choice, with their values."""
    return set(combinations(choice.items(), 2))


def cases(at_least: int, num_steps: int, seed: int = 7) -> list[Case]:
    """Return at least `at_least` distinct cases: a covering set, then random cases."""
    generator = random.Random(seed)
    choices = cover(FACTORS, generator)
    chosen = dict.fromkeys(_case(choice, num_steps, generator) for choice in choices)
    while len(chosen) < at_least:
        choice = {f: generator.choice(v) for f, v in FACTORS.items()}
        choice["parts"] = tuple(part for part in PARTS if generator.random() < 0.5)
        chosen.setdefault(_case(choice, num_steps, generator))
    return list(chosen)


def _case(choice: Choice, num_steps: int, generator: random.Random) -> Case:
    where, then = choice["where"], choice["where"]
    if choice["goes_on"] == "elsewhere":
        then = generator.choice([place for place in PLACES if place != where])
    last = num_steps - 2
    if choice["accident"] == "SIGTERM" and PLACES[where][0] > 1:
        # The processes agree on a step some steps later, which the run must still have.
        last = num_steps // 3
    step = generator.randint(1, last)
    small = "phases" in choice["parts"] and step >= num_steps // 2
    return Case(
        where,
        then,
        choice["accident"],
        choice["parts"],
        step,
        generator.randrange(8 if small else 16),
    )
