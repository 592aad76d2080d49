"""What the README shows runs as it stands there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from .conftest import environment

README = Path(__file__).parents[1] / "README.md"


def test_example_of_the_readme_runs(tmp_path: Path, compilation_cache: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert len(blocks) == 2

    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", "".join(blocks)],
        cwd=tmp_path,
        env=environment(1, compilation_cache),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert "80 steps" in lines[0]
    assert lines[-2].startswith("done: 80 of 80 steps, loss 0.")
    assert lines[-1].startswith("(16, 65) Location(source='self'")
