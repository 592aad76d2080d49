"""Programs of tests, forked from one process that has imported what they import.

To import JAX, Flax, Optax, Orbax and Roxxel takes 2.8 s of CPU, and hundreds of tests
start a program. `Popen` and `run` are those of `subprocess`, and `commands()` is for
the PATH of a shell. A Python program starts as a fork of the warm process (`warm.py`),
and so does a worker of pytest-xdist (`suites.py`).

Where a fork would differ, an interpreter starts: for another program, an option of
Python other than `-W`, `-u`, `-c` and `-m`, and a variable that is read before the
first line of a program. A test about a start itself uses `subprocess`.
"""

from __future__ import annotations

import inspect
import os
import shlex
import socket
import subprocess
import sys
import tempfile
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asking import ask, status_of

if TYPE_CHECKING:
    from collections.abc import Sequence

HERE = Path(__file__).parent
FOLDER = "ROXXEL_TEST_FORKS"
"""The variable that names the folder of the warm process."""
TEMPORARY = tempfile.gettempdir()
"""Where the warm process has its folder, whatever a test says of such folders later."""

CAN_FORK = hasattr(os, "pidfd_open")
"""Whether the system tells the warm process of the end of others."""

_subprocess: Any = subprocess


class Popen(_subprocess.Popen):
    """`subprocess.Popen`, of which a Python program starts as a fork.

    The warm process is the parent of the fork, and kills it if this process ends.
    """

    _link: socket.socket | None = None

    def _execute_child(self, *values: Any) -> None:
        names = inspect.signature(
            subprocess.Popen.__dict__["_execute_child"]
        ).parameters
        given = dict(zip(list(names)[1:], values, strict=True))
        if (
            isinstance(given["args"], str | bytes | os.PathLike)
            or os.fspath(given["args"][0]) != sys.executable
            or any(given[name] for name in ("shell", "preexec_fn", "pass_fds"))
            or not CAN_FORK
        ):
            super()._execute_child(*values)
            return
        streams = [given[name] for name in ("p2cread", "c2pwrite", "errwrite")]
        self._link, self.pid = ask(
            str(_warm() / "socket"),
            list(map(os.fspath, given["args"])),
            dict(os.environ if given["env"] is None else given["env"]),
            {number: number if fd < 0 else fd for number, fd in enumerate(streams)},
            folder=str(Path(given["cwd"] or ".").absolute()),
            session=given["start_new_session"],
        )
        if not self.pid:
            self._link.close()
            self._link = None
            super()._execute_child(*values)
            return
        self._child_created = True
        self._close_pipe_fds(
            *(given[name] for name in ("p2cread", "p2cwrite", "c2pread")),
            *(given[name] for name in ("c2pwrite", "errread", "errwrite")),
        )

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        if self._link is None:
            return super()._try_wait(wait_flags)
        flags = socket.MSG_DONTWAIT if wait_flags == os.WNOHANG else 0
        try:
            status = status_of(self._link, flags)
        except BlockingIOError:
            return 0, 0
        self._link.close()
        return self.pid, status

    def _internal_poll(self, *values: Any, **named: Any) -> int | None:
        if self._link is None:
            return super()._internal_poll(*values, **named)
        if self.returncode is None and self._waitpid_lock.acquire(blocking=False):
            try:
                pid, status = self._try_wait(os.WNOHANG)
                if pid:
                    self._handle_exitstatus(status)
            finally:
                self._waitpid_lock.release()
        return self.returncode


def run(
    command: Sequence[Any],
    *,
    text_in: str | None = None,
    capture_output: bool = False,
    timeout: float | None = None,
    check: bool = False,
    **options: Any,
) -> subprocess.CompletedProcess[Any]:
    """Run a program as `subprocess.run` does; `text_in` is its `input`."""
    if capture_output:
        options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    if text_in is not None:
        options |= {"stdin": subprocess.PIPE}
    with Popen(command, **options) as process:
        try:
            out, err = process.communicate(text_in, timeout)
        except BaseException:
            process.kill()
            raise
    done = subprocess.CompletedProcess(command, process.returncode, out, err)
    if check:
        done.check_returncode()
    return done


def commands() -> Path:
    """Return a folder of commands: `python`, and the programs of this workspace.

    A shell that finds them first on its PATH starts forks, and so does every program
    that starts another one by the `sys.executable` of such a fork.
    """
    return _warm() / "bin"


def python() -> str:
    """Return the words of a shell by which this interpreter starts as a fork."""
    asking = HERE / "asking.py"
    return shlex.join([sys.executable, "-IS", str(asking), str(_warm() / "socket")])


@cache
def _warm() -> Path:
    """Return the folder of the warm process: its socket and commands.

    A test run starts one, and its workers find the folder in a variable.
    """
    folder = Path(os.environ.setdefault(FOLDER, f"{TEMPORARY}/forked-{os.getpid()}"))
    if not folder.exists():
        folder.mkdir(mode=0o700)
        _start(folder, os.getpid())
        _write_commands(folder)
    return folder


def _start(folder: Path, run: int) -> None:
    """Start the warm process in its folder; it ends with the process `run`."""
    start = f"import sys; sys.path.insert(1, {str(HERE)!r}); import warm; warm.serve()"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "socket"))
        listener.listen(128)
        process = subprocess.Popen(
            [sys.executable, "-c", start, folder, str(listener.fileno()), str(run)],
            # JAX reads its variables as it is imported.
            env={n: v for n, v in os.environ.items() if not n.startswith("JAX_")},
            pass_fds=[listener.fileno()],
            stdin=subprocess.DEVNULL,
        )
    process.returncode = 0  # nobody waits: it may live longer than this process


def _write_commands(folder: Path) -> None:
    programs = Path(sys.executable).parent
    interpreter = f"import sys; sys.path.insert(0, {str(HERE)!r}); import asking"
    address = str(folder / "socket")
    names = ["python", "python3"] + [
        each.name
        for each in entry_points(group="console_scripts")
        if each.value.startswith("roxxel")
    ]
    (folder / "bin").mkdir()
    for name in names:
        path = folder / "bin" / name
        path.write_text(
            f"#!{sys.executable} -IS\n{interpreter}\n"
            f"asking.main({address!r}, {str(programs)!r})\n"
        )
        path.chmod(0o755)
