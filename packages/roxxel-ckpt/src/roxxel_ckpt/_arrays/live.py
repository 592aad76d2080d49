"""NNX objects as a pytree: the live state that a program trains in place.

The pytree form of `Checkpointer` gets the newest state with every save. The NNX form
gets objects once, so it may only hold objects whose arrays are replaced in place.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from flax import nnx

from roxxel_ckpt._arrays.leaves import StateTree

OTHER_FORM = (
    "save any other pytree with Checkpointer(path), save(step, metrics, state=tree) "
    "and load(like=tree)"
)


class LiveObjects:
    """A model and its optimizer, whose arrays are read and replaced in place.

    Raises:
        TypeError: An object holds no `nnx.Variable`, or holds an array in a place where
            the array cannot be replaced.
    """

    def __init__(self, model: Any, optimizer: Any = None) -> None:
        self._roots = {"model": model}
        if optimizer is not None:
            self._roots["optimizer"] = optimizer
        for name, root in self._roots.items():
            _check_is_live(name, root)

    def tree(self) -> StateTree:
        """Return the leaves that the objects hold now."""
        return StateTree(nnx.to_pure_dict(nnx.state(self._roots)))

    def update(self, roots: dict[str, Any]) -> None:
        """Put the arrays of a tree with the leaves of `tree` into the objects."""
        nnx.update(self._roots, roots)


def _check_is_live(name: str, root: Any) -> None:
    """Raise a TypeError if the object is a value, or holds one that would go stale."""
    # `nnx.iter_graph` passes over the root if it is an `nnx.State`.
    nodes = dict[Any, Any](nnx.iter_graph({name: root}))

    def is_owned(path: tuple[Any, ...]) -> bool:
        above = (nodes.get(path[:depth]) for depth in range(len(path)))
        return any(isinstance(node, nnx.Pytree) for node in above)

    states = (path for path, node in nodes.items() if isinstance(node, nnx.State))
    has_variable = any(isinstance(node, nnx.Variable) for node in nodes.values())
    if not has_variable or not all(map(is_owned, states)):
        raise TypeError(
            f"{name} must be an NNX object, got {type(root).__name__} without a live "
            f"nnx.Variable, so every save would write its first values; {OTHER_FORM}"
        )
    for path, leaf in nodes.items():
        if isinstance(leaf, jax.Array | np.ndarray | np.generic):
            holder = nodes.get(path[:-1])
            if not (is_owned(path) and isinstance(holder, nnx.Pytree | list | dict)):
                raise TypeError(
                    f"{'/'.join(map(str, path))}: is an array in a "
                    f"{type(holder).__name__}, where it cannot be replaced; put it "
                    f"into an nnx.Variable, or {OTHER_FORM}"
                )
