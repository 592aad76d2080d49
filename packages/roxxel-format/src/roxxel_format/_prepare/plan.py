"""The plan of a preparation, and the record of each unit that is done.

The plan is a JSON file beside the manifest. It holds what all processes of the
preparation must agree on, and what the commit needs: the inputs, the arguments, the
item type. The first process creates the plan, and the others compare their own inputs
and arguments with it. The record of a unit lists the shards of the unit. A process
creates the record after the shards, so a unit with a record is done. Both files are
sealed with a checksum.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

from roxxel_format._spec.records import PLAN, UNIT, DamagedRecordError
from roxxel_format._spec.tables import ColumnTable, ShardTable, as_table, sizes_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from roxxel_format._prepare.unit import Unit
    from roxxel_format._write.input_record import Inputs
    from roxxel_format._write.options import Exist

_INPUTS = {"inputs", "names", "sizes", "times", "samples"}
"""Arguments that describe the inputs; `Inputs.first_change` compares the inputs."""

SKIP_BAD = "skip_bad"
"""The only argument that a later command may add.

Units that were finished without it have no damage, so it would not change them."""


@dataclass(frozen=True)
class Plan:
    """A preparation that is not committed.

    Attributes:
        job: Digest of the preparation: 12 hexadecimal digits, a part of its files'
            names.
        inputs: Name, size, time and digest of every input; see `Inputs.facts`.
        units: The rows of all units, in the order of the corpus; see `Unit.row`.
        arguments: The arguments that the manifest records.
        exist: What the preparation does with an existing corpus.
        base: Fingerprint of the corpus before the preparation.
        dtype: Name of the item type.
        kind: `"text"` or `"tokens"`.
        block_size: Size of a block in bytes.
        separator: The items that end each document.
        tokenizer: The record of the tokenizer.
    """

    job: str
    inputs: list[list[Any]]
    units: list[list[Any]]
    arguments: dict[str, Any]
    exist: Exist
    base: str | None
    dtype: str
    kind: str | None
    block_size: int
    separator: float | dict[str, str] | None
    tokenizer: dict[str, Any] | None

    def pack(self) -> bytes:
        """Return the content of the file."""
        return PLAN.pack(asdict(self))

    def with_skipping(self, arguments: Mapping[str, Any]) -> Plan:
        """Return this plan with `skip_bad` added if `arguments` has it."""
        if SKIP_BAD in self.arguments or SKIP_BAD not in arguments:
            return self
        found = self.arguments | {SKIP_BAD: arguments[SKIP_BAD]}
        # Use the order of a plan that had `skip_bad` from the start, for equal bytes.
        names = [name for name in {**arguments, **found} if name in found]
        return replace(self, arguments={name: found[name] for name in names})

    @property
    def separator_value(self) -> float | bytes | None:
        """The separator, as `WriteOptions` has it after the tokenizer is loaded."""
        if isinstance(self.separator, dict):
            return bytes.fromhex(self.separator["bytes"])
        return self.separator


def parse_plan(data: bytes, path: str) -> Plan:
    """Return the plan in a file."""
    return Plan(**PLAN.parse(data, path))


def check_same(
    plan: Plan,
    inputs: Inputs,
    arguments: Mapping[str, Any],
    exist: Exist,
    units: Sequence[Unit],
    corpus: str,
) -> None:
    """Raise FileExistsError if a command differs from the preparation of a plan."""
    change = inputs.first_change(plan.inputs)
    if change is None:
        change = _other_argument(
            {"exist": plan.exist} | plan.arguments, {"exist": exist, **arguments}
        )
    rows = [unit.row() for unit in units]
    if change is None and [row[1:] for row in rows] != [row[1:] for row in plan.units]:
        change = f"{len(rows)} units are planned, {len(plan.units)} recorded"
    if change is not None:
        raise FileExistsError(
            f"{corpus}: a preparation that is not finished differs from this command "
            f"({change}); finish it with the old inputs and arguments, or abandon it "
            f"with `roxxel-format clean --abandon {corpus}`"
        )


def _other_argument(
    recorded: Mapping[str, Any], given: Mapping[str, Any]
) -> str | None:
    """Describe the first argument that differs; None if all are equal."""
    old, new = (dict(each) | as_table(each.get("inputs")) for each in (recorded, given))
    for name in {**new, **old}:
        if name not in _INPUTS and new.get(name) != old.get(name):
            return f"{name}={new.get(name)!r} is given instead of {old.get(name)!r}"
    return None


@dataclass(frozen=True, slots=True)
class UnitRecord:
    """What a finished unit has written.

    Attributes:
        number: Number of the unit.
        shards: The shards of the unit; none if its inputs hold no documents.
        input_bytes: Size of the inputs.
        columns: The columns of the shards, by name.
        bad: The errors of skipped documents and inputs, the first 100.
        num_bad: Number of skipped documents and inputs.
        num_dropped: Number of characters that the tokenizer left out.
        seconds: Time that the unit took; 0 if it was done before.
    """

    number: int
    shards: ShardTable
    input_bytes: int
    columns: Mapping[str, ColumnTable] = field(default_factory=dict[str, ColumnTable])
    bad: Sequence[str] = ()
    num_bad: int = 0
    num_dropped: int = 0
    seconds: float = 0.0

    def pack(self) -> bytes:
        """Return the content of the file; the same every time the unit is written."""
        table = asdict(self)
        del table["number"], table["seconds"]
        return UNIT.pack(table)

    @property
    def sizes(self) -> dict[str, int]:
        """The size of each shard and of each file of a column, by name."""
        return sizes_of(self.shards, self.columns)

    def is_whole(self, sizes: Mapping[str, int]) -> bool:
        """Return whether all files exist; `sizes` has the sizes of existing files."""
        return all(sizes.get(name) == size for name, size in self.sizes.items())


def parse_unit(number: int, data: bytes | None, path: str) -> UnitRecord | None:
    """Return the record in a file; None if there is no file, or a damaged one.

    A unit without a sound record is not done, so it is written again.
    """
    if data is None:
        return None
    try:
        table = UNIT.parse(data, path)
    except DamagedRecordError:
        return None
    columns = cast("dict[str, Any]", table["columns"])
    table["columns"] = {name: ColumnTable(**each) for name, each in columns.items()}
    table["shards"] = ShardTable(**table["shards"])
    return UnitRecord(number, **table)
