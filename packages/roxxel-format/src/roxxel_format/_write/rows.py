"""A document with what its row says of it, before and after it is encoded."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from operator import index
from typing import Any, NamedTuple, SupportsIndex, TypeAlias

import numpy as np

LOSS_MASK = "loss_mask"
Spans: TypeAlias = "tuple[tuple[int, int], ...]"
"""Ranges `[start, stop)`, in order."""

TO_END = sys.maxsize
"""The stop of a span that includes the document's separators."""


class Origin(NamedTuple):
    """Where a document comes from; its text names the document in errors.

    Attributes:
        where: The input file, part of a file, or block.
        number: Number of the document there, from 0.
        file: Number and name of the input file that counts the document; None for none.
    """

    where: str
    number: int
    file: tuple[int, str] | None

    def __str__(self) -> str:
        return f"{self.where}: document {self.number}"


@dataclass(frozen=True, slots=True)
class Row:
    """A document, with its `prompt`, `id` or `path` of its file, if it has them.

    `prompt` is None for documents without a prompt. `origin` is where the document
    comes from, None for a document in memory. `learned` are the characters of a chat
    that the loss counts; None for other documents.
    """

    content: object
    prompt: object = None
    id: str | None = None
    path: str | None = None
    origin: Origin | None = None
    learned: Spans | None = None

    @property
    def parts(self) -> tuple[object, ...]:
        """The parts of the document, in order."""
        return (self.content,) if self.prompt is None else (self.prompt, self.content)

    @property
    def text_bytes(self) -> int | None:
        """Size of the texts in UTF-8; None without a text."""
        sizes = [_utf8_size(part) for part in self.parts if isinstance(part, str)]
        return sum(sizes) if sizes else None


@dataclass(frozen=True, slots=True)
class EncodedRow:
    """A document as tokens, and for which of them, and separators, the loss counts."""

    tokens: np.ndarray[Any, Any]
    row: Row
    learned: Spans = ((0, TO_END),)

    def mask(self, num_tokens: int) -> bytes:
        """Return the loss mask of all tokens, separators included."""
        found = np.zeros(num_tokens, np.uint8)
        for first, last in self.learned:
            found[max(first, 0) : max(last, 0)] = 1
        return found.tobytes()


def parse_id(value: object) -> str:
    """Return an id as text."""
    if isinstance(value, str):
        return value
    if isinstance(value, SupportsIndex) and not isinstance(value, bool):
        return str(index(value))
    raise ValueError(f"id {value!r:.100} is neither a text nor an integer; correct it")


def _utf8_size(text: str) -> int:
    # ASCII text, which Python detects at no cost, has one byte per character.
    return len(text) if text.isascii() else len(text.encode(errors="surrogatepass"))
