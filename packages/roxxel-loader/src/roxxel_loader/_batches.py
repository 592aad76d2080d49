"""Which items make the batch of a step, and how they become one.

The items of step k follow from k and a few numbers alone, so any step can be made
first, by any thread, and in any process.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from roxxel_curriculum import make_key, permute

from ._collate import collate
from ._gather import Gather, Pace, timed_fetch
from .datasets._dataset import fetch
from .sharding._layout import Layout, make_layout, place, resolve, rows_only

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Executor, Future

    import numpy.typing as npt

    from .datasets import Dataset
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
        """Return the numbers of the rows, the batch's first row being `first`.

        Of a batch without a row here the first is returned all the same: what is made
        of it has the shapes and dtypes of an empty batch.
        """
        spans = [range(first + start, first + stop) for start, stop in self.spans]
        if len(spans) == 1:
            return spans[0] or [first]
        return list(chain.from_iterable(spans)) or [first]

    def local(self, span: tuple[int, int]) -> slice:
        """Return where a span of the batch lies among the rows of this process."""
        offset = 0
        for start, stop in self.spans:
            if start <= span[0] and span[1] <= stop:
                return slice(offset + span[0] - start, offset + span[1] - start)
            offset += stop - start
        raise AssertionError(f"rows {span} are not among {self.spans}")


def process_rows(num_rows: int, process_index: int, process_count: int) -> Rows:
    """Return the rows of one process where processes share a batch evenly.

    Shares are contiguous and follow the order of the processes. Of a short batch some
    processes may get a row less than others, or none.
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


class Batches:
    """Batches of an indexed dataset as a function of the step."""

    def __init__(
        self,
        dataset: Dataset[Any],
        batch_size: int,
        *,
        drop_last: bool,
        shuffle: bool,
        seed: int,
        finish: Callable[[Sequence[Any], Sequence[int], Rows], Any],
        rows_of: Callable[[int], Rows],
    ) -> None:
        self._dataset = dataset
        self._batch_size = batch_size
        self._num_items = len(dataset)
        whole, rest = divmod(self._num_items, batch_size)
        self.steps_per_epoch = whole + (1 if rest and not drop_last else 0)
        self._shuffle = shuffle
        self._seed = seed
        self._finish = finish
        self._rows_of = rows_of
        self._rows: dict[int, Rows] = {}
        self._pace = Pace()

    def check(self) -> None:
        """Find out before the first step whether each size of batch can be divided.

        Raises:
            ValueError: One cannot; the note names the step.
        """
        for step in sorted({0, self.steps_per_epoch - 1}):
            try:
                self.rows(self.num_rows(step))
            except ValueError as error:
                error.add_note(
                    f"the batch of step {step} has {self.num_rows(step)} rows; "
                    "drop_last=True leaves out a short one"
                )
                raise

    def num_rows(self, step: int) -> int:
        """Return the rows of a step's whole batch."""
        first = step % self.steps_per_epoch * self._batch_size
        return min(self._batch_size, self._num_items - first)

    def rows(self, num_rows: int) -> Rows:
        """Return which rows of a batch of `num_rows` this process loads."""
        rows = self._rows.get(num_rows)
        if rows is None:
            rows = self._rows[num_rows] = self._rows_of(num_rows)
        return rows

    def make(self, step: int) -> Any:
        """Return the batch of a step, made on this thread."""
        indices, rows = self.items(step)
        return self.finish(step, fetch(self._dataset, indices), indices, rows)

    def items(self, step: int) -> tuple[Sequence[int], Rows]:
        """Return the indices of the items of this process's rows, and the rows."""
        epoch, place = divmod(step, self.steps_per_epoch)
        rows = self.rows(self.num_rows(step))
        indices = rows.numbers(place * self._batch_size)
        if self._shuffle:
            key = make_key("epoch", self._seed, epoch)
            places = np.fromiter(indices, np.int64, len(indices))
            indices = permute(places, self._num_items, key).tolist()
        return indices, rows

    def finish(
        self, step: int, items: Sequence[Any], indices: Sequence[int], rows: Rows
    ) -> Any:
        """Return the batch made of loaded items."""
        try:
            return self._finish(items, indices, rows)
        except Exception as error:
            error.add_note(f"while making the batch of step {step}")
            raise

    def submit(self, step: int, executor: Executor, workers: int) -> Future[Any]:
        """Have the items of a step loaded by workers, in chunks."""
        indices, rows = self.items(step)
        chunks = self._pace.chunks(indices, workers)
        gather = Gather(step, self._pace)
        gather.begin(
            executor,
            chunks,
            lambda number: (timed_fetch, self._dataset, chunks[number]),
            lambda items: self.finish(step, items, indices, rows),
        )
        return gather


class Finisher:
    """Makes a batch of items: collated, then mapped, or placed on devices."""

    def __init__(
        self,
        collate_items: Callable[[Sequence[Any]], Any] | None,
        functions: Sequence[Callable[[Any], Any]],
        sharding: ShardingLike,
    ) -> None:
        self._collate = collate_items
        self._functions = functions
        self._sharding = sharding
        self._layouts: dict[tuple[int, ...], Layout] = {}

    def __call__(self, items: Sequence[Any], indices: Sequence[int], rows: Rows) -> Any:
        batch = (
            collate(items, indices) if self._collate is None else self._collate(items)
        )
        if not any(stop > start for start, stop in rows.spans):
            batch = jax.tree.map(_without_rows, batch)
        if self._sharding is not None:
            return self._place(batch, rows)
        for function in self._functions:
            batch = function(batch)
        return batch

    def _place(self, batch: Any, rows: Rows) -> Any:
        leaves, tree = jax.tree_util.tree_flatten_with_path(batch)
        placed = [
            self._place_leaf(
                np.asarray(leaf), rows, f"batch{jax.tree_util.keystr(path)}"
            )
            for path, leaf in leaves
        ]
        return jax.tree_util.tree_unflatten(tree, placed)

    def _place_leaf(self, local: npt.NDArray[Any], rows: Rows, name: str) -> jax.Array:
        shape = (rows.num_rows, *local.shape[1:])
        layout = self._layouts.get(shape)
        if layout is None:
            layout = make_layout(shape, resolve(self._sharding, shape))
            self._layouts[shape] = layout
        parts = [
            local[(rows.local(read[0]), *(slice(*span) for span in read[1:]))]
            for read in layout.reads
        ]
        return place(layout, parts, name)


def _without_rows(leaf: Any) -> Any:
    if not isinstance(leaf, np.ndarray | jax.Array) or leaf.ndim == 0:
        raise TypeError(
            f"collate gave a {type(leaf).__name__}, of which no empty batch can be "
            "made for a process without a row of this short one; give arrays, or pass "
            "drop_last=True"
        )
    return leaf[:0]
