"""Write one unit; any process may write it, any number of times, with one result.

The shards of a unit have the same names and bytes whichever process writes them. Each
process writes its own draft and renames it, so two processes can write a unit at the
same time without damage. The record of the unit is created last.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from roxxel_format.writing import Place

from roxxel_prepare._plan.plan import UnitRecord, parse_unit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from roxxel_format.writing import WriteJob

    from roxxel_prepare._inputs.documents import Documents
    from roxxel_prepare._plan.units import Unit, UnitDone


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
            path = place.name.unit_record(self.job.digest, number)
            data = place.read(path.name)
            found = parse_unit(data, place.folder + path.name)
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
        data, path = record.pack(), place.name.unit_record(self.job.digest, number)
        if not place.files.create(path.name, data) and place.read(path.name) != data:
            place.files.replace(path.name, data)  # It was damaged.
        return record


def _shuffled(key: str, documents: list[Any]) -> list[Any]:
    def digest(number: int) -> bytes:
        return blake2b(f"{key} {number}".encode()).digest()

    return [documents[at] for at in sorted(range(len(documents)), key=digest)]
