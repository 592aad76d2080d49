"""Tests in one process do not wait for the disk, however busy it is.

A flush takes milliseconds, and three files of the checkpoints' tests make 20 000 of
them. `tests-integration/test_lost_power.py` sees what a flush does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator


def no_sync(_fd: int) -> None:
    """Stand for fsync."""


@pytest.fixture(scope="session", autouse=True)
def nothing_waits_for_the_disk() -> Iterator[None]:
    """Let `os.fsync` do nothing; a test that looks at flushes replaces it again."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.fsync", no_sync)
        yield
