from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

from compilation import QUICK_COMPILATION

# Before JAX looks: some tests need several devices, the others take one of them.
os.environ.setdefault(
    "XLA_FLAGS", f"--xla_force_host_platform_device_count=8 {QUICK_COMPILATION}"
)

import jax
import pytest
from hypothesis import settings

# JAX compiles at first use: how long an example takes says nothing here.
settings.register_profile("compiling", deadline=None)
settings.load_profile("compiling")

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="session", autouse=True)
def compile_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Share compiled programs, however small, between the tests of this run."""
    folder = tmp_path_factory.mktemp("compiled")
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    return folder


@pytest.fixture
def interrupts_are_not_ignored() -> Iterator[None]:
    """Undo what a shell or nohup does to programs in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    before_hangup = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGINT, before)
    signal.signal(signal.SIGHUP, before_hangup)
