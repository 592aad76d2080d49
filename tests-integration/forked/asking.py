"""How a program is asked of the warm process: one request on a Unix socket.

`forked.Popen` asks, and so does every command in the folder `forked.commands()`, which
calls `main`. A command imports little, so that it starts in 20 ms. As a program, with
the address before its words, this file stands for Python itself.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path

NUMBER = 8
"""Bytes of a number on a link."""


def ask(
    address: str,
    command: list[str],
    env: dict[str, str],
    files: dict[int, int],
    *,
    folder: str,
    session: bool = False,
) -> tuple[socket.socket, int]:
    """Ask for a fork; return the link to the warm process, and the fork's number.

    The number is 0 if only an interpreter can run the command. The link gives the
    fork's status at its end (`status_of`), and the fork is killed if the link closes.

    Args:
        address: Path of the socket.
        command: The path that the fork calls its interpreter, then words of a program.
        env: Environment of the fork.
        files: What the fork has open: its own number, and the number here.
        folder: Absolute path of the fork's working directory.
        session: Whether the fork begins a session.
    """
    request = {
        "command": command,
        "env": env,
        "folder": folder,
        "session": session,
        "files": [*files],
    }
    data = json.dumps(request).encode()
    link = socket.socket(socket.AF_UNIX)
    link.connect(address)
    socket.send_fds(link, [len(data).to_bytes(NUMBER, "little")], [*files.values()])
    link.sendall(data)
    told = link.recv(NUMBER)
    if not told:
        raise OSError("the warm process of the tests has ended")
    return link, int.from_bytes(told, "little")


def status_of(link: socket.socket, flags: int = 0) -> int:
    """Wait for the end of a fork; return its status, as `os.waitpid` does."""
    status = link.recv(NUMBER, flags)
    return int.from_bytes(status, "little") if status else signal.SIGKILL


def inherited() -> list[int]:
    """Return the files that a program would inherit from this process."""
    found: list[int] = []
    for number in [int(each.name) for each in Path("/proc/self/fd").iterdir()]:
        with suppress(OSError):  # the listing itself was one
            if os.get_inheritable(number):
                found.append(number)
    return found


def main(address: str, programs: str) -> None:
    """Run the program that has the name of this command.

    Args:
        address: Path of the socket of the warm process.
        programs: The folder that has the programs of the environment.
    """
    command, *words = sys.argv
    python = Path(command).absolute()
    if not python.name.startswith("python"):
        words = [f"{programs}/{python.name}", *words]
        python = python.with_name("python")
    files = {number: number for number in inherited()}
    folder = str(Path.cwd())
    link, fork = ask(
        address, [str(python), *words], dict(os.environ), files, folder=folder
    )
    if not fork:
        interpreter = f"{programs}/{python.name}"
        os.execv(interpreter, [interpreter, *words])

    def pass_on(number: int, _: object) -> None:
        with suppress(ProcessLookupError):  # it has ended, and its status comes
            os.kill(fork, number)

    for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR2):
        signal.signal(each, pass_on)
    code = os.waitstatus_to_exitcode(status_of(link))
    if code < 0:
        with suppress(OSError):  # SIGKILL has no handler
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code)


if __name__ == "__main__":
    _, its_address, *its_words = sys.argv
    sys.argv[:] = [sys.executable, *its_words]
    main(its_address, str(Path(sys.executable).parent))
