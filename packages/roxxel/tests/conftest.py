"""How programs are compiled in these tests: quickly, and once; and no deadlines."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from compilation import QUICK_COMPILATION

# Before JAX looks.
os.environ.setdefault("XLA_FLAGS", QUICK_COMPILATION)

import jax
import pytest
from hypothesis import settings

# A busy machine is no failure.
settings.register_profile("roxxel", deadline=None, max_examples=50)
settings.load_profile("roxxel")

if TYPE_CHECKING:
    from collections.abc import Iterator

# Each also has an environment variable, for the programs that tests start.
FOLDER = "jax_compilation_cache_dir"
LEAST_SECONDS = "jax_persistent_cache_min_compile_time_secs"


@pytest.fixture(scope="session", autouse=True)
def compile_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Share compiled programs, however small, between the tests of this run."""
    folder = str(tmp_path_factory.mktemp("compiled"))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ((FOLDER, folder), (LEAST_SECONDS, 0)):
            jax.config.update(name, value)
            patch.setenv(name.upper(), str(value))
        yield
