"""How the processes of a program watch each other, and end together.

In a collective, a process waits forever for a process that has failed. So every process
runs a `Watcher`, from `roxxel_train.distributed.initialize()` or its first trainer
until its program ends. The other processes treat a process as failed when

- an exception ends its program, or a run in its program;
- its connection is closed (`roxxel_train._together.links`): the process has died;
- its program ends while other processes are in a trainer, or while JAX initializes
  their devices.

A process that is only slow ends nothing. If the others have waited for it for a minute,
process 0 writes a line that names the process and what it does, and another line
whenever the wait has doubled.

The process that notices a failure publishes the reason in the coordination service,
which keeps the first reason, and posts the news (`roxxel_train._together.news`). All
processes log this reason and exit without clean-up (`os._exit`): the shutdown of JAX is
a barrier, which waits for the failed process.

What this costs process 0 does not grow with the number of processes: each of them waits
for news in one request, and all of them together publish at most `_SIGNS_PER_S` signs
of life a second. `tests-integration/benchmarks/coordination.py` prints the cost.

JAX's own heartbeat, of 100 s by default, ends the processes if one is stopped (SIGSTOP,
a frozen container). It cannot replace the connections: JAX aborts every process without
a reason in the log, and beating often enough to find a dead process as early would cost
more.
"""

from __future__ import annotations

import atexit
import functools
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import (
    TYPE_CHECKING,
    Any,
    NoReturn,
    ParamSpec,
    Protocol,
    TypeVar,
)

import jax
from roxxel_ckpt.activity import activities
from roxxel_ckpt.coordination import (
    coordination_service,
    has_devices,
    is_finding_devices,
)
from roxxel_ckpt.errors import OtherProcessError
from roxxel_store.errors import is_ours

from roxxel_train._together.cluster import check_connected, is_ray_worker
from roxxel_train._together.holders import MOST_NAMED, START, Holders, Life, during
from roxxel_train._together.links import Links
from roxxel_train._together.news import News
from roxxel_train._together.texts import print_error, stacks, titled
from roxxel_train.errors import (
    ClusterError,
    LogWriteError,
    NonFiniteError,
    Preempted,
    SettingsDifferError,
    SilentCorruptionError,
)

if TYPE_CHECKING:
    from collections.abc import Generator
    from types import TracebackType

    from roxxel_ckpt.coordination import CoordinationService

_KEYS = "roxxel_train/watch"

_TICK_S = 0.5
"""Longest time between two checks of the connections."""

_SIGNS_PER_S = 50.0
"""Signs of life that all processes together publish a second. All of them publish at
the same moments, because among others a request costs process 0 about 0.05 ms of CPU,
and alone 0.45 ms.
"""

_CAUSE_S = 4.0
"""A process waits for this time before it publishes an error that the failure of
another process may have caused, so that the cause is published first. A process that
needs another process whose program ends gives up after this time too. It waits because
a last call of both may be complete and only not have returned here yet. Keep
`_CAUSE_S + _LEAVE_S` plus a few ticks below 10 s: the README promises that all
processes end within 10 s."""

_LEAVE_S = 2.0
"""Longest time that process 0, which runs the service, waits for the others to exit."""

_LEAVING_TICK_S = 0.02

_RAY_ASKS_S = 8.0
"""Time in which a worker of Ray Train waits for Ray to end it after another worker has
failed. Ray asks its workers every 2 s. Process 0 must stay until Ray has asked the
worker that failed: JAX aborts that worker as soon as process 0 exits, and its error
would be lost.
"""

_EXIT_S = 300.0
"""Longest wait for the other processes at the end of the program, the same as in
JAX.
"""

_ALIKE = (
    LogWriteError,
    Preempted,
    NonFiniteError,
    SettingsDifferError,
    SilentCorruptionError,
)
"""Errors that all processes raise at the same point."""

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")

_lock = threading.Lock()
_watcher: Watcher | None = None


@dataclass
class Progress:
    """The current activity of this process, published to the other processes.

    `step` is the last step that began. `pause` names what the process does between
    steps, such as a save, and is None during a step. `own_s` is the time that the
    process has spent outside of steps and of pauses, such as waiting for batches.
    `thread` runs the steps.
    """

    step: int = 0
    pause: str | None = START
    own_s: float = 0.0
    thread: int = 0


Report = Callable[[str], object]
"""Writes a text to the log of a run and flushes the log; any thread may call it."""


class Listener(Protocol):
    """Receives a message of the news with its number, in the thread that reads."""

    def __call__(self, number: int, kind: str, *values: Any) -> None: ...


class Watcher:
    """Watches the other processes, and ends this process when another process fails.

    The run of this process changes `progress`, and the other processes read it. In
    process 0, `own_times` has the last known `step` and `own_s` of every process, at
    most twice `sign_every_s` old.
    """

    def __init__(self, service: CoordinationService) -> None:
        self.service = service
        self.progress = Progress()
        self.index = service.process_index
        self.news = News(service, f"{_KEYS}/news")
        self._listen: Listener | None = None
        self.sign_every_s = max(_TICK_S, service.process_count / _SIGNS_PER_S)
        self._sign_due_s = 0.0
        self._ending = threading.Lock()
        self._closed = threading.Event()
        self._is_leaving = False
        self._num_needs = 0
        self._has_run = False
        self._report: Report | None = None
        # Only the watching thread writes these fields.
        self._lives: dict[int, Life] = {}
        self._holders = Holders()
        self._dead: dict[int, str] = {}
        # When their programs ended, and whether they had found their devices.
        self._left: dict[int, tuple[float, bool]] = {}
        self.own_times: dict[int, tuple[int, float]] = {}

    def start(self) -> None:
        """Watch until the program ends."""
        links = Links(self.service, _KEYS)
        self._thread = threading.Thread(
            target=self._watch, args=(links,), name="roxxel-watcher", daemon=True
        )
        self._thread.start()
        self._reader = threading.Thread(
            target=self.read_news, name="roxxel-news", daemon=True
        )
        self._reader.start()
        self._outer_hook, sys.excepthook = sys.excepthook, self._on_uncaught
        # Runs before JAX's shutdown, because the last registered function runs first.
        atexit.register(self._on_exit)

    @contextmanager
    def needing_all(self) -> Generator[None]:
        """End this process if another process's program ends during the block."""
        with _lock:
            self._num_needs += 1
        try:
            yield
        finally:
            with _lock:
                self._num_needs -= 1

    @contextmanager
    def in_run(self, report: Report, listen: Listener) -> Generator[None]:
        """Watch a run, and also write the reason of a failure to the log of the run.

        `listen` receives the news of the processes of the run. Outside of runs, a
        program's processes may end at different times.
        """
        self._report, self._listen, self.progress.pause = report, listen, None
        try:
            with self.needing_all():
                yield
        finally:
            self._report, self._listen = None, None
            self.progress.pause = "after the run"
            self._has_run = True

    def lives(self) -> dict[int, Life]:
        """Return the last sign of life of every process."""
        lives = self.service.entries(f"{_KEYS}/alive/").items()
        return {int(index): Life(*life) for index, life in lives}

    def end_after(self, error: BaseException, *, is_printed: bool = False) -> bool:
        """End all processes after an error, unless all of them raise the error.

        In a worker of Ray Train the error goes to Ray, which ends this process. Then
        the result is True: the other processes are already ending.
        """
        if self._closed.is_set():
            return True
        if isinstance(error, _ALIKE):
            return False
        cause = f"process {self.index} failed: {titled(error)}"
        if _is_echo(error):
            # A thread ends this process as soon as a cause is published.
            time.sleep(_CAUSE_S)
        self._announce(cause, None if is_printed else error)
        if not is_ray_worker():
            os._exit(1)
        self._closed.set()
        atexit.unregister(self._on_exit)  # nobody is left to wait for
        return True

    def end(
        self, reason: str, error: BaseException | None = None, *, is_hang: bool = False
    ) -> NoReturn:
        """Publish and log why all processes end, and exit without clean-up.

        If another process has already published a reason, that reason replaces
        `reason`. This process prints `error`, with a traceback unless Roxxel raised it
        for users. If `is_hang`, all processes print their stacks.
        """
        self._announce(reason, error, is_hang=is_hang)
        if is_ray_worker():
            time.sleep(_RAY_ASKS_S)
        os._exit(1)

    def _announce(
        self, reason: str, error: BaseException | None, *, is_hang: bool = False
    ) -> None:
        self._ending.acquire()  # never released: a second thread waits for the exit
        # Process 0 runs the service. Without it, print our own reason at once, because
        # JAX aborts this process at about the same time.
        published: list[tuple[str, bool]] = []
        if 0 not in self._dead:
            _try_for_a_while(lambda: published.append(self._publish(reason, is_hang)))
        if published:
            reason, is_hang = published[0]
        if error is not None and not is_ours(error):
            print_error("".join(traceback.format_exception(error)))
        elif error is not None and titled(error) not in reason:
            print_error(titled(error))
        text = f"the run ends: {reason}"
        if is_hang:
            text += f"\nthe stacks of process {self.index}:\n{stacks()}"
        _try_for_a_while(lambda: self._write(text))
        if published:
            _try_for_a_while(self._wait_for_others)
        with suppress(Exception):
            sys.stdout.flush()

    # The thread

    def _watch(self, links: Links) -> None:
        waited_s = 0.0
        while not self._closed.is_set() and self._has_service():
            try:
                self._exchange(waited_s)
                self._connect(links)
                began = time.monotonic()
                left_s = self._sign_due_s - began
                self._dead |= links.wait(min(_TICK_S, max(0.0, left_s)))
                waited_s = time.monotonic() - began
            except Exception as error:  # noqa: BLE001 - ends the program
                # When the program shuts JAX down, the service ends before the client.
                if self._closed.wait(2 * _TICK_S) or not self._has_service():
                    break
                self.end(f"process {self.index} failed: {titled(error)}", error)
        links.close()

    def _has_service(self) -> bool:
        """Return whether `jax.distributed` still runs in this program."""
        service = coordination_service()
        return service is not None and service.client is self.service.client

    def _connect(self, links: Links) -> None:
        try:
            links.connect(_TICK_S)
        except OSError as error:
            print_error(
                f"process {self.index} cannot connect to process 0 at "
                f"{self.service.host} ({titled(error)}), so only JAX detects that "
                "this process is killed, after 100 seconds or more; open "
                "the ports between the hosts"
            )

    def read_news(self) -> None:
        """Read messages until the program ends."""
        while self._has_service():
            try:
                number, (kind, *values) = self.news.read()
                if kind == "bye":
                    return
                if kind == "failed":
                    self.end("")
                elif kind == "left":
                    self._left[values[0]] = time.monotonic(), values[1]
                elif self._listen is not None:
                    self._listen(number, kind, *values)
            except Exception as error:  # noqa: BLE001 - ends the program
                # When the program shuts JAX down, the service ends before the client.
                # If process 0 has died, the other thread notices it meanwhile.
                if self._closed.wait(2 * _TICK_S) or not self._has_service():
                    return
                self.end(f"process {self.index} failed: {titled(error)}", error)

    def _exchange(self, waited_s: float) -> None:
        """Publish a sign of life when it is due; in process 0, watch the others."""
        self._end_without_needed()
        if 0 in self._dead:
            return  # the service has ended with process 0
        is_sign_due = time.monotonic() >= self._sign_due_s
        if is_sign_due:
            # Process 0 reads the signs half a period after the others publish them.
            late_s = 0.0 if self.index else self.sign_every_s / 2
            since_s = (time.time() - late_s) % self.sign_every_s
            self._sign_due_s = time.monotonic() + self.sign_every_s - since_s
            # If the host of process 0 has died, this request gets no answer, and its
            # connection is closed meanwhile.
            _try_for_a_while(self._publish_sign)
        if self.index == 0:
            if is_sign_due:
                self._lives = self.lives()
                self.own_times = {i: (x.step, x.own_s) for i, x in self._lives.items()}
            self._name_holders(waited_s)

    def _publish_sign(self) -> None:
        step, pause = self.progress.step, self.progress.pause
        own_s = round(self.progress.own_s, 3)
        found = activities()
        if pause is None:
            found = {t: each for t, each in found.items() if t == self.progress.thread}
        does = sorted({each.what for each in found.values() if not each.waits})
        awaits: list[str | int] = [each.what for each in found.values() if each.waits]
        if pause is None and not awaits:
            awaits.append(step)
        life = Life(step, pause, own_s, does[:MOST_NAMED], awaits)
        self.service.set(f"{_KEYS}/alive/{self.index}", life, overwrite=True)

    def _end_without_needed(self) -> None:
        """End this process if it needs a process that has died or left."""
        if self._is_leaving:
            return
        for process, how in sorted(self._dead.items()):
            if process not in self._left and (self._num_needs or not self._has_run):
                self.end(f"process {process} failed: {how}{self._during(process)}")
        for process, (left_at_s, had_devices) in sorted(self._left.items()):
            if time.monotonic() - left_at_s < _CAUSE_S:
                continue
            # JAX initializes the devices of all processes together.
            if self._num_needs or (not had_devices and is_finding_devices()):
                self.end(
                    f"process {process} failed: its program ended while other "
                    f"processes wait for it; read the output of process {process}"
                )

    def _during(self, process: int) -> str:
        """Return the last activity of a process, to end a sentence; may be empty."""
        if 0 in self._dead:
            return ""
        with suppress(Exception):
            life = self.lives()[process]
            return during(life.step, life.pause)
        return ""

    def _name_holders(self, waited_s: float) -> None:
        """In process 0, write a line about processes for which others wait."""
        count = self.service.process_count
        for line in self._holders.lines(self._lives, count, waited_s):
            _try_for_a_while(functools.partial(self._write, line))

    # The end

    def _on_uncaught(
        self,
        kind: type[BaseException],
        error: BaseException,
        stack: TracebackType | None,
    ) -> None:
        """Print an exception that ends the program, and end all processes."""
        self._outer_hook(kind, error, stack)
        is_interactive = hasattr(sys, "ps1")
        if not is_interactive and not self._closed.is_set() and self._has_service():
            self.end_after(error, is_printed=True)

    def _on_exit(self) -> None:
        """Announce that this program ends, and wait until the other programs end.

        The exit code is not known here. If the other processes still need this process,
        they end, and this process ends with them.
        """
        self._is_leaving = True
        if self._has_service():
            with suppress(Exception):
                self.news.post("left", self.index, has_devices())
                self.service.barrier(f"{_KEYS}/exit", _EXIT_S)
                self.news.post("bye")
        self._closed.set()
        self._thread.join()
        # A thread that returns from a request, which is C++, while Python shuts down
        # aborts the program.
        self._reader.join(_LEAVE_S)

    def _publish(self, reason: str, is_hang: bool) -> tuple[str, bool]:
        """Publish a reason, unless there is one; return the reason that counts."""
        failed = f"{_KEYS}/failed"
        with suppress(Exception):
            if not self.service.set(failed, [reason, is_hang]):
                reason, is_hang = self.service.get(failed, _TICK_S)
            self.news.post("failed")
        return reason, is_hang

    def _wait_for_others(self) -> None:
        """Report the end; process 0 waits for the others, which need its service."""
        self.service.set(f"{_KEYS}/ended/{self.index}", None)
        deadline_s = time.monotonic() + _LEAVE_S
        others = set(range(self.service.process_count))
        others -= self._dead.keys()
        while self.index == 0 and time.monotonic() < deadline_s:
            if others <= set(map(int, self.service.entries(f"{_KEYS}/ended/"))):
                return
            time.sleep(_LEAVING_TICK_S)

    def _write(self, text: str) -> None:
        """Write a text to standard error and to the log of the run."""
        print_error(text)
        # The log may not be open yet, or may have failed.
        with suppress(Exception):
            if self._report is not None:
                self._report(text)


def watcher() -> Watcher | None:
    """Return the started watcher of this program; None in a single process.

    Raises:
        ClusterError: This process is one of several, and nothing has connected it.
    """
    global _watcher  # noqa: PLW0603 - one for the program
    service = coordination_service()
    if service is None:
        check_connected(os.environ)
        if jax.process_count() > 1:
            raise ClusterError(
                "JAX runs on several processes without its coordination service; "
                "call roxxel_train.distributed.initialize() at the top of the program"
            )
        return None
    if service.process_count == 1:
        return None
    if _watcher is None or _watcher.service.client is not service.client:
        _watcher = Watcher(service)
        _watcher.start()
    return _watcher


def needs_all_processes(
    method: Callable[_Arguments, _Result],
) -> Callable[_Arguments, _Result]:
    """Wrap `method`: during it, this process ends if another process's program ends."""

    @functools.wraps(method)
    def watched(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
        found = watcher()
        with nullcontext() if found is None else found.needing_all():
            return method(*args, **kwargs)

    return watched


def _try_for_a_while(act: Callable[[], object]) -> None:
    """Call `act`, but wait for it at most `_LEAVE_S`, and ignore its errors.

    A disk that hangs, or a process 0 that answers nothing, must not keep this process
    alive, nor keep it from watching the others.
    """

    def call() -> None:
        with suppress(Exception):
            act()

    thread = threading.Thread(target=call, daemon=True)
    try:
        thread.start()
    except RuntimeError:  # at the end of the program, Python starts no more threads
        call()
    else:
        thread.join(_LEAVE_S)


def _is_echo(error: BaseException) -> bool:
    """Return whether the end of another process may have caused an error."""
    if isinstance(error, OtherProcessError):
        return True
    if isinstance(error, jax.errors.JaxRuntimeError):
        return "RESOURCE_EXHAUSTED" not in str(error)
    # JAX raises errors of Gloo as ValueError.
    return isinstance(error, ValueError) and "Gloo" in str(error)
