"""Make some updates twice, to find silent corruption.

A device or its memory may compute another value without an error. An update is a pure
function of the state and the batch, so making it twice must give the same bits. The
state for the repetition is copied right after the update before, so this also finds
changes to the state between the two updates.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from roxxel_train._step.given import array_path
from roxxel_train.errors import SilentCorruptionError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from jax.sharding import Mesh

    from roxxel_train._step.step import Tree


class Repeated:
    """Makes the updates of a run, and every `every`th update twice.

    Args:
        every: Updates between two checks.
        step: Updates done.
        mesh: The mesh of the state.
    """

    def __init__(self, every: int, step: int, mesh: Mesh) -> None:
        self._every, self._step, self._mesh = every, step, mesh
        self._kept: Tree = None
        self._copy: Callable[[Tree], Tree] | None = None
        self._count: Callable[..., jax.Array] | None = None

    def of(self, update: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        """Return an update of a new phase that is checked.

        See `jit_update` for its arguments.
        """
        # A phase empties the window of `skip_spikes`, which the copy still has.
        self._kept = None
        return partial(self._make, update)

    def close(self) -> None:
        """Free the copy of the state."""
        self._kept = None

    def _make(
        self, update: Callable[[Any, Any], Any], state: Tree, fed: Any
    ) -> tuple[Tree, Mapping[str, Any], Any]:
        self._step += 1
        is_due = self._step % self._every == 0
        kept, self._kept = self._kept, None
        if is_due and kept is None:
            kept = self._copied(state)
        made = update(state, fed)
        if is_due:
            # The update donates the copy, so two states are the most that is alive.
            self._compare(made, update(kept, fed))
        if (self._step + 1) % self._every == 0:
            self._kept = self._copied(made[0])
        return made

    def _copied(self, state: Tree) -> Tree:
        if self._copy is None:
            places = jax.tree.map(lambda x: x.sharding, state)
            self._copy = jax.jit(partial(jax.tree.map, jnp.copy), out_shardings=places)
        return self._copy(state)

    def _compare(self, made: Any, again: Any) -> None:
        """Wait for both results, and compare every value on every device.

        Raises:
            SilentCorruptionError: They differ; all processes raise it.
        """
        named = [*_named(made)]
        pair = [x for _, x in named], [x for _, x in _named(again)]
        if self._count is None:
            self._count = jax.jit(
                partial(_count, self._mesh, [_spec(x) for x in pair[0]]),
                out_shardings=NamedSharding(self._mesh, PartitionSpec()),
            )
        counts = np.asarray(self._count(*pair))
        if not counts.any():
            return
        leaves = {
            name: (int(count), leaf.size)
            for (name, leaf), count in zip(named, counts.max(axis=0), strict=True)
            if count
        }
        devices = [
            str(device)
            for device, of_device in zip(self._mesh.devices.flat, counts, strict=True)
            if of_device.any()
        ]
        raise SilentCorruptionError(self._step, leaves, tuple(devices))


def _named(made: tuple[Tree, Mapping[str, Any], Any]) -> list[tuple[str, Any]]:
    """Return the arrays of a result by name, the state first."""
    state, scalars, _ = made
    paths = jax.tree_util.tree_flatten_with_path(state)[0]
    return [*((array_path(path), leaf) for path, leaf in paths), *scalars.items()]


def _spec(x: jax.Array) -> PartitionSpec:
    sharding = x.sharding
    return sharding.spec if isinstance(sharding, NamedSharding) else PartitionSpec()


def _count(
    mesh: Mesh,
    specs: Sequence[PartitionSpec],
    ones: Sequence[Any],
    others: Sequence[Any],
) -> jax.Array:
    """Return how many values differ, by device and array."""

    def on_a_device(ones: Sequence[Any], others: Sequence[Any]) -> jax.Array:
        pairs = zip(map(_bits, ones), map(_bits, others), strict=True)
        return jnp.stack([(x != y).sum(dtype=jnp.uint32) for x, y in pairs])[None]

    # Each device has a copy of what is replicated, of which XLA would compare one.
    return jax.shard_map(
        on_a_device,
        mesh=mesh,
        in_specs=(specs, specs),
        out_specs=PartitionSpec(mesh.axis_names),
        check_vma=False,
    )(ones, others)


def _bits(x: Any) -> Any:
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        return jax.random.key_data(x)
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        x = jnp.stack([x.real, x.imag], -1)
    if jnp.issubdtype(x.dtype, jnp.floating):
        return jax.lax.bitcast_convert_type(x, f"uint{jnp.finfo(x.dtype).bits}")
    return x
