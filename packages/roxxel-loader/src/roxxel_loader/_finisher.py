"""Batches of loaded items: collated, then mapped or made global arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from ._collate import collate
from .sharding._global_arrays import to_global_array
from .sharding._layout import Layouts

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ._process_rows import Rows
    from .sharding._layout import ShardingLike


class Finisher:
    """Makes a batch of items.

    Args:
        collate_items: Makes a batch of a list of items; None stacks their leaves.
        functions: Applied to each batch in order if there is no sharding. With a
            sharding the consumer's thread applies them.
        sharding: Sharding of the global arrays; None keeps the collated values.
    """

    def __init__(
        self,
        collate_items: Callable[[Sequence[Any]], Any] | None,
        functions: Sequence[Callable[[Any], Any]],
        sharding: ShardingLike,
    ) -> None:
        self._collate = collate_items
        self._functions = functions
        self._layouts = None if sharding is None else Layouts(sharding)

    def __call__(
        self, step: int, items: Sequence[Any], indices: Sequence[int], rows: Rows
    ) -> Any:
        """Return the batch of a step; a note of each error names the step.

        Args:
            step: The step, for errors.
            items: One per row of this process, or a single one if it has no row.
            indices: Indices of the items in the dataset, for errors.
            rows: The rows of the batch that this process loads.
        """
        try:
            return self._made(items, indices, rows)
        except Exception as error:
            error.add_note(f"while making the batch of step {step}")
            raise

    def _made(self, items: Sequence[Any], indices: Sequence[int], rows: Rows) -> Any:
        batch = (
            collate(items, indices) if self._collate is None else self._collate(items)
        )
        if not any(stop > start for start, stop in rows.spans):
            batch = jax.tree.map(_without_rows, batch)
        if self._layouts is not None:
            return self._to_global(self._layouts, batch, rows)
        for function in self._functions:
            batch = function(batch)
        return batch

    def _to_global(self, layouts: Layouts, batch: Any, rows: Rows) -> Any:
        leaves, tree = jax.tree_util.tree_flatten_with_path(batch)
        arrays: list[jax.Array] = []
        for path, leaf in leaves:
            local = np.asarray(leaf)
            layout = layouts.of((rows.num_rows, *local.shape[1:]))
            parts = [
                local[(rows.local(read[0]), *(slice(*span) for span in read[1:]))]
                for read in layout.reads
            ]
            name = f"batch{jax.tree_util.keystr(path)}"
            arrays.append(to_global_array(layout, parts, name))
        return jax.tree_util.tree_unflatten(tree, arrays)


def _without_rows(leaf: Any) -> Any:
    if not isinstance(leaf, np.ndarray | jax.Array) or leaf.ndim == 0:
        raise TypeError(
            f"collate returned a {type(leaf).__name__}, which has no empty form for a "
            "process without a row of this short batch; return arrays, or pass "
            "drop_last=True"
        )
    return leaf[:0]
