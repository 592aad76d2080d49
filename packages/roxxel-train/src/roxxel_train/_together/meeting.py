"""Find out who is missing while the processes of a program connect.

JAX's service answers nothing before all processes have connected, and a request to it
ends the program that asks. So process 0 counts the connections to its port in Linux's
list, and every other process tests whether process 0 listens at all.
"""

from __future__ import annotations

import socket
from collections import Counter
from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path

from roxxel_train._together.texts import titled

TELL_S = 30.0
"""Time between two lines that say who is missing."""

_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_ESTABLISHED = "01"
_CONNECT_S = 5.0


def missing(address: str, process: int, count: int) -> str:
    """Describe which processes have not connected to process 0 at `address`."""
    host, _, port = address.rpartition(":")
    if process == 0:
        hosts = _connected(int(port))
        if not hosts:
            return (
                "this system does not list who is connected; each of the others says "
                "whether process 0 answers"
            )
        listed = ", ".join(f"{host} ({number})" for host, number in hosts.items())
        return (
            f"{min(hosts.total(), count)} of {count} processes are connected, by "
            f"address: {listed}; look for those that are not in the list"
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_S).close()
    except (OSError, UnicodeError) as error:  # the second for a name that is none
        return f"process 0 does not answer at {address} ({titled(error)})"
    return "process 0 is there and others are missing; its output has their number"


def _connected(port: int) -> Counter[str]:
    found: Counter[str] = Counter()
    for table in _TABLES:
        with suppress(OSError):  # not on Linux, or without IPv6
            for line in table.read_text().splitlines()[1:]:
                _, local, remote, state, *_ = line.split()
                if state == _ESTABLISHED and int(local.rpartition(":")[2], 16) == port:
                    found[_address(remote.partition(":")[0])] += 1
    return found


def _address(text: str) -> str:
    """Return an address from the kernel's words of four bytes in host order."""
    words = [bytes.fromhex(text[at : at + 8])[::-1] for at in range(0, len(text), 8)]
    if len(words) == 1:
        return str(IPv4Address(words[0]))
    address = IPv6Address(b"".join(words))
    return str(address.ipv4_mapped or address)
