from __future__ import annotations

import gc
import time
import weakref
from typing import TYPE_CHECKING, Any

import pytest
from roxxel_train import RunFolder

from .helpers import trainer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


class Cycle:
    """An object that only a collection frees, like arrays that refer to each other."""

    def __init__(self) -> None:
        self.own = self


@pytest.fixture(autouse=True)
def nothing_is_frozen() -> None:
    """Free what a worker of the tests has from the process that forked it."""
    gc.unfreeze()


@pytest.fixture
def events() -> Iterator[list[Any]]:
    """What happens in a run: collections, and the steps after which it evaluates."""
    found: list[Any] = []

    def watch(phase: str, _: dict[str, int]) -> None:
        if phase == "start":
            found.append("collect")

    gc.callbacks.append(watch)
    try:
        yield found
    finally:
        gc.callbacks.remove(watch)


def evaluating(
    events: list[Any], act: Callable[[int], object] = lambda _: None
) -> dict[str, Any]:
    """Return options of a trainer that evaluates after each step, with much garbage."""

    def evaluate(state: Any) -> None:
        step = int(state.step)
        events.append(step)
        act(step)
        # Twice as many as Python lets live before it collects.
        for _ in range(2 * gc.get_threshold()[0]):
            Cycle()

    return {"eval_fn": evaluate, "eval_every": 1}


def during(events: list[Any]) -> list[Any]:
    """Return the events from the first to the last evaluation."""
    steps = [place for place, event in enumerate(events) if event != "collect"]
    return events[steps[0] : steps[-1] + 1]


def test_garbage_is_collected_after_fixed_steps_and_at_no_other_time(
    tmp_path: Path, events: list[Any]
) -> None:
    trainer(tmp_path, gc_every=4, **evaluating(events)).run()

    assert during(events) == [1, 2, 3, "collect", 4, 5, 6, 7, "collect", 8, 9, 10]


def test_without_a_number_python_collects_when_it_likes(
    tmp_path: Path, events: list[Any]
) -> None:
    trainer(tmp_path, gc_every=None, **evaluating(events)).run()

    assert during(events).count("collect") >= 9
    assert gc.get_freeze_count() == 0


def test_what_lies_in_cycles_lives_until_the_next_fixed_step(
    tmp_path: Path, events: list[Any]
) -> None:
    made: list[weakref.ref[Cycle]] = []
    alive: list[int] = []

    def act(_: int) -> None:
        alive.append(sum(one() is not None for one in made))
        made.append(weakref.ref(Cycle()))

    trainer(tmp_path, gc_every=3, **evaluating(events, act)).run()

    assert alive == [0, 1, 0, 1, 2, 0, 1, 2, 0, 1]


def test_what_exists_at_the_first_collection_is_left_out_of_later_ones(
    tmp_path: Path, events: list[Any]
) -> None:
    frozen: list[int] = []

    def act(_: int) -> None:
        frozen.append(gc.get_freeze_count())

    trainer(tmp_path, gc_every=4, **evaluating(events, act)).run()

    assert frozen[:3] == [0, 0, 0]
    assert min(frozen[3:]) > 10_000
    assert gc.get_freeze_count() == 0


def fail(_: int) -> None:
    raise OSError("no space")


def interrupt(_: int) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("act", "ending", "is_enabled"),
    [(fail, OSError, True), (interrupt, KeyboardInterrupt, False)],
)
def test_every_ending_leaves_collection_as_it_was(
    tmp_path: Path,
    events: list[Any],
    act: Callable[[int], None],
    ending: type[BaseException],
    *,
    is_enabled: bool,
) -> None:
    def act_late(step: int) -> None:
        assert not gc.isenabled()
        if step == 5:
            act(step)

    one = trainer(tmp_path, gc_every=2, **evaluating(events, act_late))
    if not is_enabled:
        gc.disable()
    try:
        with pytest.raises(ending):
            one.run()
        assert gc.isenabled() == is_enabled
    finally:
        gc.enable()
    assert gc.get_freeze_count() == 0


def test_a_run_inside_another_leaves_collection_to_it(
    tmp_path: Path, events: list[Any]
) -> None:
    (tmp_path / "inner").mkdir()
    states: list[bool] = []

    def act(step: int) -> None:
        if step == 5:
            trainer(tmp_path / "inner", gc_every=2).run()
        states.append(gc.isenabled())

    trainer(tmp_path, gc_every=4, **evaluating(events, act)).run()

    assert states == [False] * 10
    assert during(events)[:12] == [1, 2, 3, "collect", 4, 5, *["collect"] * 5, 6]
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0


def test_a_row_says_how_long_its_collections_took(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 10.0

    def watch(phase: str, _: dict[str, int]) -> None:
        nonlocal now
        now += 6.0 if phase == "start" else 0.0

    one = trainer(tmp_path, gc_every=6)
    monkeypatch.setattr(time, "perf_counter", lambda: now)
    gc.callbacks.append(watch)
    try:
        one.run()
    finally:
        gc.callbacks.remove(watch)

    rows, _ = RunFolder(tmp_path / "run").rows()
    train = {row["step"]: row for row in rows if row["kind"] == "train"}
    assert {step: row.get("gc_s") for step, row in train.items()} == {
        1: None,
        3: None,
        6: 6.0,
        9: None,
        10: None,
    }
    # A device works on meanwhile, so the time is a part of the steps.
    assert train[6]["step_s"] == pytest.approx(2.0)
