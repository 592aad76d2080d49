"""Batches of items: the leaves of equal pytrees, stacked along a new first axis."""

from __future__ import annotations

from numbers import Number
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt


def collate(items: Sequence[Any], indices: Sequence[int] | None = None) -> Any:
    """Stack items into one batch.

    Args:
        items: One or more pytrees of the same structure, with arrays of the same shape,
            numbers, strings or bytes at the leaves. Lists and tuples are structure, as
            everywhere in JAX: a list of numbers gives a list of arrays.
        indices: Indices of the items in the dataset, for errors.

    Returns:
        The same pytree with arrays of shape `(len(items), *leaf shape)`; strings and
        bytes become arrays of dtype object; Python's numbers int64, float64, complex128
        or bool; numpy's keep their dtype.

    Raises:
        ValueError: Structures or shapes differ.
        TypeError: A leaf is of another type.
    """
    first = items[0]
    if isinstance(first, np.ndarray | Number | str | bytes):
        return _stack(items, indices, "")
    paths, tree = jax.tree_util.tree_flatten_with_path(first)
    rows = [jax.tree_util.tree_flatten(item) for item in items]
    for position, (_, other) in enumerate(rows):
        if other != tree:
            raise ValueError(
                f"{_name(indices, position)} is a pytree of structure {other} but "
                f"{_name(indices, 0)} is one of {tree}; make all items alike or pass "
                "collate="
            )
    columns = zip(*(leaves for leaves, _ in rows), strict=True)
    stacked = [
        _stack(column, indices, jax.tree_util.keystr(path))
        for (path, _), column in zip(paths, columns, strict=True)
    ]
    return jax.tree_util.tree_unflatten(tree, stacked)


def _stack(
    leaves: Sequence[Any], indices: Sequence[int] | None, path: str
) -> npt.NDArray[Any]:
    kinds = set(map(type, leaves))
    if kinds == {np.ndarray}:
        return _stack_arrays(leaves, indices, path)
    if all(issubclass(kind, str | bytes) for kind in kinds):
        texts = np.empty(len(leaves), object)
        texts[:] = leaves
        return texts
    if all(issubclass(kind, Number | np.bool_) for kind in kinds):
        return np.asarray(leaves)
    if all(issubclass(kind, np.ndarray | jax.Array | Number) for kind in kinds):
        return _stack_arrays([np.asarray(leaf) for leaf in leaves], indices, path)
    sort = _sort(leaves[0])
    if sort is None:
        raise TypeError(
            f"{_name(indices, 0)}{path} is of type {type(leaves[0]).__name__}, which "
            "does not stack; convert it to an array, a number or a string, or pass "
            "collate="
        )
    position = next(
        position for position, leaf in enumerate(leaves) if _sort(leaf) != sort
    )
    other = type(leaves[position]).__name__
    raise TypeError(
        f"{_name(indices, position)}{path} is of type {other}, "
        f"which does not stack with {_name(indices, 0)}{path} of type "
        f"{type(leaves[0]).__name__}; make all items alike or pass collate="
    )


def _sort(leaf: Any) -> str | None:
    """Return the kind of leaves that a leaf stacks with, or None."""
    if isinstance(leaf, str | bytes):
        return "text"
    is_number = isinstance(leaf, np.ndarray | jax.Array | Number | np.bool_)
    return "array" if is_number else None


def _stack_arrays(
    arrays: Sequence[npt.NDArray[Any]], indices: Sequence[int] | None, path: str
) -> npt.NDArray[Any]:
    shape = arrays[0].shape
    try:
        batch = np.asarray(arrays)  # raises if shapes differ
    except ValueError:
        batch = None
    if batch is not None and batch.shape == (len(arrays), *shape):
        return batch
    position = next(
        position for position, one in enumerate(arrays) if one.shape != shape
    )
    raise ValueError(
        f"{_name(indices, position)}{path} has shape {arrays[position].shape} but "
        f"{_name(indices, 0)}{path} has {shape}; pad or cut them to one shape, "
        "or pass collate="
    )


def _name(indices: Sequence[int] | None, position: int) -> str:
    return f"item {position if indices is None else indices[position]}"
