"""The example of the README runs unchanged."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

README = Path(__file__).parents[1] / "README.md"


def test_the_example_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (example,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)

    for _ in range(2):
        exec(compile(example, str(README), "exec"), {})  # noqa: S102 - our own text

    assert capsys.readouterr().out == "[800, 900, 1000] 1000\n" * 2
