"""Pytrees of every kind that JAX users keep their state in, and their bits."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from hypothesis import strategies as st
from jax.sharding import Mesh, NamedSharding, PartitionSpec

DTYPES = (
    *("float32", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2"),
    *("int4", "uint4", "int2", "float4_e2m1fn", "float8_e8m0fnu", "float8_e4m3"),
    *("int8", "uint16", "int32", "uint32", "bool", "complex64"),
)


class Pair(NamedTuple):
    """Two parts of a state."""

    left: Any
    right: Any


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Frozen:
    """A registered dataclass, as Equinox and flax.struct make them."""

    weights: Any
    inner: Any
    name: str = dataclasses.field(default="static", metadata={"static": True})


@jax.tree_util.register_pytree_node_class
class Custom:
    """A node without names for its children."""

    def __init__(self, *parts: Any) -> None:
        self.parts = parts

    def tree_flatten(self) -> tuple[tuple[Any, ...], None]:
        """Return the children."""
        return self.parts, None

    @classmethod
    def tree_unflatten(cls, _: None, parts: tuple[Any, ...]) -> Custom:
        """Return a node of other children."""
        return cls(*parts)


@jax.tree_util.register_pytree_with_keys_class
class ByText:
    """A node whose two children have the keys 0 and "0"."""

    def __init__(self, *parts: Any) -> None:
        self.parts = parts

    def tree_flatten_with_keys(self) -> tuple[list[tuple[Any, Any]], None]:
        """Return the children with their keys."""
        keys = jax.tree_util.DictKey(0), jax.tree_util.DictKey("0")
        return list(zip(keys, self.parts, strict=True)), None

    @classmethod
    def tree_unflatten(cls, _: None, parts: tuple[Any, ...]) -> ByText:
        """Return a node of other children."""
        return cls(*parts)


def trees(num_devices: int) -> st.SearchStrategy[Any]:
    """Return any nesting of these kinds; some arrays lie on a mesh of devices."""
    mesh = Mesh(np.array(jax.devices()[:num_devices]), ("data",))

    def sharded(seed: int, rows: int, spec: tuple[str | None, ...]) -> jax.Array:
        numbers = np.random.default_rng(seed).normal(size=(rows * num_devices, 2))
        sharding = NamedSharding(mesh, PartitionSpec(*spec))
        return jax.device_put(numbers.astype(np.float32), sharding)

    specs = st.sampled_from([(), ("data",), (None, None)])
    leaves = st.one_of(_LEAVES, st.builds(sharded, _SEEDS, st.integers(1, 2), specs))
    return st.recursive(leaves, _nested, max_leaves=6)


def _array(seed: int, dtype: str, shape: tuple[int, ...]) -> jax.Array:
    numbers = np.random.default_rng(seed).integers(-2, 3, shape)
    if dtype.startswith(("u", "float8_e8m0")):
        numbers = abs(numbers)
    return jnp.asarray(numbers.astype(dtype))


def _optimizer_state(seed: int) -> Any:
    chain = optax.chain(optax.clip(1.0), optax.adamw(1e-3), optax.trace(0.9))
    return chain.init({"kernel": np.full((2, 3), seed, np.float32)})


def _nnx_state(seed: int) -> nnx.State[Any, Any]:
    return nnx.state(nnx.Dict(weight=nnx.Param(np.full(2, seed)), rngs=nnx.Rngs(seed)))


def _split_key(seed: int) -> jax.Array:
    return jax.random.split(jax.random.key(seed, impl="rbg"), 2)


_SEEDS = st.integers(0, 2**16)
_SHAPES = st.sampled_from([(), (1,), (3,), (0, 2), (2, 3)])
_LEAVES = st.one_of(
    st.builds(_array, _SEEDS, st.sampled_from(DTYPES), _SHAPES),
    st.builds(jnp.asarray, st.floats(width=32)),
    st.builds(jax.random.key, _SEEDS),
    st.builds(_split_key, _SEEDS),
    st.builds(lambda seed: np.arange(seed % 5) + 2**40, _SEEDS),
    st.builds(lambda seed: np.arange(seed % 5, dtype=">f8"), _SEEDS),
    st.builds(np.float16, st.floats(width=16)),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(),
    st.complex_numbers(),
    st.booleans(),
    st.none(),
    st.builds(_optimizer_state, _SEEDS),
    st.builds(_nnx_state, _SEEDS),
)
_KEYS = st.text(max_size=6)


def _nested(children: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    lists = st.lists(children, max_size=3)
    return st.one_of(
        st.dictionaries(_KEYS, children, max_size=3),
        st.dictionaries(st.integers(-3, 3), children, max_size=3),
        lists,
        lists.map(tuple),
        st.builds(Pair, children, children),
        st.builds(Frozen, children, children, st.text(max_size=2)),
        lists.map(lambda parts: Custom(*parts)),
    )


def updated(tree: Any) -> Any:
    """Return a tree of new leaves, as a functional update of a loop does."""
    return jax.tree.map(_other, tree)


def _other(leaf: Any) -> Any:
    """Return another leaf of the same kind, shape, dtype and sharding."""
    if isinstance(leaf, np.ndarray):
        return leaf[::-1].copy()
    if not isinstance(leaf, jax.Array):
        return type(leaf)(leaf ^ 1) if isinstance(leaf, int) else -leaf
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        data = np.asarray(jax.random.key_data(leaf)) + 1
        kind = jax.random.key_impl(leaf)
        return jax.random.wrap_key_data(jnp.asarray(data), impl=kind)
    if leaf.weak_type:
        return -leaf
    reversed_ = np.flip(np.asarray(leaf))
    return jax.device_put(reversed_, leaf.sharding if leaf.committed else None)


def bits(tree: Any) -> list[tuple[Any, ...]]:
    """Return path, kind, sharding and bytes of every leaf."""
    found: list[tuple[Any, ...]] = []
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        dtype = getattr(leaf, "dtype", None)
        is_key = dtype is not None and jnp.issubdtype(dtype, jax.dtypes.prng_key)
        data = np.asarray(jax.random.key_data(leaf) if is_key else leaf)
        traits = [getattr(leaf, n, None) for n in ("weak_type", "committed")]
        sharding = leaf.sharding if traits[1] else None
        kind = type(leaf), str(dtype), data.shape
        found.append(
            (jax.tree_util.keystr(path), *kind, *traits, sharding, data.tobytes())
        )
    return found
