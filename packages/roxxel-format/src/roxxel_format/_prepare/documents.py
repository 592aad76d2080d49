"""The documents of some input files, in order, with errors that name the file.

A document of the first Roxxel may be in several shards. So if a separator cuts such
shards into documents, consecutive shards are read together.
"""

from __future__ import annotations

import dataclasses
from bisect import bisect_right
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from itertools import groupby
from typing import TYPE_CHECKING, TypeAlias

from roxxel_format._prepare.input_file import InputError
from roxxel_format._prepare.inputs import documents_in, is_old_shard
from roxxel_format._write.casting import DocumentError, DocumentTypeError
from roxxel_format._write.fields import Row

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Sequence

    from roxxel_format._prepare.unit import Part
    from roxxel_format._write.fields import Fields
    from roxxel_format._write.side import Side

LineOf: TypeAlias = "Callable[[Sequence[str]], Iterable[object]]"
"""Returns the documents of shards of the first Roxxel, which are one line of tokens."""

_MAX_BAD = 100


@dataclass
class Documents:
    """The documents of some files, in order; can be iterated once.

    With `line_of`, consecutive shards of the first Roxxel are one line of tokens, whose
    documents `line_of(paths)` returns. `old_dtype` is the item type of those shards
    that do not record one. `side` chooses documents. `shuffle` is the key of a random
    order; without it, documents are in the order of the files. If it `skips_bad`,
    damaged documents, and files from the damage on, are left out; `num_bad` counts
    these, and `bad` has the errors of the first 100.
    """

    parts: Sequence[Part]
    form: str | None
    fields: Fields
    line_of: LineOf | None = None
    old_dtype: str | None = None
    side: Side | None = None
    shuffle: str | None = None
    skips_bad: bool = False
    bad: list[str] = dataclasses.field(default_factory=list[str], init=False)
    num_bad: int = dataclasses.field(default=0, init=False)
    _order: list[int] | None = dataclasses.field(default=None, init=False)
    # Of each file: its name, and the number of its first document that is yielded.
    _names: list[str] = dataclasses.field(default_factory=list[str], init=False)
    _firsts: list[int] = dataclasses.field(default_factory=list[int], init=False)
    # Of each document that is left out: the number of the next one that is yielded.
    _left_out: list[int] = dataclasses.field(default_factory=list[int], init=False)

    def __iter__(self) -> Iterator[object]:
        if self.shuffle is None:
            return self._in_order()
        documents = [*self._in_order()]

        def key(number: int) -> bytes:
            return blake2b(f"{self.shuffle} {number}".encode()).digest()

        self._order = sorted(range(len(documents)), key=key)
        return (documents[number] for number in self._order)

    def _in_order(self) -> Iterator[object]:
        number = 0
        for parts in self._groups():
            self._firsts.append(number)
            name, span = parts[0].path, parts[0].span
            if len(parts) > 1:
                name += " and the shards after it"
            elif span is not None:
                name += f", part [{span[0]}:{span[1]}]"
            self._names.append(name)
            for document in self._tried(parts):
                if isinstance(document, InputError):
                    self._note(document)
                elif self._is_chosen(document):
                    yield document
                    number += 1
                    continue
                self._left_out.append(number)

    def _is_chosen(self, document: object) -> bool:
        parts = document.parts if isinstance(document, Row) else (document,)
        return self.side is None or self.side.has(*parts)

    def _tried(self, parts: list[Part]) -> Iterator[object]:
        """Yield documents, and if it `skips_bad`, errors in place of documents."""
        if self.line_of is not None and self._is_cut(parts[0]):
            yield from self.line_of([part.path for part in parts])
            return
        (part,) = parts
        try:
            yield from documents_in(
                part.path,
                self.form,
                self.fields,
                self.old_dtype,
                part.span,
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
        """Yield the files one by one, and all shards of one line together."""
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
            at = error.document if self._order is None else self._order[error.document]
            file = bisect_right(self._firsts, at) - 1
            first = self._firsts[file]
            before = bisect_right(self._left_out, at) - bisect_right(
                self._left_out, first - 1
            )
            raise ValueError(
                f"{self._names[file]}: document {at - first + before}{error.problem}"
            ) from error
