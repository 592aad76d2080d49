"""Kills preparations or their workers; the same command must give the same bytes.

A command writes many units, with two workers, or with `--ray` on two raylets of this
machine. After a random number of units and a random time, SIGKILL ends the command, one
of its workers, or a raylet. Then the same command finishes the work. The corpus must
equal that of a command that was not killed, byte for byte. No shard of a finished unit
may be written again, and after `clean` no other file may be left.

    python tests-integration/benchmarks/format_prepare.py              # 3 kills
    python tests-integration/benchmarks/format_prepare.py --kills 30   # the campaign
    python tests-integration/benchmarks/format_prepare.py --ray --kills 30
    python tests-integration/benchmarks/format_prepare.py --tokenizer tokenizer.json

With `--tokenizer` its fast backend encodes.
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
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

sys.path.append(str(Path(__file__).parents[1]))
from ray_cluster import NODE, children, raylet_of, running_cluster, workers_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

NUM_LINES = 6000
UNIT_BYTES = 8192
TOKENIZER = "tokenizer.json"
MOST_S = 0.02  # The latest moment of a kill after the chosen number of units.


FORMAT = sys.executable, "-m", "roxxel_format"
PREPARE = sys.executable, "-m", "roxxel_prepare"


class Runner(Protocol):
    """How a command writes its units, and which of its processes can be killed."""

    @property
    def options(self) -> Sequence[str]:
        """Options of the command."""
        ...

    def kill(self, command: subprocess.Popen[bytes], chance: random.Random) -> str:
        """Kill a process of the command that runs; return what was killed."""
        ...

    def recover(self) -> None:
        """Restart a killed process that the command does not start itself."""
        ...


class Processes:
    """Two worker processes of the command."""

    options = ("--workers", "2")

    def kill(self, command: subprocess.Popen[bytes], chance: random.Random) -> str:
        """Kill a worker, or the command and its workers."""
        workers = children(command.pid)
        if workers and chance.random() < 0.5:
            os.kill(chance.choice(workers), signal.SIGKILL)
            return "kills of a worker"
        os.killpg(command.pid, signal.SIGKILL)
        return "kills of the command and its workers"

    def recover(self) -> None:
        """Do nothing: the command starts its workers."""


@dataclass
class OfRay:
    """Tasks of Ray on two raylets."""

    cluster: Any

    @property
    def options(self) -> Sequence[str]:
        """Options of the command."""
        return "--ray", self.cluster.address

    def kill(self, command: subprocess.Popen[bytes], chance: random.Random) -> str:
        """Kill a worker, the raylet of a node, or the command, which is the driver."""
        workers = workers_of(self.cluster)
        what = chance.choice(["a worker", "a raylet", "the driver"])
        if what == "a worker" and workers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(chance.choice(workers), signal.SIGKILL)
            return "kills of a worker of Ray"
        if what == "a raylet":
            [node] = self.cluster.worker_nodes
            os.kill(raylet_of(node), signal.SIGKILL)
            return "kills of a raylet"
        os.kill(command.pid, signal.SIGKILL)
        return "kills of the driver"

    def recover(self) -> None:
        """Add a node in place of one without its raylet."""
        for node in [*self.cluster.worker_nodes]:
            if not node.remaining_processes_alive():
                self.cluster.remove_node(node, allow_graceful=False)
                self.cluster.add_node(**NODE)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--seed", type=int, help="default: a new one")
    parser.add_argument("--ray", action="store_true", help="on two raylets")
    parser.add_argument("--tokenizer", type=Path, help="encode by the fast backend")
    options = parser.parse_args()
    seed = random.randrange(2**32) if options.seed is None else options.seed
    print(f"{options.kills} kills from seed {seed}")
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory() as home, contextlib.ExitStack() as resources:
        folder = Path(home)
        runner: Runner = Processes()
        if options.ray:
            (folder / "r").mkdir()
            runner = OfRay(resources.enter_context(running_cluster()))
        if options.tokenizer is not None:
            (folder / TOKENIZER).symlink_to(options.tokenizer.resolve())
        found = campaign(folder, runner, options.kills, chance)
    for outcome, count in sorted(found.items()):
        print(f"{outcome}: {count}")


def campaign(
    folder: Path, runner: Runner, kills: int, chance: random.Random
) -> Counter[str]:
    """Write inputs, kill preparations of them, and return what was found."""
    lines = (json.dumps("ab" * chance.randrange(60)) for _ in range(NUM_LINES))
    (folder / "a.jsonl").write_text("".join(f"{line}\n" for line in lines))
    start(folder, "whole", Processes()).communicate()
    found: Counter[str] = Counter()
    for number in range(kills):
        found.update(trial(folder, f"killed_{number}", runner, chance))
    return found


def start(folder: Path, name: str, runner: Runner) -> subprocess.Popen[bytes]:
    """Start the command in its own process group."""
    pattern = str(folder / name / "c_*.rox")
    command = ["write", pattern, str(folder / "a.jsonl"), "--separator", "0"]
    if (folder / TOKENIZER).exists():
        command += ["--tokenizer", str(folder / TOKENIZER)]
        command += ["--tokenizer-backend", "fastokens"]
    return subprocess.Popen(
        [*PREPARE, *command, "--unit-bytes", str(UNIT_BYTES), *runner.options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def trial(
    folder: Path, name: str, runner: Runner, chance: random.Random
) -> Counter[str]:
    """Kill one preparation, end its work, and return what was found."""
    target = folder / name
    command = start(folder, name, runner)
    what = "ended before the kill"
    # In the first half, so that the command does not end before the kill.
    first = chance.randrange(len(content(folder / "whole")) // 2)
    while command.poll() is None and len(records(target)) < first:
        with contextlib.suppress(subprocess.TimeoutExpired):
            command.wait(0.001)
    try:
        command.wait(chance.random() * MOST_S)
    except subprocess.TimeoutExpired:
        what = runner.kill(command, chance)
    done = {**inodes_of_done(target)}
    command.communicate()
    done |= inodes_of_done(target)
    runner.recover()

    again = start(folder, name, runner)
    _, errors = again.communicate()
    assert again.returncode == 0, errors.decode()
    for path, inode in done.items():
        assert path.stat().st_ino == inode, f"{path}: was written again"
    output = cleaned(f"{target}/c_*.rox")
    assert content(target) == content(folder / "whole"), "other bytes"
    hidden = {path.name for path in target.glob(".*")}
    assert hidden == {".c_manifest.json.lock", ".c_manifest.json.writers"}, hidden
    found = Counter({what: 1, "units kept": len(done)})
    found["files that only clean removed"] = output.count("removed ")
    return found


def cleaned(pattern: str) -> str:
    """Run `clean`; repeat it until a writer that has lost its driver ends."""
    stop_s = time.monotonic() + 60
    while True:
        done = subprocess.run(
            [*FORMAT, "clean", pattern], capture_output=True, text=True, check=False
        )
        if done.returncode == 0:
            return done.stdout
        assert time.monotonic() < stop_s, done.stderr
        assert "in progress" in done.stderr, done.stderr


def records(folder: Path) -> list[Path]:
    return [*folder.glob(".c_manifest.json.*.unit")]


def inodes_of_done(folder: Path) -> Mapping[Path, int]:
    """Return the inodes of the shards of units with a record."""
    found: dict[Path, int] = {}
    for record in records(folder):
        with contextlib.suppress(FileNotFoundError):  # Of a command that commits.
            names = json.loads(record.read_bytes())["new"]["shards"]["names"]
            found |= {folder / name: (folder / name).stat().st_ino for name in names}
    return found


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("c_*")}


if __name__ == "__main__":
    main()
