"""A launcher's port and pipe, which it holds while its processes run.

The launcher holds the only write end of the pipe. The kernel closes this end when the
launcher ends in any way, also by SIGKILL, and every process that reads the pipe then
ends. Otherwise the processes would train on without their launcher, and a new launcher
could not continue the run, because the run would stay locked.
"""

from __future__ import annotations

import os
import signal
import socket
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


@contextmanager
def held_port() -> Generator[int]:
    """Yield a port of this machine at which process 0 can serve the others.

    The kernel gives this port to no other program while this socket holds it, however
    long process 0 takes to start. JAX shares ports, so it can bind this one too.
    """
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]


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
