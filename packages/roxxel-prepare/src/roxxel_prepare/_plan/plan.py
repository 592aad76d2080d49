"""The plan of a preparation: what all its processes must agree on.

The plan is a JSON file beside the manifest, sealed with a checksum. It holds the facts
that the processes share and that the commit needs: the inputs, the arguments, the item
type. The first process creates the plan, and the others compare their own inputs and
arguments with it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from roxxel_format.writing import Place, Recipe
from roxxel_store import roxxel_command
from roxxel_store.arguments import other_arguments

if TYPE_CHECKING:
    from collections.abc import Sequence

    from roxxel_prepare._inputs.input_record import Inputs
    from roxxel_prepare._plan.units import Unit

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
    inputs: list[list[Any]]
    units: list[list[Any]]
    base: str | None
    recipe: Recipe

    def pack(self) -> bytes:
        """Return the content of the file."""
        return Place.plan_kind.pack(vars(self) | {"recipe": self.recipe.as_json()})

    def with_skipping(self, recipe: Recipe) -> Plan:
        """Return this plan, with `skip_bad` if the recipe has it.

        A later command may add it: units that were finished without it have no damage,
        so it cannot change them.
        """
        skip_bad = self.recipe.skip_bad or recipe.skip_bad
        return replace(self, recipe=replace(self.recipe, skip_bad=skip_bad))


def parse_plan(data: bytes, path: str) -> Plan:
    """Return the plan in a file."""
    table = Place.plan_kind.parse(data, path)
    table["recipe"] = Recipe.parse(table["recipe"])
    return Plan(**table)


def check_same(
    plan: Plan,
    inputs: Inputs,
    recipe: Recipe,
    units: Sequence[Unit],
    corpus: str,
) -> None:
    """Raise FileExistsError if a command differs from the preparation of a plan."""
    change = inputs.first_change(plan.inputs)
    if change is None:
        change = other_arguments(_compared(plan.recipe), _compared(recipe)) or None
    rows = [unit.row() for unit in units]
    if change is None and [row[1:] for row in rows] != [row[1:] for row in plan.units]:
        change = f"{len(rows)} units are planned, {len(plan.units)} recorded"
    if change is not None:
        command = roxxel_command(f"format clean --abandon '{corpus}'")
        raise FileExistsError(
            f"{corpus}: a preparation that is not finished differs from this command "
            f"({change}); finish it with the old inputs and arguments, or abandon it "
            f"with `{command}`"
        )


def _compared(recipe: Recipe) -> dict[str, Any]:
    """Return the arguments of a recipe, without its inputs."""
    recorded = recipe.recorded
    arguments = {"exist": recipe.exist, **recorded, **recorded["inputs"]}
    return {name: each for name, each in arguments.items() if name not in _INPUTS}
