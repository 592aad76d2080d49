"""Programs of tests, forked from one process that has imported what they import.

To import JAX, Flax, Optax, Orbax and Roxxel takes 2.8 s of CPU, and hundreds of tests
start a program. `Popen` and `run` are those of `subprocess`. A Python program starts as
a fork of the warm process, which has made no device: it runs as `__main__` with its own
arguments, environment, folder, streams and warnings, and ends as an interpreter ends.

Where a fork would differ, an interpreter starts: for another program, an option of
Python other than `-W`, `-c` and `-m`, and a variable that is read before the first line
of a program. A test about a start itself uses `subprocess`.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import inspect
import json
import os
import pkgutil
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import threading
import warnings
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

LIBRARIES = (
    *("jax", "jax.experimental.multihost_utils", "flax.nnx", "optax"),
    *("orbax.checkpoint", "concurrent.futures.thread", "multiprocessing.spawn"),
)
OURS = (
    *("roxxel_store", "roxxel_format", "roxxel_prepare", "roxxel_curriculum"),
    *("roxxel_loader", "roxxel_ckpt", "roxxel_train", "roxxel"),
)
"""What the warm process imports, where it is installed; of ours, every module."""
NOT_OURS = (
    *("__main__", "testing", "ray", "picture", "torch", "grain", "huggingface"),
    *("polars", "tensorboard", "wandb", "harness"),
)
"""Ends of the names of those that import a library which few programs need."""

READ_AT_A_START = ("LANG", "LC_", "LD_", "MALLOC_", "OMP_", "OPENBLAS_", "PYTHON")
"""Beginnings of variables that are read before the first line of a program."""

_NUMBER = 8
"""Bytes of a number on a link."""

_asking = threading.Lock()
_subprocess: Any = subprocess


class Program(NamedTuple):
    """What an interpreter would run: `kind` is "-c", "-m", or "" for a file."""

    filters: Sequence[str]
    kind: str
    what: str
    arguments: Sequence[str]


def program_of(command: Sequence[Any], env: Mapping[str, str]) -> Program | None:
    """Return the program of a command, or None if only an interpreter can run it."""
    first, *words = map(os.fspath, command)
    changed = {name for name, value in env.items() if os.environ.get(name) != value}
    if first != sys.executable or any(n.startswith(READ_AT_A_START) for n in changed):
        return None
    filters: list[str] = []
    while len(words) > 1 and words[0] == "-W":
        filters.append(words[1])
        del words[:2]
    if len(words) > 1 and words[0] in {"-c", "-m"}:
        return Program(filters, words[0], words[1], words[2:])
    if not words or words[0].startswith("-"):
        return None
    return Program(filters, "", words[0], words[1:])


class Popen(_subprocess.Popen):
    """`subprocess.Popen`, of which a Python program starts as a fork.

    The warm process is the parent of the fork. It sends the fork's number and, at its
    end, its status over a link.
    """

    _link: socket.socket | None = None

    def _execute_child(self, *values: Any) -> None:
        names = inspect.signature(
            subprocess.Popen.__dict__["_execute_child"]
        ).parameters
        given = dict(zip(list(names)[1:], values, strict=True))
        env = dict(os.environ if given["env"] is None else given["env"])
        program = None
        if not (
            isinstance(given["args"], str | bytes | os.PathLike)
            or any(given[name] for name in ("shell", "preexec_fn", "pass_fds"))
            or not hasattr(os, "pidfd_open")
        ):
            program = program_of(given["args"], env)
        if program is None:
            super()._execute_child(*values)
            return
        request = {
            **program._asdict(),
            "env": env,
            "folder": str(Path(given["cwd"] or ".").absolute()),
            "session": given["start_new_session"],
        }
        streams = [given[name] for name in ("p2cread", "c2pwrite", "errwrite")]
        self._link, theirs = socket.socketpair()
        with theirs:
            own = [number if fd < 0 else fd for number, fd in enumerate(streams)]
            _ask(request, [theirs.fileno(), *own])
        self.pid = int.from_bytes(self._link.recv(_NUMBER), "little")
        self._child_created = True
        self._close_pipe_fds(
            *(given[name] for name in ("p2cread", "p2cwrite", "c2pread")),
            *(given[name] for name in ("c2pwrite", "errread", "errwrite")),
        )
        if not self.pid:
            raise OSError("the warm process of the tests has ended")

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        if self._link is None:
            return super()._try_wait(wait_flags)
        flags = socket.MSG_DONTWAIT if wait_flags == os.WNOHANG else 0
        try:
            status = self._link.recv(_NUMBER, flags)
        except BlockingIOError:
            return 0, 0
        self._link.close()
        return self.pid, int.from_bytes(status, "little") if status else signal.SIGKILL

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


@cache
def _warm() -> socket.socket:
    """Start the warm process of this process, and return the link to it."""
    ours, theirs = socket.socketpair()
    start = f"import sys; sys.path.insert(1, {str(Path(__file__).parent)!r})"
    with theirs:
        process = subprocess.Popen(
            [
                *(sys.executable, "-c", f"{start}; import forked; forked.serve()"),
                str(theirs.fileno()),
            ],
            # JAX reads its variables as it is imported.
            env={n: v for n, v in os.environ.items() if not n.startswith("JAX_")},
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
        )

    def end() -> None:
        ours.close()
        process.wait()

    atexit.register(end)
    return ours


def _ask(request: Mapping[str, Any], fds: Sequence[int]) -> None:
    """Ask for a fork; `fds` are the link for the answers and the three streams."""
    data = json.dumps(request).encode()
    with _asking:
        socket.send_fds(_warm(), [len(data).to_bytes(_NUMBER, "little")], fds)
        _warm().sendall(data)


def serve() -> None:
    """Import, and fork at each request; a fork then runs its program."""
    standing: Any = warnings.filters
    defaults = [*standing]
    before = {*os.environ}
    for name in (*LIBRARIES, *OURS):
        with suppress(ModuleNotFoundError):
            module = importlib.import_module(name)
            if name in OURS:
                for each in pkgutil.walk_packages(module.__path__, f"{name}."):
                    if not each.name.endswith(NOT_OURS):
                        importlib.import_module(each.name)
    with suppress(ModuleNotFoundError):
        # Only process 0 of a run may write to JAX's cache of programs. Each other one
        # would compile 50 programs for its own device at every start.
        compiler: Any = importlib.import_module("jax._src.compiler")
        first = SimpleNamespace(process_id=0, client=None)
        compiler.distributed = SimpleNamespace(global_state=first)
    set_by_imports = {n: v for n, v in os.environ.items() if n not in before}
    of_imports = [each for each in standing if each not in defaults]
    gc.freeze()
    request = _next_fork(socket.socket(fileno=int(sys.argv[1])))
    if request is not None:
        request["env"] = set_by_imports | request["env"]
        _run(request, (of_imports, defaults))


def _next_fork(link: socket.socket) -> dict[str, Any] | None:
    """Fork at each request. Return the request in the fork, and None at the end."""
    forks: dict[int, tuple[int, socket.socket]] = {}
    with selectors.DefaultSelector() as ready, link:
        ready.register(link, selectors.EVENT_READ)
        while True:
            for key, _ in ready.select():
                if key.fileobj is not link:
                    ready.unregister(key.fd)
                    os.close(key.fd)
                    number, answer = forks.pop(key.fd)
                    status = os.waitpid(number, 0)[1]
                    with answer, suppress(OSError):
                        answer.send(status.to_bytes(_NUMBER, "little"))
                    continue
                size, fds, _, _ = socket.recv_fds(link, _NUMBER, 4)
                if not size:
                    return None
                data = b""
                while len(data) < int.from_bytes(size, "little"):
                    data += link.recv(int.from_bytes(size, "little") - len(data))
                number = os.fork()
                if not number:
                    for fd, (_, answer) in forks.items():
                        os.close(fd)
                        answer.close()
                    os.close(fds[0])
                    for stream, fd in enumerate(fds[1:]):
                        os.dup2(fd, stream)
                        os.close(fd)
                    return json.loads(data)
                for fd in fds[1:]:
                    os.close(fd)
                answer = socket.socket(fileno=fds[0])
                with suppress(OSError):
                    answer.send(number.to_bytes(_NUMBER, "little"))
                fd = os.pidfd_open(number)
                forks[fd] = number, answer
                ready.register(fd, selectors.EVENT_READ)


def _run(request: Mapping[str, Any], filters: tuple[list[Any], list[Any]]) -> None:
    """Run the program of a request as the `__main__` of this process."""
    if request["session"]:
        os.setsid()
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["folder"])
    _open_streams()
    _set_warnings(request["filters"], *filters)
    _configure_jax()
    if "numpy" in sys.modules:
        importlib.import_module("numpy.random").seed()

    kind, what = request["kind"], request["what"]
    sys.argv[:] = [kind or what, *request["arguments"]]
    starts = {"-c": "", "-m": request["folder"], "": str(Path(what).resolve().parent)}
    sys.path[:2] = [starts[kind]]
    main = vars(sys.modules["__main__"])
    for name in [name for name in main if not name.startswith("__")]:
        del main[name]
    python: Any = runpy
    if kind == "-m":
        python._run_module_as_main(what)
        return
    file = None if kind else what
    code = compile(
        what if kind else Path(what).read_bytes(), file or "<string>", "exec"
    )
    python._run_code(code, main, None, "__main__", None, None, file)


def _open_streams() -> None:
    """Make new streams: those of the warm process know what its own could do."""
    sys.stdin = sys.__stdin__ = os.fdopen(0, closefd=False)
    sys.stdout = sys.__stdout__ = os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.__stderr__ = os.fdopen(
        2, "w", buffering=1, errors="backslashreplace", closefd=False
    )


def _set_warnings(
    options: Sequence[str], of_imports: Sequence[Any], defaults: Sequence[Any]
) -> None:
    """Let the options of `-W` stand between the filters of imports and of Python."""
    warnings.resetwarnings()
    standing: Any = warnings.filters
    standing.extend(of_imports)
    for option in reversed(options):
        action, _, message = option.partition(":")
        known: Any = action
        warnings.filterwarnings(known, message, append=True)
    standing.extend(defaults)


def _configure_jax() -> None:
    """Give JAX the settings of the environment, which it reads as it is imported."""
    jax: Any = sys.modules.get("jax")
    if jax is None:
        return
    settings: Mapping[str, Any] = jax.config.values
    for variable, text in os.environ.items():
        name = variable.lower()
        if variable.startswith("JAX_") and name in settings:
            value: Any = text
            if isinstance(settings[name], bool):
                value = text.lower() in {"y", "yes", "t", "true", "on", "1"}
            elif isinstance(settings[name], int | float):
                value = type(settings[name])(text)
            jax.config.update(name, value)
