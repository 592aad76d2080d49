"""Describe machine and software, which may change the bits, for the row of a start."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
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
_COMMIT = (
    *("git", "--no-optional-locks", "describe"),
    *("--always", "--dirty", "--abbrev=12", "--exclude=*"),
)
_GIT_S = 5.0
"""Longest wait for git, which reads all files of a repository."""


def environment(devices: Mapping[str, int], mesh: Mapping[str, int]) -> dict[str, Any]:
    """Return the environment of this start.

    `devices` counts the devices of the run by kind, `mesh` the devices along each axis.
    """
    return {
        "command": sys.argv,
        "versions": {
            **{name: metadata.version(name) for name in _VERSIONS},
            # A thousand hosts would ask one disk; process 0 writes the row.
            **(_program() if jax.process_index() == 0 else {}),
        },
        "devices": dict(devices),
        "processes": jax.process_count(),
        "mesh": dict(mesh),
        "flags": {name: read() for name, read in _FLAGS.items()},
    }


@cache
def _program() -> dict[str, str]:
    """Return the commit of the current folder, if it is in a repository of git.

    Tracked files that differ from the commit add `-dirty`.
    """
    try:
        found = subprocess.run(  # noqa: S603 - a fixed command
            _COMMIT, check=True, capture_output=True, text=True, timeout=_GIT_S
        )
    except (OSError, subprocess.SubprocessError):
        return {}
    return {"program": found.stdout.strip()}
