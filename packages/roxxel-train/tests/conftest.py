from __future__ import annotations

import os
from typing import TYPE_CHECKING

# Before JAX looks: some tests need several devices, the others take one of them.
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

import jax
import pytest
from hypothesis import settings

# JAX compiles at first use: how long an example takes says nothing here.
settings.register_profile("compiling", deadline=None)
settings.load_profile("compiling")

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="session", autouse=True)
def compile_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Share compiled programs, however small, between the tests of this run."""
    folder = tmp_path_factory.mktemp("compiled")
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    return folder
