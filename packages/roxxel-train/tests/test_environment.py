"""The row of a start names the program by the commit of its repository."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import forked

if TYPE_CHECKING:
    from pathlib import Path

PROGRAM = """
from roxxel_train._run.session import environment
print(environment({}, {})["versions"].get("program"))
"""
MAIN = "print('trains')\n"


def test_a_start_names_the_commit_and_says_that_files_differ_from_it(
    tmp_path: Path,
) -> None:
    here = {**os.environ, "GIT_CEILING_DIRECTORIES": str(tmp_path.parent)}
    assert named(tmp_path, here) == "None"

    program = tmp_path / "main.py"
    program.write_text(MAIN, "utf-8")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "main.py")
    author = ("-c", "user.name=a", "-c", "user.email=a@example.com")
    git(tmp_path, *author, "commit", "-q", "-m", "first")
    git(tmp_path, "tag", "v1")
    commit = git(tmp_path, "rev-parse", "HEAD")[:12]

    assert named(tmp_path, here) == commit
    program.write_text(f"{MAIN}# changed\n", "utf-8")
    assert named(tmp_path, here) == f"{commit}-dirty"


def named(folder: Path, environ: dict[str, str]) -> str:
    done = forked.run(
        [sys.executable, "-c", PROGRAM],
        cwd=folder,
        env=environ,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def git(folder: Path, *words: str) -> str:
    command = ["git", "-C", str(folder), *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
