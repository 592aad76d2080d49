"""Measures how soon all processes end after one of them fails.

Each row is a program of several real processes. The time is measured from the failure
to the end of the last process; the limit is 10 s. "reason" is the number of surviving
processes whose standard error names the reason. If the run had begun, `system.log` must
name the reason too.

    python tests-integration/benchmarks/endings.py
    python tests-integration/benchmarks/endings.py --processes 4 --mib 400 save
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
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
    "killed in evaluate": [
        *("eval_every=5", f"kill@evaluate:{LAST}", f"sleep@evaluate:{OTHERS}")
    ],
    "killed in save": ["checkpoint_every=5", f"kill@save:{LAST}"],
    "killed in restore": [f"kill@restore:{LAST}"],
}
GUARD_S = 300


@dataclass(frozen=True)
class Ending:
    """What a row shows.

    Attributes:
        seconds: From the accident to the end of the last process.
        named: Processes whose standard error names the reason.
        expected: Processes that should.
        is_logged: Whether `system.log` names the reason.
    """

    seconds: float
    named: int
    expected: int
    is_logged: bool


def main(arguments: Sequence[str] | None = None) -> Mapping[str, Ending]:
    """Print and return what each case shows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--mib", type=int, default=0, help="ballast of the model")
    parser.add_argument("cases", nargs="*", help="words of the cases to run")
    options = parser.parse_args(arguments)
    chosen = {
        name: words
        for name, words in CASES.items()
        if not options.cases or any(case in name for case in options.cases)
    }
    print(
        f"{platform.platform()}, {os.cpu_count()} processors; {options.processes} "
        f"processes, {options.mib} MiB of parameters more"
    )
    found: dict[str, Ending] = {}
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data"
        subprocess.run([sys.executable, "-c", DATA, str(data)], check=True)
        for number, (name, words) in enumerate(chosen.items()):
            run = Path(folder) / str(number)
            count, size = options.processes, f"mib={options.mib}"
            if "restore" in name:
                train(data, run, count, [size, "sigterm@20:0"])
            found[name] = ending(data, run, count, [size, *words])
            row = found[name]
            log = "system.log too" if row.is_logged else ""
            print(
                f"{name:20} {row.seconds:6.1f} s   "
                f"reason {row.named} of {row.expected} {log}",
                flush=True,
            )
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
    texts, ended_at = train(data, run, count, arguments)
    stamps = [
        float(stamp)
        for text in texts
        for stamp in re.findall(r"^(?:error|exit|kill) at (.*)$", text, re.MULTILINE)
    ]
    # A refused argument has no stamp: the traceback is printed at once.
    began = min(stamps) if stamps else min(ended_at)
    is_killed = any(word.startswith("kill") for word in words)
    reasons = ("the run ends: process ", "differs between processes")
    named = sum(any(reason in text for reason in reasons) for text in texts)
    log = run / "system.log"
    return Ending(
        max(ended_at) - began,
        named,
        count - is_killed,
        log.exists() and reasons[0] in log.read_text(),
    )


def train(
    data: Path, run: Path, count: int, arguments: Sequence[str]
) -> tuple[list[str], list[float]]:
    """Return standard error and time of the end of every process."""
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

        def run_one(index: int) -> tuple[str, float]:
            done = subprocess.run(
                [sys.executable, *program],
                env={**shared, "JAX_PROCESS_ID": str(index)},
                capture_output=True,
                text=True,
                errors="replace",
                timeout=GUARD_S,
                check=False,
            )
            return done.stderr, time.time()

        ended = list(pool.map(run_one, range(count)))
    return [text for text, _ in ended], [at for _, at in ended]


if __name__ == "__main__":
    main()
