"""Run commands at the same time, and print what they and their children used.

A process of its own, because on Linux a command's greatest memory is at least that of
the process that started it.

    python _measured.py '[["command", "argument"], ...]'

Prints the output of the commands, and a line of JSON: seconds, seconds of processors,
and the greatest memory of one process in MiB.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time


def main() -> None:
    began = time.perf_counter()
    processes = [subprocess.Popen(words) for words in json.loads(sys.argv[1])]
    codes: set[int] = set()
    cpu_s = peak = 0.0
    for process in processes:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        codes.add(process.returncode)
        cpu_s += usage.ru_utime + usage.ru_stime
        peak = max(peak, usage.ru_maxrss / (1 << 10))
    print(json.dumps([time.perf_counter() - began, cpu_s, peak]))
    sys.exit(max(codes))


if __name__ == "__main__":
    main()
