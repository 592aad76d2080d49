from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from roxxel_loader import Dataloader, StreamingDataset

from .helpers import join_threads, sharded, threads

if TYPE_CHECKING:
    from collections.abc import Iterator


def numbers(num: int) -> StreamingDataset[int]:
    return StreamingDataset(lambda: iter(range(num)))


def lists(loader: Dataloader[Any]) -> list[Any]:
    return [batch.tolist() for batch in loader]


def test_a_stream_can_be_gone_through_again() -> None:
    stream = numbers(5).map(lambda x: x * x).filter(lambda x: x % 2 == 0)

    assert list(stream) == [0, 4, 16]
    assert list(stream) == [0, 4, 16]


@given(
    num=st.integers(0, 50),
    size=st.integers(1, 20),
    start=st.integers(0, 60),
    epoch=st.integers(0, 2),
)
def test_a_shuffled_stream_has_all_items_and_seeks(
    num: int, size: int, start: int, epoch: int
) -> None:
    stream = numbers(num).shuffle(size, seed=4)

    items = list(stream.items(0, epoch))

    assert sorted(items) == list(range(num))
    assert all(abs(item - place) < size for place, item in enumerate(items))
    assert list(stream.items(start, epoch)) == items[start:]


def test_epochs_of_a_shuffled_stream_differ() -> None:
    stream = numbers(40).shuffle(20)

    assert list(stream.items(0, 0)) != list(stream.items(0, 1))


@given(num=st.integers(0, 20), taken=st.integers(0, 25), skipped=st.integers(0, 25))
def test_take_and_skip_are_slices(num: int, taken: int, skipped: int) -> None:
    assert list(numbers(num).take(taken)) == list(range(num))[:taken]
    assert list(numbers(num).skip(skipped)) == list(range(num))[skipped:]
    assert (
        list(numbers(num).skip(skipped).take(taken).items(1))
        == (list(range(num))[skipped : skipped + taken][1:])
    )


def test_small_numpy_integers_do_not_overflow_in_a_stream() -> None:
    stream = numbers(1000)
    few: Any = np.int8(100)

    for small, plain in (
        (stream.shuffle(few), stream.shuffle(100)),
        (stream.take(few), stream.take(100)),
        (stream.skip(few), stream.skip(100)),
    ):
        resumed: Any = Dataloader(small, 10, start_step=3)

        assert list(small.items(300)) == list(plain.items(300))
        assert lists(resumed)[:1] == lists(Dataloader(plain, 10))[3:4]


def test_a_stream_is_not_counted_from_its_end() -> None:
    with pytest.raises(ValueError, match=r"num_items must be at least .*got -1"):
        numbers(5).take(-1)
    with pytest.raises(ValueError, match=r"num_items must be at least .*got -2"):
        numbers(5).skip(-2)


@settings(max_examples=30)
@given(
    num=st.integers(1, 50),
    batch_size=st.integers(1, 12),
    workers=st.sampled_from([0, 1, 2, 8]),
    prefetch=st.integers(0, 16),
    epochs=st.integers(0, 3),
)
def test_workers_and_prefetch_change_no_batch_of_a_stream(
    num: int, batch_size: int, workers: int, prefetch: int, epochs: int
) -> None:
    stream = numbers(num).shuffle(7, seed=1).map(lambda x: x + 1)
    per_epoch = [list(stream.items(0, epoch)) for epoch in range(epochs)]

    batches = lists(
        Dataloader(
            stream, batch_size, workers=workers, prefetch=prefetch, epochs=epochs
        )
    )

    assert batches == [
        items[at : at + batch_size]
        for items in per_epoch
        for at in range(0, num, batch_size)
    ]
    assert threads() == []


@pytest.mark.parametrize("epochs", [1, 2])
@pytest.mark.parametrize("workers", [0, 2])
def test_resuming_a_stream_at_any_step_gives_the_tail(
    epochs: int, workers: int
) -> None:
    settings: dict[str, Any] = {"epochs": epochs, "workers": workers}
    stream = numbers(11).shuffle(4)
    whole = lists(Dataloader(stream, 3, **settings))

    for start in range(len(whole) + 1):
        loader = Dataloader(stream, 3, start_step=start, **settings)
        assert lists(loader) == whole[start:]
        if start < len(whole):
            assert loader.batch(start).tolist() == whole[start]
    with pytest.raises(IndexError, match="after the end of the stream"):
        Dataloader(stream, 3, **settings).batch(len(whole))


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("epochs", [1, 2])
def test_resuming_a_stream_past_its_end_is_an_error(
    epochs: int, drop_last: bool
) -> None:
    steps = (3 if drop_last else 4) * epochs
    options: dict[str, Any] = {"epochs": epochs, "drop_last": drop_last}

    assert lists(Dataloader(numbers(11), 3, start_step=steps, **options)) == []
    for past in (1, 5):
        late = Dataloader(numbers(11), 3, start_step=steps + past, **options)
        with pytest.raises(
            ValueError, match=f"{steps + past}, after .*epochs={epochs}"
        ):
            next(iter(late))


def test_a_stream_is_gone_through_once() -> None:
    begun: list[int] = []

    def items() -> Iterator[int]:
        begun.append(0)
        yield from range(100)

    assert len(list(Dataloader(StreamingDataset(items), 10))) == 10
    assert len(begun) == 1


def test_a_finished_stream_that_seeks_is_not_read_again() -> None:
    asked: list[int] = []

    def seek(start: int) -> Iterator[int]:
        asked.append(start)
        return iter(range(start, 100))

    stream = StreamingDataset(lambda: iter(range(100)), seek)

    assert list(Dataloader(stream, 10, start_step=10)) == []
    assert set(asked) == {100, 90}


def test_what_a_stream_is_made_of_must_be_functions() -> None:
    factory: Any = iter(range(3))
    with pytest.raises(TypeError, match=r"factory is <range_iterator .* a function"):
        StreamingDataset(factory)
    with pytest.raises(TypeError, match=r"seek is <range_iterator .* a function"):
        StreamingDataset(lambda: range(3), factory)
    for method in (numbers(3).map, numbers(3).filter):
        with pytest.raises(TypeError, match="cannot be called; give a function"):
            method(factory)


def test_a_stream_that_seeks_is_not_read_from_its_beginning() -> None:
    asked: list[int] = []

    def seek(start: int) -> Iterator[int]:
        asked.append(start)
        return iter(range(start, 100))

    stream = StreamingDataset(lambda: iter(range(100)), seek)

    assert next(iter(Dataloader(stream, 10, start_step=7))).tolist() == list(
        range(70, 80)
    )
    assert asked == [70]


def test_nothing_is_mapped_on_the_way_to_a_later_step() -> None:
    seen: list[int] = []

    def note(x: int) -> int:
        seen.append(x)
        return x

    next(iter(Dataloader(numbers(50).map(note), 5, start_step=4, prefetch=0)))

    assert seen == [20, 21, 22, 23, 24]


@given(num=st.integers(1, 40), share=st.integers(1, 3), count=st.integers(1, 4))
def test_processes_share_every_batch_of_a_stream(
    num: int, share: int, count: int
) -> None:
    size = share * count
    mapped: list[int] = []

    def note(x: int) -> int:
        mapped.append(x)
        return x

    parts = [
        lists(
            Dataloader(
                numbers(num).map(note), size, process_index=index, process_count=count
            )
        )
        for index in range(count)
    ]

    joined = [list(chain(*batch)) for batch in zip(*parts, strict=True)]
    assert joined == lists(Dataloader(numbers(num), size))
    assert len(mapped) <= num + count


def test_a_sharded_stream_gives_global_arrays() -> None:
    loader = Dataloader(numbers(24), 8, sharding=sharded((8,), "a"), workers=2)

    batches = list(loader)

    assert all(len(batch.sharding.device_set) == 8 for batch in batches)
    assert np.concatenate([np.asarray(b) for b in batches]).tolist() == list(range(24))


def test_a_short_last_batch_can_be_dropped() -> None:
    assert lists(Dataloader(numbers(7), 3, drop_last=True)) == [[0, 1, 2], [3, 4, 5]]


def test_an_endless_stream_can_be_broken_off() -> None:
    def forever() -> Iterator[int]:
        number = 0
        while True:
            yield number
            number += 1

    loader = Dataloader(StreamingDataset(forever), 4, workers=3)

    with iter(loader) as batches:
        taken = list(islice(batches, 10))
    assert taken[-1].tolist() == [36, 37, 38, 39]
    assert threads() == []
    for _ in loader:
        break
    join_threads()


@pytest.mark.parametrize("workers", [0, 3])
def test_a_stream_that_fails_raises_at_its_batch(workers: int) -> None:
    def failing() -> Iterator[int]:
        yield from range(10)
        raise OSError("connection lost")

    batches = iter(Dataloader(StreamingDataset(failing), 4, workers=workers))

    assert [next(batches).tolist() for _ in range(2)] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    with pytest.raises(OSError, match="connection lost") as caught:
        next(batches)
    assert "while loading the items of a stream from 8" in caught.value.__notes__
    join_threads()


@pytest.mark.parametrize("workers", [0, 3])
def test_a_failing_map_of_a_stream_names_the_item(workers: int) -> None:
    stream = numbers(20).map(lambda x: 1 // (x - 6))
    batches = iter(Dataloader(stream, 4, workers=workers))
    next(batches)

    with pytest.raises(ZeroDivisionError) as caught:
        next(batches)

    assert "while loading item 6" in caught.value.__notes__
    join_threads()


def test_an_interrupted_stream_says_so() -> None:
    interrupts = [5]

    def interrupted() -> Iterator[int]:
        for number in range(20):
            if number in interrupts:
                interrupts.clear()
                raise KeyboardInterrupt
            yield number

    batches = iter(Dataloader(StreamingDataset(interrupted), 4, workers=0, prefetch=0))
    next(batches)
    with pytest.raises(KeyboardInterrupt):
        next(batches)

    with pytest.raises(RuntimeError, match="iterate again from step 1"):
        next(batches)


def test_an_interrupt_while_an_item_is_mapped_loses_the_step_and_says_so() -> None:
    interrupts = [5]

    def mapped(number: int) -> int:
        if number in interrupts:
            interrupts.clear()
            raise KeyboardInterrupt
        return number

    loader = Dataloader(numbers(20).map(mapped), 4, workers=0, prefetch=0)
    batches = iter(loader)
    next(batches)
    with pytest.raises(KeyboardInterrupt):
        next(batches)

    with pytest.raises(RuntimeError, match="iterate again from step 1"):
        next(batches)


def test_a_stream_without_items_has_no_batch() -> None:
    assert list(Dataloader(numbers(0), 2, epochs=2)) == []
    with pytest.raises(ValueError, match="stream gave 0 items in epoch 0"):
        list(Dataloader(numbers(0), 2, epochs=None))


def test_a_stream_that_makes_no_batch_of_its_items_is_an_error() -> None:
    spent = iter(range(3))
    with pytest.raises(ValueError, match="stream gave 0 items in epoch 1"):
        list(Dataloader(StreamingDataset(lambda: spent), 2, epochs=2))
    with pytest.raises(
        ValueError, match="3 items in epoch 0, too few for a batch of 4"
    ):
        list(Dataloader(numbers(3), 4, drop_last=True))


def test_what_a_stream_cannot_do_is_named() -> None:
    loader = Dataloader(numbers(9), 2)

    with pytest.raises(TypeError, match="no known length"):
        len(loader)
    with pytest.raises(TypeError, match="no known number of steps"):
        loader.epoch(1)
    with pytest.raises(TypeError, match="buffer_size, seed"):
        Dataloader(numbers(9), 2, shuffle=True)
    with pytest.raises(ValueError, match=r"buffer_size must be at least .*got 0"):
        numbers(9).shuffle(0)
    with (
        ProcessPoolExecutor(1) as executor,
        pytest.raises(TypeError, match="executor of threads"),
    ):
        Dataloader(numbers(9), 2, executor=executor)


def test_an_executor_of_threads_may_read_a_stream() -> None:
    with ThreadPoolExecutor(2) as executor:
        loader = Dataloader(numbers(20), 6, executor=executor)
        assert list(chain(*lists(loader))) == list(range(20))
