"""The field `loss_mask`: 0 on withdrawn documents and on masked tokens of a corpus.

A corpus masks tokens by a column `loss_mask`, which has a value for each token.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from roxxel_curriculum._bind.sources import mask_column
from roxxel_curriculum._errors import StateMismatch
from roxxel_curriculum._plan.withdrawn import WithdrawnByStep

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt
    from roxxel_format import TokenReader

    from roxxel_curriculum._plan.solution import Solution


class Masks:
    """The masks of the rows of a run.

    Attributes:
        digests: Digest of each column `loss_mask` in use, by source name.
    """

    def __init__(self, solution: Solution, readers: Sequence[TokenReader]) -> None:
        names = solution.source_names
        found = [mask_column(*each) for each in zip(names, readers, strict=True)]
        columns = {i: column for i, column in enumerate(found) if column is not None}
        self.digests = {names[index]: str(columns[index].digest) for index in columns}
        self._columns = columns
        self._readers = readers
        self._withdrawn = WithdrawnByStep(solution.withdrawals, names)

    def rows(
        self,
        step: int,
        source: npt.NDArray[np.int64],
        starts: npt.NDArray[np.int64],
        length: int,
    ) -> npt.NDArray[np.int32]:
        """Return 1 for each token to learn, else 0; int32, shape `(rows, length)`.

        `source` and `starts` hold the source index and the first token of each row.
        """
        mask = np.ones((source.size, length), np.int32)
        for index, column in self._columns.items():
            rows = np.flatnonzero(source == index)
            if rows.size:
                mask[rows] = column.read(starts[rows], length) != 0
        withdrawn = self._withdrawn.at(step)
        for row in np.flatnonzero(np.isin(source, [*withdrawn])):
            index, start = int(source[row]), int(starts[row])
            spans = self._readers[index].document_spans(start, start + length)
            is_learned = ~withdrawn[index].holds(spans[:, 0])
            mask[row] &= np.repeat(is_learned, spans[:, 2] - spans[:, 1])
        return mask

    def will_need(self, index: int, starts: npt.NDArray[np.int64], length: int) -> None:
        """Hint that windows of a source will be read soon."""
        if index in self._columns:
            self._columns[index].will_need(starts, length)

    def reads_documents(self, step: int, index: int) -> bool:
        """Return whether the masks of a step depend on the documents of a source."""
        return index in self._withdrawn.at(step)


def check_columns(digests: Mapping[str, str], state: Mapping[str, Any]) -> None:
    """Raise `StateMismatch` if the digest of a column differs from a state.

    A run that began without the field `loss_mask` records no column.
    """
    found = [
        f"the column 'loss_mask' of source {source['name']!r} had the digest "
        f"{source['loss_mask']} and now "
        + (f"has {digests[source['name']]}" if source["name"] in digests else "is gone")
        for source in state["sources"]
        if source.get("loss_mask", digests.get(source["name"]))
        != digests.get(source["name"])
    ]
    if found:
        raise StateMismatch(found)
