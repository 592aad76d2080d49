"""Write one unit; any process may write it, any number of times, with one result.

The shards of a unit have the same names and bytes whichever process writes them. Each
process writes its own draft and renames it, so two processes can write a unit at the
same time without damage.

The record of a unit lists its shards, sealed with a checksum. A process creates it
after the shards, so a unit with a record is done. The commit reads the records.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from roxxel_format.writing import NewShards, Place
from roxxel_store.records import RecordError

from roxxel_prepare._plan.units import UnitDone

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from roxxel_format.writing import WriteJob

    from roxxel_prepare._inputs.documents import Documents
    from roxxel_prepare._plan.units import Unit

_UNIT = replace(Place.plan_kind, name="unit", mark="roxxel unit", error=RecordError)
"""The record of a finished unit."""


@dataclass(frozen=True, slots=True)
class UnitRecord:
    """What a finished unit has written.

    Attributes:
        new: The shards of the unit; none if its inputs hold no documents.
        input_bytes: Size of the inputs.
        bad: The errors of skipped documents and inputs, the first 100.
        num_bad: Number of skipped documents and inputs.
    """

    new: NewShards
    input_bytes: int
    bad: Sequence[str] = ()
    num_bad: int = 0

    def pack(self) -> bytes:
        """Return the content of the file, the same every time the unit is written."""
        return _UNIT.pack(asdict(self))

    @property
    def counts(self) -> UnitDone:
        """What the progress counts of the unit."""
        return UnitDone(self.input_bytes, self.new.num_documents, self.new.num_tokens)

    def is_whole(self, sizes: Mapping[str, int]) -> bool:
        """Return whether all files exist; `sizes` has the sizes of existing files."""
        return all(sizes.get(name) == size for name, size in self.new.sizes.items())


@dataclass(frozen=True)
class UnitWriter:
    """Writes the units of one preparation; can be pickled.

    Attributes:
        job: The `WriteJob` that writes the shards.
        units: All units, in the order of the corpus.
        documents: How to read the documents of a unit.
    """

    job: WriteJob
    units: Sequence[Unit]
    documents: Documents

    def write_unit(self, number: int) -> UnitDone:
        """Write a unit unless it is done, and return what it counts."""
        with ExitStack() as resources:
            place = Place.of(self.job.target)
            place.enter(resources)
            found = _record(place, _file_of(place, self.job.digest, number))
            if found is not None and found.is_whole(place.files.sizes()):
                return found.counts
            return self._written(place, number).counts

    def _written(self, place: Place, number: int) -> UnitRecord:
        unit = self.units[number]
        documents = replace(self.documents, parts=unit.parts)
        seed = self.job.recipe.shuffle
        arrange = None if seed is None else partial(_shuffled, f"{seed} {number}")
        new = self.job.unit(place, number, documents, documents.metadata, arrange)
        record = UnitRecord(new, unit.num_bytes, documents.bad, documents.num_bad)
        data, name = record.pack(), _file_of(place, self.job.digest, number)
        if not place.files.create(name, data) and place.read(name) != data:
            place.files.replace(name, data)  # It was damaged.
        return record


def done_units(place: Place, job: str, numbers: Iterable[int]) -> dict[int, UnitRecord]:
    """Return the records of finished units, which have a record and all shards."""
    sizes = place.files.sizes()
    files = {number: _file_of(place, job, number) for number in numbers}
    return {
        number: record
        for number, name in files.items()
        if name in sizes  # Only then the file is read.
        and (record := _record(place, name)) is not None
        and record.is_whole(sizes)
    }


def discard_records(place: Place, job: str, numbers: Iterable[int]) -> None:
    """Delete the records of units, which a commit does not need any more."""
    place.discard(_file_of(place, job, number) for number in numbers)


def _file_of(place: Place, job: str, number: int) -> str:
    return place.name.unit_record(job, number).name


def _record(place: Place, name: str) -> UnitRecord | None:
    """Return the record in a file; None if there is no file, or a damaged one.

    A unit without a sound record is not done, so it is written again.
    """
    data = place.read(name)
    if data is None:
        return None
    try:
        table = _UNIT.parse(data, place.folder + name)
    except RecordError:
        return None
    return UnitRecord(NewShards.parsed(table.pop("new")), **table)


def _shuffled(key: str, documents: list[Any]) -> list[Any]:
    def digest(number: int) -> bytes:
        return blake2b(f"{key} {number}".encode()).digest()

    return [documents[at] for at in sorted(range(len(documents)), key=digest)]
