"""Write one unit; any process may write it, any number of times, with one result.

The shards of a unit have the same names and bytes whichever process writes them. Each
process writes a draft of its own and renames it, so a unit that two processes write at
the same time is not damaged. The record of the unit is created last.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from itertools import count
from typing import TYPE_CHECKING

from roxxel_format._prepare.documents import Documents
from roxxel_format._prepare.plan import UnitRecord, parse_unit
from roxxel_format._spec.tables import ShardTable
from roxxel_format._write.intake import intake_of, load_tokenizer
from roxxel_format._write.new_columns import NewColumns
from roxxel_format._write.place import place_of
from roxxel_format._write.series import NoDocumentsError, ShardSeries
from roxxel_format._write.sorting import sorter_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from roxxel_format._prepare.unit import Unit
    from roxxel_format._store.corpus_name import CorpusName
    from roxxel_format._write.intake import Intake
    from roxxel_format._write.options import WriteOptions
    from roxxel_format._write.place import Place
    from roxxel_format._write.tokenizers import Tokenizer


class UnitWriter:
    """Writes the units of one preparation; can be pickled.

    Args:
        target: The corpus: its names on a disk, or the URL of its pattern in a bucket.
        job: Digest of the preparation.
        units: All units, in the order of the corpus.
        options: The arguments of the write; `dtype` is that of the corpus.
        kind: The kind of the corpus's documents.
        tokenizer_identity: Identity of the tokenizer that every process must load.
        form: Format of the inputs; see `documents_in`.
        old_dtype: Item type of shards of the first Roxxel that do not record one.
        folder: Folder of the inputs; see `Documents`.
    """

    def __init__(
        self,
        target: CorpusName | str,
        job: str,
        units: Sequence[Unit],
        options: WriteOptions,
        *,
        kind: str | None,
        tokenizer_identity: str | None,
        form: str | None,
        old_dtype: str | None,
        folder: str,
    ) -> None:
        self._target = target
        self._job = job
        self._units = units
        self._options = options
        self._kind = kind
        self._tokenizer_identity = tokenizer_identity
        self._form = form
        self._old_dtype = old_dtype
        self._folder = folder
        self._tokenizer: Tokenizer | None = None

    def write_unit(self, number: int) -> UnitRecord:
        """Write a unit unless it is done, and return its record."""
        with ExitStack() as resources:
            place = place_of(self._target, resources)
            path = place.name.unit_record(self._job, number)
            data = place.read(path.name)
            found = parse_unit(number, data, place.folder + path.name)
            if found is not None and found.is_whole(place.sizes()):
                return found
            return self._written(place, number)

    def _written(self, place: Place, number: int) -> UnitRecord:
        started = time.perf_counter()
        pieces, name = count(), place.name
        unit = self._units[number]
        with place.shards() as folder:

            def new_path() -> tuple[Path, None]:
                shard = name.unit_shard(self._job, number, next(pieces))
                return folder.path / shard.name, None

            intake = self._intake()
            columns = NewColumns(self._options.fields, name, folder.publish)
            series = ShardSeries(
                name.pattern,
                new_path,
                self._options,
                intake,
                {},
                columns=columns,
                on_closed=folder.publish,
            )
            seed = self._options.shuffle
            documents = Documents(
                unit.parts,
                self._form,
                self._options.fields,
                old_dtype=self._old_dtype,
                sorter=sorter_of(self._options, intake),
                shuffle=None if seed is None else f"{seed} {number}",
                skips_bad=self._options.skip_bad,
                folder=self._folder,
            )
            shards = ShardTable()
            try:
                with documents.naming_files():
                    series.write_all(documents)
                shards = series.table
            except NoDocumentsError:
                pass
            except BaseException:
                series.abort()
                raise
        elapsed = time.perf_counter() - started
        record = UnitRecord(
            number,
            shards,
            unit.num_bytes,
            columns.tables if len(shards) else {},
            documents.bad,
            documents.num_bad,
            intake.num_dropped,
            elapsed,
        )
        data, path = record.pack(), name.unit_record(self._job, number)
        if not place.create(path.name, data) and place.read(path.name) != data:
            place.discard([path.name])  # A damaged record.
            place.create(path.name, data)
        return record

    def _intake(self) -> Intake:
        if self._tokenizer is None:
            self._tokenizer = load_tokenizer(self._options)
        tokenizer = self._tokenizer
        if tokenizer and tokenizer.identity != self._tokenizer_identity:
            raise ValueError(
                f"{self._options.tokenizer}: the tokenizer changed while the corpus "
                "was prepared; write again"
            )
        intake = intake_of(self._options, tokenizer, self._kind)
        intake.reads_ahead = True
        return intake
