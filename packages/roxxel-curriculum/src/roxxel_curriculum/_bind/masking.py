"""What the loss leaves out of a step's rows, and how to read these rows.

The loss leaves out a token if its document is withdrawn, if it is in a withdrawn range
of tokens, if it is padding, or if the column `loss_mask` of its corpus is 0 there.
Withdrawn ranges are not read: they may be damaged, and a batch must not depend on
damaged bytes.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import numpy as np
from roxxel_format import ChecksumError
from roxxel_store import roxxel_command

from roxxel_curriculum._bind.reading import by_source
from roxxel_curriculum._bind.sources import mask_column
from roxxel_curriculum._errors import StateMismatch
from roxxel_curriculum._withdrawn import NOTHING, in_force

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt
    from roxxel_format import TokenReader

    from roxxel_curriculum._bind.reading import BatchReader
    from roxxel_curriculum._plan.solution import Solution
    from roxxel_curriculum._withdrawn import Withdrawal

    _Integers = npt.NDArray[np.int64]

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


class Masking:
    """What the loss leaves out of the rows of a run.

    `reads_columns` says whether batches have the field `loss_mask`: only then does a
    run use the columns `loss_mask` of its corpora. If a source had no column when the
    run first read from it, the run never uses one: a column that was written later
    would change past masks.

    Attributes:
        digests: Digest of the column `loss_mask` by source name; None for a source
            without a column. Empty unless the run uses columns.
    """

    def __init__(
        self,
        solution: Solution,
        readers: Sequence[TokenReader],
        reader: BatchReader,
        *,
        reads_columns: bool,
    ) -> None:
        names = solution.source_names
        recorded = solution.declaration.masks
        columns: dict[int, Any] = {}
        self.digests: dict[str, str | None] = {}
        for index, name in enumerate(names if reads_columns else ()):
            began_without = name in recorded and recorded[name] is None
            column = None if began_without else mask_column(name, readers[index])
            if column is not None:
                columns[index] = column
            self.digests[name] = None if column is None else str(column.digest)
        self._columns = columns
        self._names = names
        self._readers = readers
        self._reader = reader
        self._withdrawals = solution.withdrawals
        sources = enumerate(solution.declaration.sources)
        self._padded = {index for index, source in sources if source.num_padding}

    def read(
        self,
        step: int,
        source: _Integers,
        starts: _Integers,
        tokens: npt.NDArray[Any],
    ) -> None:
        """Fill `tokens` with the windows of some rows, and 0 in withdrawn ranges.

        `source` and `starts` hold the index of each row's source and the first token of
        its window.

        Raises:
            ChecksumError: A block is damaged; the message says how to leave it out.
        """
        length = tokens.shape[1]
        try:
            partial = self.partial_rows(step, source, starts, length)
            if not partial.size:
                self._reader.fill(source, starts, tokens)
                return
            whole = np.delete(np.arange(source.size), partial)
            self._reader.fill(source[whole], starts[whole], tokens, whole)
            for row in partial:
                start = int(starts[row])
                stop = start + length
                left_out = self._ranges(step, int(source[row]), start, stop)
                tokens[row] = 0
                # Read the gaps between the ranges: up to each, and after the last.
                at = start
                for range_start, range_stop in [*left_out, (stop, stop)]:
                    if at < range_start:
                        gap = tokens[row : row + 1, at - start : range_start - start]
                        self._reader.fill(source[[row]], np.array([at]), gap)
                    at = range_stop
        except ChecksumError as error:
            remedy = self._remedy(step, error)
            if remedy is None:
                raise
            remedies = f"{error.remedy}; {remedy}"
            raise error.reworded(error.reason, remedies) from error

    def partial_rows(
        self, step: int, source: _Integers, starts: _Integers, length: int
    ) -> _Integers:
        """Return the rows whose windows have withdrawn ranges of tokens."""
        withdrawn = self._withdrawn(step)
        if not withdrawn:
            return np.empty(0, np.int64)
        is_partial = np.zeros(source.size, np.bool_)
        for index, rows in by_source(source):
            if index in withdrawn:
                tokens = withdrawn[index].tokens
                is_partial[rows] = tokens.touches(starts[rows], length)
        return np.flatnonzero(is_partial)

    def mask(
        self,
        step: int,
        source: _Integers,
        starts: _Integers,
        length: int,
    ) -> npt.NDArray[np.int32]:
        """Return 1 for each token to learn, else 0; int32, shape `(rows, length)`."""
        mask = np.ones((source.size, length), np.int32)
        withdrawn = self._withdrawn(step)
        for index, rows in by_source(source):
            if index in self._columns:
                mask[rows] = self._columns[index].read(starts[rows], length) != 0
            left_out = withdrawn[index].documents if index in withdrawn else NOTHING
            if index in self._padded or left_out:
                spans = self._reader.spans(source[rows], starts[rows], length)
                document, sizes = spans.document, spans.stop - spans.start
                is_learned = (document >= 0) & ~left_out.holds(document)
                mask[rows] &= np.repeat(is_learned, sizes).reshape(rows.size, length)
        for row in self.partial_rows(step, source, starts, length):
            index, start = int(source[row]), int(starts[row])
            for first, last in self._ranges(step, index, start, start + length):
                mask[row, first - start : last - start] = 0
        return mask

    def will_need(self, index: int, starts: _Integers, length: int) -> None:
        """Hint that windows of a source will be read soon."""
        if index in self._columns:
            self._columns[index].will_need(starts, length)

    def reads_documents(self, step: int, index: int) -> bool:
        """Return whether the mask of a step depends on the documents of a source."""
        found = self._withdrawn(step).get(index)
        return index in self._padded or bool(found and found.documents)

    def check_columns(self, recorded: Mapping[str, str | None]) -> None:
        """Raise `StateMismatch` if a source now has another column than was recorded.

        `recorded` is what `recorded_masks` returns of a state.
        """
        found = [
            f"the column 'loss_mask' of source {name!r} "
            + ("was absent" if past is None else f"had the digest {past}")
            + " and now "
            + ("is gone" if now is None else f"has the digest {now}")
            for name, past in recorded.items()
            if past != (now := self.digests.get(name))
        ]
        if found:
            raise StateMismatch(found)

    def _withdrawn(self, step: int) -> dict[int, Withdrawal]:
        """Return what is withdrawn in a step, by the index of its source.

        A source that no past step has read may be gone, and its withdrawals with it.
        """
        if not self._withdrawals:
            return {}
        found = in_force(self._withdrawals, step)
        names = enumerate(self._names)
        return {index: found[name] for index, name in names if name in found}

    def _ranges(
        self, step: int, index: int, start: int, stop: int
    ) -> list[tuple[int, int]]:
        """Return the withdrawn ranges of a source's tokens, clipped, in order."""
        found = self._withdrawn(step).get(index)
        return [] if found is None else found.tokens.within(start, stop)

    def _remedy(self, step: int, error: ChecksumError) -> str | None:
        """Describe how to train without a damaged block; None if no source holds it."""
        items: dict[str, str] = {}
        has_more = False
        for index, reader in enumerate(self._readers):
            tokens = reader.damaged_tokens(error)
            if tokens is not None:
                items[self._names[index]] = f'"tokens:[{tokens[0]},{tokens[1]})"'
                has_more |= index in self._withdrawn(step)
        if not items:
            return None
        option = ", ".join(f"{_quoted(n)}: [{item}]" for n, item in items.items())
        lines = ", ".join(
            f"{name if _BARE_KEY.fullmatch(name) else _quoted(name)} = [{item}]"
            for name, item in items.items()
        )
        beside = " beside what is withdrawn already" if has_more else ""
        return (
            "put a copy of the shard in its place (on a disk with "
            f"`{roxxel_command(f'format verify {error.path} --repair COPY')}`), or "
            f"train on without these tokens{beside}: give the curriculum "
            f"without={{{option}}}, or under [without] of a config {lines}"
        )


def _quoted(name: str) -> str:
    return json.dumps(name, ensure_ascii=False)
