"""Which rows of a batch this process loads, and how items become a batch.

Without a sharding, processes split the rows of a batch evenly. With a sharding, each
process loads the rows that its devices hold.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from numbers import Number
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from roxxel_loader.sharding._global_arrays import (
    HostLeaf,
    first_axes,
    host_batch,
    make_layout,
    resolve,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from roxxel_loader.sharding._global_arrays import Box, HostBatch, ShardingLike


@dataclass(frozen=True)
class Rows:
    """The rows that one process loads from a global batch of `num_rows` rows.

    Each span is a half-open range of row indices.
    """

    num_rows: int
    spans: tuple[tuple[int, int], ...]

    @property
    def num_local(self) -> int:
        """Number of rows that this process loads."""
        return sum(stop - start for start, stop in self.spans)

    def indices(self, first: int) -> Sequence[int]:
        """Return the item index of each row; `first` is the item index of row 0.

        A process without rows loads the item of row 0, because its empty batch needs
        the shapes and dtypes of an item.
        """
        spans = [range(first + start, first + stop) for start, stop in self.spans]
        if len(spans) == 1:
            return spans[0] or [first]
        return list(chain.from_iterable(spans)) or [first]


class Loaded(NamedTuple):
    """The items of one process's rows, and their indices in the dataset.

    A process without rows has one item, which gives shapes and dtypes.
    """

    items: list[Any]
    indices: Sequence[int]
    rows: Rows


def process_rows(num_rows: int, process_index: int, process_count: int) -> Rows:
    """Return the contiguous rows of a process; counts differ by at most one row."""
    start = num_rows * process_index // process_count
    stop = num_rows * (process_index + 1) // process_count
    return Rows(num_rows, ((start, stop),))


def sharded_rows(num_rows: int, sharding: ShardingLike) -> Rows:
    """Return the rows that the devices of this process hold."""
    by_rows = first_axes(resolve(sharding, (num_rows,)), 1)
    layout = make_layout((num_rows,), by_rows)
    return Rows(num_rows, tuple(part[0] for part in layout.parts))


def local_batch(
    loaded: Loaded, collate_items: Callable[[list[Any]], Any] | None
) -> Any:
    """Collate the items of this process; with `collate_items=None`, stack leaves."""
    items, indices, rows = loaded
    batch = collate(items, indices) if collate_items is None else collate_items(items)
    return batch if rows.num_local else jax.tree.map(_without_rows, batch)


def as_host_batch(batch: Any, rows: Rows) -> HostBatch:
    """Return the leaves of `batch`, placed at `rows` of the global batch."""

    def to_leaf(name: str, values: list[npt.NDArray[Any]]) -> HostLeaf:
        (local,) = values
        if local.shape[:1] != (rows.num_local,):
            raise ValueError(
                f"{name}: collate returned an array of shape {local.shape} for "
                f"{rows.num_local} items; with a sharding, return one row per item"
            )
        tail = local.shape[1:]
        pieces: list[tuple[Box, npt.NDArray[Any]]] = []
        offset = 0
        for start, stop in rows.spans:
            box = ((start, stop), *((0, size) for size in tail))
            pieces.append((box, local[offset : offset + stop - start]))
            offset += stop - start
        return HostLeaf(name, (rows.num_rows, *tail), pieces)

    return host_batch("batch", [batch], to_leaf)


def collate(items: Sequence[Any], indices: Sequence[int] | None = None) -> Any:
    """Stack pytrees of one structure into arrays of shape `(len(items), *leaf shape)`.

    Lists and tuples are pytrees, as in JAX: items that are lists of numbers become a
    list of arrays. Strings and bytes become arrays of dtype object. Python numbers
    become int64, float64, complex128 or bool; numpy numbers keep their dtype. None in
    an item is an error. Errors name an item by its index in the dataset, from
    `indices`.
    """
    first = items[0]
    if isinstance(first, np.ndarray | Number | str | bytes):
        for position, item in enumerate(items):
            if item is None:
                _check_not_none(item, indices, position)
        return _stack(items, indices, "")
    _check_not_none(first, indices, 0)
    paths, tree = jax.tree_util.tree_flatten_with_path(first)
    rows = [jax.tree_util.tree_flatten(item) for item in items]
    for position, (_, other) in enumerate(rows):
        if other != tree:
            _check_not_none(items[position], indices, position)
            raise ValueError(
                f"{_name(indices, position)} has the pytree structure {other} but "
                f"{_name(indices, 0)} has {tree}; give all items one structure or pass "
                "collate="
            )
    columns = zip(*(leaves for leaves, _ in rows), strict=True)
    stacked = [
        _stack(column, indices, jax.tree_util.keystr(path))
        for (path, _), column in zip(paths, columns, strict=True)
    ]
    return jax.tree_util.tree_unflatten(tree, stacked)


def _check_not_none(item: Any, indices: Sequence[int] | None, position: int) -> None:
    """Raise a TypeError if the item is None or has a None in it.

    JAX treats None as an empty pytree, so None would stay None in the batch.
    """
    leaves = jax.tree_util.tree_leaves_with_path(item, is_leaf=lambda x: x is None)
    for path, leaf in leaves:
        if leaf is None:
            raise TypeError(
                f"{_name(indices, position)}{jax.tree_util.keystr(path)} is None, "
                "which no array can hold; drop such items with .filter(...), replace "
                "None in .map(...), or pass collate="
            )


def _stack(
    leaves: Sequence[Any], indices: Sequence[int] | None, path: str
) -> npt.NDArray[Any]:
    types = set(map(type, leaves))
    sorts = set(map(_sort, types))
    if sorts == {"text"}:
        texts = np.empty(len(leaves), object)
        texts[:] = leaves
        return texts
    if sorts == {"array"}:
        if any(issubclass(kind, jax.Array) for kind in types):
            leaves = [np.asarray(leaf) for leaf in leaves]
        return _stack_arrays(leaves, indices, path)
    first = type(leaves[0])
    if _sort(first) is None:
        raise TypeError(
            f"{_name(indices, 0)}{path} is of type {first.__name__}, which "
            "does not stack; convert it to an array, a number or a string, or pass "
            "collate="
        )
    position, other = next(
        (position, kind)
        for position, kind in enumerate(map(type, leaves))
        if _sort(kind) != _sort(first)
    )
    raise TypeError(
        f"{_name(indices, position)}{path} is of type {other.__name__}, "
        f"which does not stack with {_name(indices, 0)}{path} of type "
        f"{first.__name__}; give all items one type or pass collate="
    )


def _sort(kind: type) -> str | None:
    """Return "text" or "array"; None if leaves of this type cannot be stacked."""
    if issubclass(kind, str | bytes):
        return "text"
    is_number = issubclass(kind, np.ndarray | jax.Array | Number | np.bool_)
    return "array" if is_number else None


def _stack_arrays(
    arrays: Sequence[Any], indices: Sequence[int] | None, path: str
) -> npt.NDArray[Any]:
    shape = np.shape(arrays[0])
    try:
        batch = np.asarray(arrays)  # raises if shapes differ
    except ValueError:
        batch = None
    if batch is not None and batch.shape == (len(arrays), *shape):
        return batch
    position, other = next(
        (position, np.shape(one))
        for position, one in enumerate(arrays)
        if np.shape(one) != shape
    )
    raise ValueError(
        f"{_name(indices, position)}{path} has shape {other} but "
        f"{_name(indices, 0)}{path} has {shape}; pad or cut them to one shape, "
        "or pass collate="
    )


def _name(indices: Sequence[int] | None, position: int) -> str:
    return f"item {position if indices is None else indices[position]}"


def _without_rows(leaf: Any) -> Any:
    if not isinstance(leaf, np.ndarray | jax.Array) or leaf.ndim == 0:
        raise TypeError(
            f"collate returned a {type(leaf).__name__}, but this process has no row of "
            "this short batch and needs an empty array; return arrays, or pass "
            "drop_last=True"
        )
    return leaf[:0]
