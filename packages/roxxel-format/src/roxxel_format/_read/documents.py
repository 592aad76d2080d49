"""Documents of a corpus, from the document indexes of its shards."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    from roxxel_format._read.contents import Contents
    from roxxel_format._read.maps import MapCache
    from roxxel_format._read.shard_map import ShardMap


class DocumentIndex:
    """The token ranges of the documents of a corpus.

    Args:
        contents: The corpus.
        shards: The open shards of the corpus.
        checked: Whether to verify the blocks of the index each time they are read.
    """

    __slots__ = ("_checked", "_contents", "_shards")

    def __init__(
        self, contents: Contents, shards: MapCache[ShardMap], *, checked: bool
    ) -> None:
        self._contents = contents
        self._shards = shards
        self._checked = checked

    def range(self, document: int) -> tuple[int, int, int]:
        """Return first token, one past the last, and length of the separator.

        Args:
            document: `0 <= document < num_documents`.
        """
        contents = self._contents
        number = bisect_right(contents.first_own, document) - 1
        local = document - contents.first_own[number] + contents.joined[number]
        shard, first = self._shards[number], contents.bounds[number]
        ends = shard.ends(max(0, local - 1), local + 1, checked=self._checked)
        start = first + (int(ends[0]) if local else 0)
        stop = first + int(ends[-1])
        while self._continues(number, local):
            number, local = number + 1, 0
            shard = self._shards[number]
            (end,) = shard.ends(0, 1, checked=self._checked).tolist()
            stop = contents.bounds[number] + end
        layout = shard.layout
        is_cut_off = layout.last_continues and local == layout.num_documents - 1
        return start, stop, 0 if is_cut_off else layout.head.separator_length

    def spans(self, start: int, stop: int) -> npt.NDArray[np.int64]:
        """Return rows of document, start and stop for the tokens `[start, stop)`."""
        contents = self._contents
        parts: list[npt.NDArray[np.int64]] = []
        at = start
        while at < stop:
            number = contents.shard_of(at)
            first, until = contents.bounds[number], contents.bounds[number + 1]
            until = min(stop, until)
            low, ends = self._shards[number].ends_around(
                at - first, until - first, checked=self._checked
            )
            low += contents.first_own[number] - contents.joined[number]
            rows = span_rows(low, ends + first, at, until)
            is_joined = contents.joined[number]
            if parts and is_joined and rows[0, 0] == parts[-1][-1, 0]:
                parts[-1][-1, 2] = rows[0, 2]
                rows = rows[1:]
            if len(rows):
                parts.append(rows)
            at = until
        return np.concatenate(parts) if parts else np.empty((0, 3), np.int64)

    def _continues(self, number: int, local: int) -> bool:
        """Return whether a document of a shard goes on in the next shard."""
        contents = self._contents
        is_last = local == contents.shards.num_documents[number] - 1
        has_next = number + 1 < len(contents.paths)
        return is_last and has_next and contents.joined[number + 1]


def span_rows(
    first: int, ends: npt.NDArray[np.int64], start: int, stop: int
) -> npt.NDArray[np.int64]:
    """Return rows of document, start and stop, clipped to `[start, stop)`.

    Args:
        first: Number of the document that holds token `start`.
        ends: Ends of the documents from that one to the one that holds `stop - 1`.
        start: First token.
        stop: One past the last token, greater than `start`.

    Returns:
        Shape `(n, 3)`, without rows for documents that have no tokens.
    """
    rows = np.empty((ends.size, 3), np.int64)
    rows[:, 0] = np.arange(first, first + ends.size)
    rows[:, 2] = ends
    rows[-1, 2] = stop
    rows[1:, 1] = rows[:-1, 2]
    rows[0, 1] = start
    return rows[rows[:, 1] < rows[:, 2]]
