"""Count documents, tokens and bytes of text by input file, for a shard's metadata.

A write is divided into units, which are groups of its inputs. Each unit stores its
counts in its last shard. Several units may share a large input, so the counts name an
input by its number among all inputs of the write.
"""

from __future__ import annotations

from dataclasses import dataclass

_MAX_NAMED = 256
"""Maximum number of inputs that a shard names: its metadata has at most 1 MiB."""


@dataclass(slots=True)
class Tally:
    """The counts of one input; `text_bytes` is None for inputs of tokens, not text.

    `where` names the input, or the part of the input, in errors.
    """

    number: int
    name: str
    where: str = ""
    num_documents: int = 0
    num_tokens: int = 0
    text_bytes: int | None = None

    def add(self, num_tokens: int, text_bytes: int | None) -> None:
        """Count a document."""
        self.num_documents += 1
        self.num_tokens += num_tokens
        if text_bytes is not None:
            self.text_bytes = (self.text_bytes or 0) + text_bytes

    def join(self, other: Tally) -> None:
        """Add the counts of another input."""
        self.num_documents += other.num_documents
        self.num_tokens += other.num_tokens
        if other.text_bytes is not None:
            self.text_bytes = (self.text_bytes or 0) + other.text_bytes


def recorded_inputs(tallies: list[Tally]) -> dict[str, object]:
    """Return the counts of inputs that hold documents, as one list for each field.

    With more than `_MAX_NAMED` such inputs, the last row sums those without their own
    row.
    """
    rows = [each for each in tallies if each.num_documents]
    if len(rows) > _MAX_NAMED:
        more = rows[_MAX_NAMED - 1 :]
        joined = Tally(more[0].number, f"and {len(more)} more")
        for each in more:
            joined.join(each)
        rows = [*rows[: _MAX_NAMED - 1], joined]
    return {
        "numbers": [each.number for each in rows],
        "names": [each.name for each in rows],
        "documents": [each.num_documents for each in rows],
        "tokens": [each.num_tokens for each in rows],
        "text_bytes": [each.text_bytes for each in rows],
    }


def text_bytes(document: object) -> int | None:
    """Return the size of the texts of a document; None without a text."""
    parts = getattr(document, "parts", (document,))
    sizes = [_utf8_size(part) for part in parts if isinstance(part, str)]
    return sum(sizes) if sizes else None


def _utf8_size(text: str) -> int:
    # ASCII text, which Python detects at no cost, has one byte per character.
    return len(text) if text.isascii() else len(text.encode(errors="surrogatepass"))
