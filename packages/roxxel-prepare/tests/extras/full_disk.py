"""A preparation on a disk that is full before its end."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pathlib import Path

_ON_A_FULL_DISK = """
import json, pathlib, subprocess, sys

folder, copy, *options = sys.argv[1:]
folder = pathlib.Path(folder)
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "disk", folder], check=True)
(folder / "other").write_bytes(bytes(2 << 20))

def run(*arguments):
    module = "roxxel_prepare" if arguments[0] == "write" else "roxxel_format"
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    runs.append([done.returncode, done.stderr.splitlines()])

runs = []
run("write", f"{folder}/c_*.rox", *options)
run("clean", f"{folder}/c_*.rox")
left = {path.name: path.stat().st_ino for path in folder.glob("*.rox")}
(folder / "other").unlink()
run("write", f"{folder}/c_*.rox", *options)
run("clean", f"{folder}/c_*.rox")
kept = [(folder / name).stat().st_ino == left[name] for name in left]
subprocess.run(["cp", "-r", f"{folder}/.", copy], check=True)
print(json.dumps([runs, kept]))
"""
_ALONE = "unshare", "--map-root-user", "--mount"


def written_on_a_full_disk(
    folder: Path, copy: Path, *options: str
) -> tuple[list[tuple[int, list[str]]], list[bool]]:
    """Write to 1 MiB of disk, clean up, make room, write again, and clean up.

    Skips the test where this user may not mount a disk.

    Args:
        folder: Empty; the disk is mounted here, and only this program sees it.
        copy: The files of the disk are copied here at the end.
        options: Inputs and options of `roxxel-prepare write`.

    Returns:
        Exit code and lines of errors of the four commands, and of each shard that the
        first command left, whether the third one kept it.
    """
    if not _can_mount(folder):
        pytest.skip("this user cannot mount a small disk")
    script = [*_ALONE, sys.executable, "-c", _ON_A_FULL_DISK, str(folder), str(copy)]
    done = subprocess.run(
        [*script, *options], capture_output=True, text=True, check=True
    )
    found: Any = json.loads(done.stdout)
    return found


def _can_mount(folder: Path) -> bool:
    """Return whether a disk can be mounted that this process alone sees."""
    if shutil.which("unshare") is None:
        return False
    command = [*_ALONE, "mount", "-t", "tmpfs", "disk", str(folder)]
    return not subprocess.run(command, capture_output=True, check=False).returncode
