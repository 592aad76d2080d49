"""Commit the units of a preparation, and find the units that are missing."""

from __future__ import annotations

import contextlib
import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import TYPE_CHECKING

from roxxel_format import WriteSummary
from roxxel_format.writing import NewShards, Place, commit
from roxxel_store import roxxel_command
from roxxel_store.screen import note

from roxxel_prepare._plan.plan import parse_plan
from roxxel_prepare._plan.side import path_beside
from roxxel_prepare._run.unit_writer import discard_records, done_units

if TYPE_CHECKING:
    from collections.abc import Mapping

    from roxxel_prepare._plan.plan import Plan
    from roxxel_prepare._run.unit_writer import UnitRecord

_MAX_NAMED = 10


@dataclass(frozen=True)
class PartSummary:
    """The result of one part of a preparation: its number of units, all done.

    For the other fields, see `WriteSummary`.

    Example:
        >>> print(PartSummary(1))
        1 unit of this part is done; when all parts are, commit the corpus
    """

    num_units: int
    left_out: tuple[str, ...] = ()
    switched_off: str = ""

    def __str__(self) -> str:
        units = "1 unit" if self.num_units == 1 else f"{self.num_units} units"
        are = "is" if self.num_units == 1 else "are"
        return (
            f"{units} of this part {are} done; when all parts are, commit the corpus"
            f"{WriteSummary.switched_off_note(self.switched_off)}"
            f"{WriteSummary.left_out_note(self.left_out)}"
        )


def commit_units(filepath: str) -> dict[str, WriteSummary]:
    """Commit a preparation whose parts are done; see `prepare`.

    If the preparation holds documents out (`split`), first commits the held-out corpus.
    If it was committed before, prints this and changes nothing. Returns a summary for
    each corpus, by the path of the corpus.

    Raises:
        FileNotFoundError: There is no preparation to commit.
        ValueError: Units are missing; the message names them.
    """
    started = time.perf_counter()
    summaries: dict[str, WriteSummary] = {}
    place = Place.of(filepath)
    name = place.name.plan.name
    if place.read(name) is None:
        return {filepath: _committed(place, filepath, started)}
    with ExitStack() as resources:
        place.enter(resources)
        data = place.read(name)
        if data is None:
            return {filepath: _committed(place, filepath, started)}
        plan = parse_plan(data, place.folder + name)
        recipe = plan.recipe
        place.begin(replaces=recipe.exist == "replace")
        if recipe.side is not None and not recipe.side.is_held_out:
            held_out = path_beside(filepath, recipe.side.name)
            # The held-out corpus has no plan if an earlier process committed it and
            # then was killed.
            with contextlib.suppress(FileNotFoundError):
                summaries |= commit_units(held_out)
        summaries[filepath] = commit_plan(place, plan, started)
    if recipe.exist != "append":
        place.remove_leftovers()
    return summaries


def _committed(place: Place, filepath: str, started: float) -> WriteSummary:
    """Return the summary of a corpus whose preparation was committed before.

    Raises FileNotFoundError if no preparation was committed.
    """
    found = place.existing()
    if found is None or all("inputs" not in v.arguments for v in found.versions):
        raise FileNotFoundError(
            f"{filepath}: has no preparation to commit; check the path, and that a "
            "part was written"
        )
    kept = place.summary(
        place.listed(found), started, fingerprint=found.fingerprint, kept=True
    )
    note(
        f"{filepath}: already committed, with {kept.num_tokens:,} tokens in "
        f"{kept.num_documents:,} documents"
    )
    return kept


def commit_plan(place: Place, plan: Plan, started: float) -> WriteSummary:
    """Commit the shards of all units, and remove the plan and the records."""
    recipe, plan_file = plan.recipe, place.name.plan.name
    numbers = range(len(plan.units))
    new = place.listed(place.found, plan.job)
    done: Mapping[int, UnitRecord] = {}
    if not len(new):
        done = done_units(place, plan.job, numbers)
        if len(done) < len(plan.units):
            # The same command may have committed them, and removed their records.
            place.begin()
            new = place.listed(place.found, plan.job)
    if not len(new):
        new = _shards_of_all(place, plan, done)

        def lost(place: Place) -> str:
            if recipe.exist == "replace":
                # Whoever repeats the command has read that there are other documents
                # now, and wants to replace them too.
                rebased = replace(plan, base=place.end.fingerprint)
                place.files.replace(plan_file, rebased.pack())
            return _lost(place, plan)

        if recipe.exist != "append" and place.end.fingerprint != plan.base:
            raise FileExistsError(
                f"{place.manifest}: another write was committed first, {lost(place)}"
            )
        commit(recipe, place, new, started, lost)
    # Delete the plan last: a later process learns only from the plan that the records
    # are not needed any more.
    discard_records(place, plan.job, numbers)
    place.discard([plan_file])
    return place.summary(new, started)


def _lost(place: Place, plan: Plan) -> str:
    """Describe what it means that another write was committed first, and what to do."""
    command = roxxel_command(f"format clean --abandon '{place.pattern}'")
    if plan.recipe.exist == "replace":
        return (
            "so this one replaced nothing; its units are done and kept, so repeat the "
            "command to replace what was committed, without tokenizing again, or "
            f"remove them with `{command}`"
        )
    return (
        f"so this one cannot be committed; remove its files with `{command}`, then "
        'write again with exist="append", or '
        'elsewhere, or with exist="replace", which deletes the other corpus'
    )


def unit_order(plan: Plan) -> list[int]:
    """Return the order of the units in the corpus."""
    seed = plan.recipe.shuffle

    def key(number: int) -> bytes:
        return blake2b(f"{seed} {number}".encode()).digest()

    numbers = [*range(len(plan.units))]
    return numbers if seed is None else sorted(numbers, key=key)


def _shards_of_all(
    place: Place, plan: Plan, done: Mapping[int, UnitRecord]
) -> NewShards:
    """Return the shards of all units, in order, and print what was skipped.

    Raises ValueError if a unit is not in `done`.
    """
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
    side = plan.recipe.side
    is_held_out = side is not None and side.is_held_out
    if num_bad and not is_held_out:  # The other side skips the same, and says so.
        lines = [f"{place.pattern}: {num_bad} damaged documents or inputs were skipped"]
        lines += [f"skipped {each}" for each in bad[:_MAX_NAMED]]
        note("\n".join(lines))
    return NewShards.joined(each.new for each in records)
