"""Eight devices on one CPU, programs that compile quickly and once, and a port."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

from compilation import QUICK_COMPILATION
from flushes import nothing_waits_for_the_disk
from suites import (
    compile_once,
    pytest_collection_modifyitems,
    pytest_xdist_setupnodes,
)

# Before JAX looks.
os.environ.setdefault(
    "XLA_FLAGS", f"--xla_force_host_platform_device_count=8 {QUICK_COMPILATION}"
)

import pytest
from hypothesis import settings

__all__ = [
    "compile_once",
    "nothing_waits_for_the_disk",
    "pytest_collection_modifyitems",
    "pytest_xdist_setupnodes",
]

# A busy machine is no failure.
settings.register_profile("roxxel-ckpt", deadline=None, max_examples=50)
settings.load_profile("roxxel-ckpt")

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def port() -> Iterator[int]:
    """A port for the processes; no other program is given it, but JAX can bind it."""
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]
