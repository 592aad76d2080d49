"""Prepare a corpus from input files: plan units, run them, commit their shards.

The inputs and arguments alone determine the units and the bytes of their shards. So the
shards do not depend on which processes write them, and a unit may be written again. A
plan beside the manifest says what the processes of a preparation agree on; a corpus of
one unit needs none, unless several members write it. After an interruption, the same
command writes only the units without a record.

One process writes a corpus of one file, documents from pipes, and documents of shards
of the first Roxxel that are cut at separators, because a document may be in several
shards.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING, cast

import numpy as np

from roxxel_format._prepare.committing import (
    commit_plan,
    is_committed,
    missing_units,
)
from roxxel_format._prepare.documents import Documents
from roxxel_format._prepare.input_file import InputError
from roxxel_format._prepare.inputs import is_old_shard, is_present_shard
from roxxel_format._prepare.plan import Plan, check_same, parse_plan
from roxxel_format._prepare.runners import ProcessRunner
from roxxel_format._prepare.unit import Part
from roxxel_format._prepare.unit_writer import UnitWriter
from roxxel_format._prepare.units import UNIT_BYTES, units_of
from roxxel_format._read.foreign_files import is_untyped
from roxxel_format._spec.dtypes import stored_dtype, stored_name
from roxxel_format._store.corpus_name import absolute
from roxxel_format._store.urls import DEFAULT_TIMEOUT_S, is_url
from roxxel_format._write.bucket_writer import write_to_bucket
from roxxel_format._write.commit import remove_leftovers
from roxxel_format._write.corpus_writer import kept_on_disk, or_replace, write_corpus
from roxxel_format._write.extension import (
    Extension,
    check_arguments,
    check_free,
    check_kept,
    print_notice,
    summary_of,
)
from roxxel_format._write.intake import load_intake
from roxxel_format._write.options import Separator
from roxxel_format._write.place import BucketPlace, place_of
from roxxel_format._write.series import NoDocumentsError
from roxxel_format._write.target import name_to_write
from roxxel_format.errors import ShardError
from roxxel_format.foreign import Roxxel02Tokens

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from roxxel_format._prepare.runners import Runner
    from roxxel_format._prepare.unit import Unit
    from roxxel_format._spec.manifest import Manifest
    from roxxel_format._store.corpus_name import CorpusName
    from roxxel_format._write.input_record import Inputs
    from roxxel_format._write.options import Exist, WriteOptions, WriteSummary
    from roxxel_format._write.place import Place


@dataclass(frozen=True)
class PartSummary:
    """The result of one member of a preparation: its number of units, all done."""

    num_units: int

    def __str__(self) -> str:
        units = f"{self.num_units} unit{'s' * (self.num_units != 1)}"
        return f"{units} of this part are done; when all parts are, commit the corpus"


def prepare(
    filepath: str,
    inputs: Inputs,
    options: WriteOptions,
    exist: Exist,
    *,
    runner: Runner | None = None,
    part: tuple[int, int] | None = None,
    unit_bytes: int = UNIT_BYTES,
    progress: Callable[[int, int], None] | None = None,
) -> WriteSummary | PartSummary:
    """Write the documents of files into a corpus.

    If the tokenizer determines the separator, print how documents end on the standard
    error. If shards of the first Roxxel become documents for lack of a separator, print
    this too.

    Args:
        filepath: Path of the corpus; see `Roxxel`.
        inputs: The files.
        options: As for `Roxxel.write`; a tokenizer is a path or a name.
        exist: As for `Roxxel.write`.
        runner: Writes the units. Default: this process.
        part: `(i, n)`: write every n-th unit, from the i-th on, and do not commit.
            `commit` does, when all parts are done.
        unit_bytes: Least size of the inputs of a unit.
        progress: Called with the number of finished units and the number of units.

    Returns:
        A summary of the shards that were written or kept, or of the part.

    Raises:
        FileExistsError: `exist` does not allow changing the corpus, or a preparation
            with other inputs or arguments is not finished. Also for
            `exist="keep"` if an input is a pipe or the standard input, because
            neither can be compared with the inputs of the corpus.
        OSError: A file cannot be read or written, or a worker process ended early.
        ValueError: A document is invalid (the message names its file), or several
            processes are asked for, but only one can write.
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
    old = [path for path in inputs.paths if is_old_shard(path, inputs.form)]
    line_of = None
    if old:
        options, line_of = _with_old_separator(options, old[0])
    parts = [Part(path) for path in inputs.paths]
    old_dtype = options.dtype if old else None
    documents = Documents(parts, inputs.form, inputs.field, line_of, old_dtype)
    has_file = name is not None and name.manifest is None
    is_one_stream = line_of is not None or inputs.stream is not None or has_file
    if part and is_one_stream:
        raise ValueError(
            f"{inputs.stream or inputs.paths[0]}: only one process can read it; leave "
            "--part out, or pass files"
        )
    try:
        with documents.naming_files():
            if not is_one_stream:
                job = _Preparation(
                    name or target, inputs, options, exist, unit_bytes, documents
                )
                runner = runner or ProcessRunner()
                return job.run(runner, part, progress)
            if name is None:
                place = BucketPlace(target, DEFAULT_TIMEOUT_S)
                return write_to_bucket(
                    place, documents, options, exist, says_ending=True
                )
            return write_corpus(target, documents, options, exist, says_ending=True)
    except NoDocumentsError as error:
        others = len(inputs.paths) - 1
        raise InputError(
            f"{inputs.paths[0]}: holds no documents"
            f"{f', like the other inputs ({others})' if others else ''}; check the "
            "inputs"
        ) from error


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
        is_default = options.separator is Separator.OF_TOKENIZER
        self._options, self._intake = load_intake(options)
        if is_default and self._intake.tokenizer is not None:
            print_notice(self._intake.tokenizer.ending())
        identity = self._intake.tokenizer_identity
        self._arguments = self._options.recorded(identity)
        self._unit_bytes = unit_bytes

    def run(
        self,
        runner: Runner,
        part: tuple[int, int] | None,
        progress: Callable[[int, int], None] | None,
    ) -> WriteSummary | PartSummary:
        """Write the missing units, of one part or all; unless of a part, commit."""
        target, appends = self._target, self._exist == "append"
        name = None if isinstance(target, str) else target
        if name is not None:
            check_arguments(self._options, name, self._exist, self._documents)
            name.folder.mkdir(parents=True, exist_ok=True)
        if name is not None and self._exist == "keep":
            with or_replace(name):
                kept = kept_on_disk(name, self._options, self._arguments, self._started)
            if kept is not None:
                return kept
        with ExitStack() as resources:
            place = place_of(target, resources)
            try:
                result = self._run(place, runner, part, progress)
            except BaseException:
                place.undo_begin()
                raise
        # A later `clean` removes files that cannot be removed now.
        if name is not None and part is None and not appends:
            with contextlib.suppress(OSError):
                remove_leftovers(name)
        return result

    def _run(
        self,
        place: Place,
        runner: Runner,
        part: tuple[int, int] | None,
        progress: Callable[[int, int], None] | None,
    ) -> WriteSummary | PartSummary:
        appends, replaces = self._exist == "append", self._exist == "replace"
        if isinstance(self._target, str):
            check_arguments(self._options, place.name, self._exist, self._documents)
            begun = place.begin(replaces=replaces)
        else:
            with or_replace(self._target):
                begun = place.begin(replaces=replaces, appends=appends)
        found = begun.manifest
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
        print_notice(f"{self._corpus}: {kept}{limits}")
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
        plan = parse_plan(data, place.folder + file_name)
        check_same(
            plan, self._inputs, self._arguments, self._exist, units, self._corpus
        )
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
        if next(intake.arrays(self._documents), None) is None:
            raise NoDocumentsError(self._corpus)
        rows = [unit.row() for unit in units]
        base, dtype = found.fingerprint, str(intake.dtype)
        cuts = [row[1:] for row in rows]
        facts = [self._arguments, options.metadata, base, dtype, intake.kind, cuts]
        text = json.dumps(facts, sort_keys=True)
        return Plan(
            job=blake2b(text.encode(), digest_size=6).hexdigest(),
            inputs=self._inputs.facts,
            units=rows,
            arguments=json.loads(json.dumps(self._arguments)),
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
        progress: Callable[[int, int], None] | None,
    ) -> None:
        """Write units that are not done; raise the error of the first that failed."""
        numbers = [*numbers]
        missing = missing_units(place, plan, numbers)
        num_done = len(numbers) - len(missing)
        if num_done:
            print_notice(
                f"{self._corpus}: {num_done} of {len(numbers)} units are done already"
            )
        documents = self._documents
        writer = UnitWriter(
            self._target if not isinstance(self._target, str) else place.pattern,
            plan.job,
            units,
            replace(self._options, dtype=plan.dtype, inputs=None),
            kind=plan.kind,
            tokenizer_identity=self._intake.tokenizer_identity,
            form=documents.form,
            field=documents.field,
            old_dtype=documents.old_dtype,
        )
        errors: dict[int, Exception] = {}
        for outcome in runner.run(writer, missing):
            if outcome.error is not None:
                errors[outcome.number] = outcome.error
                continue
            num_done += 1
            if progress is not None:
                progress(num_done, len(numbers))
        if not errors:
            return
        if len(units) > 1:
            print_notice(
                f"{self._corpus}: {len(errors)} of {len(numbers)} units failed; the "
                f"other {num_done} are kept"
            )
        raise errors[min(errors)]


def _with_old_separator(
    options: WriteOptions, path: str
) -> tuple[WriteOptions, Callable[[Sequence[str]], Iterable[object]] | None]:
    """Return options for the new corpus, and a function that cuts the old shards.

    The options have the separator of the new corpus. `Roxxel02Tokens` cuts documents at
    the old separator; if there is none, the function is None, and each shard is one
    document. The two separators differ if the separator is bytes: these are items in
    the dtype of the old shards, and the options have the same items in the dtype of the
    new corpus. `path` is the first of the old shards.
    """
    is_default = options.separator is Separator.OF_TOKENIZER
    found, intake = load_intake(options)
    separator = cast("int | bytes | None", found.separator)
    if separator is None and is_default and not is_present_shard(path):
        sys.stderr.write(
            f"{path}: a shard of the first Roxxel does not record its documents, so "
            "each shard becomes one document; to cut documents at a separator, pass "
            "--separator or --separator-bytes\n"
        )
    if separator is None:
        return options, None
    if not isinstance(separator, bytes):
        return options, partial(_old_documents, separator, options.dtype)
    stored = _opened_old_shards([path], separator, options.dtype).dtype
    items = np.frombuffer(separator, stored)
    if items.size == 1:
        options = replace(options, separator=items[0].item())
        return options, partial(_old_documents, separator, options.dtype)
    name = stored_name(stored) if intake.dtype is None else intake.dtype
    new = items.astype(stored_dtype(name))
    if (new != items).any():
        raise ValueError(
            f"the separator {items.tolist()} of {path} does not fit {name}; choose a "
            "wider --dtype, or leave --dtype and --vocab-size out"
        )
    options = replace(options, separator=new.tobytes())
    return options, partial(_old_documents, separator, options.dtype)


def _old_documents(
    separator: int | bytes, dtype: str | None, paths: Sequence[str]
) -> Iterable[object]:
    return _opened_old_shards(paths, separator, dtype).documents


def _opened_old_shards(
    paths: Sequence[str], separator: int | bytes, dtype: str | None
) -> Roxxel02Tokens:
    """Open shards of the first Roxxel, whose documents end with a separator.

    `dtype` is their item type if they do not record one.

    Raises:
        InputError: A file is compressed or the standard input, damaged, or not a shard.
        ValueError: The separator is not a token, or not the bytes of whole tokens.
    """
    for path in paths:
        if path == "-" or path.endswith((".gz", ".zst")):
            what = "the standard input" if path == "-" else "compressed"
            raise InputError(
                f"{path}: is {what}, but only shards in uncompressed files can be cut "
                "into documents; pass uncompressed files, or --separator none"
            )
    try:
        is_needed = all(map(is_untyped, paths))
        return Roxxel02Tokens(paths, dtype if is_needed else None, separator=separator)
    except ShardError as error:
        raise InputError(str(error)) from error
