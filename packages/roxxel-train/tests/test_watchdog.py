from __future__ import annotations

import math
import threading
from typing import TYPE_CHECKING, Any

import jax
import pytest
from roxxel_train import Logger
from roxxel_train import _watchdog as watchdog_module
from roxxel_train._observe.recorder import Recorder
from roxxel_train._watchdog import Watchdog

from .helpers import trainer

if TYPE_CHECKING:
    from pathlib import Path

SOON_S = 1e-3
GUARD_S = 60


class Clock:
    """A clock that a test sets, and that tells when it has been looked at."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._looks = threading.Semaphore(0)

    def monotonic(self) -> float:
        self._looks.release()
        return self.now_s

    def wait_for_looks(self) -> None:
        """Return once somebody has begun to look, and has looked once more."""
        while self._looks.acquire(blocking=False):
            pass
        for _ in range(3):
            assert self._looks.acquire(timeout=GUARD_S)


class Reports:
    """What a watchdog said."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self._said = threading.Semaphore(0)

    def __call__(self, text: str) -> None:
        self.texts.append(text)
        self._said.release()

    def wait(self) -> None:
        assert self._said.acquire(timeout=GUARD_S)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    one = Clock()
    monkeypatch.setattr(watchdog_module, "time", one)
    return one


def test_late_step_is_reported_once_with_the_stack_of_every_thread(
    clock: Clock,
) -> None:
    is_stuck, go_on = threading.Event(), threading.Event()

    def stuck_in_the_mud() -> None:
        is_stuck.set()
        go_on.wait()

    reports = Reports()
    other = threading.Thread(target=stuck_in_the_mud, name="the-other")
    other.start()
    is_stuck.wait()
    try:
        with Watchdog(SOON_S, reports) as watch:
            watch.begin(7)
            clock.wait_for_looks()
            assert reports.texts == []
            clock.now_s += 1
            reports.wait()
            clock.wait_for_looks()
            assert len(reports.texts) == 1
            watch.begin(8)
            clock.now_s += 1
            reports.wait()
    finally:
        go_on.set()
        other.join()

    assert [text.split(";")[0] for text in reports.texts] == [
        "step 7 is not done after 0.001 s",
        "step 8 is not done after 0.001 s",
    ]
    assert "thread the-other:" in reports.texts[0]
    assert "stuck_in_the_mud" in reports.texts[0]
    assert "thread MainThread:" in reports.texts[0]
    assert "roxxel-watchdog" not in reports.texts[0]


def test_pause_is_not_counted(clock: Clock) -> None:
    reports = Reports()

    with Watchdog(SOON_S, reports) as watch:
        watch.begin(3)
        with watch.paused():
            clock.now_s += 1000
            clock.wait_for_looks()
        clock.wait_for_looks()
        assert reports.texts == []
        clock.now_s += 1
        reports.wait()

    assert reports.texts[0].startswith("step 3 is not done")


def test_thread_ends_with_the_block() -> None:
    def watching() -> list[str]:
        return [t.name for t in threading.enumerate() if t.name == "roxxel-watchdog"]

    for hang_after_s, expected in ((None, 0), (1800.0, 1), (math.inf, 1)):
        with Watchdog(hang_after_s, print) as watch:
            watch.begin(1)
            with watch.paused():
                assert len(watching()) == expected
        assert watching() == []


def test_process_that_says_nothing_writes_its_stacks_to_a_file(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jax, "process_index", lambda: 1)

    with Watchdog(SOON_S, lambda _: None, tmp_path) as watch:
        watch.begin(4)
        clock.now_s += 1
        clock.wait_for_looks()

    text = (tmp_path / "stacks-of-process-1.txt").read_text()
    assert text.startswith("step 4 is not done")
    assert "thread MainThread:" in text


def test_hanging_step_of_a_run_is_in_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = threading.Event()
    warning, push = Logger.warning, Recorder.push

    def tell(self: Logger, message: str) -> None:
        warning(self, message)
        if message.startswith("step 3 is not done"):
            said.set()

    def hang_at_the_third(self: Recorder, step: int, scalars: Any) -> None:
        if step == 3:
            assert said.wait(GUARD_S)
        push(self, step, scalars)

    monkeypatch.setattr(Logger, "warning", tell)
    monkeypatch.setattr(Recorder, "push", hang_at_the_third)

    trainer(tmp_path, hang_after_s=0.01).run()

    log = (tmp_path / "run" / "system.log").read_text()
    assert "step 3 is not done after 0.01 s; this is where every thread" in log
    assert "hang_at_the_third" in log


@pytest.mark.parametrize("hang_after_s", [0, -1.0, math.nan])
def test_time_to_hang_must_be_above_zero(tmp_path: Path, hang_after_s: float) -> None:
    with pytest.raises(ValueError, match="hang_after_s must be above 0, got"):
        trainer(tmp_path, hang_after_s=hang_after_s)
