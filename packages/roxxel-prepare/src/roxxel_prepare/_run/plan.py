"""The plan of a preparation: what all its processes must agree on.

The processes agree on the units, which are consecutive files, or a part of one large
file. The list of inputs and their sizes alone determine the units, so every process
computes the same units. They also agree on the inputs, the arguments and the item type.

The plan is a JSON file beside the manifest, sealed with a checksum. The first process
creates it. The others compare their own units, inputs and arguments with it, and the
commit reads it.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from roxxel_format.writing import Place, Recipe
from roxxel_store import roxxel_command
from roxxel_store.arguments import other_arguments

from roxxel_prepare._inputs.documents import spans_in
from roxxel_prepare._run.runners import UNIT_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from roxxel_prepare._inputs.input_record import Inputs, Part, Span

# Number of objects whose footers or indexes are read at the same time.
_MOST_THREADS = 32

_MAX_UNITS = 1 << 14
"""Maximum number of units, so that the manifest of a large corpus opens fast."""

_INPUTS = {"inputs", "names", "sizes", "times", "samples"}
"""Arguments that describe the inputs; `Inputs.first_change` compares the inputs."""


@dataclass(frozen=True)
class Plan:
    """A preparation that is not committed.

    Attributes:
        job: Digest of the preparation: 12 hexadecimal digits, which are part of its
            files' names.
        inputs: Name, size, time and digest of every input; see `Inputs.facts`.
        units: The rows of all units, in the order of the corpus; see `Unit.row`.
        base: Fingerprint of the corpus before the preparation.
        recipe: What the manifest will say.
    """

    job: str
    inputs: Sequence[Sequence[Any]]
    units: list[list[Any]]
    base: str | None
    recipe: Recipe

    @classmethod
    def parse(cls, data: bytes, path: str) -> Plan:
        """Return the plan in a file."""
        table = Place.plan_kind().parse(data, path)
        table["recipe"] = Recipe.parse(table["recipe"])
        return cls(**table)

    def to_bytes(self) -> bytes:
        """Return the content of the file."""
        return Place.plan_kind().to_bytes(
            vars(self) | {"recipe": self.recipe.as_json()}
        )

    def with_skipping(self, recipe: Recipe) -> Plan:
        """Return this plan, with `skip_bad` if the recipe has it.

        A later command may add it: units that were finished without it have no damage,
        so it cannot change them.
        """
        skip_bad = self.recipe.skip_bad or recipe.skip_bad
        return replace(self, recipe=replace(self.recipe, skip_bad=skip_bad))

    def check_same(
        self, inputs: Inputs, recipe: Recipe, units: Sequence[Unit], corpus: str
    ) -> None:
        """Raise FileExistsError if a command differs from this preparation."""
        change = inputs.first_change(self.inputs)
        if change is None:
            old, new = _compared(self.recipe), _compared(recipe)
            change = other_arguments(old, new) or None
        rows = [unit.row() for unit in units]
        planned = [divided for _text, *divided in self.units]
        if change is None and [divided for _text, *divided in rows] != planned:
            change = f"{len(rows)} units are planned, {len(self.units)} recorded"
        if change is not None:
            command = roxxel_command(f"format clean --abandon '{corpus}'")
            raise FileExistsError(
                f"{corpus}: a preparation that is not finished differs from this "
                f"command ({change}); finish it with the old inputs and arguments, or "
                f"abandon it with `{command}`"
            )


def _compared(recipe: Recipe) -> dict[str, Any]:
    """Return the arguments of a recipe, without its inputs."""
    recorded = recipe.recorded
    arguments = {"exist": recipe.exist, **recorded, **recorded["inputs"]}
    return {name: each for name, each in arguments.items() if name not in _INPUTS}


@dataclass(frozen=True, slots=True)
class Unit:
    """The inputs that one process writes as whole shards; `num_bytes` is their size."""

    parts: tuple[Part, ...]
    num_bytes: int

    def __str__(self) -> str:
        path, span = self.parts[0].path, self.parts[0].span
        if span is not None:
            return f"{path} [{span[0]}:{span[1]}]"
        more = len(self.parts) - 1
        return f"{path} and {more} more" if more else path

    def row(self) -> list[Any]:
        """Return the unit for JSON: its text, the number of its files, its span."""
        start, stop = self.parts[0].span or (None, None)
        return [str(self), len(self.parts), start, stop]


def units_of(inputs: Sequence[Part], unit_bytes: int = UNIT_BYTES) -> list[Unit]:
    """Group consecutive files into units, and divide large files into several units."""
    least = max(unit_bytes, sum(each.facts.size for each in inputs) // _MAX_UNITS)
    return list(_units(inputs, least))


def _units(inputs: Sequence[Part], least: int) -> Iterator[Unit]:
    waiting: list[Part] = []
    size = 0
    for whole, spans in zip(inputs, _spans_of_all(inputs, least), strict=True):
        num_bytes = whole.facts.size
        if not spans:
            waiting.append(whole)
            size += num_bytes
        if waiting and (spans or size >= least):
            yield Unit(tuple(waiting), size)
            waiting, size = [], 0
        for number, span in enumerate(spans, 1):
            share = num_bytes * number // len(spans)
            before = num_bytes * (number - 1) // len(spans)
            yield Unit((replace(whole, span=span),), share - before)
    if waiting:
        yield Unit(tuple(waiting), size)


def _spans_of_all(inputs: Sequence[Part], least: int) -> Iterator[list[Span]]:
    """Divide every file; reads the footers and indexes of many objects at a time."""
    divided = partial(spans_in, least=least)
    if all(each.version is None for each in inputs):
        yield from map(divided, inputs)
        return
    with ThreadPoolExecutor(_MOST_THREADS, "roxxel-plan") as pool:
        yield from pool.map(divided, inputs)
