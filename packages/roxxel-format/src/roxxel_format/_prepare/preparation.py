"""Prepare a corpus from input files: plan units, run them, commit their shards.

A unit is consecutive input files, or a part of a large file. The inputs and arguments
alone determine the units and the bytes of their shards. So the shards do not depend on
which processes write them, and a unit may be written again. A plan, a file beside the
manifest, records what all processes of a preparation must agree on. A single unit needs
no plan, unless the preparation is written in parts (`part`). After an interruption, the
same command writes only the units without a record.

In three cases, a single process writes everything: for a corpus of one file, for inputs
from pipes, and for shards of the first Roxxel that are cut at separators. A document
may be in several of these shards.
"""

from __future__ import annotations

import contextlib
import json
import time
from contextlib import ExitStack
from dataclasses import replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from roxxel_store.output import is_full
from roxxel_store.records import as_json

from roxxel_format._prepare.committing import (
    PartSummary,
    commit_plan,
    done_units,
    is_committed,
)
from roxxel_format._prepare.documents import Documents, LineOf
from roxxel_format._prepare.input_file import InputError
from roxxel_format._prepare.inputs import is_old_shard
from roxxel_format._prepare.plan import SKIP_BAD, Plan, check_same, parse_plan
from roxxel_format._prepare.progress import Progress
from roxxel_format._prepare.runners import ProcessRunner
from roxxel_format._prepare.unit_writer import UnitWriter
from roxxel_format._prepare.units import UNIT_BYTES, parts_of, units_of
from roxxel_format._store.corpus_name import absolute
from roxxel_format._store.urls import DEFAULT_TIMEOUT_S, is_url
from roxxel_format._write.bucket_writer import write_to_bucket
from roxxel_format._write.commit import remove_leftovers
from roxxel_format._write.corpus_writer import kept_on_disk, write_corpus
from roxxel_format._write.extension import (
    Extension,
    check_arguments,
    check_free,
    check_kept,
    print_notice,
    say_kept,
    summary_of,
)
from roxxel_format._write.intake import load_intake
from roxxel_format._write.place import BucketPlace, place_of
from roxxel_format._write.series import NoDocumentsError
from roxxel_format._write.sorting import sorter_of
from roxxel_format._write.target import name_to_write
from roxxel_format.errors import ShardError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from roxxel_format._prepare.runners import Runner
    from roxxel_format._prepare.unit import Unit
    from roxxel_format._spec.manifest import Manifest
    from roxxel_format._store.corpus_name import CorpusName
    from roxxel_format._write.input_record import Inputs
    from roxxel_format._write.options import Exist, WriteOptions, WriteSummary
    from roxxel_format._write.place import Place


def prepare(
    filepath: str,
    inputs: Inputs,
    options: WriteOptions,
    exist: Exist,
    *,
    runner: Runner | None = None,
    part: tuple[int, int] | None = None,
    unit_bytes: int = UNIT_BYTES,
    line_of: LineOf | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> WriteSummary | PartSummary:
    """Write the documents of files into a corpus.

    If the tokenizer determines the separator, print on the standard error how documents
    end.

    Args:
        filepath: Path of the corpus; see `Roxxel`.
        inputs: The files.
        options: As for `Roxxel.write`; a tokenizer is a path or a name.
        exist: As for `Roxxel.write`.
        runner: Writes the units. Default: this process.
        part: `(i, n)`: write every n-th unit, from the i-th on, and do not commit.
            `commit_units` commits when all parts are done.
        unit_bytes: Minimum size of the inputs of a unit.
        line_of: Cuts shards of the first Roxxel into documents; see `Documents`.
        progress: Called before the first unit, and when a unit ends.

    Returns:
        A summary of the shards that were written or kept, or of the part.

    Raises:
        FileExistsError: `exist` does not allow changing the corpus, or a preparation
            with other inputs or arguments is not finished. Also for
            `exist="keep"` if an input is a pipe or the standard input, because
            neither can be compared with the inputs of the corpus.
        OSError: A file cannot be read or written, or a worker process ended early.
        ValueError: A document is invalid (the message names its file), or several
            processes are requested, although only one can write.
    """
    metadata = {"source": inputs.source} | options.metadata
    options = replace(options, inputs=inputs, metadata=metadata)
    target = absolute(filepath)
    assert isinstance(target, str)  # noqa: S101 - one path gives one path
    name = None
    if not is_url(target):
        name = name_to_write(target, sharded=options.may_make_several(exist))
    workers = getattr(runner, "workers", 2 if runner else 1)
    if name is not None and name.manifest is None and (workers > 1 or part):
        raise ValueError(
            f"{name.single}: one process writes one file; leave --workers and --part "
            f'out, or write to a pattern such as "{name.prefix}_*.rox"'
        )
    has_old = any(is_old_shard(path, inputs.form) for path in inputs.paths)
    old_dtype = options.dtype if has_old else None
    documents = Documents(
        parts_of(inputs),
        inputs.form,
        options.fields,
        line_of,
        old_dtype,
        skips_bad=options.skip_bad,
        folder=inputs.folder,
    )
    has_file = name is not None and name.manifest is None
    is_one_stream = line_of is not None or inputs.stream is not None or has_file
    if part and is_one_stream:
        raise ValueError(
            f"{inputs.stream or inputs.paths[0]}: only one process can read it; leave "
            "--part out, or pass files"
        )
    if is_one_stream and (options.shuffle is not None or options.skip_bad):
        raise ValueError(
            f"{target}: --shuffle and --skip-bad need files that are written in units; "
            "write files to a pattern, or leave these options out"
        )
    try:
        with documents.naming_files():
            if not is_one_stream:
                job = _Preparation(
                    name or target, inputs, options, exist, unit_bytes, documents
                )
                summary = job.run(runner or ProcessRunner(), part, progress)
                return replace(summary, left_out=inputs.left_out)
            if options.side is not None:
                documents.sorter = sorter_of(options, load_intake(options)[1])
            says = _says_ending(options)
            if name is None:
                place = BucketPlace(target, DEFAULT_TIMEOUT_S)
                summary = write_to_bucket(
                    place, documents, options, exist, says_ending=says
                )
            else:
                summary = write_corpus(
                    target, documents, options, exist, says_ending=says
                )
        return replace(summary, left_out=inputs.left_out)
    except NoDocumentsError as error:
        others = len(inputs.paths) - 1
        if options.side is not None:
            what = "held out" if options.side.is_held_out else "left"
            raise ValueError(
                f"{target}: no document of the inputs would be {what} with --split "
                f"{options.side.name}={options.side.share}; choose another share"
            ) from error
        raise InputError(
            f"{inputs.paths[0]}: holds no documents"
            f"{f', like the other inputs ({others})' if others else ''}; check the "
            "inputs"
        ) from error


def _says_ending(options: WriteOptions) -> bool:
    """Return whether to say how documents end: once for both corpora of a split."""
    return options.side is None or options.side.is_held_out


def _tidy(name: CorpusName) -> None:
    """Remove what interrupted writes left, such as the plan of a committed job."""
    # A later `clean` removes files that cannot be removed now.
    with contextlib.suppress(OSError, ShardError):
        remove_leftovers(name)


_MOST_ALIKE = 8
"""The run ends when this many units failed with one kind of error, and none is done."""


class _Preparation:
    """A preparation in units, from the arguments to the commit."""

    def __init__(
        self,
        target: CorpusName | str,
        inputs: Inputs,
        options: WriteOptions,
        exist: Exist,
        unit_bytes: int,
        documents: Documents,
    ) -> None:
        self._started = time.perf_counter()
        self._target = target
        self._inputs = inputs
        self._exist: Exist = exist
        self._documents = documents
        self._options, self._intake = load_intake(
            options, says_ending=_says_ending(options)
        )
        documents.sorter = sorter_of(options, self._intake)
        identity = self._intake.tokenizer_identity
        self._arguments = self._options.recorded(identity)
        self._unit_bytes = unit_bytes

    def run(
        self,
        runner: Runner,
        part: tuple[int, int] | None,
        progress: Callable[[Progress], None] | None,
    ) -> WriteSummary | PartSummary:
        """Write all missing units, and commit.

        With `part`, write only the missing units of this part, and do not commit.
        """
        target, appends = self._target, self._exist == "append"
        name = None if isinstance(target, str) else target
        if name is not None:
            check_arguments(self._options, name, self._exist, self._documents)
            name.folder.mkdir(parents=True, exist_ok=True)
        if name is not None and self._exist == "keep":
            kept = kept_on_disk(name, self._options, self._arguments, self._started)
            if kept is not None:
                say_kept(self._corpus, *kept, self._options)
                _tidy(name)
                return kept[0]
        with ExitStack() as resources:
            place = place_of(target, resources)
            try:
                result = self._run(place, runner, part, progress)
            except BaseException:
                place.undo_begin()
                raise
        if name is not None and part is None and not appends:
            _tidy(name)
        return result

    def _run(
        self,
        place: Place,
        runner: Runner,
        part: tuple[int, int] | None,
        progress: Callable[[Progress], None] | None,
    ) -> WriteSummary | PartSummary:
        if isinstance(self._target, str):
            check_arguments(self._options, place.name, self._exist, self._documents)
        found = place.begin(replaces=self._exist == "replace").manifest
        if self._exist == "keep" and found.versions:
            return self._kept(place, found)
        units = units_of(self._inputs, self._unit_bytes)
        plan = self._plan(place, found, units, is_shared=part is not None)
        first, step = part or (0, 1)
        numbers = range(first, len(units), step)
        if not is_committed(place, plan, found):
            self._write(place, plan, units, numbers, runner, progress)
        if part is not None:
            return PartSummary(len(numbers))
        return commit_plan(place, plan, found, self._started)

    @property
    def _corpus(self) -> str:
        target = self._target
        return target if isinstance(target, str) else target.pattern

    def _kept(self, place: Place, found: Manifest) -> WriteSummary:
        limits = check_kept(found, self._options, self._arguments, self._corpus)
        dtype = str(found.dtype_name)
        kept = summary_of(place.folder, found.shards, dtype, self._started, kept=True)
        say_kept(self._corpus, kept, limits, self._options)
        return kept

    def _plan(
        self, place: Place, found: Manifest, units: Sequence[Unit], *, is_shared: bool
    ) -> Plan:
        """Return the plan that every process of this preparation follows.

        Creates the file of the plan if there is none. A single unit that one process
        writes needs no file, so that other small appends can run at the same time.
        """
        file_name = place.name.plan.name
        data = place.read(file_name)
        if data is None:
            plan = self._new_plan(place, found, units)
            if len(units) == 1 and not is_shared:
                return plan
            place.create(file_name, plan.pack())
            data = place.read(file_name) or plan.pack()
        found_plan = parse_plan(data, place.folder + file_name)
        plan = found_plan.with_skipping(self._arguments)
        check_same(
            plan, self._inputs, self._arguments, self._exist, units, self._corpus
        )
        if plan != found_plan:
            # A kill between both lines is safe: the same command makes this plan again.
            place.discard([file_name])
            place.create(file_name, plan.pack())
        return plan

    def _new_plan(self, place: Place, found: Manifest, units: Sequence[Unit]) -> Plan:
        """Read documents until dtype and kind are known, so that all units agree.

        Raises NoDocumentsError if there are no documents.
        """
        appends, intake, options = self._exist == "append", self._intake, self._options
        if appends:
            extension = Extension(
                self._corpus,
                place.folder,
                options,
                intake,
                self._arguments,
                appends,
                intake.recorded_tokenizer,
            )
            extension.check_appendable(found)
        else:
            is_taken = self._exist != "replace" and bool(found.versions)
            check_free(self._corpus, is_taken=is_taken)
        documents = intake.arrays(self._documents)
        if options.fields.columns:
            documents = intake.rows(self._documents, options.fields)
        if next(documents, None) is None:
            raise NoDocumentsError(self._corpus)
        rows = [unit.row() for unit in units]
        base, dtype = found.fingerprint, str(intake.dtype)
        cuts = [row[1:] for row in rows]
        arguments = {**self._arguments}
        arguments.pop(SKIP_BAD, None)  # It does not change units without damage.
        facts: list[Any] = [
            arguments,
            options.metadata,
            base,
            dtype,
            intake.kind,
            cuts,
        ]
        if options.fields.path:
            folder = self._inputs.folder
            facts.append([path.removeprefix(folder) for path in self._inputs.paths])
        text = json.dumps(facts, sort_keys=True)
        return Plan(
            job=blake2b(text.encode(), digest_size=6).hexdigest(),
            inputs=self._inputs.facts,
            units=rows,
            arguments=as_json(self._arguments),
            exist=self._exist,
            base=base,
            dtype=dtype,
            kind=intake.kind,
            block_size=options.block_size,
            separator=self._arguments["separator"],
            tokenizer=intake.recorded_tokenizer,
        )

    def _write(
        self,
        place: Place,
        plan: Plan,
        units: Sequence[Unit],
        numbers: Iterable[int],
        runner: Runner,
        progress: Callable[[Progress], None] | None,
    ) -> None:
        """Write units that are not done; raise the error of the first that failed."""
        numbers = [*numbers]
        done = done_units(place, plan, numbers)
        missing = [number for number in numbers if number not in done]
        if done:
            print_notice(
                f"{self._corpus}: {len(done)} of {len(numbers)} units are done already"
            )
        state = Progress(len(numbers), sum(units[at].num_bytes for at in numbers))
        state = state.with_done([*done.values()])
        show = progress or _ignore
        show(state)
        documents = self._documents
        writer = UnitWriter(
            self._target if not isinstance(self._target, str) else place.pattern,
            plan.job,
            units,
            replace(self._options, dtype=plan.dtype, inputs=None),
            kind=plan.kind,
            tokenizer_identity=self._intake.tokenizer_identity,
            form=documents.form,
            old_dtype=documents.old_dtype,
            folder=documents.folder,
        )
        errors: dict[int, Exception] = {}
        began = time.perf_counter()
        with contextlib.closing(runner.run(writer, missing)) as outcomes:
            for outcome in outcomes:
                elapsed = time.perf_counter() - began
                if outcome.record is not None:
                    state = state.with_new(outcome.record, elapsed)
                elif outcome.error is not None:
                    unit = units[outcome.number]
                    errors[outcome.number] = _naming(unit, outcome.error)
                    state = replace(state, num_failed=len(errors), duration_s=elapsed)
                    # Every later unit would fail too, after it is tokenized.
                    stops = is_full(outcome.error) or _are_alike(errors, state)
                    state = replace(state, is_stopped=stops)
                else:
                    retries = state.num_retries + 1
                    state = replace(state, num_retries=retries, duration_s=elapsed)
                show(state)
                if state.is_stopped:
                    break
        if not errors:
            return
        if len(units) > 1:
            print_notice(f"{self._corpus}: {_failure(state)}")
        raise errors[min(errors)]


def _naming(unit: Unit, error: Exception) -> Exception:
    """Return the error of a unit; if a worker died, name the unit's inputs in it.

    All other errors name their input already.
    """
    if not isinstance(error, ChildProcessError):
        return error
    named = ChildProcessError(f"{unit}: {error}")
    named.__cause__ = error.__cause__
    return named


def _are_alike(errors: Mapping[int, Exception], state: Progress) -> bool:
    """Return whether units fail alike and none succeeds: so would all others."""
    kinds = {type(error) for error in errors.values()}
    return len(errors) >= _MOST_ALIKE and len(kinds) == 1 and not state.num_done


def _failure(state: Progress) -> str:
    """Describe how many units failed, and what is kept."""
    failed = f"{state.num_failed} of {state.num_units} units failed"
    if state.is_stopped:
        return f"{failed} and stopped the others; {state.num_done} are done and kept"
    return f"{failed}; the other {state.num_done} are kept"


def _ignore(_: Progress) -> None:
    """Show nothing."""
