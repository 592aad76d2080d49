"""Kills preparations with their workers; the same command gives the same bytes.

A command with two workers writes many units. When a random number of units is done, and
a random time later, SIGKILL ends the command and its workers, or one of its workers.
The same command then ends the work. The corpus must equal that of a command that was
not killed, byte for byte. No shard of a unit that was done may be written again, and
after `clean` no file may be left.

    python tests-integration/benchmarks/format_prepare.py              # 3 kills
    python tests-integration/benchmarks/format_prepare.py --kills 30   # the campaign
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

NUM_LINES = 6000
UNIT_BYTES = 8192
MOST_S = 0.02  # The latest moment of a kill after the chosen number of units.


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--seed", type=int, help="default: a new one")
    options = parser.parse_args()
    seed = random.randrange(2**32) if options.seed is None else options.seed
    print(f"{options.kills} kills from seed {seed}")
    chance = random.Random(seed)
    found: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home)
        lines = (json.dumps("ab" * chance.randrange(60)) for _ in range(NUM_LINES))
        (folder / "a.jsonl").write_text("".join(f"{line}\n" for line in lines))
        start(folder, "whole").communicate()
        for number in range(options.kills):
            found.update(trial(folder, f"killed_{number}", chance))
    for outcome, count in sorted(found.items()):
        print(f"{outcome}: {count}")


def start(folder: Path, name: str) -> subprocess.Popen[bytes]:
    """Start the command in a process group of its own."""
    pattern = str(folder / name / "c_*.rox")
    command = ["write", pattern, str(folder / "a.jsonl"), "--separator", "0"]
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "roxxel_format", *command),
            *("--unit-bytes", str(UNIT_BYTES), "--workers", "2"),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def trial(folder: Path, name: str, chance: random.Random) -> Counter[str]:
    """Kill one preparation, end its work, and return what was found."""
    target = folder / name
    command = start(folder, name)
    what = "ended before the kill"
    # In the first half, so that the command does not end before the kill.
    first = chance.randrange(len(content(folder / "whole")) // 2)
    while command.poll() is None and len(records(target)) < first:
        with contextlib.suppress(subprocess.TimeoutExpired):
            command.wait(0.001)
    try:
        command.wait(chance.random() * MOST_S)
    except subprocess.TimeoutExpired:
        workers = children(command.pid)
        if workers and chance.random() < 0.5:
            what = "kills of a worker"
            os.kill(chance.choice(workers), signal.SIGKILL)
        else:
            what = "kills of the command and its workers"
            os.killpg(command.pid, signal.SIGKILL)
    command.communicate()
    done = inodes_of_done(target)

    again = start(folder, name)
    _, errors = again.communicate()
    assert again.returncode == 0, errors.decode()
    for path, inode in done.items():
        assert path.stat().st_ino == inode, f"{path}: was written again"
    cleaned = [sys.executable, "-m", "roxxel_format", "clean", f"{target}/c_*.rox"]
    output = subprocess.run(cleaned, capture_output=True, text=True, check=True).stdout
    assert content(target) == content(folder / "whole"), "other bytes"
    hidden = {path.name for path in target.glob(".*")}
    assert hidden == {".c_manifest.json.lock", ".c_manifest.json.writers"}, hidden
    found = Counter({what: 1, "units kept": len(done)})
    found["files that only clean removed"] = output.count("removed ")
    return found


def children(pid: int) -> list[int]:
    """Return the processes that a process has started, where the system tells."""
    path = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(each) for each in path.read_text().split()] if path.exists() else []


def records(folder: Path) -> list[Path]:
    return [*folder.glob(".c_manifest.json.*.unit")]


def inodes_of_done(folder: Path) -> dict[Path, int]:
    """Return the inodes of the shards of units with a record."""
    shards = {
        folder / name
        for record in records(folder)
        for name in json.loads(record.read_bytes())["shards"]["names"]
    }
    return {path: path.stat().st_ino for path in shards}


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("c_*")}


if __name__ == "__main__":
    main()
