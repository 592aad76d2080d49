"""Pieces of host memory as global arrays, made quickly on the host itself.

Where the one device is the host, `jax.make_array_from_callback` takes longest of all
that is done for a small batch: 13 us for one of 4 KiB. A compiled program takes numpy
arrays too, along a path of JAX that is not written in Python: one that only returns its
arguments makes the same array in 7 us, and three of them in 14. It runs after what has
been dispatched before, as whatever uses the batch does. It copies, perhaps after the
call has returned, what the usual call would alias, so large batches gain nothing by it.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import jax

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np
    import numpy.typing as npt
    from jax.sharding import Sharding

    _Program = Callable[..., Sequence[jax.Array]]

_config: Any = jax.config  # untyped in JAX

_WORTH_COMPILING = 4096
"""Arrays, made so many at a time, after which a program for that number is compiled.
It takes 10 ms, which 1700 calls gain, and 130 ms where it is the first of a process;
most short runs end before."""

_COMPILED_BYTES = 256 << 10
"""Below this size the program's copy costs less than the usual call's Python."""

_CALLS_WAIT_BEFORE = (0, 9)
"""In older versions of JAX such a program's call waits for what was dispatched."""


class Put:
    """Makes arrays of `shape` under `sharding`, each of the one piece of this process.

    The first are made by the usual call, as are all where no program would be quicker
    or JAX would not let it run. Several threads may make arrays at once.
    """

    def __init__(self, shape: tuple[int, ...], sharding: Sharding) -> None:
        self._shape = shape
        self._sharding = sharding
        # By dtype and number of pieces.
        self._num_made: dict[tuple[np.dtype[Any], int], int] = {}
        self._programs: dict[tuple[np.dtype[Any], int], _Program] = {}
        may_compile = jax.__version_info__ >= _CALLS_WAIT_BEFORE and _is_host(sharding)
        self._program_bytes = _COMPILED_BYTES if may_compile else 0

    def __call__(self, *pieces: npt.NDArray[Any]) -> Sequence[jax.Array]:
        """Return an array of each piece, in their order.

        Args:
            *pieces: One or more: all values that this process holds of an array. They
                are of one dtype, which devices hold; nobody may write to them
                afterwards.
        """
        if self.goes_together(pieces[0]):
            kind = pieces[0].dtype, len(pieces)
            program = self._programs.get(kind)
            if program is None:
                self._count(kind)
            elif not _config.jax_disable_jit:  # else JAX refuses to call it
                return program(*pieces)
        return [self.one(piece) for piece in pieces]

    def goes_together(self, piece: npt.NDArray[Any]) -> bool:
        """Return whether several such pieces may be quicker in one call than alone."""
        # Floats go the usual way: JAX can be told to look for NaN in what a program
        # returns, and data may hold them.
        return piece.nbytes < self._program_bytes and piece.dtype.kind in "iu"

    def one(self, piece: npt.NDArray[Any]) -> jax.Array:
        """Return the array of a piece, as above, made by the usual call."""
        return jax.make_array_from_callback(
            self._shape, self._sharding, lambda _: piece
        )

    def _count(self, kind: tuple[np.dtype[Any], int]) -> None:
        """Compile a program for so many such pieces once enough of them have come."""
        dtype, num_pieces = kind
        num_made = self._num_made[kind] = self._num_made.get(kind, 0) + num_pieces
        if num_made > _WORTH_COMPILING and _may_be_traced(self._sharding):
            # Donated, for what it returns would else be a second copy.
            returns = jax.jit(
                lambda *pieces: pieces,
                in_shardings=self._sharding,
                out_shardings=self._sharding,
                donate_argnums=tuple(range(num_pieces)),
            )
            described = jax.ShapeDtypeStruct(self._shape, dtype)
            lowered = returns.lower(*[described] * num_pieces)
            self._programs[kind] = lowered.compile()


def _is_host(sharding: Sharding) -> bool:
    """Return whether arrays lie in the usual memory of the host's one device."""
    if sharding.num_devices != 1:
        return False
    [device] = sharding.device_set
    usual = device.default_memory().kind
    return device.platform == "cpu" and sharding.memory_kind in (None, usual)


def _may_be_traced(sharding: Sharding) -> bool:
    """Return whether JAX would compile: it refuses devices other than those set.

    They are set by `jax.set_mesh`, and matter only while a program is compiled; so does
    `jax.no_tracing`.
    """
    if _config.jax_no_tracing:
        return False
    mesh = jax.sharding.get_mesh()
    return mesh.empty or set(mesh.devices.flat) == sharding.device_set


@lru_cache(maxsize=256)
def put_for(shape: tuple[int, ...], sharding: Sharding) -> Put:
    """Return the one `Put` of a shape and sharding, so that it compiles once."""
    return Put(shape, sharding)
