from __future__ import annotations

import itertools
import math
import operator
from functools import reduce
from typing import TYPE_CHECKING, Any, cast

import jax.numpy as jnp
from hypothesis import given
from hypothesis import strategies as st
from roxxel_train._metrics import Completion, InFlight, Interval, Lap, Stopwatch, Waits

if TYPE_CHECKING:
    from collections.abc import Sequence

LOSSES = st.floats(0, 100, allow_nan=False)


@given(count=st.integers(0, 9), limit=st.integers(0, 3))
def test_every_update_is_fetched_once_in_order(count: int, limit: int) -> None:
    seconds = itertools.count()
    in_flight = InFlight(limit, lambda: float(next(seconds)))

    fetched: list[int] = []
    for step in range(count):
        finished = in_flight.push(step, {"loss": jnp.float32(step)})
        fetched += [update.step for update, _ in finished]
        assert len(fetched) >= max(0, step + 1 - limit)
    fetched += [update.step for update, _ in in_flight.drain()]

    assert fetched == list(range(count))


@given(losses=st.lists(LOSSES, min_size=1, max_size=20), cut=st.integers(0, 20))
def test_interval_restored_anywhere_gives_the_same_row(
    losses: Sequence[float], cut: int
) -> None:
    whole, broken = Interval(), Interval()
    for index, loss in enumerate(losses):
        if index == cut:
            broken = Interval.restore(broken.state())
        whole.add(loss)
        broken.add(loss)

    mean = whole.close()

    assert mean == broken.close()
    # Not sum(): from Python 3.12 on it corrects its rounding, as a run cannot.
    assert mean == reduce(operator.add, losses) / len(losses)


def test_closing_an_interval_begins_the_next() -> None:
    interval = Interval()
    interval.add(1.0)
    interval.close()
    interval.add(2.0)

    assert interval.close() == 2.0
    assert math.isnan(interval.close())


class Loss:
    """Stands in for a scalar on a device."""

    def __init__(self, *, ready: bool) -> None:
        self.ready = ready
        self.asked = 0

    def copy_to_host_async(self) -> None:
        self.asked += 1

    def is_ready(self) -> bool:
        return self.ready

    def block_until_ready(self) -> None:
        self.ready = True

    def __float__(self) -> float:
        assert self.ready
        return 1.0


def test_update_is_finished_when_it_is_first_seen_to_be() -> None:
    now = 1.0
    in_flight = InFlight(2, lambda: now)
    in_flight.push(1, {"loss": cast("Any", Loss(ready=True))})

    now = 5.0
    ((update, _),) = in_flight.drain()

    assert update.at_s == 1.0


def test_updates_seen_to_be_finished_at_once_share_the_time() -> None:
    now = 0.0
    in_flight = InFlight(9, lambda: now)
    losses = [Loss(ready=False) for _ in range(3)]
    for step, loss in enumerate(losses, 1):
        in_flight.push(step, {"loss": cast("Any", loss)})
    for loss in losses:
        loss.ready = True
    now = 6.0

    assert [update.at_s for update, _ in in_flight.drain()] == [2.0, 4.0, 6.0]


def test_finished_updates_are_read_without_waiting_for_others() -> None:
    in_flight = InFlight(9, lambda: 0.0)
    losses = [Loss(ready=True), Loss(ready=False)]
    for step, loss in enumerate(losses, 1):
        in_flight.push(step, {"loss": cast("Any", loss)})

    assert [update.step for update, _ in in_flight.read()] == [1]
    assert not losses[1].ready


def test_updates_that_end_while_something_else_is_done_are_timed_by_their_end() -> None:
    now = 0.0
    in_flight = InFlight(9, lambda: now)
    losses = [Loss(ready=False), Loss(ready=False)]
    for step, loss in enumerate(losses, 1):
        in_flight.push(step, {"loss": cast("Any", loss)})
    now = 4.0
    completion = in_flight.completion()
    assert completion.at_s() == 4.0
    losses[0].ready = True  # as the newest is
    now = 9.0

    assert [update.at_s for update, _ in in_flight.drain(completion)] == [2.0, 4.0]


def test_nothing_in_flight_has_ended_now() -> None:
    now = 3.0
    in_flight = InFlight(2, lambda: now)
    completion = in_flight.completion()
    now = 5.0

    assert completion.at_s() == 3.0
    assert in_flight.drain(completion) == []


def test_no_more_updates_run_than_may() -> None:
    in_flight = InFlight(2, lambda: 0.0)
    losses = [Loss(ready=False) for _ in range(5)]
    for step, loss in enumerate(losses, 1):
        in_flight.push(step, {"loss": cast("Any", loss)})

    assert [loss.ready for loss in losses] == [True, True, True, False, False]


def test_losses_are_read_where_a_row_is_due_or_some_time_has_passed() -> None:
    now = 0.0
    in_flight = InFlight(1, lambda: now)
    loss = cast("Any", Loss(ready=True))

    def steps(finished: list[tuple[Any, float]]) -> list[int]:
        return [update.step for update, _ in finished]

    assert steps(in_flight.push(1, {"loss": loss})) == []
    assert steps(in_flight.push(2, {"loss": loss}, Waits())) == [1, 2]
    assert steps(in_flight.push(3, {"loss": loss})) == []
    now = 0.3
    assert steps(in_flight.push(4, {"loss": loss})) == [3, 4]


def test_scalars_beside_the_loss_leave_the_device_only_for_a_row() -> None:
    loss, norm = Loss(ready=True), Loss(ready=True)
    scalars = cast("Any", {"loss": loss, "norm": norm})
    in_flight = InFlight(2, lambda: 0.0)

    in_flight.push(1, scalars)
    assert norm.asked == 0
    in_flight.push(2, scalars, Waits())
    assert norm.asked == 1


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


def test_time_is_counted_apart_from_when_the_updates_before_are_done() -> None:
    now = 10.0
    watch = Stopwatch(lambda: now)

    with watch.apart("save_s", since=Completion([], lambda: 4.0)):
        now = 23.0

    assert watch.now() == 4.0
    assert watch.take_apart() == {"save_s": 9.0}


def test_no_time_is_counted_apart_when_the_updates_end_after_the_block() -> None:
    now = 0.0
    watch = Stopwatch(lambda: now)

    class Late:
        def at_s(self) -> float:
            nonlocal now
            now = 5.0
            return now

    with watch.apart("save_s", since=cast("Any", Late())):
        now = 2.0

    assert watch.now() == 5.0
    assert watch.take_apart() == {}


def test_rates_are_those_since_the_row_before() -> None:
    last = Lap(10, 1000, 4.0, Waits(1.0, 0.5, 0.25, 0.125))

    row = Lap(13, 1600, 10.0, Waits(2.5, 2.5, 1.25, 1.125)).timing_since(last)

    assert row == {
        "step_s": 2.0,
        "tokens_per_s": 100.0,
        "wait_s": 1.5,
        "wait_share": 0.25,
        "read_s": 0.75,  # half of it all: the batches took 4 s of another thread
        "assemble_s": 0.375,
        "transfer_s": 0.375,
    }
