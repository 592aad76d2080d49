"""The warm process: it imports once, and forks at each request of `asking.ask`.

It has made no device. A fork runs its program as `__main__` with its own arguments,
environment, folder, open files and warnings, and ends as an interpreter ends. It has
the process group and the limits of the warm process. The warm process ends with the
test run, and kills a fork whose asker is gone.
"""

from __future__ import annotations

import fcntl
import gc
import importlib
import json
import os
import pkgutil
import runpy
import selectors
import shutil
import signal
import socket
import sys
import warnings
from contextlib import suppress
from multiprocessing import spawn
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

from asking import NUMBER
from compilation import write_whole

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


class Program(NamedTuple):
    """What an interpreter would run: `kind` is "-c", "-m", or "" for a file."""

    filters: Sequence[str]
    kind: str
    what: str
    arguments: Sequence[str]


class Asked(NamedTuple):
    """A request, as `asking.ask` describes it; `files` are by their numbers there."""

    command: Sequence[str]
    env: dict[str, str]
    folder: str
    session: bool
    files: dict[int, int]
    program: Program


def program_of(words: Sequence[str], env: Mapping[str, str]) -> Program | None:
    """Return what Python runs by these words, or None if only an interpreter can."""
    changed = {name for name, value in env.items() if os.environ.get(name) != value}
    if any(name.startswith(READ_AT_A_START) for name in changed):
        return None
    filters: list[str] = []
    words = [*words]
    while len(words) > 1 and words[0].startswith(("-W", "-u")):
        option = words.pop(0)
        if option != "-u":  # pytest-xdist gives it, and uses no stream of Python
            filters.append(option.removeprefix("-W") or words.pop(0))
    if len(words) > 1 and words[0] in {"-c", "-m"}:
        return Program(filters, words[0], words[1], words[2:])
    if not words or words[0].startswith("-"):
        return None
    return Program(filters, "", words[0], words[1:])


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
        write_whole()
        # Only process 0 of a run may write to JAX's cache of programs. Each other one
        # would compile 50 programs for its own device at every start.
        compiler: Any = importlib.import_module("jax._src.compiler")
        first = SimpleNamespace(process_id=0, client=None)
        compiler.distributed = SimpleNamespace(global_state=first)
    set_by_imports = {n: v for n, v in os.environ.items() if n not in before}
    of_imports = [each for each in standing if each not in defaults]
    gc.freeze()
    folder, listener, run = sys.argv[1:]
    asked = _next_fork(socket.socket(fileno=int(listener)), os.pidfd_open(int(run)))
    if asked is None:
        shutil.rmtree(folder)
        return
    asked.env.update({n: v for n, v in set_by_imports.items() if n not in asked.env})
    _open_files(asked.files)
    _run(asked, (of_imports, defaults))


def _next_fork(listener: socket.socket, run: int) -> Asked | None:
    """Fork at each request. Return it in the fork, and None at the end of the run."""
    with selectors.DefaultSelector() as ready, listener:
        for source in (run, listener):
            ready.register(source, selectors.EVENT_READ)
        while True:
            for key, _ in ready.select():
                if key.fileobj == run:
                    _kill_all(ready)
                    return None
                if key.fileobj is listener:
                    asked = _answer(listener.accept()[0], ready)
                    if asked is not None:
                        return asked
                elif key is ready.get_map().get(key.fd):
                    _end(key, ready)


def _answer(link: socket.socket, ready: selectors.BaseSelector) -> Asked | None:
    """Fork as `link` asks, and return the request in the fork."""
    size, files, _, _ = socket.recv_fds(link, NUMBER, 253)
    data, left = b"", int.from_bytes(size, "little")
    while left and (part := link.recv(left)):
        data, left = data + part, left - len(part)
    if left or not data:  # The asker was killed before it had asked.
        for each in (link.detach(), *files):
            os.close(each)
        return None
    request = json.loads(data)
    program = program_of(request["command"][1:], request["env"])
    number = os.fork() if program else 0
    if program and not number:
        link.close()
        for key in ready.get_map().values():
            if isinstance(key.fileobj, socket.socket):
                key.fileobj.close()
            elif isinstance(key.fileobj, int):
                os.close(key.fileobj)
        numbers = request.pop("files")
        return Asked(
            **request, files=dict(zip(numbers, files, strict=True)), program=program
        )
    for each in files:
        os.close(each)
    with suppress(OSError):
        link.send(number.to_bytes(NUMBER, "little"))
    if number:
        fork = os.pidfd_open(number)
        ready.register(fork, selectors.EVENT_READ, (number, link))
        ready.register(link, selectors.EVENT_READ, fork)
    else:
        link.close()
    return None


def _end(key: selectors.SelectorKey, ready: selectors.BaseSelector) -> None:
    """Kill the fork of an asker that is gone, or tell the asker of a fork's end."""
    ready.unregister(key.fileobj)
    if isinstance(key.fileobj, socket.socket):
        signal.pidfd_send_signal(key.data, signal.SIGKILL)
        return
    number, link = key.data
    status = os.waitpid(number, 0)[1]
    os.close(key.fd)
    if link in ready.get_map():
        ready.unregister(link)
    with link, suppress(OSError):
        link.send(status.to_bytes(NUMBER, "little"))


def _kill_all(ready: selectors.BaseSelector) -> None:
    """Kill the forks whose askers went with the run."""
    for key in ready.get_map().values():
        if isinstance(key.fileobj, socket.socket) and key.data:
            signal.pidfd_send_signal(key.data, signal.SIGKILL)


def _open_files(files: Mapping[int, int]) -> None:
    """Give a fork its files at the numbers that they have in the asker."""
    above = max(*files, *files.values()) + 1
    moved = {
        number: fcntl.fcntl(file, fcntl.F_DUPFD, above)
        for number, file in files.items()
    }
    for file in files.values():
        os.close(file)
    for number, file in moved.items():
        os.dup2(file, number)
        os.close(file)


def _run(asked: Asked, filters: tuple[list[Any], list[Any]]) -> None:
    """Run the program of a request as the `__main__` of this process."""
    if asked.session:
        os.setsid()
    os.environ.clear()
    os.environ.update(asked.env)
    os.chdir(asked.folder)
    _open_streams()
    _set_warnings(asked.program.filters, *filters)
    _configure_jax()
    if "numpy" in sys.modules:
        importlib.import_module("numpy.random").seed()

    sys.executable = asked.command[0]
    spawn.set_executable(sys.executable)
    _, kind, what, arguments = asked.program
    sys.argv[:] = [kind or what, *arguments]
    starts = {"-c": "", "-m": asked.folder, "": str(Path(what).resolve().parent)}
    sys.path[:2] = [starts[kind]]
    main = vars(sys.modules["__main__"])
    for name in [name for name in main if not name.startswith("__")]:
        del main[name]
    python: Any = runpy
    if kind == "-m":
        python._run_module_as_main(what)
        return
    if kind == "-c":
        exec(what, main)  # noqa: S102 - Ray asks whether there is a `__file__`
        return
    code = compile(Path(what).read_bytes(), what, "exec")
    python._run_code(code, main, None, "__main__", None, None, what)


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
    sys.warnoptions[:] = options
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
