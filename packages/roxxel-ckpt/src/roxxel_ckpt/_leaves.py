"""Convert the state of a model and its optimizer to named leaves, and back.

A leaf is one array or number of the NNX state: a parameter, an optimizer moment, a
batch statistic, an RNG key or count, or any other Variable. The name of a leaf is its
path, such as `model/blocks/0/attention/kernel`; a shared parameter appears once. A
checkpoint holds a flat dict from names to arrays, so a reader needs no program classes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from roxxel_ckpt._description import LeafSpec
from roxxel_ckpt._integrity import escaped
from roxxel_ckpt.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_NUMBERS = (bool, int, float, complex)

# `LiveState.release` deletes only arrays of at least this size, because smaller arrays
# would free little memory.
_RELEASED_BYTES = 1 << 16


class LiveState:
    """The leaves of a live model and optimizer, at the time of construction.

    `leaves` maps names to the live arrays, in a fixed order; `specs` maps names to
    shapes and dtypes.
    """

    def __init__(self, model: Any, optimizer: Any = None) -> None:
        self._roots = {"model": model}
        if optimizer is not None:
            self._roots["optimizer"] = optimizer
        paths, self._structure = jax.tree_util.tree_flatten_with_path(
            nnx.to_pure_dict(nnx.state(self._roots))
        )
        self.leaves: dict[str, Any] = {
            "/".join(_component(entry) for entry in path): leaf for path, leaf in paths
        }
        if len(self.leaves) != len(paths):
            raise CheckpointError(
                "two variables of the model have the same path as text; rename one if "
                "a container uses both 0 and '0' as names"
            )
        for name in self.leaves:
            if not {"", ".", ".."}.isdisjoint(name.split("/")):
                raise CheckpointError(
                    f"{name}: a part of this path is empty, '.' or '..', which cannot "
                    "name a directory; rename the variable"
                )
        self.specs = {name: _spec(name, leaf) for name, leaf in self.leaves.items()}

    def to_stored(self) -> dict[str, Any]:
        """Return the arrays that Orbax writes, by name; raise for a donated array."""
        return {
            name: _to_stored(name, leaf)
            for name, leaf in self.leaves.items()
            if self.specs[name].is_stored
        }

    def release(self, names: Iterable[str]) -> None:
        """Delete the large arrays among `names`, except PRNG keys.

        A deleted array still has its shape, dtype and sharding. The live objects are
        unusable until `update` is called.
        """
        for leaf in map(self.leaves.__getitem__, names):
            if (
                isinstance(leaf, jax.Array)
                and not _holds_keys(leaf)
                and leaf.nbytes >= _RELEASED_BYTES
            ):
                leaf.delete()

    def update(self, values: Mapping[str, Any]) -> None:
        """Put values into the live objects; leaves without a value stay unchanged."""
        leaves = [values.get(name, leaf) for name, leaf in self.leaves.items()]
        nnx.update(self._roots, jax.tree_util.tree_unflatten(self._structure, leaves))


def _spec(name: str, leaf: Any) -> LeafSpec:
    """Return shape and dtype of a live leaf, even if its buffer was donated."""
    if isinstance(leaf, jax.Array | np.ndarray | np.generic):
        dtype = str(leaf.dtype)
        if dtype != "object":
            return LeafSpec(tuple(leaf.shape), dtype)
    if type(leaf) in _NUMBERS:
        return LeafSpec((), type(leaf).__name__)
    raise TypeError(
        f"{name}: a variable holds {type(leaf).__name__}, which no checkpoint can "
        "hold; use an array or a number, or keep it outside nnx.Variable"
    )


def _to_stored(name: str, leaf: Any) -> Any:
    """Return a leaf as the array that Orbax writes; raise if it was donated."""
    if isinstance(leaf, jax.Array):
        if leaf.is_deleted():
            raise CheckpointError(
                f"{name}: the array was donated to a computation; put the newest state "
                "into the model before saving it (nnx.update)"
            )
        if _holds_keys(leaf):
            leaf = jax.random.key_data(leaf)
        # With several processes, Orbax accepts only global arrays as jax.Array. A local
        # array is equal in all processes; process 0 alone writes its numpy copy.
        if jax.process_count() > 1 and leaf.is_fully_addressable:
            return np.asarray(leaf)
        return leaf
    return np.array(leaf)


def target_of(leaf: Any) -> jax.ShapeDtypeStruct | None:
    """Return shape, dtype and sharding to read a leaf into; None to read it as numpy.

    Reading an uncommitted array as numpy keeps it uncommitted. JAX refuses to combine
    an array that is committed to one device with arrays on a mesh.
    """
    if not isinstance(leaf, jax.Array) or not leaf.committed:
        return None
    if jax.process_count() > 1 and leaf.is_fully_addressable:
        return None
    stored = jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)
    if _holds_keys(leaf):
        stored = jax.eval_shape(jax.random.key_data, stored)
    return jax.ShapeDtypeStruct(stored.shape, stored.dtype, sharding=leaf.sharding)


def from_stored(stored: Any, live: Any) -> Any:
    """Convert a stored array to the kind, sharding and weak type of the live leaf."""
    if isinstance(live, jax.Array):
        array = stored
        if _holds_keys(live):
            array = jax.random.wrap_key_data(
                jnp.asarray(array), impl=jax.random.key_impl(live)
            )
        elif live.weak_type:
            # A weak type decides the dtype of later arithmetic, so it is part of the
            # state. Assigning into a weak array keeps the weak type.
            array = _weak_zeros(live).at[...].set(array)
        if live.committed:
            return jax.device_put(array, live.sharding)
        return array if isinstance(array, jax.Array) else jnp.asarray(array)
    if isinstance(live, np.ndarray):
        return np.array(stored)
    if isinstance(live, np.generic):
        return live.dtype.type(stored[()])
    return type(live)(stored.item())


def _weak_zeros(like: jax.Array) -> jax.Array:
    # Only arrays of Python numbers have weak types in JAX, hence `item()`.
    return jnp.broadcast_to(jnp.zeros((), like.dtype).item(), like.shape)


def _holds_keys(leaf: jax.Array) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _component(entry: Any) -> str:
    """Return one part of a path as text, with slashes escaped."""
    for attribute in ("key", "idx", "name"):
        if hasattr(entry, attribute):
            return escaped(str(getattr(entry, attribute)))
    return str(entry)
