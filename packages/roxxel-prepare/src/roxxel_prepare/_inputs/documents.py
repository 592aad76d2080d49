"""The documents of some input files, in order, each with its origin.

Several units of a write may share a large input, so an origin has the number of its
input among all inputs of the write. A shard's metadata count documents by this number.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

from roxxel_prepare._inputs.formats import (
    FORMATS,
    HEAD_BYTES,
    format_of_head,
)
from roxxel_prepare._inputs.input_file import InputError
from roxxel_prepare._inputs.input_record import check_unchanged, file_name
from roxxel_prepare._inputs.inputs import (
    READ_BY_PARTS,
    documents_of,
)
from roxxel_prepare._inputs.opening import (
    index_beside,
    opened,
    with_head,
)
from roxxel_prepare._inputs.tables import token_documents

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from roxxel_format.writing import Fields

    from roxxel_prepare._inputs.input_record import Part

_MAX_BAD = 100


@dataclass
class Documents:
    """The documents of some files, in order, each with its origin.

    `is_given` says whether the user named the format of the files. If a document keeps
    the path of its file, the path is relative to `folder`. With `skips_bad`, damaged
    documents are left out. If damage makes the rest of a file unreadable, the rest is
    left out too. `num_bad` counts both, and `bad` has the first 100 errors.
    """

    parts: Sequence[Part]
    fields: Fields
    is_given: bool = False
    skips_bad: bool = False
    folder: str = ""
    bad: list[str] = dataclasses.field(default_factory=list[str], init=False)
    num_bad: int = dataclasses.field(default=0, init=False)

    def metadata(self) -> dict[str, object]:
        """Return what was skipped."""
        if not self.num_bad:
            return {}
        return {"skipped": {"number": self.num_bad, "errors": self.bad}}

    def __iter__(self) -> Iterator[object]:
        for part in self.parts:
            where, span = part.path, part.span
            path = where.removeprefix(self.folder)
            file = part.number, file_name(part.path)
            if span is not None:
                where += f", part [{span[0]}:{span[1]}]"
            for number, document in enumerate(self._checked(part)):
                if isinstance(document, InputError):
                    self._note(document)
                    continue
                yield self.fields.row(document, where, number, file=file, path=path)

    def _checked(self, part: Part) -> Iterator[object]:
        """Yield documents; raise OSError if the file changed since it was listed.

        A file that changes while it is read may look damaged, or give a document twice.
        """
        try:
            yield from self._tried(part)
        except ValueError:
            self._check_unchanged(part)
            raise
        self._check_unchanged(part)

    def _check_unchanged(self, part: Part) -> None:
        if part.recorded is not None:
            check_unchanged(part.path, part.form, part.recorded)

    def _tried(self, part: Part) -> Iterator[object]:
        """Yield documents; with `skips_bad`, yield the errors of damaged documents."""
        try:
            yield from documents_in(
                part,
                self.fields,
                is_given=self.is_given,
                yields_errors=self.skips_bad,
            )
        except InputError as error:
            if not self.skips_bad:
                raise
            yield error

    def _note(self, error: InputError) -> None:
        self.num_bad += 1
        if len(self.bad) < _MAX_BAD:
            self.bad.append(str(error))


def documents_in(
    part: Part,
    fields: Fields,
    *,
    is_given: bool = False,
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
            Its form is one of `formats.FORMATS`. `text`: the file is one document.
            `lines`: each line is a document. `jsonl`: each line is a JSON string, a
            list of tokens, or an object whose `fields` hold one of these. `json`: as
            `jsonl`, or an array of such values. `csv` and `tsv`: each row after the
            first, which names the columns, is a document, with a text in each of the
            columns `fields`; a `tsv` that looks like CSV with tabs is refused unless
            the form is given. `npy`: a flat array is one document; each row of a 2-D
            array is a document. `parquet` and `arrow`: each row is a document, with a
            text or a list of tokens in each of the columns `fields`. `ds`: tokens of
            datatrove, with `.index` beside the file.
        fields: The keys of a document in JSON objects, or the names of its columns.
        is_given: Whether the user named the form. Otherwise the name says it, and the
            first bytes must confirm it.
        yields_errors: Whether to yield the InputError of a single line or row in its
            place, instead of raising it.

    Raises:
        InputError: The file is truncated, damaged, or in another format.
        ModuleNotFoundError: The format needs an extra that is not installed.
        BucketError: An object cannot be read, or was replaced.
        OSError: The file cannot be opened or read.
    """
    path, name, span = part.path, part.form, part.span
    ahead_to = 0 if name in READ_BY_PARTS else None if span is None else span[1]
    with opened(path, part.version, ahead_to=ahead_to) as opened_file:
        file = opened_file
        if FORMATS[name].is_text and not (span and span[0]):
            head, file = with_head(file, HEAD_BYTES)
            name = format_of_head(path, name, head, is_given=is_given)
        if name == "ds":
            yield from token_documents(path, file, index_beside(path), span)
            return
        # Only JSON lines are divided, not an array.
        name = "jsonl" if name == "json" and span else name
        for document in documents_of(path, file, name, fields, span, is_given=is_given):
            if isinstance(document, InputError) and not yields_errors:
                raise document
            yield document
