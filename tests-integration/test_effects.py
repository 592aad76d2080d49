"""What a page says about an effect is what its program finds, in as many seeds."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import forked
import pytest

from .conftest import PROGRAMS, QUICK_COMPILATION

pytestmark = pytest.mark.long

PAGES = sorted((Path(__file__).parents[1] / "docs/effects").glob("*.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_an_effect_holds_in_as_many_seeds_as_its_page_says(
    page: Path, tmp_path: Path
) -> None:
    text = page.read_text()
    shown = re.search(r"<!-- output of (\S+) -->\n```text\n(.*?)\n```", text, re.DOTALL)
    assert shown is not None

    # With optimizations: a program of minutes earns back what they cost.
    flags = os.environ.get("XLA_FLAGS", "").replace(QUICK_COMPILATION, "")
    done = forked.run(
        [sys.executable, "-W", "error", str(PROGRAMS / shown[1])],
        cwd=tmp_path,
        env={**os.environ, "XLA_FLAGS": flags},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == shown[2].splitlines()[-1], done.stdout
