"""Count the lengths of a corpus's documents, in memory of fixed size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from roxxel_format._read.spans import is_padding

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from roxxel_format._read.contents import Contents

_WIDTH = 40
"""Number of characters in the longest bar of a histogram."""

_PERCENTILES = (1, 10, 50, 90, 99)
_EXACT = 1 << 20
"""A percentile of this length or more is told as the greatest length."""

_DOCUMENTS_AT_ONCE = 1 << 18
"""Number of documents whose lengths are counted together, in about 20 MB of memory."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """Lengths of documents in tokens, separators included; all 0 if there are none.

    `counts` are the numbers of documents of length 0, 1, 2 to 3, 4 to 7, and so on.
    `percentiles[p]` is the least length that p percent of the documents do not exceed,
    for 1, 10, 50, 90 and 99; above a million tokens it is `greatest`.
    """

    least: int
    greatest: int
    mean: float
    counts: tuple[int, ...]
    percentiles: dict[int, int]

    @classmethod
    def of(cls, contents: Contents) -> Lengths:
        """Count the documents of a corpus by length; reads the whole document index."""
        counts = np.zeros(65, np.int64)
        exact = np.zeros(_EXACT + 1, np.int64)
        least, greatest = None, 0
        for lengths in _lengths(contents):
            # Number of binary digits; frexp is exact below 2**53.
            _, digits = np.frexp(lengths.astype(np.float64))
            counts += np.bincount(digits, minlength=65)
            exact += np.bincount(np.minimum(lengths, _EXACT), minlength=exact.size)
            low = int(lengths.min())
            least = low if least is None else min(low, least)
            greatest = max(greatest, int(lengths.max()))
        num_tokens = contents.num_tokens
        if contents.bins is not None:
            num_tokens -= contents.bins.num_padding
        mean = num_tokens / max(1, contents.num_documents)
        used = int(np.flatnonzero(counts).max(initial=0)) + 1
        return cls(
            least or 0,
            greatest,
            mean,
            tuple(counts[:used].tolist()),
            _percentiles(exact, greatest),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the figures for JSON; histogram rows are `[first, last, count]`."""
        rows = [
            [*_span(digits), count] for digits, count in enumerate(self.counts) if count
        ]
        return {
            "min": self.least,
            "max": self.greatest,
            "mean": self.mean,
            "percentiles": {str(each): at for each, at in self.percentiles.items()},
            "histogram": rows,
        }

    def lines(self) -> Iterator[str]:
        """Yield the histogram as text, one line for each doubling of the length."""
        first = next((d for d, count in enumerate(self.counts) if count), 0)
        most = max(self.counts, default=0)
        for digits in range(first, len(self.counts)):
            low, high = _span(digits)
            bar = "#" * -(-self.counts[digits] * _WIDTH // max(1, most))
            span = f"{low:,}" if low == high else f"{low:,} to {high:,}"
            yield f"{span:>24} {self.counts[digits]:>12,} {bar}".rstrip()


def _percentiles(exact: npt.NDArray[np.int64], greatest: int) -> dict[int, int]:
    """Return lengths by percentile, from the number of documents of each length."""
    totals = np.cumsum(exact)
    found: dict[int, int] = {}
    for percent in _PERCENTILES:
        rank = -(-int(totals[-1]) * percent // 100)
        at = int(np.searchsorted(totals, rank))
        found[percent] = at if at < _EXACT else greatest
    return found


def _lengths(contents: Contents) -> Iterator[npt.NDArray[np.int64]]:
    """Yield arrays of document lengths. Padding has no length."""
    for number in range(len(contents.paths)):
        ends = contents.document_ends(number)
        for at in range(0, ends.size, _DOCUMENTS_AT_ONCE):
            stop = min(at + _DOCUMENTS_AT_ONCE, ends.size)
            part = ends[at:stop]
            lengths = np.diff(part, prepend=ends[at - 1] if at else 0)
            if contents.bins is not None:
                following = int(ends[stop]) if stop < ends.size else -1
                unit = contents.bins.unit
                after = np.append(part[1:], following)
                lengths = lengths[~is_padding(part, after, unit)]
            if lengths.size:
                yield lengths


def _span(digits: int) -> tuple[int, int]:
    return (0, 0) if digits == 0 else (1 << (digits - 1), (1 << digits) - 1)
