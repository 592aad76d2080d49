"""A connection shows whether the process at its other end is stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import Any, cast

from roxxel_train._together.links import Links

ENOUGH = 300
"""More calls of `is_taking` than fill the buffers of a connection."""

OTHER = """
import ctypes, sys
from types import SimpleNamespace
from roxxel_train._together.links import Links

service = SimpleNamespace(
    process_index=1, host="127.0.0.1", get=lambda key, timeout_s: sys.argv[1]
)
Links(service, "keys").connect(600)
sys.stdin.readline()
print(flush=True)
ctypes.PyDLL(None).sleep(3600)  # holds the interpreter lock
"""


class Service:
    """The coordination service of process 0, as far as `Links` uses it."""

    process_index = 0
    host = "127.0.0.1"

    def set(self, _key: str, value: str) -> None:
        self.value = value


def test_process_that_is_stopped_takes_nothing_and_a_busy_one_does() -> None:
    service = Service()
    links = Links(cast("Any", service), "keys")
    with subprocess.Popen(
        [sys.executable, "-c", OTHER, service.value],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as other:
        assert other.stdin
        assert other.stdout
        try:
            assert links.wait(600) == {}  # the connection
            # Its thread needs the lock once, to begin the call that takes zeros.
            _wait_until_taken(links)
            other.stdin.write(b"hold the lock\n")
            other.stdin.flush()
            other.stdout.readline()
            _wait_until_taken(links)

            other.send_signal(signal.SIGSTOP)
            os.waitpid(other.pid, os.WUNTRACED)
            num_silent = 0
            for _ in range(20 * ENOUGH):  # The kernels pass buffered bytes on for long.
                num_silent = 0 if links.is_taking(1) else num_silent + 1
                assert links.wait(1e-3) == {}
                if num_silent == 2 * ENOUGH:
                    break

            assert num_silent == 2 * ENOUGH
        finally:
            other.kill()
    assert links.wait(600) == {1: "killed or crashed"}
    links.close()


def _wait_until_taken(links: Links) -> None:
    num_taken = 0
    while num_taken < ENOUGH:
        num_taken += links.is_taking(1)
        assert links.wait(1e-3) == {}
