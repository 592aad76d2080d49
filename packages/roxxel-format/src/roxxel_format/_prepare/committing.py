"""Commit the units of a preparation, and find the units that are missing."""

from __future__ import annotations

import contextlib
import time
from contextlib import ExitStack
from dataclasses import dataclass
from functools import reduce
from hashlib import blake2b
from operator import add
from typing import TYPE_CHECKING

from roxxel_format._prepare.plan import parse_plan, parse_unit
from roxxel_format._spec.manifest import Manifest, parse_manifest
from roxxel_format._spec.tables import ShardTable, sizes_of
from roxxel_format._store.corpus_name import absolute
from roxxel_format._store.urls import is_url
from roxxel_format._write.commit import remove_leftovers
from roxxel_format._write.extension import Extension, print_notice, summary_of
from roxxel_format._write.intake import Intake
from roxxel_format._write.new_columns import joined_columns
from roxxel_format._write.options import WriteOptions, left_out_note
from roxxel_format._write.place import place_of
from roxxel_format._write.series import NoDocumentsError
from roxxel_format._write.side import held_out_path
from roxxel_format._write.target import name_to_write
from roxxel_format.errors import ShardError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from roxxel_format._prepare.plan import Plan, UnitRecord
    from roxxel_format._spec.tables import ColumnTable
    from roxxel_format._write.options import WriteSummary
    from roxxel_format._write.place import Place

_MAX_NAMED = 10


@dataclass(frozen=True)
class PartSummary:
    """The result of one part of a preparation: how many units it has, all done.

    `left_out` are the files that are no data; see `WriteSummary`.
    """

    num_units: int
    left_out: tuple[str, ...] = ()

    def __str__(self) -> str:
        units = "1 unit" if self.num_units == 1 else f"{self.num_units} units"
        are = "is" if self.num_units == 1 else "are"
        return (
            f"{units} of this part {are} done; when all parts are, commit the corpus"
            f"{left_out_note(self.left_out)}"
        )


def commit_units(filepath: str) -> dict[str, WriteSummary]:
    """Commit a preparation whose parts are done; see `prepare`.

    If the preparation holds documents out (`split`), first commits the held-out corpus.
    If it was committed before, says so and changes nothing.
    Returns a summary for each corpus, by the path of the corpus.

    Raises:
        FileNotFoundError: There is no preparation to commit.
        ValueError: Units are missing; the message names them.
    """
    started = time.perf_counter()
    target = absolute(filepath)
    assert isinstance(target, str)  # noqa: S101 - one path gives one path
    name = None if is_url(target) else name_to_write(target, sharded=True)
    summaries: dict[str, WriteSummary] = {}
    with ExitStack() as resources:
        if name is not None and not name.folder.is_dir():
            raise _no_preparation(filepath)
        place = place_of(name or target, resources)
        data = place.read(place.name.plan.name)
        if data is None:
            return {filepath: _committed(place, filepath, started)}
        plan = parse_plan(data, place.folder + place.name.plan.name)
        found = place.begin(replaces=plan.exist == "replace").manifest
        split = plan.arguments.get("split")
        if split is not None and not split[2]:
            held_out = held_out_path(filepath, split[0])
            # The held-out corpus has no plan if an earlier process committed it and
            # then was killed.
            with contextlib.suppress(FileNotFoundError):
                summaries |= commit_units(held_out)
        summaries[filepath] = commit_plan(place, plan, found, started)
    if name is not None and plan.exist != "append":
        with contextlib.suppress(OSError, ShardError):
            remove_leftovers(name)
    return summaries


def _committed(place: Place, filepath: str, started: float) -> WriteSummary:
    """Return the summary of a corpus whose preparation was committed before.

    Raises FileNotFoundError if no preparation was committed.
    """
    assert place.name.manifest is not None  # noqa: S101 - units need a manifest
    data = place.read(place.name.manifest.name)
    found = Manifest() if data is None else parse_manifest(data, place.manifest)
    if not any(map(place.name.job_of, found.shards.names)):
        raise _no_preparation(filepath)
    dtype = str(found.dtype_name)
    kept = summary_of(place.folder, found.shards, dtype, started, kept=True)
    print_notice(
        f"{filepath}: already committed, with {kept.num_tokens:,} tokens in "
        f"{kept.num_documents:,} documents"
    )
    return kept


def _no_preparation(filepath: str) -> FileNotFoundError:
    return FileNotFoundError(
        f"{filepath}: has no preparation to commit; check the path, and that a part "
        "was written"
    )


def done_units(
    place: Place, plan: Plan, numbers: Iterable[int]
) -> dict[int, UnitRecord]:
    """Return the records of finished units, which have a record and all shards."""
    sizes = place.sizes()
    return {
        number: record
        for number in numbers
        if (record := _record(place, plan, number, sizes)) is not None
        and record.is_whole(sizes)
    }


def _record(
    place: Place, plan: Plan, number: int, sizes: Mapping[str, int]
) -> UnitRecord | None:
    """Return the record of a unit; reads the file only if it is in the listing."""
    name = place.name.unit_record(plan.job, number).name
    if name not in sizes:
        return None
    return parse_unit(number, place.read(name), place.folder + name)


def is_committed(place: Place, plan: Plan, found: Manifest) -> bool:
    """Return whether an earlier process committed the plan, and then was killed."""
    return plan.job in map(place.name.job_of, found.shards.names)


def commit_plan(
    place: Place, plan: Plan, found: Manifest, started: float
) -> WriteSummary:
    """Commit the shards of all units, and remove the plan and the records."""
    name = place.name
    records = [name.unit_record(plan.job, at).name for at in range(len(plan.units))]
    num_dropped = 0
    if not is_committed(place, plan, found):
        shards, columns, num_dropped = _files_of_all(place, plan)
        found = _commit(place, plan, found, shards, columns)
    rows = [
        at
        for at, each in enumerate(found.shards.names)
        if name.job_of(each) == plan.job
    ]
    table = ShardTable(*map(list, zip(*map(found.shards.row, rows), strict=True)))
    # Delete the plan last: a later process learns only from the plan that the records
    # are not needed any more.
    place.discard(records)
    place.discard([name.plan.name])
    return summary_of(place.folder, table, plan.dtype, started, num_dropped=num_dropped)


def unit_order(plan: Plan) -> list[int]:
    """Return the order of the units in the corpus."""
    seed = plan.arguments.get("shuffle")

    def key(number: int) -> bytes:
        return blake2b(f"{seed} {number}".encode()).digest()

    numbers = [*range(len(plan.units))]
    return numbers if seed is None else sorted(numbers, key=key)


def _files_of_all(
    place: Place, plan: Plan
) -> tuple[ShardTable, dict[str, ColumnTable], int]:
    """Return the shards and columns of all units, in order, and what was dropped.

    Raises ValueError if a unit is missing.
    """
    done = done_units(place, plan, range(len(plan.units)))
    records: list[UnitRecord] = []
    bad: list[str] = []
    num_bad = 0
    missing: list[int] = []
    for number in unit_order(plan):
        record = done.get(number)
        if record is None:
            missing.append(number)
        else:
            records.append(record)
            bad += record.bad
            num_bad += record.num_bad
    if missing:
        missing.sort()
        named = ", ".join(f"{at} ({plan.units[at][0]})" for at in missing[:_MAX_NAMED])
        more = len(missing) - _MAX_NAMED
        raise ValueError(
            f"{place.pattern}: {len(missing)} of {len(plan.units)} units are not done: "
            f"{named}{f' and {more} more' if more > 0 else ''}; write them with the "
            "same command and --part, then commit again"
        )
    if num_bad:
        lines = [f"{place.pattern}: {num_bad} damaged documents or inputs were skipped"]
        lines += [f"skipped {each}" for each in bad[:_MAX_NAMED]]
        print_notice("\n".join(lines))
    table = reduce(add, (each.shards for each in records), ShardTable())
    if not len(table):
        raise NoDocumentsError(place.pattern)
    columns = joined_columns(each.columns for each in records)
    return table, columns, sum(each.num_dropped for each in records)


def _commit(
    place: Place,
    plan: Plan,
    found: Manifest,
    shards: ShardTable,
    columns: Mapping[str, ColumnTable],
) -> Manifest:
    """Commit the manifest with the new shards, and return the manifest."""
    extension = Extension(
        place.pattern,
        place.folder,
        WriteOptions(plan.separator_value, plan.block_size),
        Intake(plan.dtype, kind=plan.kind),
        plan.arguments,
        plan.exist == "append",
        plan.tokenizer,
    )
    if plan.exist != "append" and found.fingerprint != plan.base:
        raise _lost(place)
    place.check_present(sizes_of(shards, columns))
    while True:
        new = extension.extended(found, shards, columns)
        if place.commit(new):
            break
        found = place.begin(replaces=False).manifest
        if is_committed(place, plan, found):
            return found  # Another process of this preparation was first.
        if not extension.appends:
            raise _lost(place)
    if not extension.appends:
        place.discard(found.file_names() - new.file_names())
    return new


def _lost(place: Place) -> FileExistsError:
    return FileExistsError(
        f"{place.manifest}: another write was committed during this one, so this one "
        "cannot be committed; remove its files with `roxxel-format clean --abandon "
        f"'{place.pattern}'`, then write again with exist=\"append\", or elsewhere, or "
        'with exist="replace", which deletes the other corpus'
    )
