"""Every use of Orbax in this package.

Orbax's array handler writes the arrays of one process as zarr 3, and reads them into
any sharding. Each process writes and reads its own shards, and the files of the
processes are disjoint, so no process merges files for the others. Which checkpoints
exist, when a step appears and whether its files are sound is decided in this package.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Any

import flax
import jax
import numpy as np
import orbax.checkpoint as ocp
from etils import epath
from orbax.checkpoint import type_handlers

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping
    from pathlib import Path

# Copies of an array on several devices share the writing from this size on. Below it,
# one file per copy would cost more than it saves.
_SHARED_BYTES = 1 << 20


def start_writing(directory: Path, arrays: dict[str, Any]) -> Callable[[], None]:
    """Copy arrays to the host, and start to write the shares of this process.

    Args:
        directory: An existing, empty directory.
        arrays: By name.

    Returns:
        A function that waits until the files are written, and raises what failed. The
        arrays may be donated before that.
    """
    arrays_of_jax = type_handlers.ArrayHandler(
        array_metadata_store=None,
        enable_write_sharding_file=False,
        min_slice_bytes_for_replica_parallel=_SHARED_BYTES,
    )
    handler = ocp.PyTreeCheckpointHandler(
        use_ocdbt=False,
        use_zarr3=True,
        type_handler_registry=type_handlers.create_type_handler_registry(
            (np.ndarray, type_handlers.NumpyHandler()),
            (jax.Array, arrays_of_jax),
        ),
    )
    with _quiet():
        futures: Any = asyncio.run(
            handler.async_save(epath.Path(directory), args=ocp.args.PyTreeSave(arrays))
        )

    def wait() -> None:
        with _quiet(), contextlib.closing(handler):
            for future in futures or ():
                future.result()

    return wait


def read_arrays(
    directory: Path, targets: Mapping[str, jax.ShapeDtypeStruct | None]
) -> dict[str, Any]:
    """Read arrays; each process reads the shards of its own devices.

    Args:
        directory: The arrays of a step, as zarr 3 or, by version 0.1, as OCDBT.
        targets: By name: shape, dtype and sharding to read into, or None for numpy.

    Returns:
        A `jax.Array` in its sharding, or a numpy array, for every name.
    """
    if not targets:
        return {}
    item = {name: 0 if target is None else target for name, target in targets.items()}
    restore_args = {
        name: ocp.RestoreArgs(restore_type=np.ndarray)
        if target is None
        else ocp.ArrayRestoreArgs(
            restore_type=jax.Array,
            sharding=target.sharding,
            global_shape=target.shape,
            dtype=target.dtype,
        )
        for name, target in targets.items()
    }
    # The handler alone: Orbax's Checkpointer waits for all processes by itself.
    handler = ocp.PyTreeCheckpointHandler()
    with _quiet(), contextlib.closing(handler):
        restored: dict[str, Any] = handler.restore(
            epath.Path(directory),
            args=ocp.args.PyTreeRestore(
                item=item, restore_args=restore_args, partial_restore=True
            ),
        )
    return restored


def versions() -> dict[str, str]:
    """Return the versions of the libraries that write a checkpoint."""
    return {
        "jax": jax.__version__,
        "flax": flax.__version__,
        "orbax-checkpoint": ocp.__version__,
    }


class _NotFromOrbax(logging.Filter):
    """Drops records of Orbax, which repeat what is raised as an exception."""

    def filter(self, record: logging.LogRecord) -> bool:
        return "orbax" not in record.pathname


@contextlib.contextmanager
def _quiet() -> Generator[None, None, None]:
    """Keep tracebacks and hints of Orbax off the terminal."""
    logger, silencer = logging.getLogger("absl"), _NotFromOrbax()
    logger.addFilter(silencer)
    try:
        yield
    finally:
        logger.removeFilter(silencer)
