"""What JAX keeps for each thread, carried to the threads that make batches.

`with jax.enable_x64(True):` or `with jax.set_mesh(mesh):` holds for one thread. A batch
must not depend on the thread that made it, so our own threads take over what holds for
the consumer when they begin. The old `with mesh:` is not among it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import jax

if TYPE_CHECKING:
    from collections.abc import Callable

_SETTINGS: dict[str, Callable[[Any], Any]] = {
    "jax_enable_x64": jax.enable_x64,
    "jax_default_device": jax.default_device,
    "jax_default_matmul_precision": jax.default_matmul_precision,
    "jax_default_prng_impl": jax.default_prng_impl,
    "jax_numpy_dtype_promotion": jax.numpy_dtype_promotion,
    "jax_numpy_rank_promotion": jax.numpy_rank_promotion,
    "jax_threefry_partitionable": jax.threefry_partitionable,
}
"""The settings that change what a function computes, and what sets each in a thread."""


def settings_here() -> Callable[[], None]:
    """Return a function that makes this thread's settings those of its caller's thread.

    They stay until that thread ends.
    """
    config = cast("Any", jax.config)
    wanted = {name: getattr(config, name) for name in _SETTINGS}
    mesh = jax.sharding.get_mesh()

    def adopt() -> None:
        for name, value in wanted.items():
            if getattr(config, name) != value:
                _SETTINGS[name](value).__enter__()
        if not mesh.empty:
            jax.set_mesh(mesh).__enter__()

    return adopt
