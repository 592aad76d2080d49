"""Agreement of threads that act as processes; real ones are in tests-integration."""

from __future__ import annotations

import itertools
import math
import os
import pickle
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from roxxel_ckpt import Checkpointer, coordination
from roxxel_ckpt.coordination import Channel
from roxxel_store.records import as_json
from roxxel_train import (
    PREEMPTED_EXIT_CODE,
    BatchRow,
    Logger,
    NonFiniteError,
    Preempted,
)
from roxxel_train._observe.recorder import Recorder
from roxxel_train._together import barriers, processes, watcher
from roxxel_train._together.holders import Holders, Life
from roxxel_train._together.processes import Processes, Request
from roxxel_train._together.watcher import Watcher

from .helpers import pair, trainer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from roxxel_train import ModelState

pytestmark = pytest.mark.first

NUM_PROCESSES = 3
NUM_STEPS = 12
GUARD_S = 600


class Service:
    """The coordination service, as one thread sees it that acts as a process."""

    process_count = NUM_PROCESSES

    def __init__(self, process_index: int, store: Store) -> None:
        self.process_index = process_index
        self._store = store

    def set(self, key: str, value: Any, *, overwrite: bool = False) -> bool:
        with self._store.change:
            if key in self._store.values and not overwrite:
                return False
            self._store.values[key] = as_json(value)
            self._store.change.notify_all()
        return True

    def get(self, key: str, timeout_s: float) -> Any:
        store = self._store
        with store.change:
            if not store.change.wait_for(
                lambda: key in store.values or key in store.deleted, timeout_s
            ):
                raise TimeoutError(key)
            if key in store.values:
                return store.values[key]
            store.lost.add(key)
            return store.deleted[key]

    def entries(self, prefix: str) -> dict[str, Any]:
        with self._store.change:
            return {
                key.removeprefix(prefix): value
                for key, value in self._store.values.items()
                if key.startswith(prefix)
            }

    def delete(self, prefix: str) -> None:
        with self._store.change:
            keys = [key for key in self._store.values if self.is_below(key, prefix)]
            for key in keys:
                self._store.deleted[key] = self._store.values.pop(key)
            self._store.change.notify_all()

    @staticmethod
    def is_below(key: str, prefix: str) -> bool:
        return key.startswith(prefix) if prefix.endswith("/") else key == prefix

    def barrier(self, _name: str, timeout_s: float) -> None:
        self._store.barrier.wait(timeout_s)


class Ordered(Service):
    """The service of processes that read several calls of a turn in a given order.

    Nobody reads a call before all `num_calls` are there. A process votes after it has
    read as many of them as `num_read` says, and reads on after process 0 has decided.
    """

    def __init__(
        self, process_index: int, store: Store, *, num_calls: int, num_read: int
    ) -> None:
        super().__init__(process_index, store)
        self._num_calls = num_calls
        self._num_read = num_read
        self._asked = -1

    def set(self, key: str, value: Any, *, overwrite: bool = False) -> bool:
        if "/votes/" in key:
            self._wait(lambda: self._asked >= self._num_read)
        return super().set(key, value, overwrite=overwrite)

    def get(self, key: str, timeout_s: float) -> Any:
        prefix, _, name = key.rpartition("/")
        if prefix.endswith("/news"):
            with self._store.change:
                self._asked = int(name)
                self._store.change.notify_all()
            last = f"{prefix}/{self._num_calls - 1}"
            self._wait(lambda: last in self._store.values or self._is_decided())
            if int(name) >= self._num_read:
                self._wait(self._is_decided)
        return super().get(key, timeout_s)

    def _is_decided(self) -> bool:
        """Return whether process 0 has deleted the votes, its last act of a turn."""
        return any("/votes/0/" in key for key in self._store.deleted)

    def _wait(self, is_true: Callable[[], bool]) -> None:
        with self._store.change:
            assert self._store.change.wait_for(is_true, GUARD_S)


class SettingsOfThread(Channel, threading.local):
    """A channel whose turns are counted in each thread that acts as a process."""


class Store:
    """What the processes share.

    A process that asks for a deleted value would wait forever. Instead it gets the
    value, and `lost` names the key.
    """

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.deleted: dict[str, Any] = {}
        self.lost: set[str] = set()
        self.change = threading.Condition()
        self.barrier = threading.Barrier(NUM_PROCESSES)


def alone(**options: Any) -> Processes:
    """Return what a lone process uses."""
    defaults: dict[str, Any] = {
        "report": lambda _: None,
        "hang_after_s": None,
        "timeout_s": GUARD_S,
    }
    return Processes(**(defaults | options))


def together(
    patch: pytest.MonkeyPatch,
    act: Callable[[int, Processes], list[Any]],
    service: Callable[[int, Store], Service] = Service,
) -> list[list[Any]]:
    """Return what `act` returns in the threads that act as processes."""
    store, own = Store(), threading.local()

    def listening() -> Watcher:
        found = own.watcher = Watcher(own.service)
        threading.Thread(target=found.read_news, daemon=True).start()
        return found

    patch.setattr(processes, "watcher", listening)
    patch.setattr(Watcher, "_has_service", lambda _: True)
    for module in (coordination, barriers):
        patch.setattr(module, "coordination_service", lambda: own.service)
    patch.setattr(
        barriers, "barrier", lambda _, timeout_s: store.barrier.wait(timeout_s)
    )
    patch.setattr(barriers, "_settings", SettingsOfThread("settings"))
    patch.setattr(processes, "_runs", itertools.repeat(0))
    patch.setattr(processes, "_TICK_S", 1e-3)

    def run(index: int) -> list[Any]:
        own.service = service(index, store)
        with alone() as processes:
            store.barrier.wait(GUARD_S)  # as `check_same` at the start of each run
            found = act(index, processes)
        own.watcher.news.post("bye")
        return found

    with ThreadPoolExecutor(NUM_PROCESSES) as pool:
        found = list(pool.map(run, range(NUM_PROCESSES)))
    assert store.lost == set()
    return found


@settings(max_examples=25)
@given(
    asked=st.sets(
        st.tuples(st.integers(0, NUM_PROCESSES - 1), st.integers(1, NUM_STEPS)),
        max_size=4,
    ),
    first=st.integers(0, 5),
)
def test_all_processes_save_after_the_same_steps(
    asked: set[tuple[int, int]], first: int
) -> None:
    def act(index: int, processes: Processes) -> list[Any]:
        saved: list[Any] = []
        for step in range(first + 1, first + NUM_STEPS + 1):
            processes.before(step)
            if (index, step - first) in asked:
                processes.request_save()
            if processes.after(step) == Request("save"):
                saved.append(step)
        return saved

    with pytest.MonkeyPatch.context() as patch:
        saved = together(patch, act)

    assert saved == [saved[0]] * NUM_PROCESSES
    assert len(saved[0]) <= len(asked)


def test_all_may_ask_at_once_and_read_the_calls_in_any_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def act(index: int, processes: Processes) -> list[Any]:
        saved: list[Any] = []
        processes.request_save()
        for step in itertools.count(1):
            processes.before(step)
            if processes.after(step) == Request("save"):
                saved.append(step)
                if len(saved) == 2:
                    return saved
                if index == 1:  # the next turn works, too
                    processes.request_save()
        raise AssertionError

    orders = itertools.product(range(1, NUM_PROCESSES + 1), repeat=NUM_PROCESSES)
    for num_read in orders:

        def service(
            index: int, store: Store, num_read: tuple[int, ...] = num_read
        ) -> Service:
            return Ordered(
                index, store, num_calls=NUM_PROCESSES, num_read=num_read[index]
            )

        saved = together(monkeypatch, act, service)

        assert saved == [saved[0]] * NUM_PROCESSES, num_read


def test_request_is_served_by_processes_that_do_not_wait_for_each_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def act(index: int, processes: Processes) -> list[Any]:
        if index == 1:
            processes.request_save()
        for step in itertools.count(1):
            processes.before(step)
            if processes.after(step) == Request("save"):
                return [step]
        raise AssertionError

    saved = together(monkeypatch, act)

    assert saved == [saved[0]] * NUM_PROCESSES


def test_an_end_that_one_process_asks_for_is_served_by_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def act(index: int, processes: Processes) -> list[Any]:
        if index == 1:
            processes.request_end("the budget is spent")
        for step in itertools.count(1):
            processes.before(step)
            request = processes.after(step)
            if request is not None:
                return [step, request]
        raise AssertionError

    ended = together(monkeypatch, act)

    assert ended == [ended[0]] * NUM_PROCESSES
    assert ended[0][1] == Request("end", "the budget is spent")


def test_an_end_that_is_asked_for_ends_a_wait_early() -> None:
    with alone() as processes:
        processes.request_save()
        assert not processes.is_stopping()
        processes.request_end("the first reason counts")
        processes.request_end("not this one")
        assert processes.is_stopping()
        assert processes.after(1) == Request("end", "the first reason counts")


def test_setting_that_differs_is_named_on_every_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def act(index: int, processes: Processes) -> list[Any]:
        with pytest.raises(ValueError, match="seed differs") as caught:
            processes.check_same({"fields": ["tokens"], "seed": int(index == 1)})
        return [str(caught.value)]

    errors = together(monkeypatch, act)

    error = (
        "seed differs between processes (processes 0, 2: 0; process 1: 1); "
        "start all of them with the same files and arguments"
    )
    assert errors == [[error]] * NUM_PROCESSES


def test_equal_settings_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    def act(_: int, processes: Processes) -> list[Any]:
        processes.check_same({"seed": 1})
        return []

    together(monkeypatch, act)


@pytest.mark.parametrize(
    "number",
    [
        signal.SIGTERM,
        signal.SIGINT,
        signal.SIGHUP,
        signal.SIGUSR2,
        signal.SIGXCPU,
    ],
)
@pytest.mark.usefixtures("interrupts_are_not_ignored")
def test_signal_requests_a_stop(number: signal.Signals) -> None:
    before = signal.getsignal(number)

    with alone() as processes:
        assert processes.after(1) is None
        signal.raise_signal(number)
        assert processes.is_stopping()
        assert processes.after(2) == Request("stop", number.name)

    assert signal.getsignal(number) is before


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1])
def test_signal_that_is_ignored_stays_ignored(number: signal.Signals) -> None:
    before = signal.signal(number, signal.SIG_IGN)
    try:
        with alone() as processes:
            signal.raise_signal(number)
            assert processes.after(1) is None
    finally:
        signal.signal(number, before)


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2])
def test_handler_of_the_program_keeps_its_signal(number: signal.Signals) -> None:
    handled: list[int] = []
    before = signal.signal(number, lambda *_: handled.append(1))
    try:
        with alone() as processes:
            signal.raise_signal(number)
            assert processes.after(1) is None
    finally:
        signal.signal(number, before)
    assert handled


@pytest.mark.usefixtures("interrupts_are_not_ignored")
def test_signals_that_warn_may_come_again_and_before_an_urgent_one() -> None:
    with alone() as processes:
        for number in (signal.SIGHUP, signal.SIGHUP, signal.SIGXCPU, signal.SIGTERM):
            signal.raise_signal(number)

        assert processes.after(1) == Request("stop", "SIGHUP")


@pytest.mark.usefixtures("interrupts_are_not_ignored")
def test_second_signal_acts_as_outside_a_run() -> None:
    before = signal.getsignal(signal.SIGTERM)

    def twice() -> None:
        with alone():
            signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        twice()
    assert signal.getsignal(signal.SIGTERM) is before


def test_lone_process_saves_once_for_all_requests_before_a_step() -> None:
    before = signal.getsignal(signal.SIGUSR1)

    with alone() as processes:
        processes.request_save()
        thread = threading.Thread(target=processes.request_save)
        thread.start()
        thread.join()
        assert processes.after(1) == Request("save")
        assert processes.after(2) is None
        signal.raise_signal(signal.SIGUSR1)
        assert processes.after(3) == Request("save")

    assert signal.getsignal(signal.SIGUSR1) is before


def test_run_saves_the_step_of_a_request(tmp_path: Path) -> None:
    def ask(state: ModelState) -> None:
        step = int(state.step[...])
        if step == 2:
            one.save()
        elif step == 3:
            thread = threading.Thread(target=one.save)
            thread.start()
            thread.join()
        elif step == 5:
            signal.raise_signal(signal.SIGUSR1)

    one = trainer(
        tmp_path, eval_fn=ask, eval_every=1, checkpoint_every=99, max_to_keep=9
    )
    one.run()

    folder = tmp_path / "run" / "checkpoints"
    assert {2, 3, 5, 10} == {int(path.name) for path in folder.glob("[0-9]*")}


def test_continuous_saves_begin_where_no_save_is_in_flight(tmp_path: Path) -> None:
    busy = {2, 3, 5, 6, 8}
    model, optimizer = pair()

    class Slow(Checkpointer):
        """Is still writing after some steps, and done after the others."""

        @property
        def is_saving(self) -> bool:
            return seen[-1] in busy

    seen: list[int] = []
    kept = Slow(tmp_path / "kept", model, optimizer, None)
    one = trainer(
        tmp_path,
        pair=(model, optimizer),
        checkpointer=kept,
        checkpoint_every="continuous",
        keep_every=4,
        eval_fn=lambda state: seen.append(int(state.step[...])),
        eval_every=1,
    )
    one.run()

    # Step 8 is saved although it is busy, because keep_every keeps it.
    assert kept.steps() == [1, 4, 7, 8, 9, 10]
    log = (tmp_path / "run" / "system.log").read_text()
    assert "on request" not in log


def test_request_without_a_run_is_an_error(tmp_path: Path) -> None:
    one = trainer(tmp_path)

    with pytest.raises(RuntimeError, match=r"run\(\) is not running"):
        one.save()
    with pytest.raises(RuntimeError, match="no folder to save to; give save_path"):
        trainer(tmp_path, save_path=None).save()


def test_late_step_of_a_lone_process_is_reported_once_with_all_stacks() -> None:
    is_stuck, release = threading.Event(), threading.Event()
    reported = threading.Semaphore(0)
    reports: list[str] = []

    def stuck_in_the_mud() -> None:
        is_stuck.set()
        release.wait()

    def report(text: str) -> None:
        reports.append(text)
        reported.release()

    other = threading.Thread(target=stuck_in_the_mud, name="the-other")
    other.start()
    is_stuck.wait()
    try:
        with alone(report=report, hang_after_s=1e-3) as processes:
            for step in (7, 8):
                processes.before(step)
                assert reported.acquire(timeout=GUARD_S)
    finally:
        release.set()
        other.join()

    assert [text.split(";")[0] for text in reports] == [
        "step 7 is not done after 0.001 s",
        "step 8 is not done after 0.001 s",
    ]
    assert "thread the-other:" in reports[0]
    assert "stuck_in_the_mud" in reports[0]
    assert "thread MainThread:" in reports[0]
    assert "roxxel-processes" not in reports[0]


def test_thread_ends_with_the_block() -> None:
    def running() -> int:
        names = [thread.name for thread in threading.enumerate()]
        return names.count("roxxel-processes")

    for hang_after_s, expected in ((None, 0), (1800.0, 1), (math.inf, 1)):
        with alone(hang_after_s=hang_after_s) as processes:
            processes.before(1)
            with processes.paused("test"):
                assert running() == expected
        assert running() == 0


def test_hanging_step_of_a_run_is_in_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported = threading.Event()
    warning, push = Logger.warning, Recorder.push

    def observe(self: Logger, message: str, *, terminal: bool = True) -> None:
        warning(self, message, terminal=terminal)
        if message.startswith("step 3 is not done"):
            reported.set()

    def hang_at_the_third(self: Recorder, step: int, scalars: Any, tally: Any) -> None:
        if step == 3:
            assert reported.wait(GUARD_S)
        push(self, step, scalars, tally)

    monkeypatch.setattr(Logger, "warning", observe)
    monkeypatch.setattr(Recorder, "push", hang_at_the_third)

    trainer(tmp_path, hang_after_s=0.01).run()

    log = (tmp_path / "run" / "system.log").read_text()
    assert "step 3 is not done after 0.01 s; the stacks of all threads:" in log
    assert "hang_at_the_third" in log


@pytest.fixture
def unanswered(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Process 1, whose requests to process 0 get no answer until the test ends."""
    given_up = threading.Event()

    class Silent(Service):
        def set(self, key: str, value: Any, *, overwrite: bool = False) -> bool:
            assert given_up.wait(GUARD_S)
            return super().set(key, value, overwrite=overwrite)

    def leave(code: int) -> None:
        raise SystemExit(code)

    monkeypatch.setattr(watcher, "_LEAVE_S", 0.01)
    monkeypatch.setattr(os, "_exit", leave)
    monkeypatch.setattr(Watcher, "_has_service", lambda _: True)
    yield Watcher(cast("Any", Silent(1, Store())))
    given_up.set()


def test_error_is_reported_while_process_0_answers_nothing(
    unanswered: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        unanswered.end_after(OSError("the disk is gone"))

    reason = "the run ends: process 1 failed: OSError: the disk is gone"
    assert reason in capsys.readouterr().err


def test_lost_host_of_process_0_is_noticed_while_it_answers_nothing(
    unanswered: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    how = "its host does not answer"
    links = SimpleNamespace(connect=lambda _: None, wait=lambda _: {0: how})

    with pytest.raises(SystemExit):
        unanswered._watch(links)

    assert f"the run ends: process 0 failed: {how}" in capsys.readouterr().err


def test_an_error_in_a_worker_of_ray_train_is_published_and_goes_on_to_ray(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(watcher, "is_ray_worker", lambda: True)
    monkeypatch.setattr(watcher, "_LEAVE_S", 0.01)
    store = Store()

    own = Watcher(cast("Any", Service(1, store)))
    error = OSError("the disk is gone")
    assert own.end_after(error)
    assert own.end_after(error)  # nothing more to say

    reason = "process 1 failed: OSError: the disk is gone"
    assert f"the run ends: {reason}" in capsys.readouterr().err
    assert any(reason in str(value) for value in store.values.values())


def test_who_returns_late_from_a_meeting_is_not_failed_by_a_program_that_has_ended(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def leave(code: int) -> None:
        raise SystemExit(code)

    now_s = 0.0
    monkeypatch.setattr(
        watcher, "time", SimpleNamespace(monotonic=lambda: now_s, time=lambda: now_s)
    )
    monkeypatch.setattr(watcher, "_LEAVE_S", 0.01)
    monkeypatch.setattr(os, "_exit", leave)
    monkeypatch.setattr(Watcher, "_has_service", lambda _: True)
    store = Store()
    own: Any = Watcher(cast("Any", Service(1, store)))
    Watcher(cast("Any", Service(2, store))).news.post("left", 2, True)
    own.news.post("bye")

    with own.needing_all():  # in the last barrier, which all have passed
        own.read_news()
        own._exchange(0.0)
    now_s = 60.0
    own._exchange(0.0)
    with own.needing_all(), pytest.raises(SystemExit):
        own._exchange(0.0)

    assert "process 2 failed: its program ended while" in capsys.readouterr().err


def test_a_line_about_a_slow_process_does_not_wait_for_a_log_that_hangs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked, answers, late = threading.Event(), threading.Event(), list[str]()

    def report(text: str) -> None:
        asked.set()
        if not answers.wait(GUARD_S):
            late.append(text)

    monkeypatch.setattr(watcher, "_LEAVE_S", 0.01)
    own: Any = Watcher(cast("Any", Service(0, Store())))
    own._report = report
    own._lives = {0: Life(0, "save", 0.0, [], ["commit"])}
    try:
        own._name_holders(61.0)
        assert asked.wait(GUARD_S)
    finally:
        answers.set()

    assert not late
    assert "process 0 waited 61 s at 'commit' for" in capsys.readouterr().err


def test_a_line_about_many_slow_processes_counts_those_that_it_leaves_out() -> None:
    lives = {
        index: Life(0, "restore", 0.0, [f"read {index}"], []) for index in range(1, 9)
    }
    lives[0] = Life(0, "restore", 0.0, [], ["verify step 5"])

    [line] = Holders().lines(lives, 9, waited_s=61)

    assert line.count("for process") == 4
    assert line.endswith("; for 4 more")


def test_a_line_comes_after_a_minute_and_when_the_wait_has_doubled() -> None:
    waiting = Life(5, None, 0.0, [], [5])
    holders, said = Holders(), list[int]()

    for minute in range(1, 9):
        lines = holders.lines({0: waiting}, 2, waited_s=60.1)
        said += [minute for line in lines if "before its first run" in line]

    assert said == [1, 2, 4, 8]
    assert not [*holders.lines({0: waiting._replace(awaits=[6])}, 2, waited_s=9)]


def test_preempted_is_an_exit_with_a_code_of_its_own() -> None:
    error = Preempted(12, "SIGTERM")

    assert isinstance(error, SystemExit)
    assert error.code == PREEMPTED_EXIT_CODE == 75
    assert str(error) == (
        "SIGTERM ended the run after step 12; start the run again to continue"
    )
    assert "nothing was saved" in str(Preempted(12, "SIGTERM", saved=False))


def test_loss_error_names_rows_and_survives_pickling() -> None:
    rows = tuple(BatchRow(i, "web", 9 * i, 9 * i + 9, (i, i + 1)) for i in range(6))

    error = pickle.loads(pickle.dumps(NonFiniteError(3, "the loss is inf", rows)))  # noqa: S301

    assert error.rows == rows
    message = str(error)
    assert message.startswith("step 3: the loss is inf; its batch was row 0: web")
    assert "row 1: web tokens [9, 18), documents 1, 2" in message
    assert "and 2 more rows" in message
