"""Kills a run whose corpus, checkpoints and logs are in a bucket; compares the result.

A first run is never stopped. A second run of the same program is killed with SIGKILL at
random moments, in one process or in all, and started again: sometimes on the same
machine, sometimes on a new machine. A moment is a random number of changes of the
bucket, plus some milliseconds. A new machine is simulated by new local folders for the
logs and the temporary files of each process. After every kill

- every listed checkpoint is sound, and the newest is not older than before;
- processes that were not killed have ended by themselves.

At the end, both runs have the same rows of metrics, and the same checkpoints bit for
bit, including all recorded values. A failure prints the seed.

    python tests-integration/benchmarks/bucket_kills.py
    python tests-integration/benchmarks/bucket_kills.py --kills 10 --processes 2
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import io
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Self
from unittest import mock

import numpy as np
from roxxel import Roxxel, RunFolder
from roxxel.runs.compared import compare_checkpoints
from roxxel_ckpt.cli import main as ckpt

sys.path.append(str(Path(__file__).parents[1]))
from buckets import running_bucket, set_faults, stats
from runs import free_port, rows

if TYPE_CHECKING:
    from collections.abc import Iterable

PROGRAM = Path(__file__).parents[1] / "programs" / "bucket_run.py"
CORPUS = "s3://data/corpus/web_*.rox"
UNBROKEN, KILLED = "unbroken", "killed"
LATENCY_S = 0.005
LONGEST_DELAY_S = 0.05
GUARD_S = 600.0
"""Longest wait, in seconds, for processes that end by themselves."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--processes", type=int, choices=(1, 2), default=1)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    print(
        f"{options.processes} processes, {options.kills} kills, {options.steps} steps, "
        f"seed {options.seed}"
    )
    with (
        # The server may still write an object while the folder is removed.
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home,
        running_bucket(Path(home, "bucket")) as port,
    ):
        write_corpus(Path(home, "bucket/data/corpus"))
        set_faults(port, latency_s=LATENCY_S)
        campaign = Campaign(Path(home), port, options.processes, options.steps)
        chosen = random.Random(options.seed)
        try:
            campaign.run(options.kills, chosen)
            set_faults(port)
            campaign.compare()
        except AssertionError as error:
            raise SystemExit(f"seed {options.seed}: {error}") from error
    for what, number in sorted(campaign.counts.items()):
        print(f"{what}: {number}")


def write_corpus(folder: Path) -> None:
    folder.mkdir(parents=True)
    chosen = np.random.default_rng(0)
    documents = [chosen.integers(1, 97, 300, dtype=np.uint16) for _ in range(80)]
    corpus = Roxxel(folder / "web_*.rox")
    corpus.write(documents, separator=0, vocab_size=97, max_shard_bytes=20_000)


@dataclass
class Campaign:
    """The unbroken run, the killed run, and a record of events.

    Attributes:
        home: Folder of the bucket and of all machines.
        port: Where the server of the bucket listens.
        machine: Number of the machine on which the killed run starts next.
    """

    home: Path
    port: int
    num_processes: int
    num_steps: int
    machine: int = 1
    counts: collections.Counter[str] = field(default_factory=collections.Counter)

    def run(self, num_kills: int, chosen: random.Random) -> None:
        """Train both runs to their end, one of them with kills."""
        with Program(self, UNBROKEN, 0) as program:
            num_changes = program.wait()
        newest = 0
        for _ in range(num_kills):
            if chosen.random() < 0.4:
                self.machine += 1
                self.counts["starts on a new machine"] += 1
            at = chosen.uniform(0, 2 * num_changes / (num_kills + 1))
            delay_s = chosen.uniform(0, LONGEST_DELAY_S)
            victims = chosen.choice([[0], [self.num_processes - 1], None])
            with Program(self, KILLED, self.machine) as program:
                self.counts[program.kill(at, delay_s, victims)] += 1
            before, newest = newest, max(self.committed(KILLED), default=0)
            assert before <= newest, f"checkpoint {before} has vanished"
            if newest:
                code, said = command("verify", url(KILLED))
                assert code == 0, said
        with Program(self, KILLED, self.machine) as program:
            program.wait()
        self.check_left(self.machine)

    def compare(self) -> None:
        """Compare rows and checkpoints of the two runs."""
        with mock.patch.dict(os.environ, XDG_CACHE_HOME=str(self.home / "reader")):
            ours, right = (
                rows(RunFolder(f"s3://data/{name}").path) for name in (KILLED, UNBROKEN)
            )
        assert [row["step"] for row in ours] == [row["step"] for row in right]
        for row, expected in zip(ours, right, strict=True):
            assert row == expected, f"{row} in place of {expected}"
        steps = self.committed(UNBROKEN)
        # A kill right after the last commit leaves steps that the commit replaces.
        assert steps <= self.committed(KILLED), f"{self.committed(KILLED)} remain"
        both = [RunFolder(f"s3://data/{name}") for name in (KILLED, UNBROKEN)]
        for step in sorted(steps):
            found, _ = compare_checkpoints(both[0], both[1], step)
            assert found == [], f"step {step}: {found}"
        self.counts["rows equal"] = len(right)
        self.counts["checkpoints equal"] = len(steps)

    def committed(self, name: str) -> set[int]:
        """Return the steps that the manifest in the bucket lists."""
        path = self.home / "bucket/data" / name / "checkpoints/manifest.json"
        if not path.exists():
            return set()
        listed = json.loads(path.read_bytes())["listed"]
        steps = listed.get("steps", ())
        return {int(each["name"].partition(".")[0]) for each in steps}

    def check_left(self, machine: int) -> None:
        """Check that killed programs of a machine left no state in its temporary files.

        The last program on this machine has ended by itself.
        """
        for index in range(self.num_processes):
            folder = self.home / f"machine-{machine}" / str(index) / "tmp"
            left = list(folder.glob("roxxel-ckpt-*"))
            assert not left, f"{len(left)} folders are left: {left[0].name}"


class Program:
    """The processes of a program that trains a run, on one machine."""

    def __init__(self, campaign: Campaign, name: str, machine: int) -> None:
        self._campaign, self._name = campaign, name
        port, count = free_port(), campaign.num_processes
        self._processes: list[subprocess.Popen[bytes]] = []
        for index in range(count):
            own = environment(campaign.home, machine, index)
            with log(campaign.home, machine, index).open("wb") as errors:
                process = subprocess.Popen(
                    [
                        sys.executable,
                        *(str(PROGRAM), CORPUS, f"s3://data/{name}"),
                        str(campaign.num_steps),
                    ],
                    env={
                        **os.environ,
                        **own,
                        "JAX_NUM_PROCESSES": str(count),
                        "JAX_PROCESS_ID": str(index),
                        "JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{port}",
                    },
                    stdout=subprocess.PIPE,
                    stderr=errors,
                )
            self._processes.append(process)
        self._machine = machine
        self._earlier = stats(campaign.port)["changes"]
        self._began_s = time.perf_counter()

    def __enter__(self) -> Self:
        for process in self._processes:
            assert process.stdout is not None
            assert process.stdout.read(1), self._errors()
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.kill()
            process.communicate()

    def wait(self) -> int:
        """Wait until the program succeeds; return how often the bucket has changed."""
        while self._is_running(range(len(self._processes))):
            self._pause()
        codes = [process.returncode for process in self._processes]
        assert not any(codes), f"exit codes {codes}\n{self._errors()}"
        return self._num_changes()

    def kill(
        self, num_changes: float, delay_s: float, victims: list[int] | None
    ) -> str:
        """Kill processes (None: all), and return what happened.

        The moment is `delay_s` after a number of changes of the bucket.
        """
        chosen = range(len(self._processes)) if victims is None else victims
        while self._num_changes() < num_changes and self._is_running(chosen):
            self._pause()
        time.sleep(delay_s)
        is_running = self._is_running(chosen)
        for index in chosen:
            self._processes[index].send_signal(signal.SIGKILL)
        for index, process in enumerate(self._processes):
            try:
                process.wait(GUARD_S)
            except subprocess.TimeoutExpired:
                raise AssertionError(
                    f"process {index} did not end after a kill\n{self._errors()}"
                ) from None
            if is_running and index not in chosen:
                # Without process 0, JAX may abort the others before they end.
                code = process.returncode
                assert code in {1, -signal.SIGABRT}, f"process {index}: code {code}"
        if not is_running:
            assert not any(p.returncode for p in self._processes), self._errors()
            return "ended before the kill"
        steps = self._campaign.committed(self._name)
        where = "before" if not steps else "after"
        return f"killed {where} the first checkpoint"

    def _is_running(self, indices: Iterable[int]) -> bool:
        return any(self._processes[index].poll() is None for index in indices)

    def _num_changes(self) -> int:
        return stats(self._campaign.port)["changes"] - self._earlier

    def _pause(self) -> None:
        assert time.perf_counter() - self._began_s < GUARD_S, self._errors()
        time.sleep(0.01)

    def _errors(self) -> str:
        home, machine = self._campaign.home, self._machine
        return "\n".join(
            log(home, machine, index).read_text(errors="replace")[-3000:]
            for index in range(len(self._processes))
        )


def environment(home: Path, machine: int, index: int) -> dict[str, str]:
    """Return the settings of one process of a machine, with its own folders."""
    own = home / f"machine-{machine}" / str(index)
    (own / "tmp").mkdir(parents=True, exist_ok=True)
    return {
        "XDG_CACHE_HOME": str(own / "cache"),
        "TMPDIR": str(own / "tmp"),
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=1",
        "JAX_COMPILATION_CACHE_DIR": str(home / "compiled"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "NO_COLOR": "1",
    }


def log(home: Path, machine: int, index: int) -> Path:
    return home / f"machine-{machine}" / str(index) / "stderr"


def url(name: str) -> str:
    return f"s3://data/{name}/checkpoints"


def command(*words: str) -> tuple[int, str]:
    """Run `roxxel-ckpt`; return its exit code and what it printed."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        code = ckpt(words)
    return code, output.getvalue()


if __name__ == "__main__":
    main()
