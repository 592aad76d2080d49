"""Prepare a corpus from input files: plan units, run them, commit their shards.

A unit is consecutive input files, or a part of a large file. The inputs and arguments
alone determine the units, and the names and bytes of their shards. So any process may
write a unit, any number of times: each writes its own draft and renames it. A plan, a
file beside the manifest, records what all processes of a preparation must agree on. A
single unit needs no plan, unless the preparation is written in parts (`part`).

The record of a unit lists its shards, sealed with a checksum. A process creates it
after the shards, so a unit with a record is done. After an interruption, the same
command writes only the units without a record. The commit reads the records.

A single process writes everything for a corpus of one file, and for inputs from pipes.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from roxxel_format import WriteSummary
from roxxel_format.writing import (
    CorpusWrite,
    NewShards,
    NoDocumentsError,
    Place,
    WriteJob,
    commit,
)
from roxxel_store import roxxel_command
from roxxel_store.records import RecordError
from roxxel_store.screen import note

from roxxel_prepare._inputs.documents import Documents
from roxxel_prepare._inputs.input_file import InputError
from roxxel_prepare._run.plan import Plan, units_of
from roxxel_prepare._run.runners import (
    UNIT_BYTES,
    ProcessRunner,
    UnitDone,
    run_units,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from roxxel_format.writing import Recipe
    from roxxel_store.records import RecordKind

    from roxxel_prepare._inputs.input_record import Inputs
    from roxxel_prepare._run.plan import Unit
    from roxxel_prepare._run.runners import Progress, Runner

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

    @property
    def done(self) -> str:
        """What is done, in words."""
        if self.num_units == 1:
            return "1 unit of this part is done"
        return f"{self.num_units} units of this part are done"

    def __str__(self) -> str:
        return (
            f"{self.done}; when all parts are, commit the corpus"
            f"{WriteSummary.switched_off_note(self.switched_off)}"
            f"{WriteSummary.left_out_note(self.left_out)}"
        )


def prepare(
    filepath: str,
    inputs: Inputs,
    recipe: Recipe,
    *,
    runner: Runner | None = None,
    part: tuple[int, int] | None = None,
    unit_bytes: int = UNIT_BYTES,
    progress: Callable[[Progress], None] | None = None,
) -> WriteSummary | PartSummary:
    """Write the documents of files into one corpus; see `write_files`.

    If the tokenizer says how documents end, print that on the standard error. With
    `part`, `commit_units` commits when all parts are done.

    Raises FileExistsError for `exist="keep"` if an input is a pipe or the standard
    input, because neither can be compared with the inputs of the corpus. Raises
    ValueError if several processes are requested, although only one can write.
    """
    metadata = {"source": inputs.source, **(recipe.metadata or {})}
    recipe = replace(recipe, metadata=metadata, inputs=inputs.recorded)
    write = CorpusWrite(filepath, recipe, says_ending=True)
    if part or runner not in {None, ProcessRunner(1)}:
        write.corpus.as_place("one process writes it, without --workers and --part")
    documents = Documents(
        inputs.parts,
        write.recipe.fields,  # with what renders chats
        skips_bad=recipe.skip_bad,
        folder=inputs.folder,
    )
    is_one_stream = inputs.stream is not None or not write.corpus.may_grow
    if part and is_one_stream:
        raise ValueError(
            f"{inputs.stream or inputs.paths[0]}: only one process can read it; leave "
            "--part out, or pass files"
        )
    if is_one_stream and (recipe.shuffle is not None or recipe.skip_bad):
        raise ValueError(
            f"{write.what}: --shuffle and --skip-bad need files that are written in "
            "units; write files to a pattern, or leave these options out"
        )
    try:
        kept = _kept(write, inputs)
        if kept is not None:
            # Such as the plan of a job that was committed by a process then killed.
            write.corpus.remove_leftovers()
            return replace(kept, left_out=inputs.left_out)
        if is_one_stream:
            summary = write.run(documents, documents.metadata)
        else:
            job = _Preparation(write, inputs, unit_bytes, documents)
            summary = job.run(runner, part, progress)
        return replace(
            summary, left_out=inputs.left_out, switched_off=write.switched_off
        )
    except NoDocumentsError as error:
        if recipe.chooses:
            raise ValueError(
                f"{write.what}: no document of the inputs would be in this corpus; "
                "choose another share of --split, or other lengths of "
                "--bucket-by-length"
            ) from error
        others = len(inputs.paths) - 1
        raise InputError(
            f"{inputs.paths[0]}: holds no documents"
            f"{f', like the other inputs ({others})' if others else ''}; check the "
            "inputs"
        ) from error


def _kept(write: CorpusWrite, inputs: Inputs) -> WriteSummary | None:
    """Return the summary of a corpus that the same command made; None to write.

    Raises FileExistsError for a corpus of other inputs or arguments.
    """
    keeps = write.recipe.exist == "keep"
    if keeps and inputs.stream is not None and write.corpus.existing() is not None:
        append = 'exist="append" or ' * write.corpus.may_grow
        raise FileExistsError(
            f"{write.what}: the corpus exists already, and {inputs.stream} cannot "
            f'be compared with its inputs; use {append}exist="replace", or '
            "write elsewhere"
        )
    return write.kept(inputs.difference)


@dataclass(frozen=True)
class _Preparation:
    """A preparation in units, from the arguments to the commit."""

    write: CorpusWrite
    inputs: Inputs
    unit_bytes: int
    documents: Documents

    def run(
        self,
        runner: Runner | None,
        part: tuple[int, int] | None,
        progress: Callable[[Progress], None] | None,
    ) -> WriteSummary | PartSummary:
        """Write all missing units, and commit.

        With `part`, write only the missing units of this part, and do not commit.
        """
        with self.write as write:
            # Another process may have committed meanwhile.
            kept = _kept(write, self.inputs)
            if kept is not None:
                return kept
            units = units_of(self.documents.parts, self.unit_bytes)
            plan = self._plan(units, is_shared=part is not None)
            first, step = part or (0, 1)
            numbers = range(first, len(units), step)
            if not write.place.listed(write.place.found, plan.job):
                if plan.recipe.exist == "append":
                    write.begin()  # The corpus may have changed since the plan.
                self._write_units(plan, units, numbers, runner, progress)
                write.keep_tokenizer()
            if part is not None:
                return PartSummary(len(numbers))
            summary = commit_plan(write.place, plan)
        if plan.recipe.exist != "append":
            write.place.remove_leftovers()
        return summary

    def _plan(self, units: Sequence[Unit], *, is_shared: bool) -> Plan:
        """Return the plan that every process of this preparation follows.

        Creates the file of the plan if there is none. A single unit that one process
        writes needs no file, so that other small appends can run at the same time.
        """
        write, place = self.write, self.write.place
        file_name = place.name.plan.name
        data = place.read(file_name)
        if data is None:
            plan = self._new_plan(units)
            if len(units) == 1 and not is_shared:
                return plan
            place.files.create(file_name, plan.to_bytes())
            data = place.read(file_name) or plan.to_bytes()
        found_plan = Plan.parse(data, place.folder + file_name)
        plan = found_plan.with_skipping(write.recipe)
        plan.check_same(self.inputs, write.recipe, units, write.what)
        if plan != found_plan:
            place.files.replace(file_name, plan.to_bytes())
        return plan

    def _new_plan(self, units: Sequence[Unit]) -> Plan:
        """Read documents until item type and kind are known, so that all units agree.

        Raises NoDocumentsError if there are no documents.
        """
        write = self.write
        write.begin()
        write.decide(self.documents)
        rows = [unit.row() for unit in units]
        # Where the inputs lie changes no shard, unless documents record their paths.
        facts: list[Any] = [[divided for _text, *divided in rows]]
        if write.recipe.fields.path:
            folder = self.inputs.folder
            facts.append([path.removeprefix(folder) for path in self.inputs.paths])
        base = write.place.end.fingerprint
        return Plan(write.job(*facts), self.inputs.facts, rows, base, write.recipe)

    def _write_units(
        self,
        plan: Plan,
        units: Sequence[Unit],
        numbers: Iterable[int],
        runner: Runner | None,
        progress: Callable[[Progress], None] | None,
    ) -> None:
        """Write the units that are not done; raise the error of the first failure."""
        numbers = [*numbers]
        records = _done_units(self.write.place, plan.job, numbers)
        done = {number: each.counts for number, each in records.items()}
        write, decided = self.write, plan.recipe
        recipe = replace(write.recipe, stored=decided.stored, kind=decided.kind)
        job = WriteJob(plan.job, write.place.target, recipe, write.tokenizer)
        writer = UnitWriter(job, units, replace(self.documents, parts=()))
        run_units(write.what, units, numbers, done, writer, runner, progress)


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
        data, name = record.to_bytes(), _file_of(place, self.job.digest, number)
        if not place.files.create(name, data) and place.read(name) != data:
            place.files.replace(name, data)  # It was damaged.
        return record


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

    def to_bytes(self) -> bytes:
        """Return the content of the file, the same every time the unit is written."""
        return _unit_kind().to_bytes(asdict(self))

    @property
    def counts(self) -> UnitDone:
        """What the progress counts of the unit."""
        return UnitDone(self.input_bytes, self.new.num_documents, self.new.num_tokens)

    def is_whole(self, sizes: Mapping[str, int]) -> bool:
        """Return whether all files exist; `sizes` has the sizes of existing files."""
        return all(sizes.get(name) == size for name, size in self.new.sizes.items())


def _done_units(
    place: Place, job: str, numbers: Iterable[int]
) -> dict[int, UnitRecord]:
    """Return the records of finished units, which have all their shards too."""
    sizes = place.files.sizes()
    files = {number: _file_of(place, job, number) for number in numbers}
    return {
        number: record
        for number, name in files.items()
        if name in sizes  # Only then the file is read.
        and (record := _record(place, name)) is not None
        and record.is_whole(sizes)
    }


def _file_of(place: Place, job: str, number: int) -> str:
    return place.name.unit_record(job, number).name


@cache
def _unit_kind() -> RecordKind:
    kind = Place.plan_kind()
    return replace(kind, name="unit", mark="roxxel unit", error=RecordError)


def _record(place: Place, name: str) -> UnitRecord | None:
    """Return the record in a file; None if there is no file, or a damaged one.

    A unit without a sound record is not done, so it is written again.
    """
    data = place.read(name)
    if data is None:
        return None
    try:
        table = _unit_kind().parse(data, place.folder + name)
    except RecordError:
        return None
    return UnitRecord(NewShards.parsed(table.pop("new")), **table)


def _shuffled(key: str, items: list[Any]) -> list[Any]:
    def digest(number: int) -> bytes:
        return blake2b(f"{key} {number}".encode()).digest()

    return [items[at] for at in sorted(range(len(items)), key=digest)]


def commit_plan(place: Place, plan: Plan) -> WriteSummary:
    """Commit the shards of all units, and remove the plan and the records."""
    recipe, plan_file = plan.recipe, place.name.plan.name
    numbers = range(len(plan.units))
    new = place.listed(place.found, plan.job)
    done: Mapping[int, UnitRecord] = {}
    if not len(new):
        done = _done_units(place, plan.job, numbers)
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
                place.files.replace(plan_file, rebased.to_bytes())
            return _lost(place, plan)

        if recipe.exist != "append" and place.end.fingerprint != plan.base:
            raise FileExistsError(
                f"{place.manifest}: another write was committed first, {lost(place)}"
            )
        commit(recipe, place, new, lost)
    # Delete the plan last: a later process learns only from the plan that the records
    # are not needed any more.
    place.discard([_file_of(place, plan.job, number) for number in numbers])
    place.discard([plan_file])
    return place.summary(new)


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


def _shards_of_all(
    place: Place, plan: Plan, done: Mapping[int, UnitRecord]
) -> NewShards:
    """Return the shards of all units, in order, and print what was skipped.

    Raises ValueError if a unit is not in `done`.
    """
    new: list[NewShards] = []
    bad: list[str] = []
    num_bad = 0
    missing: list[int] = []
    order, seed = [*range(len(plan.units))], plan.recipe.shuffle
    for number in order if seed is None else _shuffled(str(seed), order):
        record = done.get(number)
        if record is None:
            missing.append(number)
        else:
            new.append(record.new)
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
    return NewShards.joined(new)
