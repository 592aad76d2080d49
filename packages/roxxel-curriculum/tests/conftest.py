"""Settings of the package's tests."""

from hypothesis import settings
from suites import pytest_collection_modifyitems, pytest_xdist_setupnodes

__all__ = ["pytest_collection_modifyitems", "pytest_xdist_setupnodes"]

# No test may depend on the clock: a slow machine is not a wrong result.
settings.register_profile("without deadlines", deadline=None, max_examples=50)
settings.load_profile("without deadlines")
