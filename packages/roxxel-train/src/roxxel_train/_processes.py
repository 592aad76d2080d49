"""How the processes of a run agree, end together, and report hangs.

Everything goes through the coordination service (`roxxel_ckpt.coordination`), never
through a collective: a collective waits forever for a process that has failed. One
daemon thread per process talks to the service, twice a second:

- **Agreement.** A process publishes a request to stop or to save. The thread of every
  process answers with the step that its loop has begun, and the loop begins no further
  step. The largest of these steps is the one after which all processes act. The thread
  answers because a loop that waits in a collective cannot.
- **End.** A process that fails publishes the reason and exits past the shutdown barrier
  of JAX. The others find the reason, log it and exit too. Each process also watches the
  sign of life of its neighbour, since a killed process publishes nothing.
- **Hangs.** A step that takes too long ends all processes with their stacks. A lone
  process only reports it. `faulthandler` prints the stacks where C code holds the
  interpreter lock and the thread cannot run.

A lone process uses the same interface and no service.
"""

from __future__ import annotations

import faulthandler
import hashlib
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections import defaultdict
from contextlib import contextmanager, suppress
from itertools import count
from typing import TYPE_CHECKING, Literal, NamedTuple, NoReturn, Self

import jax
from roxxel_ckpt.coordination import coordination_service

from roxxel_train.distributed import barrier, named
from roxxel_train.errors import NonFiniteError, Preempted

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping
    from types import FrameType, TracebackType

    from roxxel_ckpt.coordination import CoordinationService

_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)

_TICK_S = 0.5
"""Time between two exchanges with the service."""

_HURRIED_TICK_S = 0.02
"""The same while processes agree on a step, since loops may be waiting."""

_SILENT_S = 6.0
"""Silence after which a neighbour counts as killed. This time, `_LEAVE_S` and some
ticks stay below the 10 s in which all processes have to end."""

_PAUSED_SILENT_S = 60.0
"""The same in a pause: a user's evaluation may hold the interpreter lock for long."""

_CAUSE_S = 4.0
"""Wait before an error that another process may have caused is published. A process
without a sign of life in this time was killed."""

_LEAVE_S = 2.0
"""Longest wait of process 0, which runs the service, for the others to leave first."""

_LONGEST_TIMER_S = 1e6  # `faulthandler` refuses infinite times

_runs = count()
"""Separates the keys of several runs in one program; equal in all processes."""


class Request(NamedTuple):
    """What all processes do after a step.

    Attributes:
        kind: Stop the run, or save a checkpoint.
        signal_name: The signal that requests the stop; empty for a save.
    """

    kind: Literal["stop", "save"]
    signal_name: str = ""


class Processes:
    """A context around one run, for what its processes do together.

    In the block SIGTERM and SIGINT request a stop, and SIGUSR1 requests a checkpoint,
    of all processes. A second SIGTERM or SIGINT acts as it would outside the block.

    Args:
        report: Writes a text to the log of the run; called from several threads. The
            text is on standard error too.
        flush: Brings the log to the disk.
        hang_after_s: Longest time of a step, in seconds; None does not watch steps.
        timeout_s: Longest wait for the other processes at the start and at the end.

    Raises:
        RuntimeError: JAX has several processes without `jax.distributed`.
    """

    def __init__(
        self,
        *,
        report: Callable[[str], None],
        flush: Callable[[], None],
        hang_after_s: float | None,
        timeout_s: float,
    ) -> None:
        service = coordination_service()
        if service is None and jax.process_count() > 1:
            raise RuntimeError(
                "JAX runs on several processes without its coordination service; "
                "call roxxel_train.distributed.initialize() first"
            )
        self._service = service if service and service.process_count > 1 else None
        self._index = 0 if self._service is None else self._service.process_index
        self._report = report
        self._flush = flush
        self._hang_after_s = hang_after_s
        self._timeout_s = timeout_s
        self._keys = f"roxxel_train/{next(_runs)}"
        self._thread: threading.Thread | None = None
        self._closed = threading.Event()
        self._ending = threading.Lock()
        self._mismatch: ValueError | None = None
        self._tick_s = _TICK_S if hang_after_s is None else min(_TICK_S, hang_after_s)
        self._num_ticks = 0
        self._neighbour = ""
        self._silent_s = 0.0
        # Set by signal handlers, which must not acquire a lock.
        self._stop: signal.Signals | None = None
        self._is_save_requested = False
        self._previous_handlers: dict[int, object] = {}
        # Shared by the loop and the thread, under this condition.
        self._change = threading.Condition()
        self._step = 0
        self._due_s: float | None = None
        self._pause: str | None = None
        self._begun: int | None = None
        self._hold: int | None = None
        self._agreed: tuple[int, Request] | None = None
        self._round = 0

    def __enter__(self) -> Self:
        """Install the signal handlers, in the main thread only; start the thread."""
        if threading.current_thread() is threading.main_thread():
            self._install(signal.SIGUSR1, self._on_save_signal)
            for number in _STOP_SIGNALS:
                self._install(number, self._on_stop_signal)
        if self._service is not None or self._hang_after_s is not None:
            self._thread = threading.Thread(
                target=self._run_thread, name="roxxel-processes", daemon=True
            )
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        stack: TracebackType | None,
    ) -> None:
        """Wait for all processes, end the thread and restore the signal handlers."""
        try:
            if self._service is not None:
                if error is not None:
                    self._leave(error)
                with self.paused("end"):
                    self._wait_for_all(self._service)
        finally:
            self._closed.set()
            if self._thread is not None:
                self._thread.join()
                self._set_timer(None)
            for number in tuple(self._previous_handlers):
                self._restore_handler(number)

    @contextmanager
    def failing_together(self) -> Generator[None]:
        """End all processes when the block raises in one of them.

        The block is inside every context that waits for other processes when it closes.
        Errors that all processes raise alike pass: `Preempted`, `NonFiniteError` and
        the error of `check_same`. Any other error ends this process with exit code 1,
        without further clean-up. In a lone process every error passes.
        """
        try:
            yield
        except BaseException as error:
            self._leave(error)
            raise
        finally:
            self._due_s = None

    def check_same(self, settings: Mapping[str, object]) -> None:
        """Wait until all processes begin the run, and compare their settings.

        Args:
            settings: JSON values by name.

        Raises:
            ValueError: A setting differs; raised on every process.
            TimeoutError: A process did not begin the run in time.
        """
        service = self._service
        if service is None:
            return
        texts = {
            name: json.dumps(value, sort_keys=True) for name, value in settings.items()
        }
        service.set(f"{self._keys}/settings/{self._index}", json.dumps(texts))
        barrier("start of the run", self._timeout_s)
        if self._index == 0:
            of_all = service.entries(f"{self._keys}/settings/")
            found = {int(index): json.loads(text) for index, text in of_all.items()}
            service.set(f"{self._keys}/difference", _difference(found))
        difference = service.get(f"{self._keys}/difference", self._timeout_s)
        if difference:
            self._mismatch = ValueError(difference)
            raise self._mismatch

    def before(self, step: int) -> None:
        """Note that update `step` begins: its batch is read, nothing is dispatched."""
        if self._begun is None:
            with self._change:
                self._begun = step
        self._step = step
        self._due_s = self._from_now()

    def after(self, step: int) -> Request | None:
        """Return what all processes do after update `step`; call it after each update.

        Args:
            step: Updates done.

        Returns:
            The same request on every process; None to continue.
        """
        if self._service is None:
            request = self._requested()
            self._is_save_requested = False
            return request
        with self._change:
            while self._hold == step and self._agreed is None:
                self._change.wait()
            request = None
            if self._agreed is not None and self._agreed[0] == step:
                _, request = self._agreed
                self._agreed = self._hold = None
                self._round += 1
                # The checkpoint serves every request made before it.
                self._is_save_requested &= request.kind != "save"
            self._begun = step + 1
        return request

    def ask_to_save(self) -> None:
        """Request a checkpoint of all processes; from any thread."""
        self._is_save_requested = True

    def is_stopping(self) -> bool:
        """Return whether to give up a wait; several processes never give up alone."""
        return self._service is None and self._stop is not None

    @contextmanager
    def paused(self, what: str) -> Generator[None]:
        """Exclude a block from the time of a step, in the other processes too.

        Args:
            what: Names the block for the other processes.
        """
        with self._change:
            outer, self._pause = self._pause, what
            self._set_timer(None)
        try:
            yield
        finally:
            with self._change:
                self._pause = outer
                if self._due_s is not None:
                    self._due_s = self._from_now()

    # Signals

    def _install(self, number: int, handler: object) -> None:
        # A program that ignores a signal, such as under nohup, keeps ignoring it.
        # Under `jax.distributed` this replaces JAX's own notifier of SIGTERM.
        if signal.getsignal(number) is not signal.SIG_IGN:
            self._previous_handlers[number] = signal.signal(number, handler)  # pyright: ignore[reportArgumentType] - a handler of ours

    def _restore_handler(self, number: int) -> None:
        handler = self._previous_handlers.pop(number)
        # None stands for a handler that was not installed from Python.
        signal.signal(number, signal.SIG_DFL if handler is None else handler)  # pyright: ignore[reportArgumentType]

    def _on_stop_signal(self, number: int, _frame: FrameType | None) -> None:
        if self._stop is not None:
            for installed in tuple(self._previous_handlers):
                self._restore_handler(installed)
            signal.raise_signal(number)
            return
        self._stop = signal.Signals(number)

    def _on_save_signal(self, _number: int, _frame: FrameType | None) -> None:
        self._is_save_requested = True

    def _requested(self) -> Request | None:
        if self._stop is not None:
            return Request("stop", self._stop.name)
        return Request("save") if self._is_save_requested else None

    # The thread

    def _run_thread(self) -> None:
        wait_s = self._tick_s
        while not self._closed.wait(wait_s):
            try:
                self._check_step()
                if self._service is not None:
                    is_agreeing = self._exchange(self._service, wait_s)
                    wait_s = _HURRIED_TICK_S if is_agreeing else self._tick_s
            except Exception as error:
                if self._service is None:
                    raise
                self._end(f"process {self._index} failed: {_brief(error)}", error)

    def _exchange(self, service: CoordinationService, since_s: float) -> bool:
        """Exchange news with the other processes; return whether they agree on a step.

        Args:
            service: The coordination service.
            since_s: Time since the last exchange.
        """
        self._num_ticks += 1
        life = json.dumps([self._num_ticks, self._step, self._pause])
        service.set(f"{self._keys}/alive/{self._index}", life, overwrite=True)
        news = service.entries(f"{self._keys}/news/")
        if "failed" in news:
            self._end("")
        self._watch_neighbour(service, since_s)
        return self._agree(service, news)

    def _watch_neighbour(self, service: CoordinationService, since_s: float) -> None:
        neighbour = (self._index + 1) % service.process_count
        try:
            life = service.get(f"{self._keys}/alive/{neighbour}", _TICK_S)
        except TimeoutError:
            life = self._neighbour
        # Only this process's own waits count: after this process was suspended, the
        # neighbour gets the full time again.
        self._silent_s = self._silent_s + since_s if life == self._neighbour else 0.0
        self._neighbour = life
        if not life:
            return
        _, step, pause = json.loads(life)
        if self._silent_s > (_SILENT_S if pause is None else _PAUSED_SILENT_S):
            during = f"step {step}" if pause is None else f"{pause!r} after step {step}"
            self._end(
                f"process {neighbour} failed: no sign of life for "
                f"{self._silent_s:.0f} s in {during}; the process was killed, or C "
                "code holds its interpreter lock"
            )

    def _agree(self, service: CoordinationService, news: Mapping[str, str]) -> bool:
        """Take part in the agreement on a step; return whether one is going on."""
        number = self._round
        if f"{number}/request" not in news:
            request = self._requested()
            if request is not None:
                text = json.dumps(request)
                service.set(f"{self._keys}/news/{number}/request", text)
            return request is not None
        answers = f"{self._keys}/answers/{number}/"
        with self._change:
            if self._round != number or self._begun is None or self._agreed is not None:
                return False
            is_new = self._hold is None
            self._hold = begun = self._begun if is_new else self._hold
        if is_new:
            service.set(f"{answers}{self._index}", str(begun))
        if f"{number}/step" in news:
            with self._change:
                step = int(news[f"{number}/step"])
                self._agreed = step, Request(*json.loads(news[f"{number}/request"]))
                self._hold = step
                self._change.notify_all()
            return False
        if self._index == 0:
            begun_by_all = service.entries(answers).values()
            if len(begun_by_all) == service.process_count:
                step = max(map(int, begun_by_all))
                service.set(f"{self._keys}/news/{number}/step", str(step))
                # Every process that answers in this round has finished the last one.
                service.delete(f"{self._keys}/news/{number - 1}/")
                service.delete(f"{self._keys}/answers/{number - 1}/")
        return True

    # Hangs

    def _from_now(self) -> float | None:
        if self._hang_after_s is None:
            return None
        return time.monotonic() + self._hang_after_s

    def _set_timer(self, left_s: float | None) -> None:
        """Let `faulthandler` print all stacks after some time; None cancels that.

        The thread moves the timer at every tick, so the timer runs out only where the
        interpreter lock is held.
        """
        faulthandler.cancel_dump_traceback_later()
        if left_s is not None:
            faulthandler.dump_traceback_later(
                min(max(left_s, 0.0) + 2 * _TICK_S, _LONGEST_TIMER_S),
                exit=self._service is not None,
                file=2,
            )

    def _check_step(self) -> None:
        """Report the current step if it takes too long."""
        with self._change:
            due_s = self._due_s
            if due_s is None or self._pause is not None:
                return
            left_s = due_s - time.monotonic()
            self._set_timer(left_s)
            if left_s > 0:
                return
            self._due_s = None
            self._set_timer(None)
        late = f"step {self._step} is not done after {self._hang_after_s:g} s"
        if self._service is None:
            self._write(f"{late}; the stacks of all threads:\n{_stacks()}")
            return
        lives = self._service.entries(f"{self._keys}/alive/")
        found = {int(index): json.loads(life) for index, life in lives.items()}
        if any(pause is not None for _, _, pause in found.values()):
            self._due_s = self._from_now()
            return
        slowest = min(step for _, step, _ in found.values())
        behind = sorted(i for i, (_, step, _) in found.items() if step == slowest)
        self._end(
            f"{named(behind)} failed: {late}, and the last that began there is step "
            f"{slowest}",
            is_hang=True,
        )

    # The end

    def _leave(self, error: BaseException) -> None:
        """End this process after an error, unless all processes raise the error."""
        if self._service is None or error is self._mismatch:
            return
        if isinstance(error, (Preempted, NonFiniteError)):
            return
        cause = f"process {self._index} failed: {_brief(error)}"
        if _is_echo(error):
            with suppress(Exception):  # without the service only the error is known
                before = self._service.entries(f"{self._keys}/alive/")
                # The thread ends this process as soon as a cause is published.
                time.sleep(_CAUSE_S)
                after = self._service.entries(f"{self._keys}/alive/")
                killed = sorted(int(i) for i in before if before[i] == after[i])
                if killed:
                    cause = (
                        f"{named(killed)} failed: killed, without a sign of life for "
                        f"{_CAUSE_S:g} s"
                    )
        self._end(cause, error)

    def _wait_for_all(self, service: CoordinationService) -> None:
        try:
            service.barrier(f"{self._keys}/end", self._timeout_s)
        except TimeoutError:
            self._end(
                f"process {self._index} failed: it waited {self._timeout_s:g} s for "
                "the other processes at the end of the run"
            )

    def _end(
        self, reason: str, error: BaseException | None = None, *, is_hang: bool = False
    ) -> NoReturn:
        """Publish and log why the run ends, and exit past all clean-up.

        Args:
            reason: Published and logged, unless another process has published one
                before: then that one is logged.
            error: Its traceback is printed.
            is_hang: Whether all processes print their stacks.
        """
        self._ending.acquire()  # never released: a second thread waits for the exit
        service = self._service
        if service is None:
            raise AssertionError("a lone process ends by its own errors")
        failed = f"{self._keys}/news/failed"
        # Without the service, where process 0 is gone, the own reason has to do.
        with suppress(Exception):
            if not service.set(failed, json.dumps([reason, is_hang])):
                reason, is_hang = json.loads(service.get(failed, _TICK_S))
        if error is not None:
            self._print("".join(traceback.format_exception(error)))
        text = f"the run ends: {reason}"
        if is_hang:
            text += f"\nthe stacks of process {self._index}:\n{_stacks()}"
        # A disk that hangs must not keep the process alive.
        writing = threading.Thread(target=self._write, args=(text,), daemon=True)
        writing.start()
        writing.join(_LEAVE_S)
        with suppress(Exception):
            service.set(f"{self._keys}/ended/{self._index}", "")
            # Process 0 runs the service, so it leaves last.
            deadline_s = time.monotonic() + _LEAVE_S
            num_ended = service.process_count if self._index else 0
            while num_ended < service.process_count and time.monotonic() < deadline_s:
                time.sleep(_HURRIED_TICK_S)
                num_ended = len(service.entries(f"{self._keys}/ended/"))
        with suppress(Exception):
            sys.stdout.flush()
        os._exit(1)

    def _write(self, text: str) -> None:
        """Write a text to standard error and to the log of the run."""
        self._print(text)
        # The log may not be open yet, or may be what failed.
        with suppress(Exception):
            self._report(text)
            self._flush()

    def _print(self, text: str) -> None:
        # A program without a console has no standard error.
        with suppress(Exception):
            sys.stderr.write(text + "\n")
            sys.stderr.flush()


def _difference(of_all: Mapping[int, Mapping[str, str]]) -> str:
    """Return what differs between the settings of processes; empty if nothing."""
    for name in of_all[0]:
        processes: defaultdict[str, list[int]] = defaultdict(list)
        for index in sorted(of_all):
            processes[of_all[index].get(name, "nothing")].append(index)
        if len(processes) > 1:
            values = "; ".join(
                f"{named(indices)}: {_shortened(value)}"
                for value, indices in processes.items()
            )
            return (
                f"{name} differs between processes ({values}); "
                "start all of them with the same files and arguments"
            )
    return ""


def _shortened(value: str) -> str:
    if len(value) <= 80:
        return value
    digest = hashlib.blake2b(value.encode(), digest_size=4).hexdigest()
    return f"{value[:40]}... with digest {digest}"


def _brief(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _is_echo(error: BaseException) -> bool:
    """Return whether the end of another process may have caused an error."""
    if isinstance(error, jax.errors.JaxRuntimeError):
        return "RESOURCE_EXHAUSTED" not in str(error)
    # JAX raises errors of Gloo as ValueError.
    return isinstance(error, ValueError) and "Gloo" in str(error)


def _stacks() -> str:
    """Return the stack of every thread except the calling one."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    own = threading.get_ident()
    parts = [
        f"thread {names.get(ident, ident)}:\n" + "".join(traceback.format_stack(frame))
        for ident, frame in sys._current_frames().items()  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - documented for this
        if ident != own
    ]
    return "\n".join(parts)
