"""The example of the README runs."""

from __future__ import annotations

import re
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"


def test_every_example_of_the_readme_runs() -> None:
    examples = re.findall(r"```python\n(.*?)```", README.read_text("utf-8"), re.DOTALL)

    assert examples
    names: dict[str, object] = {}
    for example in examples:
        exec(compile(example, str(README), "exec"), names)  # noqa: S102 - our own text
