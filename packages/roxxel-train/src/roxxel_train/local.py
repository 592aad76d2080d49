"""Start several processes of a program on this machine's CPU, to test the program.

For example::

    python -m roxxel_train.local --processes 2 train.py --steps 10

The script must call `roxxel_train.distributed.initialize()`. `roxxel train CONFIG
--processes 2` does the same for the run of a config file.

The command prints the output of process 0. After a failure it also prints the last
lines of the other processes, but not one line of a process that ends as process 0 does.
The command forwards the signals that stop a run or save it, such as SIGTERM, to all
processes. If a process fails, the command ends the others and returns the exit code of
the failed process. Exit code 75 means "stopped and saved", which is not a failure. If
the command itself is killed, its processes end too.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import ExitStack, contextmanager
from queue import Empty, SimpleQueue
from threading import Thread
from typing import IO, TYPE_CHECKING, Any

from roxxel_store.screen import note

from roxxel_train._together import launcher
from roxxel_train._together.cluster import (
    COORDINATOR_ADDRESS,
    NUM_PROCESSES,
    PROCESS_ID,
)
from roxxel_train._together.signals import SAVE, URGENT, WARNINGS
from roxxel_train.errors import PREEMPTED_EXIT_CODE

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

_GRACE_S = 15.0
"""Time from the failure of a process until the command kills the others. In this time
the other processes detect the failure and log the reason."""

_NUM_LAST_LINES = 60
"""Lines of each other process that the command prints after a failure."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m roxxel_train.local",
        description="Run several processes of a script on this machine's CPU.",
    )
    parser.add_argument("--processes", type=_positive, default=2, metavar="N")
    parser.add_argument("--devices-per-process", type=_positive, default=1, metavar="N")
    parser.add_argument("script", help="a Python file")
    parser.add_argument(
        "args", nargs=argparse.REMAINDER, help="arguments of the script"
    )
    options = parser.parse_args(arguments)
    command = [sys.executable, options.script, *options.args]
    return run(command, options.processes, options.devices_per_process)


def run(command: Sequence[str], processes: int, devices_per_process: int = 1) -> int:
    """Start processes of one command and wait for them.

    Call this function in the main thread, because it handles signals.

    Args:
        command: Program and arguments.
        processes: Number of processes.
        devices_per_process: CPU devices that JAX simulates in each process.

    Returns:
        Exit code of the first process that failed, or 128 + n if signal n killed that
        process; without a failure 75 if a process was preempted, else 0.
    """
    with ExitStack() as stack:
        started: list[subprocess.Popen[Any]] = []
        address = f"127.0.0.1:{stack.enter_context(launcher.held_port())}"
        pipe = stack.enter_context(launcher.pipe())
        stack.enter_context(_forwarding(started))
        stack.callback(_end, started)
        others = [
            stack.enter_context(tempfile.TemporaryFile()) for _ in range(1, processes)
        ]
        for index, output in enumerate([None, *others]):
            environment = os.environ | {
                "JAX_PLATFORMS": "cpu",
                "XLA_FLAGS": _with_devices(devices_per_process),
                "JAX_COORDINATOR_BIND_ADDRESS": address,
                COORDINATOR_ADDRESS: address,
                NUM_PROCESSES: str(processes),
                PROCESS_ID: str(index),
                launcher.VARIABLE: str(pipe),
            }
            started.append(
                subprocess.Popen(  # noqa: S603 - the user's own script
                    command,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    pass_fds=(pipe,),
                    # Otherwise Ctrl-C arrives twice: `forward` sends it again.
                    process_group=0,
                )
            )
        code = _wait(started)
        if code not in {0, PREEMPTED_EXIT_CODE}:
            for index, output in enumerate(others, 1):
                is_alike = started[index].returncode == started[0].returncode
                _show(index, _lines(output), is_alike=is_alike)
    return code


def _wait(started: Sequence[subprocess.Popen[Any]]) -> int:
    """Return the exit code as for `run`; after a failure, end all processes."""
    ended: SimpleQueue[int] = SimpleQueue()
    waiting = [
        Thread(target=lambda process=process: ended.put(process.wait()), daemon=True)
        for process in started
    ]
    for thread in waiting:
        thread.start()
    code = 0
    patience_s: float | None = None
    for _ in started:
        try:
            this = ended.get(timeout=patience_s)
        except Empty:
            for process in started:
                process.kill()
            this = ended.get()
        if code in {0, PREEMPTED_EXIT_CODE}:
            code = this or code
        if code not in {0, PREEMPTED_EXIT_CODE} and patience_s is None:
            patience_s = _GRACE_S
            for process in started:
                process.terminate()
    for thread in waiting:
        thread.join()
    return code if code >= 0 else 128 - code


@contextmanager
def _forwarding(started: Sequence[subprocess.Popen[Any]]) -> Generator[None]:
    """Forward the signals of `_together.signals` that this command does not ignore.

    The processes inherit which signals are ignored.
    """

    def forward(number: int, _frame: object) -> None:
        for process in started:
            process.send_signal(number)

    previous = {
        number: signal.signal(number, forward)
        for number in (*URGENT, SAVE, *WARNINGS)
        if signal.getsignal(number) is not signal.SIG_IGN
    }
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _end(started: Sequence[subprocess.Popen[Any]]) -> None:
    """Kill the processes that still run."""
    for process in started:
        process.kill()
        process.wait()


def _lines(output: IO[bytes]) -> list[str]:
    output.seek(0)
    return output.read().decode(errors="replace").splitlines()


def _show(index: int, lines: list[str], *, is_alike: bool) -> None:
    """Copy the last lines of a process to standard error."""
    if is_alike and len(lines) == 1:
        return  # all processes refuse alike, and process 0 has said why
    num_left_out = max(0, len(lines) - _NUM_LAST_LINES)
    if num_left_out:
        lines[:num_left_out] = [f"({num_left_out} earlier lines are left out)"]
    for line in lines:
        note(f"[process {index}] {line}")


def _with_devices(count: int) -> str:
    """Return XLA's flags with this number of CPU devices; XLA uses the last value."""
    flag = f"--xla_force_host_platform_device_count={count}"
    return f"{os.environ.get('XLA_FLAGS', '')} {flag}".strip()


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be 1 or more, got {text}")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
