from __future__ import annotations

import doctest
import inspect
from typing import TYPE_CHECKING

import numpy as np
import pytest
import roxxel_format

if TYPE_CHECKING:
    from pathlib import Path

PUBLIC = {name: getattr(roxxel_format, name) for name in roxxel_format.__all__}
CLASSES = [name for name, value in PUBLIC.items() if inspect.isclass(value)]


@pytest.mark.parametrize("name", CLASSES)
def test_every_public_class_has_an_example_that_runs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    finder = doctest.DocTestFinder(recurse=False)
    (example,) = finder.find(PUBLIC[name], name, globs={"np": np, **PUBLIC})

    assert example.examples
    assert doctest.DocTestRunner().run(example).failed == 0
