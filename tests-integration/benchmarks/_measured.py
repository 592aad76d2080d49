"""Runs commands at the same time; prints the time and memory that they needed.

    python _measured.py '[["command", "argument"], ...]'

The program prints the output of the commands, then a line of JSON: wall seconds, CPU
seconds, and the peak memory of the largest process in MiB. Child processes are
included. This small program starts the commands, because Linux counts the peak memory
of a command as at least the memory of the process that started it.
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
