from __future__ import annotations

import doctest
import inspect
from typing import TYPE_CHECKING

import numpy as np
import pytest
import roxxel_loader
from roxxel_loader.datasets import arrow, huggingface, polars, sqlite

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType

OTHERS = [arrow, huggingface, polars, sqlite]
PUBLIC = {name: getattr(roxxel_loader, name) for name in roxxel_loader.__all__}
OWN = [
    name
    for name, value in PUBLIC.items()
    if value.__module__ not in {module.__name__ for module in OTHERS}
]
CLASSES = [name for name, value in PUBLIC.items() if inspect.isclass(value)]


@pytest.mark.parametrize("name", CLASSES)
def test_every_public_class_has_an_example(name: str) -> None:
    (own, *_) = doctest.DocTestFinder(recurse=False).find(PUBLIC[name], name)

    assert own.examples


@pytest.mark.parametrize("name", OWN)
def test_examples_run(name: str) -> None:
    finder = doctest.DocTestFinder(recurse=False)
    runner = doctest.DocTestRunner()

    for test in finder.find(PUBLIC[name], name, globs={"np": np, **PUBLIC}):
        runner.run(test)

    assert runner.summarize().failed == 0


@pytest.mark.parametrize("module", OTHERS)
def test_examples_of_other_libraries_run(
    module: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    done = doctest.testmod(module)

    assert done.attempted
    assert done.failed == 0
