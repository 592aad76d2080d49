"""Connections between processes, which show whether a process has died.

Every process holds a TCP connection to process 0. When a process dies, the kernel
closes its connections. A closed connection is therefore proof that a process has ended;
silence is not.

A host that loses its power or its network does not close its connections. The kernels
of the other hosts probe idle connections, and close a connection without an answer.
"""

from __future__ import annotations

import secrets
import selectors
import socket
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from roxxel_ckpt.coordination import CoordinationService

_ADDRESS = "links"
_CONNECT_S = 5.0
"""Longest wait, in seconds, for a connection, and for the first line on it."""

_PROBE_AFTER_S = 2  # a lost host is detected after 2 + 4 * 1 seconds
_PROBE_EVERY_S = 1
_NUM_PROBES = 4
"""Number of probes without an answer, after which the kernel closes a connection."""

_LOST_HOST = "its host does not answer"
_LOCAL = ("localhost", "127.0.0.1", "::1")


class Links:
    """The connections of this process.

    Process 0 is connected to every other process; the others are connected only to
    process 0. Use the object in one thread. `keys` is the prefix of the keys in the
    coordination service.
    """

    def __init__(self, service: CoordinationService, keys: str) -> None:
        self._service = service
        self._key = f"{keys}/{_ADDRESS}"
        self._selector = selectors.DefaultSelector()
        self._is_connected = service.process_index == 0
        self._listener: socket.socket | None = None
        self._token = ""
        if service.process_index == 0:
            # If all processes are on this host, refuse connections from other hosts.
            host = "127.0.0.1" if service.host in _LOCAL else ""
            self._listener = _listen(host)
            self._selector.register(self._listener, selectors.EVENT_READ)
            self._token = secrets.token_hex(16)
            port = self._listener.getsockname()[1]
            service.set(self._key, f"{port} {self._token}")

    def connect(self, timeout_s: float) -> None:
        """Connect to process 0.

        If process 0 does not listen within `timeout_s` seconds, this method returns
        without a connection: call it again. Once a connection was made or has failed,
        later calls do nothing.

        Raises:
            OSError: Process 0 cannot be reached.
        """
        if self._is_connected:
            return
        try:
            port, token = self._service.get(self._key, timeout_s).split()
        except TimeoutError:
            return
        self._is_connected = True
        host = "127.0.0.1" if self._service.host in _LOCAL else self._service.host
        connection = socket.create_connection((host, int(port)), _CONNECT_S)
        connection.sendall(f"{token} {self._service.process_index}\n".encode())
        self._watch(connection, 0)

    def wait(self, timeout_s: float) -> dict[int, str]:
        """Wait for an event; return how each newly dead process ended, by index.

        An event is a new or a closed connection. Without an event, the wait ends after
        `timeout_s` seconds.
        """
        dead: dict[int, str] = {}
        for key, _ in self._selector.select(timeout_s):
            connection = key.fileobj
            assert isinstance(connection, socket.socket)  # noqa: S101 - all are
            if connection is self._listener:
                self._accept(connection)
            elif how := _end_of(connection):
                self._selector.unregister(connection)
                connection.close()
                dead[key.data] = how
        return dead

    def close(self) -> None:
        for key in tuple(self._selector.get_map().values()):
            assert isinstance(key.fileobj, socket.socket)  # noqa: S101 - all are
            key.fileobj.close()
        self._selector.close()

    def _accept(self, listener: socket.socket) -> None:
        """Accept a connection, and close it unless it sends the token and an index."""
        connection, _ = listener.accept()
        connection.settimeout(_CONNECT_S)
        with suppress(OSError, ValueError), connection.makefile("rb") as lines:
            token, index = lines.readline(100).decode("ascii").split()
            if secrets.compare_digest(token, self._token):
                self._watch(connection, int(index))
                return
        connection.close()

    def _watch(self, connection: socket.socket, process: int) -> None:
        connection.setblocking(False)
        _probe(connection)
        self._selector.register(connection, selectors.EVENT_READ, process)


def _listen(host: str) -> socket.socket:
    if host or not socket.has_dualstack_ipv6():
        return socket.create_server((host, 0), backlog=1024)
    return socket.create_server(
        (host, 0), family=socket.AF_INET6, backlog=1024, dualstack_ipv6=True
    )


def _end_of(connection: socket.socket) -> str:
    """Describe how the process at the other end has ended; empty if it is alive."""
    try:
        return "" if connection.recv(64) else "killed or crashed"
    except BlockingIOError:
        return ""
    except ConnectionError:
        return "killed or crashed"
    except OSError:  # timed out, no route
        return _LOST_HOST


def _probe(connection: socket.socket) -> None:
    """Let the kernel probe whether the other host still answers."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if sys.platform == "darwin":
        idle = socket.TCP_KEEPALIVE
    else:
        idle = socket.TCP_KEEPIDLE
    for option, value in (
        (idle, _PROBE_AFTER_S),
        (socket.TCP_KEEPINTVL, _PROBE_EVERY_S),
        (socket.TCP_KEEPCNT, _NUM_PROBES),
    ):
        connection.setsockopt(socket.IPPROTO_TCP, option, value)
