"""Describe machine and software, which may change the bits, for the row of a start."""

from __future__ import annotations

import os
import sys
from importlib import metadata
from typing import TYPE_CHECKING, Any

import jax

if TYPE_CHECKING:
    from collections.abc import Mapping

_FLAGS = {
    "XLA_FLAGS": lambda: os.environ.get("XLA_FLAGS", ""),
    "matmul_precision": lambda: str(jax.config.jax_default_matmul_precision),  # pyright: ignore[reportAttributeAccessIssue] - JAX declares its options at run time
    "x64": lambda: jax.config.jax_enable_x64,  # pyright: ignore[reportAttributeAccessIssue] - as above
}
_VERSIONS = ("jax", "flax", "optax", "orbax-checkpoint", "numpy")


def environment(devices: Mapping[str, int], mesh: Mapping[str, int]) -> dict[str, Any]:
    """Return the environment of this start.

    `devices` counts the devices of the run by kind, `mesh` the devices along each axis.
    """
    return {
        "command": sys.argv,
        "versions": {name: metadata.version(name) for name in _VERSIONS},
        "devices": dict(devices),
        "processes": jax.process_count(),
        "mesh": dict(mesh),
        "flags": {name: read() for name, read in _FLAGS.items()},
    }
