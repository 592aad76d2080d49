from __future__ import annotations

import re
from pathlib import Path

import pytest

README = Path(__file__).parents[1] / "README.md"
BLOCKS = re.findall(r"```python\n(.*?)```", README.read_text("utf-8"), re.DOTALL)


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_the_readmes_examples_run(number: int) -> None:
    code = compile(BLOCKS[number], f"{README.name}[{number}]", "exec")
    exec(code, {"__name__": "readme"})  # noqa: S102 - our own page is what is tested


def test_the_readme_has_examples() -> None:
    assert len(BLOCKS) >= 3
