"""The lengths of the documents of a corpus, in numbers and as a histogram."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from roxxel_format._read.contents import Contents

_WIDTH = 40


@dataclass(frozen=True, slots=True)
class Lengths:
    """Lengths of documents in tokens, separators included.

    Attributes:
        least: Length of the shortest document; 0 without documents.
        greatest: Length of the longest document.
        mean: Mean length.
        counts: Documents of length 0, 1, 2 to 3, 4 to 7, and so on.
    """

    least: int
    greatest: int
    mean: float
    counts: tuple[int, ...]

    @classmethod
    def of(cls, contents: Contents) -> Lengths:
        """Count the documents of a corpus by their length.

        Raises:
            ShardError: The corpus was replaced, or a document index is damaged.
        """
        counts = np.zeros(65, np.int64)
        least, greatest = None, 0
        for lengths in _lengths(contents):
            # The number of binary digits: frexp is exact below 2**53.
            _, digits = np.frexp(lengths.astype(np.float64))
            counts += np.bincount(digits, minlength=65)
            low = int(lengths.min())
            least = low if least is None else min(low, least)
            greatest = max(greatest, int(lengths.max()))
        mean = contents.num_tokens / max(1, contents.num_documents)
        used = int(np.flatnonzero(counts).max(initial=0)) + 1
        return cls(least or 0, greatest, mean, tuple(counts[:used].tolist()))

    def to_dict(self) -> dict[str, Any]:
        """Return the figures for JSON; histogram rows are `[first, last, count]`."""
        rows = [
            [*_span(digits), count] for digits, count in enumerate(self.counts) if count
        ]
        return {
            "min": self.least,
            "max": self.greatest,
            "mean": self.mean,
            "histogram": rows,
        }

    def lines(self) -> Iterator[str]:
        """Draw the histogram, a line for each doubling of the length."""
        first = next((d for d, count in enumerate(self.counts) if count), 0)
        most = max(self.counts, default=0)
        for digits in range(first, len(self.counts)):
            low, high = _span(digits)
            bar = "#" * -(-self.counts[digits] * _WIDTH // max(1, most))
            span = f"{low}" if low == high else f"{low} to {high}"
            yield f"{span:>24} {self.counts[digits]:>12} {bar}".rstrip()


def _lengths(contents: Contents) -> Iterator[npt.NDArray[np.int64]]:
    """Yield the lengths of the documents; a document that was split counts once."""
    open_length = 0
    joined = [*contents.joined, False]
    for number in range(len(contents.paths)):
        ends = contents.open_shard(number).document_ends
        if not ends.size:
            continue
        lengths = np.diff(ends, prepend=0)
        if joined[number]:
            lengths[0] += open_length
        open_length = 0
        if joined[number + 1]:
            open_length = int(lengths[-1])
            lengths = lengths[:-1]
        if lengths.size:
            yield lengths


def _span(digits: int) -> tuple[int, int]:
    return (0, 0) if digits == 0 else (1 << (digits - 1), (1 << digits) - 1)
