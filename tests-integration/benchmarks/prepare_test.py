"""The benchmark of preparation runs once, small, without tools to install."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path


def test_preparation() -> None:
    script = Path(__file__).with_name("prepare.py")
    options = "--mib", "1", "--vocab-size", "500", "--without", "datatrove"

    done = subprocess.run(
        [sys.executable, str(script), *options],
        capture_output=True,
        text=True,
        check=True,
    )

    rows = re.findall(r"^(\w+) .* (\d+)$", done.stdout, re.MULTILINE)
    assert [way for way, _ in rows] == ["bare", "roxxel", "tokenizers", "loop"]
    assert len({num_tokens for _, num_tokens in rows}) == 1
