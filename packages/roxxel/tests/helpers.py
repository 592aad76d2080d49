"""What several tests need."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from compilation import QUICK_COMPILATION
from roxxel.config import make_pair

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from roxxel.config import RunConfig


def write_library(folder: Path, num_files: int) -> list[str]:
    """Write a made-up standard library of about 3 KB a file; return the names."""
    folder.mkdir(parents=True, exist_ok=True)
    chosen = random.Random(0)
    names: list[str] = []
    for index in range(num_files):
        name = f"module_{index:03}.py"
        words = " ".join(chosen.choices(("alpha", "beta", "gamma", "delta"), k=400))
        text = f'"""Module {index} says {words}."""\n\nvalue = {index}\n'
        (folder / name).write_text(text, encoding="utf-8")
        names.append(name)
    return names


def make_model(config: RunConfig) -> Any:
    return make_pair(config)[0]


def run_python(
    *arguments: str,
    cwd: Path | None = None,
    timeout_s: float = 300.0,
    run: Callable[..., Any] = subprocess.run,
) -> subprocess.CompletedProcess[str]:
    """Run a fresh interpreter, or by another `run`; return what it printed."""
    return run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
        cwd=cwd,
        # Tests of other packages in this process may have asked for many devices.
        env={**os.environ, "XLA_FLAGS": QUICK_COMPILATION},
        stdin=subprocess.DEVNULL,
    )
