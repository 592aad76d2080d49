from __future__ import annotations

import multiprocessing
import operator
import os
import threading
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from itertools import chain
from math import ceil
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from roxxel_loader import (
    Dataloader,
    MappedDataset,
    Progress,
    RangeDataset,
    SimpleDataset,
    StreamingDataset,
    device_stream,
)

from .helpers import join_threads, make_mesh, sharded, threads


def lists(loader: Dataloader[Any]) -> list[Any]:
    return [batch.tolist() for batch in loader]


def test_batches_print_like_arrays() -> None:
    loader = Dataloader(SimpleDataset([1, 2, 3, 4, 5]), batch_size=2)

    assert [str(batch) for batch in loader] == ["[1 2]", "[3 4]", "[5]"]
    assert len(loader) == 3


@settings(max_examples=30)
@given(
    num=st.integers(1, 60),
    batch_size=st.integers(1, 20),
    workers=st.sampled_from([0, 1, 2, 8]),
    prefetch=st.integers(0, 16),
    shuffle=st.booleans(),
    epochs=st.integers(0, 3),
)
def test_workers_and_prefetch_change_no_batch(
    num: int,
    *,
    batch_size: int,
    workers: int,
    prefetch: int,
    shuffle: bool,
    epochs: int,
) -> None:
    def load(workers: int, prefetch: int) -> list[Any]:
        return lists(
            Dataloader(
                RangeDataset(num),
                batch_size,
                workers=workers,
                prefetch=prefetch,
                shuffle=shuffle,
                seed=5,
                epochs=epochs,
            )
        )

    batches = load(workers, prefetch)

    assert batches == load(0, 0)
    assert len(batches) == epochs * ceil(num / batch_size)
    per_epoch = ceil(num / batch_size)
    for epoch in range(epochs):
        part = batches[epoch * per_epoch : (epoch + 1) * per_epoch]
        assert sorted(item for batch in part for item in batch) == list(range(num))
    assert threads() == []


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("workers", [0, 2])
def test_resuming_at_any_step_gives_the_tail(drop_last: bool, workers: int) -> None:
    settings: dict[str, Any] = {
        "shuffle": True,
        "epochs": 2,
        "drop_last": drop_last,
        "workers": workers,
    }
    whole = lists(Dataloader(RangeDataset(11), 3, **settings))

    for start in range(len(whole) + 1):
        loader = Dataloader(RangeDataset(11), 3, start_step=start, **settings)
        assert len(loader) == len(whole) - start
        assert lists(loader) == whole[start:]


def test_the_iterators_step_is_where_to_resume() -> None:
    settings: dict[str, Any] = {"shuffle": True, "epochs": 2}
    iterator = iter(Dataloader(RangeDataset(10), 4, **settings))
    seen = [next(iterator).tolist() for _ in range(4)]

    rest = lists(Dataloader(RangeDataset(10), 4, start_step=iterator.step, **settings))

    assert seen + rest == lists(Dataloader(RangeDataset(10), 4, **settings))


def test_iterating_twice_gives_the_same_and_epochs_differ() -> None:
    loader = Dataloader(RangeDataset(50), 10, shuffle=True, epochs=2)

    assert lists(loader) == lists(loader)
    assert lists(loader)[:5] != lists(loader)[5:]
    assert lists(loader.epoch(1)) == lists(loader)[5:]
    assert loader.batch(7).tolist() == lists(loader)[7]
    with pytest.raises(IndexError, match=r"step 10 is outside \[0, 10\)"):
        loader.batch(10)


@pytest.mark.parametrize(
    "dataset", [RangeDataset(4), StreamingDataset([0, 1].__iter__)]
)
def test_a_negative_step_without_a_last_step_is_an_index_error(dataset: Any) -> None:
    loader = Dataloader(dataset, 2, epochs=None)

    with pytest.raises(IndexError, match=r"^step is -1; give 0 or more$"):
        loader.batch(-1)


def test_an_endless_loader_has_no_length() -> None:
    loader = Dataloader(RangeDataset(4), 2, epochs=None)

    with loader.__iter__() as batches:
        assert [next(batches).tolist() for _ in range(5)][-1] == [0, 1]
    with pytest.raises(TypeError, match="never ends"):
        len(loader)


@settings(max_examples=30)
@given(num=st.integers(1, 60), share=st.integers(1, 4), count=st.integers(1, 4))
def test_processes_share_every_batch(num: int, share: int, count: int) -> None:
    size = share * count
    whole = lists(Dataloader(RangeDataset(num), size, shuffle=True))

    parts = [
        lists(
            Dataloader(
                RangeDataset(num),
                size,
                shuffle=True,
                process_index=index,
                process_count=count,
            )
        )
        for index in range(count)
    ]

    joined = [list(chain(*batch)) for batch in zip(*parts, strict=True)]
    assert joined == whole


def test_a_process_without_a_row_of_a_short_batch_gets_an_empty_one() -> None:
    items = [{"x": np.full(3, n, np.int16)} for n in range(9)]
    loader = Dataloader(SimpleDataset(items), 8, process_index=0, process_count=4)

    batches = list(loader)

    assert [batch["x"].shape for batch in batches] == [(2, 3), (0, 3)]
    assert batches[1]["x"].dtype == np.int16


@pytest.mark.parametrize("collate", [tuple, list, len])
@pytest.mark.parametrize("items", [range(9), "abcdefghi"], ids=["numbers", "strings"])
def test_no_empty_batch_can_be_made_of_what_is_no_array(
    items: Any, collate: Any
) -> None:
    batches = iter(
        Dataloader(
            SimpleDataset(items), 8, process_index=0, process_count=4, collate=collate
        )
    )
    next(batches)

    with pytest.raises(TypeError, match="needs an empty array"):
        next(batches)


@pytest.mark.parametrize("spec", [("a",), ("a", "b"), (None, "b"), ()])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_sharding_gives_global_arrays(spec: tuple[Any, ...], workers: int) -> None:
    items = np.arange(24 * 6, dtype=np.int32).reshape(24, 6)
    sharding = sharded((4, 2), *spec)

    loader = Dataloader(SimpleDataset(items), 8, sharding=sharding, workers=workers)

    batches = list(loader)
    assert all(batch.sharding == sharding for batch in batches)
    assert np.array_equal(np.concatenate([np.asarray(b) for b in batches]), items)
    assert np.array_equal(np.asarray(loader.batch(1)), items[8:16])


def test_functions_over_batches_may_be_jitted() -> None:
    plain = Dataloader(RangeDataset(6), 3).map_batches(lambda x: x + 1)
    placed = Dataloader(RangeDataset(16), 8, sharding=sharded((8,), "a"), workers=2)

    assert lists(plain) == [[1, 2, 3], [4, 5, 6]]
    doubled = placed.map_batches(jax.jit(lambda x: 2 * x))
    assert [batch.tolist() for batch in doubled] == [
        list(range(0, 16, 2)),
        list(range(16, 32, 2)),
    ]


def test_a_short_batch_that_does_not_divide_is_found_before_the_first() -> None:
    loader = Dataloader(RangeDataset(20), 8, sharding=sharded((8,), "a"))

    with pytest.raises(ValueError, match="choose sizes that divide") as caught:
        iter(loader)

    assert "drop_last=True" in caught.value.__notes__[-1]
    dropped = Dataloader(
        RangeDataset(20), 8, sharding=sharded((8,), "a"), drop_last=True
    )
    assert len(list(dropped)) == 2


def test_a_batch_that_does_not_divide_over_processes_is_an_error() -> None:
    with pytest.raises(ValueError, match="batch_size 9 does not divide over 2"):
        iter(Dataloader(RangeDataset(20), 9, process_index=0, process_count=2))


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_an_item_that_fails_is_named_at_its_batch(workers: int) -> None:
    def fail_at_17(x: int) -> int:
        if x == 17:
            raise OSError("unreadable")
        return x

    dataset = MappedDataset(RangeDataset(40), fail_at_17)
    batches = iter(Dataloader(dataset, 5, workers=workers))
    for _ in range(3):
        next(batches)

    with pytest.raises(OSError, match="unreadable") as caught:
        next(batches)

    assert "while loading item 17" in caught.value.__notes__
    join_threads()


@pytest.mark.parametrize("workers", [0, 2])
def test_ragged_items_are_named(workers: int) -> None:
    items = [np.zeros(3 if n != 5 else 4) for n in range(8)]

    with pytest.raises(ValueError, match=r"item 5 has shape \(4,\)") as caught:
        list(Dataloader(SimpleDataset(items), 4, workers=workers))

    assert "while making the batch of step 1" in caught.value.__notes__


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("drop_last", [False, True])
def test_no_items_make_no_batch(workers: int, drop_last: bool) -> None:
    loader = Dataloader(
        SimpleDataset[int]([]), 2, workers=workers, drop_last=drop_last, epochs=3
    )

    assert list(loader) == list(loader.epoch(1)) == []
    assert len(loader) == loader.steps_per_epoch == 0
    assert iter(loader).progress() == Progress(0, 0, 0, 0)
    with pytest.raises(IndexError, match=r"step 0 is outside \[0, 0\)"):
        loader.batch(0)


def test_no_items_without_end_and_no_whole_batch_are_errors() -> None:
    with pytest.raises(ValueError, match="SimpleDataset has no items, so an iteration"):
        Dataloader(SimpleDataset[int]([]), 2, epochs=None)
    with pytest.raises(ValueError, match="3 items of RangeDataset do not fill one"):
        Dataloader(RangeDataset(3), 4, drop_last=True)


@pytest.mark.parametrize(
    ("name", "value"),
    [("batch_size", 0), ("workers", -1), ("prefetch", -1), ("start_step", -1)],
)
def test_numbers_out_of_range_are_named(name: str, value: int) -> None:
    arguments: dict[str, Any] = {"batch_size": 2} | {name: value}
    with pytest.raises(ValueError, match=f"{name} must be at least .*got {value}"):
        Dataloader(RangeDataset(5), **arguments)


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("batch_size", 2.0, "an integer"),
        ("workers", "two", "an integer"),
        ("start_step", None, "an integer"),
        ("prefetch", None, "an integer"),
        ("seed", 1.5, "an integer"),
        ("progress", True, "a function"),
        ("collate", [], "a function"),
    ],
)
def test_arguments_of_another_type_are_named(
    name: str, value: Any, wanted: str
) -> None:
    arguments: dict[str, Any] = {"batch_size": 2} | {name: value}
    with pytest.raises(TypeError, match=f"^{name} .*{wanted}") as error:
        Dataloader(RangeDataset(5), **arguments)
    assert repr(value) in str(error.value)


def test_a_function_over_batches_must_be_one() -> None:
    function: Any = 3
    with pytest.raises(TypeError, match="function is 3, which cannot be called"):
        Dataloader(RangeDataset(5), 2).map_batches(function)


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_settings_of_the_consumers_thread_hold_where_items_are_made(
    workers: int,
) -> None:
    mesh = make_mesh((2,), ("a",))

    def look(item: int) -> tuple[str, bool]:
        return str(jnp.asarray(item).dtype), jax.sharding.get_mesh() == mesh

    loader = Dataloader(RangeDataset(6).map(look), 3, workers=workers)
    begun_outside = iter(loader)
    with jax.enable_x64(True), jax.set_mesh(mesh):
        within = [(*dtypes, *meshes) for dtypes, meshes in begun_outside]
    without = [(*dtypes, *meshes) for dtypes, meshes in loader]

    assert within == [("int64",) * 3 + (True,) * 3] * 2
    assert without == [("int32",) * 3 + (False,) * 3] * 2


@pytest.mark.parametrize(
    ("name", "setting", "value"),
    [
        ("jax_enable_x64", jax.enable_x64, True),
        ("jax_default_device", jax.default_device, jax.devices()[1]),
        ("jax_default_matmul_precision", jax.default_matmul_precision, "float32"),
        ("jax_default_prng_impl", jax.default_prng_impl, "rbg"),
        ("jax_numpy_dtype_promotion", jax.numpy_dtype_promotion, "strict"),
        ("jax_numpy_rank_promotion", jax.numpy_rank_promotion, "raise"),
        ("jax_threefry_partitionable", jax.threefry_partitionable, False),
    ],
)
def test_every_setting_that_changes_values_is_carried(
    name: str, setting: Any, value: Any
) -> None:
    def look(_: int) -> bool:
        return getattr(jax.config, name) == value

    loader = Dataloader(RangeDataset(2).map(look), 2, workers=1)
    with setting(value):
        assert [batch.tolist() for batch in loader] == [[True, True]]
    assert [batch.tolist() for batch in loader] == [[False, False]]


def test_numbers_of_numpy_count_as_pythons() -> None:
    numbers: dict[str, Any] = {
        "batch_size": np.int8(100),
        "start_step": np.int8(3),
        "epochs": np.uint8(90),
    }
    small = Dataloader(RangeDataset(1000), **numbers)
    plain = Dataloader(RangeDataset(1000), 100, start_step=3, epochs=90)

    assert len(small) == len(plain)
    assert np.array_equal(next(iter(small)), next(iter(plain)))


def test_numbers_of_jax_count_as_pythons() -> None:
    two: Any = jax.numpy.array(2)
    loader = Dataloader(
        RangeDataset(10), two, workers=two, prefetch=two, seed=two, epochs=two
    )

    assert loader.batch(two).tolist() == [4, 5]
    assert len(list(loader)) == len(loader) == 10
    assert len(loader.epoch(two)) == 5


def test_a_bool_is_not_a_number() -> None:
    dataset, flag = SimpleDataset(range(4)), True
    names = ("batch_size", "workers", "prefetch", "seed", "start_step", "epochs")
    for name in names:
        options: dict[str, Any] = {"batch_size": 2, name: flag}
        with pytest.raises(TypeError, match=f"{name} must be an integer, got True"):
            Dataloader(dataset, **options)
    loader = Dataloader(dataset, 2)
    for use in (
        loader.batch,
        loader.epoch,
        dataset.take,
        lambda count: dataset.split_dataset_by_node(count, 0),
        lambda count: Dataloader(dataset, 2, process_index=0, process_count=count),
        lambda stop: device_stream(lambda _: np.zeros(2), 0, stop),
    ):
        with pytest.raises(TypeError, match="must be an integer, got True"):
            use(flag)


@pytest.mark.parametrize("flag", ["no", 1, None])
@pytest.mark.parametrize("name", ["shuffle", "drop_last"])
def test_a_flag_is_a_bool(name: str, flag: Any) -> None:
    options: dict[str, Any] = {name: flag}

    with pytest.raises(TypeError, match=f"{name} must be True or False, got {flag!r}"):
        Dataloader(SimpleDataset(range(4)), 2, **options)


def test_an_epoch_may_be_after_the_last_of_an_iteration() -> None:
    loader = Dataloader(range(5), 2, shuffle=True, epochs=1)
    endless = Dataloader(range(5), 2, shuffle=True, epochs=None)

    assert lists(loader.epoch(3)) == [
        endless.batch(step).tolist() for step in (9, 10, 11)
    ]


@pytest.mark.parametrize("workers", [0, 2])
def test_an_item_that_is_none_is_refused_by_its_index(workers: int) -> None:
    dataset = SimpleDataset([1, 2, 3, None, 5])
    loader = Dataloader(dataset, 2, workers=workers)

    with pytest.raises(TypeError, match="item 3 is None, which no array can hold"):
        list(loader)
    (batch,) = Dataloader(dataset.filter(bool), 4)
    assert batch.tolist() == [1, 2, 3, 5]
    assert list(Dataloader(dataset, 5, collate=list)) == [[1, 2, 3, None, 5]]


def test_a_start_beyond_the_end_is_an_error() -> None:
    with pytest.raises(ValueError, match="start_step is 4 but 1 epochs of 3 steps"):
        Dataloader(RangeDataset(5), 2, start_step=4)


def test_half_of_a_process_number_is_an_error() -> None:
    with pytest.raises(ValueError, match="give both or neither"):
        Dataloader(RangeDataset(5), 2, process_index=0)


@pytest.mark.parametrize(("index", "count"), [(2, 2), (-1, 2), (0, 0)])
def test_a_process_number_out_of_range_is_an_error(index: int, count: int) -> None:
    with pytest.raises(ValueError, match=rf"process_index is {index}; .* {count}\)"):
        Dataloader(RangeDataset(8), 2, process_index=index, process_count=count)


@pytest.mark.parametrize(("index", "count"), [(0.5, 2), (0, 2.5)])
def test_a_process_number_that_is_not_an_integer_is_an_error(
    index: Any, count: Any
) -> None:
    with pytest.raises(TypeError, match=r"process_\w+ must be an integer, got \d\.5"):
        Dataloader(RangeDataset(8), 2, process_index=index, process_count=count)


def test_what_can_only_be_gone_through_is_an_error() -> None:
    items: Any = iter(range(3))

    with pytest.raises(TypeError, match=r"range_iterator has no __len__ .* Streaming"):
        Dataloader(items, 2)


@pytest.mark.parametrize("sharding", [None, sharded((1,), "a")])
def test_a_function_over_batches_that_fails_ends_the_iteration(sharding: Any) -> None:
    def fail_at_2(batch: Any) -> Any:
        if int(batch[0]) == 2:
            raise OSError("no")
        return batch

    loader = Dataloader(RangeDataset(8), 2, sharding=sharding).map_batches(fail_at_2)
    batches = iter(loader)
    next(batches)

    with pytest.raises(OSError, match="no") as caught:
        next(batches)
    assert caught.value.__notes__ == ["while making the batch of step 1"]
    assert batches.step == 1
    assert list(batches) == []


def test_a_step_that_an_interrupt_lost_is_noticed() -> None:
    interrupts = [1]

    def interrupted_once(batch: Any) -> Any:
        if interrupts:
            interrupts.pop()
            raise KeyboardInterrupt
        return batch

    loader = Dataloader(RangeDataset(8), 2, sharding=sharded((1,), "a"))
    batches = iter(loader.map_batches(interrupted_once))
    with pytest.raises(KeyboardInterrupt):
        next(batches)

    with pytest.raises(RuntimeError, match="lost the batch of step 0; iterate again"):
        next(batches)
    assert batches.step == 0
    batches.close()


def test_an_interrupt_while_progress_is_told_skips_no_step() -> None:
    def interrupt(done: int, _: int | None) -> None:
        if done == 2:
            raise KeyboardInterrupt

    batches = iter(Dataloader(RangeDataset(8), 2, progress=interrupt))
    next(batches)
    with pytest.raises(KeyboardInterrupt):
        next(batches)

    assert batches.step == 1
    with pytest.raises(RuntimeError, match="lost the batch of step 1; iterate again"):
        next(batches)
    batches.close()


def test_an_error_of_the_progress_function_ends_the_iteration() -> None:
    def fail(done: int, _: int | None) -> None:
        raise OSError(f"no terminal at {done}")

    batches = iter(Dataloader(RangeDataset(8), 2, progress=fail))

    with pytest.raises(OSError, match="no terminal at 1"):
        next(batches)
    assert list(batches) == []


def test_any_executor_loads_items() -> None:
    with ThreadPoolExecutor(2) as executor:
        loader = Dataloader(RangeDataset(20).map(operator.neg), 6, executor=executor)
        assert list(chain(*lists(loader))) == list(range(0, -20, -1))


def test_processes_may_load_items_and_one_that_dies_is_an_error() -> None:
    context = multiprocessing.get_context("forkserver")
    with ProcessPoolExecutor(1, mp_context=context) as executor:
        loader = Dataloader(RangeDataset(8).map(operator.neg), 4, executor=executor)
        assert list(chain(*lists(loader))) == list(range(0, -8, -1))

        dying = Dataloader(
            RangeDataset(8).map(os._exit), 4, executor=executor, workers=1
        )
        with pytest.raises(
            RuntimeError, match=r"items \[0, 1, 2, 3\] of step 0.*__main__"
        ):
            list(dying)


def test_progress_is_told_after_each_batch() -> None:
    told: list[tuple[int, int | None]] = []

    def tell(done: int, total: int | None) -> None:
        told.append((done, total))

    list(Dataloader(RangeDataset(5), 2, progress=tell, start_step=1))

    assert told == [(2, 3), (3, 3)]


@pytest.mark.parametrize("drop_last", [False, True])
def test_progress_counts_batches_and_items(drop_last: bool) -> None:
    batches = iter(Dataloader(RangeDataset(5), 2, epochs=2, drop_last=drop_last))
    seen: list[Progress] = [batches.progress()]
    seen += [batches.progress() for _ in batches]

    items = [0, 2, 4, 6, 8] if drop_last else [0, 2, 4, 5, 7, 9, 10]
    assert seen == [
        Progress(step, len(items) - 1, done, items[-1])
        for step, done in enumerate(items)
    ]


def test_progress_says_what_is_not_known() -> None:
    endless = iter(Dataloader(RangeDataset(5), 2, epochs=None, start_step=4))
    stream = iter(Dataloader(StreamingDataset(lambda: range(5)), 2))
    next(stream)

    assert endless.progress() == Progress(4, None, 7, None)
    assert stream.progress() == Progress(1, None, None, None)


def test_a_batch_may_be_collated_by_hand() -> None:
    loader = Dataloader(RangeDataset(4), 2, collate=tuple)

    assert list(loader) == [(0, 1), (2, 3)]


def test_stats_count_batches() -> None:
    batches = iter(Dataloader(RangeDataset(9), 2, workers=2))
    next(batches)

    assert batches.stats.steps == 1
    assert batches.stats.waited_s > 0
    batches.close()
    assert threads() == []


def test_breaking_off_leaves_no_thread() -> None:
    for _ in range(20):
        for _ in Dataloader(RangeDataset(100), 2, workers=3):
            break
    join_threads()


def test_all_workers_are_at_work_however_small_prefetch_is() -> None:
    together = threading.Barrier(8, timeout=600)

    def wait_for_the_others(x: int) -> int:
        together.wait()
        return x

    dataset = RangeDataset(80).map(wait_for_the_others)

    assert len(lists(Dataloader(dataset, 2, workers=8, prefetch=3))) == 40
