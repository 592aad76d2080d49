"""The examples of the README run unchanged."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from roxxel_ckpt import Checkpointer

if TYPE_CHECKING:
    import pytest

README = Path(__file__).parents[1] / "README.md"


def test_the_examples_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    examples = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)

    for _ in range(2):
        names: dict[str, object] = {}
        for example in examples:
            exec(compile(example, str(README), "exec"), names)  # noqa: S102 - our text

    assert capsys.readouterr().out == "[800, 900, 1000] 1000\n" * 2
    assert Checkpointer("linen").steps() == [1, 2]
