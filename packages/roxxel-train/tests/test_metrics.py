from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, cast

import jax.numpy as jnp
from hypothesis import given
from hypothesis import strategies as st
from roxxel_train._metrics import InFlight, Interval, Lap, Stopwatch

if TYPE_CHECKING:
    from collections.abc import Sequence

LOSSES = st.floats(0, 100, allow_nan=False)


@given(count=st.integers(0, 9), limit=st.integers(0, 3))
def test_every_update_is_fetched_once_in_order(count: int, limit: int) -> None:
    in_flight = InFlight(limit, lambda: 0.0)

    fetched: list[int] = []
    for step in range(count):
        finished = in_flight.push(step, {"loss": jnp.float32(step)})
        fetched += [update.step for update in finished]
        assert len(fetched) == max(0, step + 1 - limit)
    fetched += [update.step for update in in_flight.drain()]

    assert fetched == list(range(count))


@given(losses=st.lists(LOSSES, min_size=1, max_size=20), cut=st.integers(0, 20))
def test_interval_restored_anywhere_gives_the_same_row(
    losses: Sequence[float], cut: int
) -> None:
    whole, broken = Interval(), Interval()
    for index, loss in enumerate(losses):
        if index == cut:
            broken = Interval.restore(broken.state())
        whole.add(loss, {"self": 8})
        broken.add(loss, {"self": 8})

    row = whole.close()

    assert row == broken.close()
    assert row["tokens"] == 8 * len(losses)
    assert row["loss_mean"] == sum(losses) / len(losses)


def test_closing_an_interval_keeps_the_tokens_of_the_run() -> None:
    interval = Interval()
    interval.add(1.0, {"a": 3, "b": 5})
    interval.close()
    interval.add(2.0, {"a": 3})

    assert interval.close() == {
        "loss_mean": 2.0,
        "tokens": 11,
        "tokens_by_source": {"a": 6, "b": 5},
    }
    assert math.isnan(interval.close()["loss_mean"])


def test_update_is_finished_when_it_is_first_seen_to_be() -> None:
    now = 1.0
    in_flight = InFlight(2, lambda: now)
    in_flight.push(1, {"loss": jnp.float32(0).block_until_ready()})

    now = 5.0
    (finished,) = in_flight.drain()

    assert finished.at_s == 1.0


def test_updates_seen_to_be_finished_at_once_share_the_time() -> None:
    now = 0.0
    in_flight = InFlight(9, lambda: now)

    class Slow:
        ready = False

        def copy_to_host_async(self) -> None:
            pass

        def is_ready(self) -> bool:
            return self.ready

        def __float__(self) -> float:
            return 1.0

    losses = [Slow(), Slow(), Slow()]
    for step, loss in enumerate(losses, 1):
        in_flight.push(step, {"loss": cast("Any", loss)}, waited_s=float(step))
    for loss in losses:
        loss.ready = True
    now = 6.0
    finished = in_flight.drain()

    assert [update.at_s for update in finished] == [2.0, 4.0, 6.0]
    assert [update.waited_s for update in finished] == [1.0, 2.0, 3.0]


def test_clock_stands_still_while_something_else_is_done() -> None:
    now = 10.0
    watch = Stopwatch(lambda: now)

    now = 14.0
    with watch.apart("eval_s"):
        now = 20.0
    with watch.apart("compile_s"):
        pass
    now = 22.0

    assert watch.now() == 6.0
    assert watch.take_apart() == {"eval_s": 6.0}
    assert watch.take_apart() == {}


def test_rates_are_those_since_the_row_before() -> None:
    last = Lap(step=10, tokens=1000, at_s=4.0, waited_s=1.0)

    row = Lap(step=13, tokens=1600, at_s=10.0, waited_s=2.5).timing_since(last)

    assert row == {
        "step_s": 2.0,
        "tokens_per_s": 100.0,
        "wait_s": 1.5,
        "wait_share": 0.25,
    }
