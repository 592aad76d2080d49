"""Divide documents into shards of limited size, and write them."""

from __future__ import annotations

from collections import deque
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from roxxel_format._spec.input_totals import InputCounts
from roxxel_format._spec.layout import shard_table, stored_dtype
from roxxel_format._spec.manifest import BinTable, NewShards
from roxxel_format._version import __version__
from roxxel_format._write.casting import (
    Caster,
    DocumentError,
    DocumentTypeError,
    NoDocumentsError,
)
from roxxel_format._write.new_columns import NewColumns
from roxxel_format._write.packing import packed
from roxxel_format._write.recipe import EncodedRow, Row
from roxxel_format._write.shard_writer import ShardWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from roxxel_format._corpus_name import CorpusName
    from roxxel_format._spec.layout import Layout, Tokens
    from roxxel_format._write.intake import Intake
    from roxxel_format._write.packing import Part
    from roxxel_format._write.recipe import Origin

Arrange: TypeAlias = "Callable[[list[Any]], Iterable[Any]]"

_MOST_ORIGINS = 1 << 18
"""Number of last documents whose origins an error can name.

The shard checks documents in stages of 4 MiB, so it may find a fault late.
"""


class ShardSeries:
    """The shards of one write; each complete shard is renamed from its draft.

    `new_path()` returns the path of the next shard. Its draft is `draft`, if the caller
    has made one, else `ShardWriter` makes one. `paths` includes a shard that is just
    being renamed. `on_closed` gets the path of each finished file. If the recipe makes
    columns, the data are rows, and the series also writes the columns of each shard, by
    the names of `name`.
    `bins` is None unless documents are packed.
    """

    def __init__(
        self,
        corpus: str,
        new_path: Callable[[], Path],
        intake: Intake,
        metadata: Mapping[str, Any],
        *,
        name: CorpusName | None = None,
        draft: Path | None = None,
        on_closed: Callable[[Path], object] = lambda _: None,
    ) -> None:
        self._corpus = corpus
        self._new_path, self._draft = new_path, draft
        self._intake = intake
        self._metadata = metadata
        columns = intake.recipe.fields.columns
        self._columns = None
        if columns:
            assert name is not None  # noqa: S101 - `why_no_file` refuses one file
            self._columns = NewColumns(columns, name, on_closed)
        self._on_closed = on_closed
        self._layouts: list[Layout] = []
        self._writer: ShardWriter | None = None
        self._origins: deque[Origin] = deque(maxlen=_MOST_ORIGINS)
        self._num_noted = 0
        self._inputs: InputCounts | None = None
        self.paths: list[Path] = []
        self.num_documents = 0
        unit = intake.recipe.pack
        self.bins = None if unit is None else BinTable(unit)
        self._num_padding = self._num_cut = 0

    @property
    def done(self) -> NewShards:
        """The finished shards."""
        recipe, columns = self._intake.recipe, self._columns
        return NewShards(
            shard_table([path.name for path in self.paths], self._layouts),
            {} if columns is None else columns.tables,
            recipe.stored,
            recipe.kind,
            self.bins,
        )

    @property
    def all_paths(self) -> list[Path]:
        """The finished files: shards, and what lies beside each."""
        columns = self._columns
        return [*self.paths, *(() if columns is None else columns.paths)]

    def write_all(
        self,
        data: Iterable[object],
        ending: Callable[[], Mapping[str, object]] | None = None,
        arrange: Arrange | None = None,
    ) -> None:
        """Write all documents; raise NoDocumentsError if there are none.

        Args:
            data: The documents.
            ending: Returns metadata for the last shard, after the last document. If
                given, the documents are rows with an origin.
            arrange: Returns the documents in the order in which to write them.
        """
        try:
            if self._columns is None and ending is None:
                arrays = self._intake.arrays(_iterator(data))
                rows = (EncodedRow(each, Row(None)) for each in arrays)
            else:
                arrays, rows = None, self._chosen(data, arrange)
            if self.bins is not None:
                self._add_bins(rows, self.bins.unit)
            elif arrays is not None:
                self._add_all(arrays)
            else:
                for row in rows:
                    self._add(row.tokens, row)
                    self.num_documents += 1
            if self._writer is None:
                raise NoDocumentsError(self._corpus)
            if self._inputs is not None:
                self._writer.metadata["input_files"] = self._inputs.record()
            if ending is not None:
                self._writer.metadata |= ending()
            self._close_shard()
        except (DocumentError, DocumentTypeError) as error:
            raise error.of(self._origin_of(error.document)) from error

    def _add_bins(self, rows: Iterator[EncodedRow], unit: int) -> None:
        first = next(rows, None)
        if first is None:
            return
        recipe = self._intake.recipe  # The first document has decided the item type.
        caster = Caster(str(recipe.stored), recipe.vocab_size, recipe.ending)
        padding = np.zeros(unit, stored_dtype(str(recipe.stored)))
        for parts in packed(chain([first], rows), unit, caster):
            self._add_bin(self._writer_with_room(unit, len(parts) + 1), parts, padding)

    def _add_bin(
        self, writer: ShardWriter, parts: Sequence[Part], padding: Tokens
    ) -> None:
        """Write the documents of a bin, then as much of `padding` as it has room for.

        `padding` fills a whole bin.
        """
        room = padding.size
        for part in parts:
            tokens = part.row.tokens
            writer.append(tokens)
            if self._columns is not None:
                self._columns.add(part.row, tokens.size)
            room -= tokens.size
            self._num_cut += part.is_cut
            self.num_documents += 1
        writer.append(padding[:room])
        if self._columns is not None:
            self._columns.add_padding(room)
        self._num_padding += room

    def _add_all(self, arrays: Iterator[Tokens]) -> None:
        # Both loops share one generator, because a second `iter(data)` may start over.
        for document in arrays:
            self._add(document)
            self.num_documents += 1
            limit = self._intake.recipe.max_shard_bytes
            if limit is None and self._writer is not None:
                append = self._writer.append
                for remaining in arrays:  # All go into this shard.
                    append(remaining)
                self.num_documents = self._writer.num_documents
                break

    def _chosen(
        self, data: Iterable[object], arrange: Arrange | None
    ) -> Iterator[EncodedRow]:
        """Yield the documents to write; count them by their input files."""
        rows = self._intake.chosen(_iterator(data))
        for row in rows if arrange is None else arrange([*rows]):
            origin = row.row.origin
            if origin is not None:
                if origin.file is not None:
                    length = row.tokens.size + len(self._intake.recipe.ending)
                    self._inputs = self._inputs or InputCounts()
                    self._inputs.add(origin.file, 1, length, row.row.text_bytes)
                self._origins.append(origin)
                self._num_noted += 1
            yield row

    def _origin_of(self, number: int) -> Origin | None:
        at = number - (self._num_noted - len(self._origins))
        return self._origins[at] if at in range(len(self._origins)) else None

    def abort(self) -> None:
        """Remove the drafts of the unfinished shard and its columns."""
        if self._writer is not None:
            self._writer.abort()
        if self._columns is not None:
            self._columns.abort()

    def _add(self, document: Tokens, row: EncodedRow | None = None) -> None:
        writer = self._writer_with_room(document.size, 1)
        writer.append(document)
        if self._columns is not None and row is not None:
            self._columns.add(row, document.size + writer.separator_length)

    def _writer_with_room(self, num_tokens: int, num_documents: int) -> ShardWriter:
        """Return a shard for documents that must stay together.

        If they are larger than a shard may be, they get a shard of their own.
        """
        writer = self._writer or self._new_shard()
        limit = self._intake.recipe.max_shard_bytes
        if limit is None or not writer.num_documents:
            return writer
        if writer.size_with(num_tokens, num_documents) <= limit:
            return writer
        self._close_shard()
        return self._new_shard()

    def _new_shard(self) -> ShardWriter:
        recipe = self._intake.recipe
        assert recipe.stored is not None  # noqa: S101 - the intake has seen a document
        metadata = {
            **(recipe.metadata or {}),
            **self._metadata,
            "created_by": f"roxxel-format {__version__}",
            **recipe.in_shards,
        }
        path = self._new_path()
        # Assigned at once, so that `abort` removes the draft whatever fails next.
        self._writer = writer = ShardWriter(
            path,
            recipe.stored,
            recipe.ending if self.bins is None else (),  # A bin holds its own.
            block_size=recipe.block_size,
            vocab_size=recipe.vocab_size,
            metadata=metadata,
            first_document=self.num_documents,
            draft=self._draft,
        )
        if self._columns is not None:
            self._columns.begin(path)
        return writer

    def _close_shard(self) -> None:
        writer = self._writer
        assert writer is not None  # noqa: S101 - called with a shard open
        # Record the path first: an interrupt may stop `close` after the rename.
        self.paths.append(writer.path)
        if self.bins is not None:
            counts = {"padding": self._num_padding, "cut": self._num_cut}
            writer.metadata |= {"unit": self.bins.unit, **counts}
            self.bins += BinTable(self.bins.unit, *([each] for each in counts.values()))
            self._num_padding = self._num_cut = 0
        self._layouts.append(writer.close())
        self._writer = None
        self._on_closed(writer.path)
        if self._columns is not None:
            self._columns.close()


def _iterator(data: Iterable[object]) -> Iterator[object]:
    try:
        return iter(data)
    except TypeError as error:
        raise TypeError(
            f"data is a {type(data).__name__}; pass an iterable of documents"
        ) from error
