"""How programs are compiled in these tests: quickly, and once; and no deadlines."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from compilation import QUICK_COMPILATION, folder_of_programs, share_compilations
from flushes import nothing_waits_for_the_disk

# Before JAX looks.
os.environ.setdefault("XLA_FLAGS", QUICK_COMPILATION)

import pytest
from hypothesis import settings

__all__ = ["nothing_waits_for_the_disk"]

# A busy machine is no failure.
settings.register_profile("roxxel", deadline=None, max_examples=50)
settings.load_profile("roxxel")

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session", autouse=True)
def compile_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Share compiled programs between the tests of this run and their programs."""
    shared = share_compilations(folder_of_programs(tmp_path_factory.getbasetemp()))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in shared.items():
            patch.setenv(name, value)
        yield
