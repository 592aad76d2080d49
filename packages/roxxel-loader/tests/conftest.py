"""Eight devices on one CPU, for every test of this package, and no deadlines."""

import os

import pytest
from compilation import QUICK_COMPILATION
from hypothesis import settings
from suites import (
    compile_once,
    pytest_collection_modifyitems,
    pytest_xdist_setupnodes,
)

from .helpers import forget_threads

__all__ = ["compile_once", "pytest_collection_modifyitems", "pytest_xdist_setupnodes"]

# Read when JAX first looks for devices, so it must be set before any test runs.
os.environ.setdefault(
    "XLA_FLAGS", f"--xla_force_host_platform_device_count=8 {QUICK_COMPILATION}"
)

# A busy machine is no failure.
settings.register_profile("roxxel-loader", deadline=None, max_examples=50)
settings.load_profile("roxxel-loader")


@pytest.fixture(autouse=True)
def own_threads() -> None:
    """Let a test count no thread of an earlier test."""
    forget_threads()
