"""How programs are compiled in these tests: quickly, and once; and no deadlines."""

import os

from compilation import QUICK_COMPILATION
from flushes import nothing_waits_for_the_disk
from suites import (
    compile_once,
    pytest_collection_modifyitems,
    pytest_xdist_setupnodes,
)

# Before JAX looks.
os.environ.setdefault("XLA_FLAGS", QUICK_COMPILATION)

from hypothesis import settings

__all__ = [
    "compile_once",
    "nothing_waits_for_the_disk",
    "pytest_collection_modifyitems",
    "pytest_xdist_setupnodes",
]

# A busy machine is no failure.
settings.register_profile("roxxel", deadline=None, max_examples=50)
settings.load_profile("roxxel")
