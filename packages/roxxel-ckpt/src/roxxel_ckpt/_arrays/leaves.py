"""Convert a pytree to named leaves, and back.

A leaf is one array or number: a parameter, an optimizer moment, a batch statistic, an
RNG key or count. The name of a leaf is its path, such as
`model/blocks/0/attention/kernel` or `state/params/Dense_0/kernel`. A checkpoint holds a
flat dict from names to arrays, so a reader needs no program classes.

`LiveObjects` turns NNX objects into such a pytree.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from roxxel_ckpt._arrays.layout import LeafSpec
from roxxel_ckpt.errors import CheckpointError, CheckpointMismatchError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_NUMBERS = (bool, int, float, complex)
# Subclasses of np.ndarray may carry more than numbers, such as a mask.
_ARRAYS = (np.ndarray, np.memmap)
# `StateTree.release` deletes only arrays of at least this size, because smaller arrays
# would free little memory.
_RELEASED_BYTES = 1 << 16


OTHER_FORM = (
    "save any other pytree with Checkpointer(path), save(step, metrics, state=tree) "
    "and load(like=tree)"
)


class StateTree:
    """The leaves of a pytree, by name.

    `leaves` maps names to the leaves, in a fixed order; `specs` maps names to shapes
    and dtypes. A leaf may be a `jax.ShapeDtypeStruct` if the tree is only read into.

    Args:
        roots: Pytrees by the first part of their names: `model` and `optimizer`, or
            `state`.
    """

    def __init__(self, roots: Mapping[str, Any]) -> None:
        paths, self._structure = jax.tree_util.tree_flatten_with_path(dict(roots))
        self.leaves: dict[str, Any] = {_name(path): leaf for path, leaf in paths}
        # A path comes right before those that begin with it.
        named = sorted(name.split("/") for name in self.leaves)
        within = (below[: len(above)] == above for above, below in pairwise(named))
        if len(named) != len(paths) or any(within):
            raise CheckpointError(
                "two leaves of the state have the same path as text; rename one if a "
                "container uses both 0 and '0' as names"
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

        A deleted array still has its shape, dtype and sharding. The objects that hold
        the arrays are unusable until they get new values.
        """
        for leaf in map(self.leaves.__getitem__, names):
            if (
                isinstance(leaf, jax.Array)
                and not _holds_keys(leaf)
                and leaf.nbytes >= _RELEASED_BYTES
            ):
                leaf.delete()

    def without_values(self, names: Iterable[str]) -> list[str]:
        """Return the `names` whose leaves have a shape but no values."""
        return [
            name
            for name in names
            if isinstance(self.leaves[name], jax.ShapeDtypeStruct)
            and self.specs[name].is_stored
        ]

    def with_values(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the roots with new values; leaves without a value stay the same."""
        leaves = [
            values[name] if name in values else _filled(leaf)
            for name, leaf in self.leaves.items()
        ]
        return jax.tree_util.tree_unflatten(self._structure, leaves)


def _name(path: Iterable[Any]) -> str:
    """Return the name of the leaf at a path, which can be printed.

    Different paths have different names: `/` and `%` in a part are escaped.
    """
    return "/".join("".join(map(_escaped, _part(entry))) for entry in path)


def _part(entry: Any) -> str:
    for attribute in ("key", "idx", "name"):
        if hasattr(entry, attribute):
            return str(getattr(entry, attribute))
    return str(entry)


def _escaped(character: str) -> str:
    if character not in "%/" and character.isprintable():
        return character
    data = character.encode("utf-8", "surrogatepass")
    return "".join(f"%{byte:02X}" for byte in data)


def _spec(name: str, leaf: Any) -> LeafSpec:
    """Return shape and dtype of a leaf, even if its buffer was donated."""
    is_array = isinstance(leaf, jax.Array | jax.ShapeDtypeStruct | np.generic)
    if is_array or type(leaf) in _ARRAYS:
        if _can_be_stored(leaf.dtype):
            # The name of a dtype, unlike its text, does not depend on the byte order.
            return LeafSpec(tuple(leaf.shape), leaf.dtype.name)
        kind = f"an array of {leaf.dtype}"
    else:
        kind = type(leaf).__name__
    if type(leaf) in _NUMBERS:
        if type(leaf) is int and not -(2**63) <= leaf < 2**63:
            raise TypeError(
                f"{name}: is {leaf}, which does not fit 64 bits; save it in `extra`"
            )
        return LeafSpec((), type(leaf).__name__)
    raise TypeError(
        f"{name}: holds {kind}, which no checkpoint can hold; keep only arrays and "
        "numbers in the state, such as eqx.filter(tree, eqx.is_array) of Equinox, and "
        "no other values in an nnx.Variable"
    )


def _can_be_stored(dtype: Any) -> bool:
    kinds = (np.bool_, np.number, jax.dtypes.prng_key)
    unknown_to_zarr = (np.timedelta64, np.longdouble, np.clongdouble)
    return any(jnp.issubdtype(dtype, kind) for kind in kinds) and not any(
        jnp.issubdtype(dtype, kind) for kind in unknown_to_zarr
    )


def _to_stored(name: str, leaf: Any) -> Any:
    """Return a leaf as the array that Orbax writes; raise if it was donated."""
    if isinstance(leaf, jax.ShapeDtypeStruct):
        raise TypeError(
            f"{name}: is a jax.ShapeDtypeStruct, which has no values to save; give an "
            "array"
        )
    if not isinstance(leaf, jax.Array):
        return _widened(np.array(leaf))
    if leaf.is_deleted():
        raise CheckpointError(
            f"{name}: the array was donated to a computation; give `save` the newest "
            "state, or put it into the model first (nnx.update)"
        )
    array = jax.random.key_data(leaf) if _holds_keys(leaf) else _widened(leaf)
    # With several processes, Orbax accepts only global arrays as jax.Array. A local
    # array is equal in all processes; process 0 alone writes its numpy copy.
    if jax.process_count() > 1 and leaf.is_fully_addressable:
        return np.asarray(array)
    return array


def _widened(array: Any) -> Any:
    """Return an array in the dtype of the files."""
    spec = LeafSpec((), array.dtype.name)
    if spec.is_stored_as_bits:
        if isinstance(array, np.ndarray):
            return array.view(np.uint8)
        if array.dtype == jnp.float4_e2m1fn:
            return jax.lax.bitcast_convert_type(array, jnp.uint4).astype(jnp.uint8)
        return jax.lax.bitcast_convert_type(array, jnp.uint8)
    if isinstance(array, np.ndarray) or spec.dtype != spec.stored_dtype:
        return array.astype(spec.stored_dtype)  # numpy: in the byte order of this host
    return array


def _narrowed(name: str, array: Any, dtype: Any) -> Any:
    """Return a stored array in the dtype of a leaf; the inverse of `_widened`."""
    if array.dtype == dtype:
        return array
    if not LeafSpec((), dtype.name).is_stored_as_bits:
        with np.errstate(over="ignore"):
            narrow = array.astype(dtype)
        if isinstance(array, np.ndarray):
            _check_fits(name, array, narrow)
        return narrow
    if isinstance(array, np.ndarray):
        return array.view(dtype)
    if dtype == jnp.float4_e2m1fn:
        return jax.lax.bitcast_convert_type(array.astype(jnp.uint4), dtype)
    return jax.lax.bitcast_convert_type(array, dtype)


def _stored_struct(leaf: Any) -> jax.ShapeDtypeStruct:
    """Return shape and dtype of the array that holds a leaf in the files."""
    if _holds_keys(leaf):
        data = jax.eval_shape(
            jax.random.key_data, jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)
        )
        return jax.ShapeDtypeStruct(data.shape, data.dtype)
    stored = np.dtype(LeafSpec((), leaf.dtype.name).stored_dtype)
    return jax.ShapeDtypeStruct(leaf.shape, stored)


def target_of(leaf: Any) -> jax.ShapeDtypeStruct | None:
    """Return shape, dtype and sharding to read a leaf into; None to read it as numpy.

    An array that is read as numpy stays uncommitted. JAX refuses to combine an array
    that is committed to one device with arrays on a mesh.
    """
    if not _is_committed(leaf):
        return None
    if jax.process_count() > 1 and leaf.sharding.is_fully_addressable:
        return None
    stored = _stored_struct(leaf)
    return jax.ShapeDtypeStruct(stored.shape, stored.dtype, sharding=leaf.sharding)


def from_stored(name: str, stored: Any, like: Any) -> Any:
    """Convert a stored array to the kind, sharding and weak type of a leaf."""
    if isinstance(like, jax.Array | jax.ShapeDtypeStruct):
        if _holds_keys(like):
            array = jax.random.wrap_key_data(jnp.asarray(stored), impl=_key_kind(like))
        else:
            array = _narrowed(name, stored, like.dtype)
        if getattr(like, "weak_type", False):
            # A weak type decides the dtype of later arithmetic, so it is part of the
            # state. Assigning into a weak array keeps the weak type.
            array = _weak_zeros(like).at[...].set(array)
        if _is_committed(like):
            return _placed(array, like.sharding)
        return array if isinstance(array, jax.Array) else jnp.asarray(array)
    if isinstance(like, np.ndarray):
        return np.array(_narrowed(name, np.asarray(stored), like.dtype))
    if isinstance(like, np.generic):
        return like.dtype.type(_narrowed(name, np.asarray(stored), like.dtype)[()])
    return type(like)(stored.item())


def _placed(array: Any, sharding: Any) -> Any:
    """Put an array on devices. It is equal on all processes, or already global."""
    if isinstance(array, np.ndarray) and not sharding.is_fully_addressable:
        # `jax.device_put` would compare the values of all processes on the devices.
        return jax.make_array_from_callback(array.shape, sharding, array.__getitem__)
    return jax.device_put(array, sharding)


def _check_fits(name: str, stored: Any, array: Any) -> None:
    """Raise an error if a Python number does not fit the dtype of its leaf.

    A float may be rounded, as JAX rounds it wherever it meets an array.
    """
    if stored.ndim or stored.dtype.kind not in "ifc":
        return
    is_int = stored.dtype.kind == "i"
    if stored != array if is_int else np.isfinite(stored) and not np.isfinite(array):
        number = stored.item()
        raise CheckpointMismatchError(
            f"{name}: is {number} in the checkpoint, which does not fit {array.dtype}",
            f"give {'an' if is_int else 'a'} {type(number).__name__} there",
        )


def _filled(leaf: Any) -> Any:
    """Return a leaf itself; for a leaf that is only a shape, an array of zeros."""
    if not isinstance(leaf, jax.ShapeDtypeStruct):
        return leaf
    struct = _stored_struct(leaf)
    return from_stored("", np.zeros(struct.shape, struct.dtype), leaf)


def _is_committed(leaf: Any) -> bool:
    """Return whether a leaf is committed to devices: computations stay there."""
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return leaf.sharding is not None
    return isinstance(leaf, jax.Array) and leaf.committed


def _key_kind(leaf: Any) -> Any:
    """Return the implementation of PRNG keys; `leaf` may be only a shape."""
    kinds: list[Any] = []
    struct = jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)
    jax.eval_shape(lambda keys: kinds.append(jax.random.key_impl(keys)), struct)
    return kinds[0]


def _weak_zeros(like: Any) -> jax.Array:
    # Only arrays of Python numbers have weak types in JAX, hence `item()`.
    return jnp.broadcast_to(jnp.zeros((), like.dtype).item(), like.shape)


def _holds_keys(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


class LiveObjects:
    """A model and its optimizer, whose arrays are read and replaced in place.

    The pytree form of `Checkpointer` gets the newest state with every save. The NNX
    form gets objects once, so it may only hold objects whose arrays are replaced in
    place.

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
    """Raise a TypeError if a restore cannot replace an object's arrays in place."""
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
