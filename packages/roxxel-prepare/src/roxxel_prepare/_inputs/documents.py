"""Read the documents of input files, in order, each with its origin.

Several units of a write may share a large input, so an origin has the number of its
input among all inputs of the write. A shard's metadata count documents by this number.

Each format is read in order. A format that can be divided also tells its spans beside
its reader, so that each document belongs to one span.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from roxxel_format import ShardError
from roxxel_format.foreign import parse_npy_header

from roxxel_prepare._inputs.formats import (
    BYTE_ORDER_MARK,
    FORMATS,
    HEAD_BYTES,
    format_of_head,
    is_compressed,
    text_of,
)
from roxxel_prepare._inputs.input_file import (
    FormatError,
    InputError,
)
from roxxel_prepare._inputs.input_record import check_unchanged
from roxxel_prepare._inputs.opening import (
    index_beside,
    opened,
    with_head,
)
from roxxel_prepare._inputs.row_documents import (
    array_documents,
    csv_documents,
    json_document,
    tried,
    tsv_documents,
)
from roxxel_prepare._inputs.tables import (
    arrow_documents,
    divided_batches,
    divided_row_groups,
    divided_tokens,
    parquet_documents,
    token_documents,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from roxxel_format.writing import Fields

    from roxxel_prepare._inputs.input_record import Part, Span

_MAX_BAD = 100
_PIECE = 1 << 24
_SKIPPED = 1 << 20
_READ_BY_PARTS = {"parquet", "arrow", "ds"}
"""Formats whose readers read only parts of a file, many bytes at a time."""


@dataclass
class Documents:
    """The documents of some files, in order, each with its origin.

    If a document keeps the path of its file, the path is relative to `folder`. With
    `skips_bad`, damaged documents are left out. If damage makes the rest of a file
    unreadable, the rest is left out too. `num_bad` counts both, and `bad` has the first
    100 errors.
    """

    parts: Sequence[Part]
    fields: Fields
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
            file = part.number, part.facts.name
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
            check_unchanged(part)
            raise
        check_unchanged(part)

    def _tried(self, part: Part) -> Iterator[object]:
        """Yield documents; with `skips_bad`, yield the errors of damaged documents."""
        try:
            yield from documents_in(part, self.fields, yields_errors=self.skips_bad)
        except InputError as error:
            if not self.skips_bad or isinstance(error, FormatError):
                raise
            read = "file" if part.span is None else "part [{}:{}]".format(*part.span)
            yield InputError(f"{error}; what follows in the {read} was left out too")

    def _note(self, error: InputError) -> None:
        self.num_bad += 1
        if len(self.bad) < _MAX_BAD:
            self.bad.append(str(error))


def documents_in(
    part: Part, fields: Fields, *, yields_errors: bool = False
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
            Its form is one of `formats.FORMATS`; unless it was given, the first bytes
            must confirm it. `text`: the file is one document.
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
        yields_errors: Whether to yield the InputError of a single line or row in its
            place, instead of raising it.

    Raises:
        InputError: The file is truncated, damaged, or in another format.
        ModuleNotFoundError: The format needs an extra that is not installed.
        BucketError: An object cannot be read, or was replaced.
        OSError: The file cannot be opened or read.
    """
    path, name, span = part.path, part.form, part.span
    ahead_to = 0 if name in _READ_BY_PARTS else None if span is None else span[1]
    with opened(path, part.version, ahead_to=ahead_to) as opened_file:
        file = opened_file
        if FORMATS[name].is_text and not (span and span[0]):
            head, file = with_head(file, HEAD_BYTES)
            name = format_of_head(path, name, head, is_given=part.is_given)
        if name == "ds":
            yield from token_documents(path, file, index_beside(path), span)
            return
        # Only JSON lines are divided, not an array.
        name = "jsonl" if name == "json" and span else name
        for document in _documents_of(part, file, name, fields):
            if isinstance(document, InputError) and not yields_errors:
                raise document
            yield document


def spans_in(whole: Part, least: int) -> list[Span]:
    """Divide a file into parts of about `least` bytes; return [] to keep it whole.

    Only Parquet, Arrow, `.ds`, and uncompressed lines and JSON lines can be divided.
    """
    path, name, version = whole.path, whole.form, whole.version
    num_bytes = whole.facts.size
    count = num_bytes // max(1, least)
    if count < 2 or is_compressed(path):
        return []
    if name == "json":
        with opened(path, version, ahead_to=0) as file:
            head = file.read(HEAD_BYTES)
        name = format_of_head(path, name, head, is_given=whole.is_given)
    if name == "ds":
        return divided_tokens(path, num_bytes, index_beside(path), least)
    if name in ("parquet", "arrow"):
        divided = divided_row_groups if name == "parquet" else divided_batches
        with opened(path, version, ahead_to=0) as file:
            return divided(path, file, least)
    if name not in ("lines", "jsonl"):
        return []
    ends = [number * num_bytes // count for number in range(count + 1)]
    return list(pairwise(ends))


def _documents_of(
    part: Part, file: BinaryIO, form: str, fields: Fields
) -> Iterator[object]:
    """Yield the documents of an opened file; for a bad one, perhaps an InputError.

    `form` is what its first bytes say. It is not `ds`, whose index is another file.
    """
    path, span = part.path, part.span
    lines = _located_lines(path, file, span)
    rows = (line for _, line in lines)
    match form:
        case "text":
            yield text_of(path, file.read().removeprefix(BYTE_ORDER_MARK))
        case "lines" | "jsonl":
            yield from _line_documents(lines, form, fields)
        case "json":
            yield from array_documents(path, file, fields)
        case "csv":
            yield from csv_documents(path, rows, fields)
        case "tsv":
            yield from tsv_documents(
                path, rows, fields, may_be_quoted=not part.is_given
            )
        case "npy":
            yield from _array_rows(path, file)
        case "parquet":
            yield from parquet_documents(path, file, fields, span)
        case _:
            yield from arrow_documents(path, file, fields, span)


def _line_documents(
    lines: Iterator[tuple[str, bytes]], form: str, fields: Fields
) -> Iterator[object]:
    for where, line in lines:
        if form == "lines":
            yield tried(text_of, where, line.rstrip(b"\r\n"))
        elif line.strip():
            yield tried(json_document, where, line, fields)


def _located_lines(
    path: str, file: BinaryIO, span: Span | None
) -> Iterator[tuple[str, bytes]]:
    """Yield lines and locations: line numbers, or byte offsets in a part of a file.

    A byte order mark before the first line is left out.
    """
    if span is None:
        for number, line in enumerate(file, 1):
            text = line if number > 1 else line.removeprefix(BYTE_ORDER_MARK)
            yield f"{path}:{number}", text
        return
    start, stop = span
    if start:  # The line with byte `start - 1` belongs to an earlier part.
        start -= 1
        file.seek(start)
        rest = b" "
        while rest and rest[-1:] != b"\n" and start < stop:
            rest = file.readline(_SKIPPED)
            start += len(rest)
    while start < stop and (line := file.readline()):
        text = line if start else line.removeprefix(BYTE_ORDER_MARK)
        yield f"{path}: line at byte {start}", text
        start += len(line)


def _array_rows(path: str, file: BinaryIO) -> Iterator[object]:
    try:
        dtype, shape, is_fortran = parse_npy_header(path, file.read)
    except ShardError as error:
        raise InputError(str(error)) from None
    if dtype.kind not in "iuf":
        raise InputError(
            f"{path}: holds {dtype}; an array of tokens holds numbers, so convert it"
        )
    if len(shape) not in (1, 2) or shape[1:] == (0,):
        raise InputError(
            f"{path}: has shape {shape}; save a flat array for one document, or a "
            "table with a document in each row"
        )
    data = _npy_data(path, file, shape, dtype)
    array = np.frombuffer(data, dtype).reshape(shape, order="F" if is_fortran else "C")
    yield from (array,) if array.ndim == 1 else array


def _npy_data(
    path: str, file: BinaryIO, shape: tuple[int, ...], dtype: np.dtype[Any]
) -> bytearray:
    """Read an array in pieces, because a damaged header may declare too many bytes."""
    num_bytes = math.prod(shape) * dtype.itemsize
    data = bytearray()
    # Read one byte more, to detect bytes after the array.
    while piece := file.read(min(_PIECE, num_bytes + 1 - len(data))):
        data += piece
    if len(data) < num_bytes:
        raise InputError(
            f"{path}: has {len(data)} bytes after its header, but shape {shape} of "
            f"{dtype} needs {num_bytes}; the file was probably truncated, so copy it "
            "again or make it again"
        )
    if len(data) > num_bytes:
        raise InputError(
            f"{path}: has bytes after its array of shape {shape}; a .npy file holds "
            "one array, so copy it again or write each array into its own file"
        )
    return data
