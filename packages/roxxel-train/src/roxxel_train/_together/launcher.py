"""Ends the processes of `roxxel_train.local` when their launcher is killed.

The launcher holds the only write end of a pipe. The kernel closes this end when the
launcher ends in any way, also by SIGKILL, and every process that reads the pipe then
ends. Otherwise the processes would train on without their launcher, and a new launcher
could not continue the run, because the run would still be locked.
"""

from __future__ import annotations

import os
import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Generator

VARIABLE = "ROXXEL_LAUNCHER_FD"


@contextmanager
def pipe() -> Generator[int]:
    """Yield the read end, to give to every process by `pass_fds` and `VARIABLE`."""
    read_end, write_end = os.pipe()
    try:
        yield read_end
    finally:
        os.close(read_end)
        os.close(write_end)


def end_together() -> None:
    """Kill this process as soon as its launcher ends, if it has one."""
    # Programs that this process starts do not inherit the pipe: remove the variable.
    read_end = os.environ.pop(VARIABLE, None)
    if read_end is None:
        return

    def wait() -> None:
        os.read(int(read_end), 1)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=wait, name="roxxel-launcher", daemon=True).start()
