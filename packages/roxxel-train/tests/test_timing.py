from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from roxxel_train._observe.timing import Mark, Stopwatch


def stream(waited: float, read: float, assemble: float, transfer: float) -> Any:
    return SimpleNamespace(
        waited_s=waited, read_s=read, assemble_s=assemble, transfer_s=transfer
    )


def test_clock_stops_while_other_work_is_done() -> None:
    now = 10.0
    watch = Stopwatch(lambda: now)

    now = 14.0
    with watch.excluded("eval_s"):
        now = 20.0
    with watch.excluded("compile_s"):
        pass
    now = 22.0

    assert watch.now() == 6.0
    assert watch.close_row() == {"eval_s": 6.0}
    assert watch.close_row() == {}


def test_rates_are_those_since_the_row_before() -> None:
    last = Mark(10, 1000, 4.0, stream(1.0, 0.5, 0.25, 0.125))
    mark = Mark(13, 1600, 10.0, stream(2.5, 2.5, 1.25, 1.125))

    assert mark.rates_since(last) == {
        "step_s": 2.0,
        "tokens_per_s": 100.0,
        "wait_s": 1.5,
        "wait_share": 0.25,
        "read_s": 0.75,  # half of all: making the batches took 4 s of another thread
        "assemble_s": 0.375,
        "transfer_s": 0.375,
    }


def test_first_row_counts_from_zero() -> None:
    mark = Mark(1, 100, 2.0, stream(1.0, 1.0, 0.0, 0.0))

    rates = mark.rates_since(Mark(0, 0, 0.0))

    assert (rates["wait_s"], rates["wait_share"], rates["read_s"]) == (1.0, 0.5, 1.0)
