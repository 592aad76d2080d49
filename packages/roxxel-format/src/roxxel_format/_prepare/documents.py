"""The documents of some input files, in order, with errors that name the file.

The first Roxxel, an older library of this name, did not record where documents end, and
a document may be in several shards. So if a separator divides such shards into
documents, consecutive shards are read together.
"""

from __future__ import annotations

import dataclasses
from bisect import bisect_right
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from itertools import groupby
from typing import TYPE_CHECKING, TypeAlias

from roxxel_format._prepare.formats import (
    FORMATS,
    HEAD_BYTES,
    format_of,
    format_of_head,
)
from roxxel_format._prepare.input_file import InputError, with_head
from roxxel_format._prepare.input_tally import Tally, recorded_inputs
from roxxel_format._prepare.inputs import (
    READ_BY_PARTS,
    documents_of,
    is_old_shard,
    old_items,
)
from roxxel_format._prepare.opening import ends_beside, opened
from roxxel_format._prepare.tables import token_documents
from roxxel_format._write.casting import DocumentError, DocumentTypeError
from roxxel_format._write.input_record import check_unchanged, file_name
from roxxel_format._write.recorded_documents import RecordedDocuments
from roxxel_format._write.rows import parts_of

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Sequence

    from roxxel_format._prepare.unit import Part
    from roxxel_format._write.fields import Fields
    from roxxel_format._write.sorting import Sorter

LineOf: TypeAlias = "Callable[[Sequence[str]], Iterable[object]]"
"""Returns the documents of consecutive shards of the first Roxxel, from their paths."""

_MAX_BAD = 100


@dataclass
class Documents(RecordedDocuments):
    """The documents of some files, in order; can be iterated once.

    With `line_of`, consecutive shards of the first Roxxel are read together, and
    `line_of(paths)` returns their documents. `old_dtype` is the item type of those
    shards that do not record one. `sorter` chooses documents. `shuffle` is the key of a
    random order; without it, documents are in the order of the files. If a document
    keeps the path of its file, the path is relative to `folder`. With `skips_bad`,
    damaged documents are left out, and so is the rest of a file that damage makes
    unreadable. `num_bad` counts both, and `bad` has the first 100 errors.
    """

    parts: Sequence[Part]
    form: str | None
    fields: Fields
    line_of: LineOf | None = None
    old_dtype: str | None = None
    sorter: Sorter | None = None
    shuffle: str | None = None
    skips_bad: bool = False
    folder: str = ""
    bad: list[str] = dataclasses.field(default_factory=list[str], init=False)
    num_bad: int = dataclasses.field(default=0, init=False)
    _order: list[int] | None = dataclasses.field(default=None, init=False)
    # For each file: its name, its counts, and the number of its first document.
    # Numbers count the documents that were yielded.
    _names: list[str] = dataclasses.field(default_factory=list[str], init=False)
    _tallies: list[Tally] = dataclasses.field(default_factory=list[Tally], init=False)
    _firsts: list[int] = dataclasses.field(default_factory=list[int], init=False)
    # For each document that is left out: the number of the next document that is
    # yielded.
    _left_out: list[int] = dataclasses.field(default_factory=list[int], init=False)

    def __iter__(self) -> Iterator[object]:
        if self.shuffle is None:
            return self._in_order()
        documents = [*self._in_order()]

        def key(number: int) -> bytes:
            return blake2b(f"{self.shuffle} {number}".encode()).digest()

        self._order = sorted(range(len(documents)), key=key)
        return (documents[number] for number in self._order)

    def note(self, number: int, num_tokens: int) -> None:
        """Count the tokens of a document for its input."""
        file, _ = self._file_of(number)
        self._tallies[file].num_tokens += num_tokens

    def metadata(self) -> dict[str, object]:
        """Return the counts of each input, and what was skipped."""
        found: dict[str, object] = {"input_files": recorded_inputs(self._tallies)}
        if self.num_bad:
            found["skipped"] = {"number": self.num_bad, "errors": self.bad}
        return found

    def _file_of(self, number: int) -> tuple[int, int]:
        """Return a document's file, and the document's number in file order.

        `number` is the document's number in the order in which documents are yielded.
        """
        at = number if self._order is None else self._order[number]
        return bisect_right(self._firsts, at) - 1, at

    def _in_order(self) -> Iterator[object]:
        number = 0
        for parts in self._groups():
            self._firsts.append(number)
            name, span = parts[0].path, parts[0].span
            path = name.removeprefix(self.folder)
            if len(parts) > 1:
                name += " and the shards after it"
            elif span is not None:
                name += f", part [{span[0]}:{span[1]}]"
            self._names.append(name)
            tally = Tally(parts[0].number, file_name(parts[0].path))
            if len(parts) > 1:
                tally.name = f"{tally.name} and the shards after it"
            self._tallies.append(tally)
            for document, encoded, is_chosen in self._sorted(self._checked(parts)):
                if is_chosen:
                    for each in parts_of(document):
                        tally.add(each)
                    tally.num_documents += 1
                    yield self.fields.with_path(encoded, path)
                    number += 1
                    continue
                if isinstance(document, InputError):
                    self._note(document)
                self._left_out.append(number)

    def _sorted(
        self, documents: Iterator[object]
    ) -> Iterator[tuple[object, object, bool]]:
        """Yield each document, the same as it goes on, and whether it is chosen."""
        if self.sorter is not None:
            return self.sorter.sorted(documents)
        return ((each, each, not isinstance(each, InputError)) for each in documents)

    def _checked(self, parts: list[Part]) -> Iterator[object]:
        """Yield documents; raise OSError if their files changed since they were listed.

        A file that changes while it is read may look damaged, or give a document twice.
        """
        try:
            yield from self._tried(parts)
        except ValueError:
            self._check_unchanged(parts)
            raise
        self._check_unchanged(parts)

    def _check_unchanged(self, parts: list[Part]) -> None:
        for part in parts:
            if part.recorded is not None:
                check_unchanged(part.path, self.form, part.recorded)

    def _tried(self, parts: list[Part]) -> Iterator[object]:
        """Yield documents; with `skips_bad`, yield the errors of damaged documents."""
        if self.line_of is not None and self._is_cut(parts[0]):
            yield from self.line_of([part.path for part in parts])
            return
        (part,) = parts
        try:
            yield from documents_in(
                part,
                self.form,
                self.fields,
                self.old_dtype,
                yields_errors=self.skips_bad,
            )
        except InputError as error:
            if not self.skips_bad:
                raise
            yield error

    def _note(self, error: InputError) -> None:
        self.num_bad += 1
        if len(self.bad) < _MAX_BAD:
            self.bad.append(str(error).partition("; ")[0])

    def _groups(self) -> Iterator[list[Part]]:
        """Yield lists of files: shards that `line_of` joins, or a single other file."""
        for is_line, parts in groupby(self.parts, self._is_cut):
            if is_line:
                yield list(parts)
            else:
                yield from ([part] for part in parts)

    def _is_cut(self, part: Part) -> bool:
        return self.line_of is not None and is_old_shard(part.path, self.form)

    @contextmanager
    def naming_files(self) -> Generator[None]:
        """Convert the error of a document to a ValueError that names the file."""
        try:
            yield
        except (DocumentError, DocumentTypeError) as error:
            file, at = self._file_of(error.document)
            first = self._firsts[file]
            before = bisect_right(self._left_out, at) - bisect_right(
                self._left_out, first - 1
            )
            raise ValueError(
                f"{self._names[file]}: document {at - first + before}{error.problem}"
            ) from error


def documents_in(
    part: Part,
    form: str | None,
    fields: Fields,
    old_dtype: str | None = None,
    *,
    yields_errors: bool = False,
) -> Iterator[object]:
    """Yield the documents of one file, or of a part of the file.

    Errors name the file and, if known, the line, row or byte. A truncated file raises
    InputError, with one exception: uncompressed `text` and `lines` that end after a
    whole character, and `jsonl` that ends after a whole line, look complete.

    Args:
        part: The file, or the URL of an object; the path `-` is the standard input. It
            is decompressed if its name says that it is compressed. A span selects the
            lines that begin in the bytes `[start, stop)` of an uncompressed file, row
            groups of `parquet`, record batches of `arrow`, or documents of `ds`.
        form: One of `formats.FORMATS`. `text`: the file is one document. `lines`: each
            line is a document. `jsonl`: each line is a JSON string, a list of tokens,
            or an object with one of these in each of `fields`. `json`: the same, or an
            array of such values. `csv` and `tsv`: each row after the first, which names
            the columns, is a document, with a text in each of the columns `fields`.
            `npy`: a flat array is one document; each row of a 2-D array is a document.
            `parquet` and `arrow`: each row is a document, with a text or a list of
            tokens in each of the columns `fields`. `ds`: tokens of datatrove, with
            `.index` beside the file. `roxxel02`: a shard of the first Roxxel is one
            document. None: the format of the name, which the first bytes must confirm.
        fields: The keys of a document in JSON objects, or the names of its columns.
        old_dtype: Item type of shards of the first Roxxel that do not record one.
        yields_errors: Yield the InputError of a single line or row in its place,
            instead of raising it.

    Raises:
        InputError: The file is truncated, damaged, or not in the expected format.
        ModuleNotFoundError: The format needs an extra that is not installed.
        BucketError: An object cannot be read, or was replaced.
        OSError: The file cannot be opened or read.
    """
    path, span = part.path, part.span
    name = format_of(path, form)
    ahead_to = 0 if name in READ_BY_PARTS else None if span is None else span[1]
    with opened(path, part.version, ahead_to=ahead_to) as opened_file:
        file = opened_file
        if FORMATS[name].is_text and not (span and span[0]):
            head, file = with_head(file, HEAD_BYTES)
            name = format_of_head(path, name, head, is_given=form is not None)
        if name == "roxxel02":
            yield old_items(path, file.read(), old_dtype)
        elif name == "ds":
            yield from token_documents(path, file, ends_beside(path), span)
        else:
            # Only JSON lines are divided, not an array.
            name = "jsonl" if name == "json" and span else name
            for document in documents_of(path, file, name, fields, span):
                if isinstance(document, InputError) and not yields_errors:
                    raise document
                yield document
