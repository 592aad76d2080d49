"""Which rows of a batch each process loads.

Without a sharding, processes share a batch evenly. With a sharding, each process loads
the rows that its devices hold.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

from .sharding._layout import make_layout, resolve, rows_only

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .sharding._layout import ShardingLike


@dataclass(frozen=True)
class Rows:
    """The rows of a batch that one process loads.

    Attributes:
        num_rows: Rows of the whole batch.
        spans: Half-open spans of rows that this process loads, in order.
    """

    num_rows: int
    spans: tuple[tuple[int, int], ...]

    def numbers(self, first: int) -> Sequence[int]:
        """Return the numbers of the rows, if the batch's first row is `first`.

        A process without a row loads the first row, to learn the shapes and dtypes of
        its empty batch.
        """
        spans = [range(first + start, first + stop) for start, stop in self.spans]
        if len(spans) == 1:
            return spans[0] or [first]
        return list(chain.from_iterable(spans)) or [first]

    def local(self, span: tuple[int, int]) -> slice:
        """Return the index of a span of the batch in the rows of this process."""
        offset = 0
        for start, stop in self.spans:
            if start <= span[0] and span[1] <= stop:
                return slice(offset + span[0] - start, offset + span[1] - start)
            offset += stop - start
        raise AssertionError(f"rows {span} are not among {self.spans}")


def process_rows(num_rows: int, process_index: int, process_count: int) -> Rows:
    """Return the rows of one process if processes share a batch evenly.

    Shares are contiguous and in process order. In a short batch some processes have
    one row less than others, or none.
    """
    start = num_rows * process_index // process_count
    stop = num_rows * (process_index + 1) // process_count
    return Rows(num_rows, ((start, stop),))


def sharded_rows(num_rows: int, sharding: ShardingLike) -> Rows:
    """Return the rows that the devices of this process hold.

    Raises:
        ValueError: The rows do not divide over the sharding.
    """
    by_rows = rows_only(resolve(sharding, (num_rows,)))
    layout = make_layout((num_rows,), by_rows)
    return Rows(num_rows, tuple(read[0] for read in layout.reads))
