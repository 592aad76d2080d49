"""No test depends on how busy the machine or its disk is."""

from importlib.util import find_spec

from flushes import nothing_waits_for_the_disk
from hypothesis import settings
from suites import pytest_collection_modifyitems, pytest_xdist_setupnodes

__all__ = [
    "nothing_waits_for_the_disk",
    "pytest_collection_modifyitems",
    "pytest_xdist_setupnodes",
]

# The test group holds the extra; an environment of the whole workspace may not.
collect_ignore = [] if find_spec("obstore") else ["extras"]

settings.register_profile("roxxel-format", deadline=None, max_examples=25)
settings.load_profile("roxxel-format")
