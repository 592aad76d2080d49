"""Thread-local settings of JAX, carried to the threads that make batches.

`with jax.enable_x64(True):` and `with jax.set_mesh(mesh):` apply to one thread. A batch
must not depend on the thread that makes it, so our own threads start with the settings
of the consumer's thread. The old `with mesh:` is not carried over.
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
"""Settings that change the result of a function, and the context that sets each."""


def settings_here() -> Callable[[], None]:
    """Return a function that applies this thread's settings to the thread it runs in.

    The settings stay until that thread ends.
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
