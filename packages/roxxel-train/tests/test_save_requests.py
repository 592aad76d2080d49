from __future__ import annotations

import signal
import threading
from collections import Counter
from typing import TYPE_CHECKING

import jax
import pytest
from hypothesis import given
from hypothesis import strategies as st
from roxxel_train import _coordination
from roxxel_train._signals import Requests

from .helpers import trainer

if TYPE_CHECKING:
    from pathlib import Path

    from roxxel_train import ModelState

NUM_PROCESSES = 3
MOST_AHEAD = 3
MOST_STEPS_LATE = 16


class Store:
    """The names and values that processes share, as JAX's service keeps them."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}

    def key_value_set(self, name: str, value: str) -> None:
        if name in self.values:
            raise RuntimeError(f"ALREADY_EXISTS: {name}")
        self.values[name] = value

    def key_value_dir_get(self, prefix: str) -> list[tuple[str, str]]:
        return [item for item in self.values.items() if item[0].startswith(prefix)]


class Processes:
    """Several processes of one run that make their steps in any order."""

    def __init__(self, patch: pytest.MonkeyPatch, store: Store, run: int) -> None:
        patch.setattr(jax, "process_count", lambda: NUM_PROCESSES)
        patch.setattr(jax, "process_index", lambda: self._current)
        patch.setattr(_coordination, "client", lambda: store)
        patch.setattr("roxxel_train._signals._runs", iter([run] * NUM_PROCESSES))
        self._current = 0
        self._requests = [Requests() for _ in range(NUM_PROCESSES)]
        self.saved: list[list[int]] = [[] for _ in range(NUM_PROCESSES)]

    def run(
        self,
        start: int,
        stop: int,
        asked: Counter[tuple[int, int]],
        turns: list[int],
    ) -> None:
        """Make every step in every process.

        Args:
            start: Updates done before.
            stop: Updates done at the end.
            asked: How often a process is asked before it looks after a step.
            turns: Which of those that can go on does so, as long as the list goes.
        """
        done = [start] * NUM_PROCESSES
        turn = iter(turns)
        while min(done) < stop:
            able = [p for p in range(NUM_PROCESSES) if self._can_go_on(p, done, stop)]
            assert able, f"deadlock at {done}, saved {self.saved}"
            self._current = able[next(turn, 0) % len(able)]
            requests = self._requests[self._current]
            done[self._current] += 1
            step = done[self._current]
            for _ in range(asked[self._current, step]):
                requests.ask_to_save()
            if requests.save(step):
                self.saved[self._current].append(step)

    def _can_go_on(self, process: int, done: list[int], stop: int) -> bool:
        if done[process] == stop or done[process] >= min(done) + MOST_AHEAD:
            return False
        # A save is collective: it ends when the others have come to it.
        count = len(self.saved[process])
        is_saving = bool(count) and self.saved[process][-1] == done[process]
        return not is_saving or all(len(other) >= count for other in self.saved)


steps = st.integers(1, 60)


@given(
    start=st.integers(0, 20),
    asked=st.lists(st.tuples(st.integers(0, NUM_PROCESSES - 1), steps), max_size=6),
    turns=st.lists(st.integers(0, NUM_PROCESSES - 1), max_size=200),
)
def test_processes_save_at_the_same_steps_and_soon(
    start: int, asked: list[tuple[int, int]], turns: list[int]
) -> None:
    requests = Counter((process, start + step) for process, step in asked)
    with pytest.MonkeyPatch.context() as patch:
        processes = Processes(patch, Store(), run=0)

        processes.run(start, start + 60 + MOST_STEPS_LATE, requests, turns)

    saved = processes.saved[0]
    assert all(other == saved for other in processes.saved)
    assert len(saved) <= len(requests)
    for _, step in requests:
        assert any(step <= at <= step + MOST_STEPS_LATE for at in saved)


def test_request_of_an_earlier_run_does_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = Store()
    first = Processes(monkeypatch, store, run=0)
    first.run(0, 5, Counter([(1, 4)]), [])
    second = Processes(monkeypatch, store, run=1)

    second.run(0, 40, Counter(), [])

    assert first.saved == second.saved == [[]] * NUM_PROCESSES
    assert store.values


def test_lone_process_saves_once_for_every_request() -> None:
    requests = Requests()
    asked = [False, True, False, True]

    answers: list[bool] = []
    for step, is_asked in enumerate(asked):
        if is_asked:
            thread = threading.Thread(target=requests.ask_to_save)
            thread.start()
            thread.join()
            requests.ask_to_save()
        answers.append(requests.save(step))

    assert answers == asked


def test_sigusr1_asks_to_save_as_long_as_the_run_goes_on() -> None:
    before = signal.getsignal(signal.SIGUSR1)

    with Requests() as requests:
        signal.raise_signal(signal.SIGUSR1)
        assert requests.save(1)
        assert not requests.save(2)
        assert requests.stop(2) is None

    assert signal.getsignal(signal.SIGUSR1) is before


def test_run_saves_the_step_at_which_it_is_asked(tmp_path: Path) -> None:
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


def test_asking_to_save_where_nothing_runs_is_an_error(tmp_path: Path) -> None:
    one = trainer(tmp_path)

    with pytest.raises(RuntimeError, match="no run is going on"):
        one.save()
    with pytest.raises(RuntimeError, match="nowhere to save to; give save_path"):
        trainer(tmp_path, save_path=None).save()
