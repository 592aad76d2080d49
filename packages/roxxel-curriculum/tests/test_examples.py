from __future__ import annotations

import doctest
import inspect

import numpy as np
import pytest
import roxxel_curriculum
from roxxel_curriculum import testing

PUBLIC = {name: getattr(roxxel_curriculum, name) for name in roxxel_curriculum.__all__}
TESTING = {
    name: value
    for name, value in vars(testing).items()
    if getattr(value, "__module__", None) == testing.__name__
}
CLASSES = {
    name: value
    for name, value in {**PUBLIC, **TESTING}.items()
    # `TokenReader` is a class of roxxel_format.
    if inspect.isclass(value) and value.__module__.startswith("roxxel_curriculum")
}


@pytest.mark.parametrize("name", CLASSES)
def test_every_public_class_has_an_example_that_runs(name: str) -> None:
    finder = doctest.DocTestFinder(recurse=False)
    runner = doctest.DocTestRunner()

    (own,) = finder.find(CLASSES[name], name, globs={"np": np, **PUBLIC, **TESTING})
    runner.run(own)

    assert own.examples
    assert runner.summarize().failed == 0
