"""How the processes of a run agree on steps, and report hangs.

Processes exchange messages through the coordination service
(`roxxel_ckpt.coordination`), never through a collective: a collective waits forever for
a process that has failed. Until a process requests something, no message is exchanged.

- **Agreement.** A process that wants to stop or to save calls all processes, through
  the watcher's news. A thread in every process then votes with the step that its loop
  has begun, and the loop pauses after this step. Process 0 alone reads the votes, and
  tells all processes to act after the largest step, in one message. A thread votes,
  because a loop that waits in a collective cannot.
- **Hangs.** If a step exceeds `hang_after_s`, all processes print their stacks and
  exit. A single process prints its stacks and continues.

`watcher` ends all processes when one process fails. A single process uses the same
interface without the service.
"""

from __future__ import annotations

import signal
import threading
import time
from contextlib import ExitStack, contextmanager, suppress
from itertools import count
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

from roxxel_ckpt.activity import doing

from roxxel_train._together.barriers import check_same
from roxxel_train._together.signals import SAVE, URGENT, WARNINGS
from roxxel_train._together.texts import named, print_error, stacks, titled
from roxxel_train._together.watcher import Progress, watcher

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping
    from types import FrameType, TracebackType

    from roxxel_train._together.watcher import Report, Watcher

_TICK_S = 0.5
"""Longest time until the thread notices what a signal handler has requested."""

_runs = count()
"""Counts the runs of this program. The count is part of each run's keys and is equal in
all processes."""


class Request(NamedTuple):
    """An action of all processes after a step.

    `reason` is the name of the signal that stops the run, the reason that the caller of
    `Trainer.stop` gives for the end, or the sentence with which the run fails after it
    has saved.
    """

    kind: Literal["stop", "end", "save", "fail"]
    reason: str = ""


class Processes:
    """A context around one run, in which its processes agree on steps.

    In the block, a signal of `signals` in one process requests a stop of all
    processes, or a checkpoint. A second SIGTERM or SIGINT goes to the handler that
    was installed before the block. Signals that the program ignores stay ignored, and
    except for SIGTERM and SIGINT, a handler of the program stays installed.

    `report` is called after the text was written to standard error. If `hang_after_s`
    is None, steps have no time limit. `timeout_s` limits the waits for the other
    processes at the start and at the end.

    Attributes:
        handles_signals: Whether the block began in the main thread. Python lets no
            other thread handle signals.
    """

    def __init__(
        self,
        *,
        report: Report,
        hang_after_s: float | None,
        timeout_s: float,
    ) -> None:
        self._watcher = watcher()
        self._progress = Progress() if self._watcher is None else self._watcher.progress
        self._report = report
        self._hang_after_s = hang_after_s
        self._timeout_s = timeout_s
        self._name = f"train/{next(_runs)}"
        # An agreement is a turn. The thread writes the turns in which this process has
        # called and voted, and in which process 0 has decided.
        self._turn = 0
        self._called_at: int | None = None
        self._called = self._voted = self._decided = -1
        self._woken = threading.Event()
        self._thread: threading.Thread | None = None
        self._closed = threading.Event()
        self._in_run = ExitStack()
        self.handles_signals = False
        self._tick_s = _TICK_S if hang_after_s is None else min(_TICK_S, hang_after_s)
        # Signal handlers set these fields, and must not acquire a lock.
        self._stop: signal.Signals | None = None
        self._is_urgent = False
        self._failure: str | None = None
        self._end: str | None = None
        self._is_save_requested = False
        self._previous_handlers: dict[int, object] = {}
        # Every write of `_begun`, `_wait_after` and `_agreed` holds this condition. It
        # also keeps the thread from setting the timer after a pause has begun.
        self._change = threading.Condition()
        self._begun: int | None = None
        # The step after which the loop waits until process 0 has decided.
        self._wait_after: int | None = None
        # The decision, until the loop serves it: after which step, and what.
        self._agreed: tuple[int, Request] | None = None
        # When the last step ended in this process, and the pauses since then.
        self._step_ended_s: float | None = None
        self._paused_s = 0.0
        # Deadline of the current step. Some writes do not hold `_change`.
        self._due_s: float | None = None

    def __enter__(self) -> Self:
        """Install the signal handlers, in the main thread only; start the thread."""
        self.handles_signals = threading.current_thread() is threading.main_thread()
        if self.handles_signals:
            for number in URGENT:
                self._install(number, self._on_stop_signal)
            others = {SAVE: self._on_save_signal}
            others |= dict.fromkeys(WARNINGS, self._on_stop_signal)
            for number, handler in others.items():
                if signal.getsignal(number) is signal.SIG_DFL:
                    self._install(number, handler)
        self._progress.step, self._progress.pause = 0, None
        self._progress.thread = threading.get_ident()
        self._progress.own_s = 0.0
        if self._watcher is not None:
            self._in_run.enter_context(
                self._watcher.in_run(self._report, self._on_news)
            )
        if self._watcher is not None or self._hang_after_s is not None:
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
            found = self._watcher
            if found is not None and (error is None or not found.end_after(error)):
                with self.paused("end"):
                    self._wait_for_all(found)
        finally:
            self._in_run.close()
            self._closed.set()
            self._woken.set()
            if self._thread is not None:
                self._thread.join()
            for number in tuple(self._previous_handlers):
                self._restore_handler(number)

    @contextmanager
    def failing_together(self) -> Generator[None]:
        """End all processes when the block raises in one of them.

        Some contexts wait for the other processes when they close: enter those first,
        and then this one. Errors that all processes raise at the same point leave the
        block: `Preempted`, `NonFiniteError` and the error of `check_same`. Any other
        error ends all processes with exit code 1, without further clean-up. In a single
        process every error leaves the block.
        """
        try:
            yield
        except BaseException as error:
            if self._watcher is not None:
                self._watcher.end_after(error)
            raise
        finally:
            self._due_s = None

    def check_same(self, settings: Mapping[str, object]) -> None:
        """Wait until all processes begin the run, and compare their settings."""
        check_same("start of the run", settings, self._timeout_s)

    def before(self, step: int) -> None:
        """Record that update `step` begins.

        Call this method after the batch is read and before the update is dispatched.
        """
        if self._begun is None:
            with self._change:
                self._begun = step
            self._woken.set()
        if self._step_ended_s is not None:
            free_s = time.perf_counter() - self._step_ended_s
            self._progress.own_s += max(0.0, free_s - self._paused_s)
        self._progress.step = step
        self._due_s = self._from_now()

    def after(self, step: int) -> Request | None:
        """Return the request that all processes serve after update `step`, or None.

        Call this method after each update. The result is the same in every process.
        """
        request = self._agreed_after(step)
        # From here to the next step, the time is this process's own.
        self._step_ended_s, self._paused_s = time.perf_counter(), 0.0
        return request

    def own_times(self) -> Mapping[int, tuple[int, float]]:
        """Return `step` and `own_s` of every process; empty except in process 0."""
        return {} if self._watcher is None else self._watcher.own_times

    def _agreed_after(self, step: int) -> Request | None:
        if self._watcher is None:
            request = self._requested()
            self._is_save_requested = False
            return request
        with self._change:
            if self._wait_after == step and self._agreed is None:
                with doing("agree on a step", waits=True):
                    while self._agreed is None:
                        self._change.wait()
            request = None
            if self._agreed is not None and self._agreed[0] == step:
                _, request = self._agreed
                self._agreed = self._wait_after = None
                # This checkpoint serves every earlier request of this process.
                self._is_save_requested &= request.kind != "save"
            self._begun = step + 1
        if request is not None:
            # The thread has put off a call that came before this request was served.
            self._woken.set()
        return request

    def request_save(self) -> None:
        """Request a checkpoint of all processes; any thread may call this method."""
        self._is_save_requested = True

    def request_end(self, reason: str) -> None:
        """Request that all processes save and return; any thread may call this."""
        self._end = reason if self._end is None else self._end

    def fail(self, reason: str) -> None:
        """After one step, let all processes save and then fail."""
        self._failure = self._failure or reason

    def is_stopping(self) -> bool:
        """Return whether a request or a failure should end a wait early.

        With several processes the result is False: all must stop at the same step.
        """
        request = None if self._watcher is not None else self._requested()
        return request is not None and request.kind != "save"

    @contextmanager
    def paused(self, what: str) -> Generator[None]:
        """Exclude a block from the time of a step; messages name the block `what`."""
        with self._change:
            outer, self._progress.pause = self._progress.pause, what
        began_s = time.perf_counter()
        try:
            yield
        finally:
            with self._change:
                self._progress.pause = outer
                if outer is None:
                    self._paused_s += time.perf_counter() - began_s
                if self._due_s is not None:
                    self._due_s = self._from_now()

    # Signals

    def _install(self, number: int, handler: object) -> None:
        # If the program ignores a signal, as under nohup, the signal stays ignored.
        # Under `jax.distributed` this handler replaces JAX's handler of SIGTERM.
        if signal.getsignal(number) is not signal.SIG_IGN:
            self._previous_handlers[number] = signal.signal(number, handler)  # pyright: ignore[reportArgumentType] - a handler of ours

    def _restore_handler(self, number: int) -> None:
        handler = self._previous_handlers.pop(number)
        # `signal` returns None for a handler that was not installed from Python.
        signal.signal(number, signal.SIG_DFL if handler is None else handler)  # pyright: ignore[reportArgumentType]

    def _on_stop_signal(self, number: int, _frame: FrameType | None) -> None:
        if number in URGENT and self._is_urgent:  # It came a second time.
            for installed in tuple(self._previous_handlers):
                self._restore_handler(installed)
            signal.raise_signal(number)
            return
        self._is_urgent |= number in URGENT
        self._stop = self._stop or signal.Signals(number)

    def _on_save_signal(self, _number: int, _frame: FrameType | None) -> None:
        self._is_save_requested = True

    def _requested(self) -> Request | None:
        if self._failure is not None:
            return Request("fail", self._failure)
        if self._stop is not None:
            return Request("stop", self._stop.name)
        if self._end is not None:
            return Request("end", self._end)
        return Request("save") if self._is_save_requested else None

    # The thread

    def _run_thread(self) -> None:
        wait_s = self._tick_s
        while not self._closed.is_set():
            self._woken.wait(wait_s)
            self._woken.clear()
            try:
                self._check_step()
                if self._watcher is not None:
                    self._agree(self._watcher)
                    is_counting = self._watcher.index == 0 and self._is_voting()
                    wait_s = 0.0 if is_counting else self._tick_s
            except Exception as error:
                if self._watcher is None:
                    raise
                self._watcher.end(
                    f"process {self._watcher.index} failed: {titled(error)}", error
                )

    def _on_news(self, number: int, kind: str, *values: Any) -> None:
        """Record a call for an agreement, or the decision of process 0."""
        name, turn, *decision = values
        if (name, turn) != (self._name, self._turn):
            return  # of another run, or received twice
        if kind == "call":
            # The first call: all processes may call at once, and whoever has voted has
            # read this one, but perhaps not the next.
            if self._called_at is None:
                self._called_at = number
        else:
            with self._change:
                step, request = decision
                self._wait_after, self._agreed = step, (step, Request(*request))
                self._turn += 1
                self._called_at = None
                self._change.notify_all()
        self._woken.set()

    def _agree(self, watcher: Watcher) -> None:
        """Advance the agreement, unless the loop must still serve the last request."""
        with self._change:
            turn, number, request = self._turn, self._called_at, self._requested()
            if self._agreed is not None or self._begun is None:
                return
            if number is not None and self._voted != turn:
                self._wait_after = self._begun
        if number is None:
            if request is not None and self._called != turn:
                self._called = turn
                watcher.news.post("call", self._name, turn)
            return
        service, votes = watcher.service, f"roxxel/{self._name}/votes/{turn}/"
        if self._voted != turn:
            self._voted = turn
            service.set(f"{votes}{watcher.index}", (self._wait_after, request))
        if watcher.index == 0 and self._decided != turn:
            found = service.entries(votes)
            others = map(str, range(service.process_count))
            missing = next((index for index in others if index not in found), None)
            if missing is not None:
                # Looking at all votes again and again would cost their square.
                with suppress(TimeoutError):
                    service.get(f"{votes}{missing}", self._tick_s)
                return
            self._decided = turn
            decision = _latest([found[str(index)] for index in range(len(found))])
            watcher.news.post("act", self._name, turn, *decision)
            # Whoever has voted has read the call, and all messages before it.
            watcher.news.forget(number)
            service.delete(votes)

    def _is_voting(self) -> bool:
        return self._voted == self._turn and self._decided != self._turn

    # Hangs

    def _from_now(self) -> float | None:
        if self._hang_after_s is None:
            return None
        return time.monotonic() + self._hang_after_s

    def _check_step(self) -> None:
        """Report the current step if it takes too long."""
        with self._change:
            due_s = self._due_s
            if due_s is None or self._progress.pause is not None:
                return
            if due_s > time.monotonic():
                return
            self._due_s = None
        late = f"step {self._progress.step} is not done after {self._hang_after_s:g} s"
        if self._watcher is None:
            text = f"{late}; the stacks of all threads:\n{stacks()}"
            print_error(text)
            # The log may not be open yet, or may have failed.
            with suppress(Exception):
                self._report(text)
            return
        lives = self._watcher.lives()
        if any(life.pause is not None for life in lives.values()):
            self._due_s = self._from_now()
            return
        slowest = min(life.step for life in lives.values())
        behind = sorted(i for i, life in lives.items() if life.step == slowest)
        self._watcher.end(
            f"{named(behind)} failed: {late}; the last step that began is {slowest}",
            is_hang=True,
        )

    def _wait_for_all(self, watcher: Watcher) -> None:
        try:
            with doing("end of the run", waits=True):
                watcher.service.barrier(f"roxxel/{self._name}/end", self._timeout_s)
        except TimeoutError:
            watcher.end(
                f"process {watcher.index} failed: it waited {self._timeout_s:g} s for "
                "the other processes at the end of the run"
            )


def _latest(votes: list[tuple[int, Any]]) -> tuple[int, Any]:
    """Return the largest step of all votes, and the first request that is not None."""
    return max(step for step, _ in votes), next(r for _, r in votes if r is not None)
