"""No test depends on how busy the machine or its disk is."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from collections.abc import Iterator

# The test group holds the extras; an environment of the whole workspace may not.
EXTRAS = ("jinja2", "pyarrow", "tokenizers", "zstandard")
collect_ignore = [] if all(map(find_spec, EXTRAS)) else ["extras"]

settings.register_profile("roxxel-prepare", deadline=None, max_examples=50)
settings.load_profile("roxxel-prepare")


def no_sync(_fd: int) -> None:
    """Stand for fsync: `tests-integration/test_lost_power.py` sees what it does."""


@pytest.fixture(scope="session", autouse=True)
def _nothing_waits_for_the_disk() -> Iterator[None]:  # pyright: ignore[reportUnusedFunction]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.fsync", no_sync)
        yield
