"""What a page says about an effect is what its program finds.

A seed takes up to 25 seconds of CPU, so the suite tries one. `nox -s drill` tries as
many as the page, by `ROXXEL_EFFECT_SEEDS=5`.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import forked
import pytest
from compilation import QUICK_COMPILATION

from .conftest import PROGRAMS

pytestmark = [pytest.mark.first, pytest.mark.long]

SEEDS = os.environ.get("ROXXEL_EFFECT_SEEDS", "1")

PAGES = sorted((Path(__file__).parents[1] / "docs/effects").glob("*.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_an_effect_holds_as_its_page_says(page: Path, tmp_path: Path) -> None:
    text = page.read_text()
    shown = re.search(r"<!-- output of (\S+) -->\n```text\n(.*?)\n```", text, re.DOTALL)
    assert shown is not None

    # With optimizations: a program of minutes earns back what they cost.
    flags = os.environ.get("XLA_FLAGS", "").replace(QUICK_COMPILATION, "")
    done = forked.run(
        [sys.executable, "-W", "error", str(PROGRAMS / shown[1]), SEEDS],
        cwd=tmp_path,
        env={**os.environ, "XLA_FLAGS": flags},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    expected = shown[2].splitlines()[-1].replace("5 of 5", f"{SEEDS} of {SEEDS}")
    assert done.stdout.splitlines()[-1] == expected, done.stdout
