"""Everything that this package asks of Orbax, and nothing else.

The checkpoint of a step is an Orbax checkpoint of one item: `state`, the flat dict of
arrays (PyTree handler). `AsyncCheckpointer` is the layer of Orbax below
`CheckpointManager`: it writes one checkpoint atomically and in the background.
Which checkpoints stay, how they are named and which one is used is decided here, for
the manager deletes the newest when only the best are kept, and ignores saves in
silence.
"""

from __future__ import annotations

import contextlib
import logging
import math
from typing import TYPE_CHECKING, Any

import flax
import jax
import numpy as np
import orbax.checkpoint as ocp

from roxxel_ckpt._folder import STATE_ITEM

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

    from etils import epath

    from roxxel_ckpt._processes import Meeting


class Store:
    """Writes one checkpoint at a time, in the background.

    Args:
        timeout_s: Bound on Orbax's own waits in the background, in seconds.
    """

    def __init__(self, timeout_s: float) -> None:
        registry = ocp.handlers.DefaultCheckpointHandlerRegistry()
        registry.add(STATE_ITEM, ocp.args.PyTreeSave, ocp.PyTreeCheckpointHandler())
        self._orbax = ocp.AsyncCheckpointer(
            ocp.CompositeCheckpointHandler(handler_registry=registry),
            async_options=ocp.options.AsyncOptions(
                timeout_secs=max(1, math.ceil(timeout_s)),
                # Created in the background, a directory that cannot be made leaves
                # the other threads waiting for it, at interpreter exit for ever.
                create_directories_asynchronously=False,
                barrier_sync_fn=self._wait_for_all,
            ),
        )
        self._meeting: Meeting

    def start(
        self, place: epath.Path, arrays: dict[str, Any], meeting: Meeting
    ) -> None:
        """Begin to write a checkpoint; return when the arrays may be donated."""
        self._meeting = meeting
        with quiet_orbax():
            self._orbax.save(
                place, args=ocp.args.Composite(state=ocp.args.PyTreeSave(arrays))
            )

    def wait(self) -> None:
        """Wait until the checkpoint being written is whole; raise what stopped it."""
        with quiet_orbax():
            self._orbax.wait_until_finished()

    def close(self) -> None:
        """Release Orbax's threads."""
        with quiet_orbax():
            self._orbax.close()

    def _wait_for_all(self, *, key: str, timeout_ms: int) -> None:
        """Have Orbax meet where a failed process is heard of, at its own barriers."""
        del key  # the turns of the meeting are in the same order everywhere
        self._meeting.wait_for_all(timeout_ms / 1000)


def read_arrays(
    place: epath.Path, targets: Mapping[str, jax.ShapeDtypeStruct | None]
) -> dict[str, Any]:
    """Read arrays of one checkpoint.

    Args:
        place: Directory of the step.
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
    # The handler alone, for Orbax's Checkpointer would wait for the other processes,
    # and one process may read a checkpoint to see whether it can be used.
    reader = ocp.PyTreeCheckpointHandler()
    with quiet_orbax(), contextlib.closing(reader):
        restored: dict[str, Any] = reader.restore(
            place / STATE_ITEM,
            args=ocp.args.PyTreeRestore(
                item=item, restore_args=restore_args, partial_restore=True
            ),
        )
    return restored


def versions() -> dict[str, str]:
    """Return the versions of the libraries that take part in a save."""
    return {
        "jax": jax.__version__,
        "flax": flax.__version__,
        "orbax-checkpoint": ocp.__version__,
    }


class _FromOrbax(logging.Filter):
    """Drops Orbax's own records: what they tell is raised as an exception."""

    def filter(self, record: logging.LogRecord) -> bool:
        return "orbax" not in record.pathname


@contextlib.contextmanager
def quiet_orbax() -> Generator[None, None, None]:
    """Keep Orbax's tracebacks and hints off the terminal while it works for us."""
    logger, silencer = logging.getLogger("absl"), _FromOrbax()
    logger.addFilter(silencer)
    try:
        yield
    finally:
        logger.removeFilter(silencer)
