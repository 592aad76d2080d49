"""A process that ends early releases the others, which say who ended and why."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import forked
import pytest
from roxxel_ckpt import Checkpointer

PROGRAM = Path(__file__).with_name("ending_early.py")
# Far less than the 1000 seconds for which the program lets its checkpointers wait.
GUARD_S = 600


@pytest.mark.parametrize(
    ("count", "ending", "how", "why"),
    [
        (2, 0, "raises", " (ValueError: the data are gone)"),
        (3, 2, "raises", " (ValueError: the data are gone)"),
        (3, 1, "returns", ""),
    ],
)
def test_whoever_ends_early_releases_the_others(
    tmp_path: Path, port: int, count: int, ending: int, how: str, why: str
) -> None:
    arguments = [str(PROGRAM), str(port), str(count)]
    programs = [
        forked.Popen(
            [sys.executable, *arguments, *map(str, (index, ending, how, tmp_path))],
            env={**os.environ, "JAX_PLATFORMS": "cpu"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for index in range(count)
    ]
    try:
        texts = [program.communicate(timeout=GUARD_S)[1] for program in programs]
    finally:
        for program in programs:
            program.kill()

    for index, text in enumerate(texts):
        if index != ending:
            assert programs[index].returncode == 1, text
            said = f"save step 2: the program of process {ending} has ended{why}"
            assert said in text
    assert Checkpointer(tmp_path).steps() == [1]
