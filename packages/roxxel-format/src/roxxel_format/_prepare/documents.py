"""The documents of some input files, in order, with errors that name the file.

A document of the first Roxxel may be in several shards. So if a separator cuts such
shards into documents, consecutive shards are read together.
"""

from __future__ import annotations

import dataclasses
from bisect import bisect_right
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from roxxel_format._prepare.inputs import documents_in, is_old_shard
from roxxel_format._write.casting import DocumentError, DocumentTypeError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Sequence

    from roxxel_format._prepare.unit import Part


@dataclass
class Documents:
    """The documents of some files, in order; can be iterated once.

    With `line_of`, consecutive shards of the first Roxxel are one line of tokens, whose
    documents `line_of(paths)` returns. `old_dtype` is the item type of those shards
    that do not record one.
    """

    parts: Sequence[Part]
    form: str | None
    field: str
    line_of: Callable[[Sequence[str]], Iterable[object]] | None = None
    old_dtype: str | None = None
    _firsts: list[int] = dataclasses.field(default_factory=list[int], init=False)
    _names: list[str] = dataclasses.field(default_factory=list[str], init=False)

    def __iter__(self) -> Iterator[object]:
        number = 0
        for parts in self._groups():
            self._firsts.append(number)
            name, span = parts[0].path, parts[0].span
            if len(parts) > 1:
                name += " and the shards after it"
            elif span is not None:
                name += f", part [{span[0]}:{span[1]}]"
            self._names.append(name)
            for document in self._documents_in(parts):
                yield document
                number += 1

    def _groups(self) -> Iterator[list[Part]]:
        """Yield the files one by one, and all shards of one line together."""
        for is_line, parts in groupby(self.parts, self._is_cut):
            if is_line:
                yield list(parts)
            else:
                yield from ([part] for part in parts)

    def _is_cut(self, part: Part) -> bool:
        return self.line_of is not None and is_old_shard(part.path, self.form)

    def _documents_in(self, parts: list[Part]) -> Iterable[object]:
        if self.line_of is not None and self._is_cut(parts[0]):
            return self.line_of([part.path for part in parts])
        (part,) = parts
        return documents_in(part.path, self.form, self.field, self.old_dtype, part.span)

    @contextmanager
    def naming_files(self) -> Generator[None]:
        """Convert the error of a document to a ValueError that names the file."""
        try:
            yield
        except (DocumentError, DocumentTypeError) as error:
            file = bisect_right(self._firsts, error.document) - 1
            number = error.document - self._firsts[file]
            raise ValueError(
                f"{self._names[file]}: document {number}{error.problem}"
            ) from error
