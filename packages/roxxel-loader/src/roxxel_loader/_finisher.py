"""Loaded items into a batch: collated, then placed on devices or mapped."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from ._collate import collate
from .sharding._layout import Layout, make_layout, resolve
from .sharding._transfer import place

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from ._process_rows import Rows
    from .sharding._layout import ShardingLike


class Finisher:
    """Makes a batch of items: collated, then placed on devices or else mapped.

    Args:
        collate_items: Makes a batch of a list of items; None stacks their leaves.
        functions: Called with what was collated, one after the other, where there is no
            sharding; placed batches are mapped on the consumer's thread.
        sharding: Where to place batches as global arrays; None leaves them as they are.
    """

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

    def __call__(
        self, step: int, items: Sequence[Any], indices: Sequence[int], rows: Rows
    ) -> Any:
        """Return the batch of a step; an error says in a note which step it met.

        Args:
            step: The step, for errors.
            items: One for each row of this process, or one where it has no row.
            indices: The items' places in the dataset, for errors.
            rows: The rows of the batch that the items are for.
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
