"""Choose the documents of one side of a split while they are read."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING

from roxxel_format._spec.dtypes import stored_dtype
from roxxel_format._write.casting import DocumentError, DocumentTypeError
from roxxel_format._write.fields import Row
from roxxel_format._write.intake import joined
from roxxel_format._write.rows import parts_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from roxxel_format._write.fields import Fields
    from roxxel_format._write.intake import Intake, IntakeOfParts
    from roxxel_format._write.options import WriteOptions
    from roxxel_format._write.side import Side


class Sorter:
    """Chooses the documents of one side before they are written, by their tokens.

    A text is encoded to learn its side; its tokens then go on in its place, so that it
    is not encoded again.
    """

    def __init__(self, side: Side, intake: Intake, fields: Fields) -> None:
        self._side = side
        self._intake = intake
        self._fields = fields

    def sorted(
        self, documents: Iterable[object]
    ) -> Iterator[tuple[object, object, bool]]:
        """Yield each document, the same with its texts encoded, and if it is chosen.

        An error in place of a document is not chosen. A document that cannot be
        written is chosen, so that the write names it.
        """
        waiting: deque[object] = deque()  # What the encoder has read ahead.
        parts = self._intake.for_parts(self._fields)
        encoded = parts.intake.encoded(_parts_of_all(documents, waiting))
        for first in encoded:
            document = waiting.popleft()
            if isinstance(document, Exception):
                yield document, document, False
                continue
            found = [first, *(next(encoded) for _ in parts_of(document)[1:])]
            yield document, _with_parts(document, found), self._has(parts, found)

    def _has(self, parts: IntakeOfParts, found: list[object]) -> bool:
        dtype = self._intake.dtype
        try:
            arrays = [parts.intake.items(each) for each in found]
        except (DocumentError, DocumentTypeError):
            return True
        if any(each.ndim != 1 for each in arrays):
            return True
        tokens = joined([parts.before, *arrays, parts.after])
        if dtype is not None and tokens.dtype.kind not in "biu":
            tokens = tokens.astype(stored_dtype(dtype))  # As a reader finds it.
        return self._side.has(tokens)


def sorter_of(options: WriteOptions, intake: Intake) -> Sorter | None:
    """Return what chooses the documents of a write; None to write all of them."""
    if options.side is None:
        return None
    return Sorter(options.side, replace(intake, reads_ahead=True), options.fields)


def _parts_of_all(
    documents: Iterable[object], waiting: deque[object]
) -> Iterator[object]:
    for document in documents:
        waiting.append(document)
        yield from parts_of(document)


def _with_parts(document: object, found: list[object]) -> object:
    if not isinstance(document, Row):
        return found[0]
    if document.prompt is None:
        return replace(document, content=found[0])
    return replace(document, prompt=found[0], content=found[1])
