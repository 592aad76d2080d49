"""Measures how soon all processes end after an accident in the last of them.

Each row is a program of several real processes. The time is measured from the accident
to the end of the last process; after a failure the limit is 10 s. "reason" counts the
processes whose standard error names the reason, among those that can still print. If
the run had begun, `system.log` must name it too.

    python tests-integration/benchmarks/endings.py
    python tests-integration/benchmarks/endings.py save --processes 4 --mib 400
    python tests-integration/benchmarks/endings.py "in a step" --processes 2 4 8
"""

from __future__ import annotations

import argparse
import itertools
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from roxxel_train._together.launcher import held_port

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PROGRAMS = Path(__file__).parents[1] / "programs"
DATA = f"""
import pathlib, sys
sys.path.insert(0, {str(PROGRAMS)!r})
import drill
drill.write(pathlib.Path(sys.argv[1]))
"""

LAST, OTHERS = "LAST", "OTHERS"
CASES: Mapping[str, Sequence[str]] = {
    "raises before": [f"error@before:{LAST}"],
    "exits before": [f"exit@before:{LAST}"],
    "refuses an argument": [f"checkpoint_every=0:{LAST}"],
    "raises after": [f"error@after:{LAST}"],
    "models differ": [f"arrays=1:{LAST}"],
    "raises in a step": [f"error@30:{LAST}"],
    "killed in a step": [f"kill@30:{LAST}"],
    "preempted in a step": [f"sigterm@30:{LAST}"],
    "slow in a step": ["steps=120", "log_every=5", f"slow@30:{LAST}"],
    "killed in evaluate": [
        *("eval_every=5", f"kill@evaluate:{LAST}", f"sleep@evaluate:{OTHERS}")
    ],
    "killed in save": ["checkpoint_every=5", f"kill@save:{LAST}"],
    "killed in restore": [f"kill@restore:{LAST}"],
}
GUARD_S = 300

# How a reason begins, in the order in which a text is searched.
REASONS = (
    r"the run ends: (process .*)",
    r"(.* differs? between processes.*)",
    r"caught Preempted: (.*);",
    r"(process \d+ stays behind.*)",
)


@dataclass(frozen=True)
class Ending:
    """What a row shows.

    Attributes:
        seconds: From the accident to the end of the last process.
        codes: Exit code of each process.
        reason: Why the run ended, from the first text that names it. named: Number of
            processes whose standard error names the reason. expected: Number of
            processes that should name it.
        is_logged: Whether `system.log` names the reason.
    """

    seconds: float
    codes: Sequence[int]
    reason: str
    named: int
    expected: int
    is_logged: bool

    def __str__(self) -> str:
        """Return the row without its case."""
        counted = Counter(self.codes).items()
        codes = ", ".join(f"{count} x {code}" for code, count in counted)
        log = "and system.log" if self.is_logged else ""
        named = f"{self.named} of {self.expected} {log}"
        return f"{self.seconds:5.1f} s  {codes:16} {named:21} {self.reason[:64]}"


def main(
    arguments: Sequence[str] | None = None,
) -> Mapping[tuple[str, int], Ending]:
    """Print and return what each case shows, by case and number of processes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, nargs="+", default=[2])
    parser.add_argument("--mib", type=int, default=0, help="ballast of the model")
    parser.add_argument("cases", nargs="*", help="words of the cases to run")
    options = parser.parse_args(arguments)
    chosen = {
        name: words
        for name, words in CASES.items()
        if not options.cases or any(case in name for case in options.cases)
    }
    print(
        f"{platform.platform()}, {os.cpu_count()} processors, load "
        f"{os.getloadavg()[0]:.1f}; {options.mib} MiB of parameters more"
    )
    found: dict[tuple[str, int], Ending] = {}
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data"
        subprocess.run([sys.executable, "-c", DATA, str(data)], check=True)
        counts: Sequence[int] = options.processes
        for name, count in itertools.product(chosen, counts):
            run, size = Path(folder) / str(len(found)), f"mib={options.mib}"
            if "restore" in name:
                train(data, run, count, [size, "sigterm@20:0"])
            ended = ending(data, run, count, [size, *chosen[name]])
            found[name, count] = ended
            print(f"{name:20} {count:2} processes {ended}", flush=True)
    return found


def ending(data: Path, run: Path, count: int, words: Sequence[str]) -> Ending:
    """Run processes with an accident; return how they ended."""
    last = count - 1
    arguments: list[str] = []
    for word in words:
        if OTHERS in word:
            arguments += [word.replace(OTHERS, str(index)) for index in range(last)]
        else:
            arguments.append(word.replace(LAST, str(last)))
    ended = train(data, run, count, arguments)
    stamps = [
        float(stamp)
        for process in ended
        for stamp in re.findall(
            r"^(?:error|exit|kill|sigterm|slow) at (.*)$",
            process.said,
            re.MULTILINE,
        )
    ]
    # A refused argument has no stamp: the traceback is printed at once.
    began = min(stamps) if stamps else min(process.at for process in ended)
    log = run / "system.log"
    texts = [process.said for process in ended]
    logged = reason_in(log.read_text()) if log.exists() else None
    reasons = [reason for text in texts if (reason := reason_in(text)) is not None]
    return Ending(
        max(process.at for process in ended) - began,
        [process.code for process in ended],
        next(iter(reasons), logged or ""),
        len(reasons),
        # A slow process is named in the log, and process 0 speaks for all.
        1 if "slow" in str(words) else count - ended[-1].is_killed,
        logged is not None,
    )


def reason_in(text: str) -> str | None:
    """Return why a run ended, or which process was slow; None if not in the text."""
    for pattern in REASONS:
        if found := re.search(pattern, text):
            return found[1]
    return None


@dataclass(frozen=True)
class Ended:
    """A process that has ended: its output, its exit code, and the time of its end."""

    said: str
    code: int
    at: float

    @property
    def is_killed(self) -> bool:
        """Whether the process was killed, so that it could not print a reason."""
        return self.code == -signal.SIGKILL


def train(data: Path, run: Path, count: int, arguments: Sequence[str]) -> list[Ended]:
    """Train in `count` processes."""
    with held_port() as port, ThreadPoolExecutor(count) as pool:
        shared = {
            **os.environ,
            "JAX_PLATFORMS": "cpu",
            "XLA_FLAGS": "--xla_force_host_platform_device_count=1",
            "JAX_NUM_PROCESSES": str(count),
            "JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{port}",
            "JAX_COORDINATOR_BIND_ADDRESS": f"127.0.0.1:{port}",
        }
        program = [str(PROGRAMS / "ending.py"), str(data), str(run), *arguments]

        def run_one(index: int) -> Ended:
            with subprocess.Popen(
                [sys.executable, *program],
                env={**shared, "JAX_PROCESS_ID": str(index)},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
            ) as process:
                _, said = process.communicate(timeout=GUARD_S)
                at = time.time()
            return Ended(said, process.returncode, at)

        return list(pool.map(run_one, range(count)))


if __name__ == "__main__":
    main()
