"""What the suites share: forked workers, compiled programs, and what begins first.

A `conftest.py` imports what its suite needs.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import forked
import pytest
from compilation import folder_of_programs, share_compilations

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


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(specs: list[Any]) -> None:
    """Fork the workers of this run from the warm process, which has imported JAX."""
    if forked.CAN_FORK:
        for each in specs:
            each.python = forked.python()


@pytest.hookimpl(trylast=True)  # after the shuffling
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with what takes longest: at the end it would run beside nothing.

    These are the tests marked `first`, and then the files of most tests.
    """
    num_tests = Counter(item.path for item in items)
    items.sort(
        key=lambda item: (
            item.get_closest_marker("first") is None,
            -num_tests[item.path],
        )
    )
