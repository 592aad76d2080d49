from __future__ import annotations

import pickle
import threading
from typing import Any

import jax
import numpy as np
import pytest
import roxxel_loader
from hypothesis import assume, given
from hypothesis import strategies as st
from roxxel_loader import (
    CachedDataset,
    ConcatDataset,
    Dataloader,
    Dataset,
    FilteredDataset,
    LazyDataset,
    MappedBatchDataset,
    MappedDataset,
    RangeDataset,
    SampledDataset,
    ShuffledDataset,
    SimpleDataset,
    SlicedDataset,
    StreamingDataset,
    ZipDataset,
)

from .helpers import fetch


def double(x: int) -> int:
    return x * 2


def is_even(x: int) -> bool:
    return x % 2 == 0


EVERY: list[LazyDataset[Any]] = [
    SimpleDataset(np.arange(24).reshape(12, 2)),
    RangeDataset(12),
    MappedDataset(RangeDataset(12), double),
    MappedBatchDataset(RangeDataset(34), sum, 3),
    FilteredDataset(RangeDataset(24), is_even),
    ShuffledDataset(RangeDataset(12), 1),
    SampledDataset(RangeDataset(40), 12, 1),
    SlicedDataset(RangeDataset(40), 2, 26, 2),
    ConcatDataset(RangeDataset(5), RangeDataset(0), RangeDataset(7)),
    ZipDataset(RangeDataset(12), RangeDataset(1, 13)),
    CachedDataset(MappedDataset(RangeDataset(12), double)),
]


def mapped(items: list[int]) -> LazyDataset[int]:
    return MappedDataset(items, double)


def filtered(items: list[int]) -> LazyDataset[int]:
    return FilteredDataset(items, bool)


def sliced(items: list[int]) -> LazyDataset[int]:
    return SlicedDataset(items, None)


def sampled(items: list[int]) -> LazyDataset[int]:
    return SampledDataset(items, len(items))


OVER_A_LIST = [
    SimpleDataset,
    mapped,
    filtered,
    ShuffledDataset,
    sampled,
    sliced,
    ConcatDataset,
    ZipDataset,
    CachedDataset,
]


@pytest.mark.parametrize("dataset", EVERY, ids=lambda dataset: type(dataset).__name__)
def test_every_dataset_keeps_the_protocol(dataset: LazyDataset[Any]) -> None:
    items = [dataset[index] for index in range(len(dataset))]

    assert isinstance(dataset, Dataset)
    assert len(items) == 12
    assert [np.asarray(item).tolist() for item in dataset] == [
        np.asarray(item).tolist() for item in items
    ]
    order = [3, 0, 11, 3, -1, -12]
    assert [np.asarray(item).tolist() for item in fetch(dataset, order)] == [
        np.asarray(items[index]).tolist() for index in order
    ]


@pytest.mark.parametrize("dataset", EVERY, ids=lambda dataset: type(dataset).__name__)
@pytest.mark.parametrize("index", [-13, 12])
def test_items_outside_are_an_index_error(
    dataset: LazyDataset[Any], index: int
) -> None:
    with pytest.raises(IndexError):
        dataset[index]
    with pytest.raises(IndexError):
        fetch(dataset, [0, index])


@pytest.mark.parametrize("make", OVER_A_LIST, ids=lambda make: make.__name__)
def test_a_dataset_over_a_list_gives_no_slice(make: Any) -> None:
    """A list of Python gives a list, which would be one item of several."""
    dataset = make([1, 2, 3])

    assert dataset[-1] == dataset[2]
    for index in (-4, 3):
        with pytest.raises(IndexError):
            dataset[index]
        with pytest.raises(IndexError):
            fetch(dataset, [0, index])
    with pytest.raises(TypeError, match=r"is slice\(0, 2, None\), not .* use \.slice"):
        dataset[0:2]


@pytest.mark.parametrize("dataset", EVERY, ids=lambda dataset: type(dataset).__name__)
def test_every_dataset_survives_pickling(dataset: LazyDataset[Any]) -> None:
    other = pickle.loads(pickle.dumps(dataset))  # noqa: S301 - our own bytes

    assert np.asarray(other[7]).tolist() == np.asarray(dataset[7]).tolist()


def test_map_is_lazy() -> None:
    seen: list[int] = []

    def note(x: int) -> int:
        seen.append(x)
        return x

    dataset = MappedDataset(RangeDataset(10), note)
    assert seen == []
    assert dataset[4] == 4
    assert seen == [4]


@given(num=st.integers(0, 40), size=st.integers(1, 9))
def test_a_function_gets_whole_batches_of_items(num: int, size: int) -> None:
    dataset = RangeDataset(num).map_batch(list, batch_size=size)

    assert list(dataset) == [
        list(range(start, min(start + size, num))) for start in range(0, num, size)
    ]
    assert len(dataset) == len(list(dataset))


def test_items_of_several_batches_are_loaded_together() -> None:
    asked: list[list[int]] = []

    class Bulk(list[int]):
        def __getitems__(self, indices: list[int]) -> list[int]:
            asked.append(indices)
            return indices

    dataset = MappedBatchDataset(Bulk(range(10)), sum, 4)

    assert fetch(dataset, [2, 0]) == [17, 6]
    assert asked == [[8, 9, 0, 1, 2, 3]]


def test_a_function_of_batches_that_fails_names_the_batch() -> None:
    dataset = RangeDataset(6).map_batch(lambda items: 1 // (items[0] - 2), 2)

    with pytest.raises(ZeroDivisionError) as caught:
        fetch(dataset, [0, 1])
    assert caught.value.__notes__ == ["while loading item 1"]


@given(num=st.integers(0, 50), count=st.integers(1, 9))
def test_parts_for_nodes_are_the_dataset_and_the_first_are_longer(
    num: int, count: int
) -> None:
    dataset = SimpleDataset(range(num))
    parts = [dataset.split_dataset_by_node(count, rank) for rank in range(count)]

    assert [item for part in parts for item in part] == list(range(num))
    lengths = [len(part) for part in parts]
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] - lengths[-1] <= 1


def test_a_part_for_a_node_reads_nothing_and_checks_its_number() -> None:
    class Unread(RangeDataset):
        def __getitem__(self, index: int, /) -> int:
            raise AssertionError(index)

    assert len(Unread(5).split_dataset_by_node(world_size=2, rank=0)) == 3
    with pytest.raises(ValueError, match=r"rank is 2; give a rank in \[0, 2\)"):
        Unread(5).split_dataset_by_node(world_size=2, rank=2)
    with pytest.raises(ValueError, match="world_size must be at least 1, got 0"):
        Unread(5).split_dataset_by_node(world_size=0, rank=0)


def test_an_index_may_be_an_integer_of_any_library() -> None:
    for make in (np.int8, np.uint8, jax.numpy.array):
        one: Any = make(1)
        two: Any = make(2)
        assert RangeDataset(5)[two] == 2
        assert list(RangeDataset(5).map(double).slice(two, None, two)) == [4, 8]
        assert list(RangeDataset(5).take(two)) == [0, 1]
        assert list(RangeDataset(5).map_batch(sum, two)) == [1, 5, 4]
        assert list(RangeDataset(6).split_dataset_by_node(two, one)) == [3, 4, 5]
        assert len(RangeDataset(5).sample(two, two)) == 2
        assert list(RangeDataset(two).cache(two).shuffle(two)) in ([0, 1], [1, 0])


def test_a_jitted_function_may_be_mapped() -> None:
    dataset = SimpleDataset(np.arange(4.0, dtype=np.float32)).map(jax.jit(lambda x: -x))

    assert float(dataset[3]) == -3.0


@given(num=st.integers(1, 2000), seed=st.integers(-(2**70), 2**70))
def test_a_shuffle_is_a_permutation_that_the_seed_decides(num: int, seed: int) -> None:
    items = fetch(ShuffledDataset(RangeDataset(num), seed), range(num))

    assert sorted(items) == list(range(num))
    assert items == fetch(ShuffledDataset(RangeDataset(num), seed), range(num))


@pytest.mark.parametrize("make", [jax.random.key, jax.random.PRNGKey])
def test_a_seed_may_be_a_key_of_jax(make: Any) -> None:
    items = SimpleDataset(list(range(50)))
    stream = StreamingDataset(lambda: range(50))

    assert list(items.shuffle(make(7))) == list(items.shuffle(7))
    assert list(items.sample(9, make(7))) == list(items.sample(9, 7))
    assert list(stream.shuffle(20, make(7))) == list(stream.shuffle(20, 7))
    one, other = jax.random.split(make(0))
    assert list(items.shuffle(one)) != list(items.shuffle(other))


@pytest.mark.parametrize(
    "seed", [1.5, None, "1", np.ones(2), jax.random.split(jax.random.key(0))]
)
def test_a_seed_that_is_neither_integer_nor_key_is_an_error(seed: Any) -> None:
    with pytest.raises(TypeError, match="give an integer, or one key"):
        RangeDataset(3).shuffle(seed)


def test_a_shuffle_of_a_huge_dataset_costs_no_index_array() -> None:
    dataset = RangeDataset(10**12).shuffle(7)

    assert dataset[0] != dataset[1]
    assert 0 <= dataset[10**12 - 1] < 10**12


@given(num=st.integers(0, 300), data=st.data())
def test_a_sample_has_distinct_items_and_grows_at_its_end(
    num: int, data: st.DataObject
) -> None:
    size = data.draw(st.integers(0, num))
    items = fetch(RangeDataset(num).sample(size, seed=3), range(size))

    assert len(set(items)) == size
    assert items == fetch(RangeDataset(num).sample(num, seed=3), range(size))


@given(
    num=st.integers(0, 40),
    start=st.integers(-50, 50),
    stop=st.none() | st.integers(-50, 50),
    step=st.sampled_from([1, 2, 7, -1, -3]),
)
def test_a_slice_is_pythons(num: int, start: int, stop: int | None, step: int) -> None:
    assume(-num <= start <= num)
    assume(stop is None or -num <= stop <= num)
    dataset = RangeDataset(num).slice(start, stop, step)

    assert list(dataset) == list(range(num))[start:stop:step]


def test_take_and_skip_share_the_items() -> None:
    dataset = RangeDataset(10)

    assert list(dataset.take(3)) + list(dataset.skip(3)) == list(range(10))
    assert list(dataset.take(99)) == list(range(10))


def test_numbers_of_items_must_be_counts() -> None:
    with pytest.raises(ValueError, match=r"num_items must be at least .*got -1"):
        RangeDataset(10).take(-1)
    with pytest.raises(ValueError, match=r"num_items must be at least .*got -2"):
        RangeDataset(10).skip(-2)
    half: Any = 0.5
    with pytest.raises(TypeError, match=r"num_items must be an integer, got 0\.5"):
        RangeDataset(10).sample(half)


@pytest.mark.parametrize("method", ["map", "filter"])
def test_what_is_called_with_items_must_be_a_function(method: str) -> None:
    with pytest.raises(TypeError, match="is 3, which cannot be called"):
        getattr(RangeDataset(10), method)(3)


def test_more_samples_than_items_is_an_error() -> None:
    with pytest.raises(ValueError, match="11 items cannot be drawn from 10"):
        RangeDataset(10).sample(11)


@given(sizes=st.lists(st.integers(0, 5), min_size=1, max_size=6))
def test_concatenation_keeps_every_item_in_order(sizes: list[int]) -> None:
    lists = [[(n, i) for i in range(size)] for n, size in enumerate(sizes)]

    dataset = ConcatDataset(*map(SimpleDataset, lists))

    assert list(dataset) == [item for one in lists for item in one]


def test_concatenating_nothing_is_an_error() -> None:
    with pytest.raises(ValueError, match="no dataset was given"):
        ConcatDataset()


def test_zipping_different_lengths_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"\[3, 4\] items cannot be zipped"):
        RangeDataset(3).zip(RangeDataset(4))


def test_a_filter_looks_at_each_item_once() -> None:
    seen: list[int] = []

    def odd(x: int) -> bool:
        seen.append(x)
        return x % 2 == 1

    dataset = RangeDataset(9).filter(odd)
    assert seen == []

    threads = [threading.Thread(target=len, args=(dataset,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert list(dataset) == [1, 3, 5, 7]
    assert seen == list(range(9))


def test_a_failing_filter_names_its_item() -> None:
    dataset = SimpleDataset([3, 2, 0, 1]).filter(lambda x: bool(6 // x))

    with pytest.raises(ZeroDivisionError) as caught:
        len(dataset)

    assert caught.value.__notes__ == ["while loading item 2"]


def test_a_cache_makes_each_item_once() -> None:
    made: list[int] = []

    def make(x: int) -> int:
        made.append(x)
        return x

    dataset = RangeDataset(5).map(make).cache()

    assert list(dataset) + list(dataset) == [*range(5), *range(5)]
    assert made == list(range(5))


def test_a_bounded_cache_drops_what_was_unused_longest() -> None:
    made: list[int] = []

    def make(x: int) -> int:
        made.append(x)
        return x

    dataset = RangeDataset(5).map(make).cache(max_items=2)

    assert [dataset[i] for i in (0, 1, 0, 2, 0, 1)] == [0, 1, 0, 2, 0, 1]
    assert made == [0, 1, 2, 1]
    with pytest.raises(ValueError, match=r"max_items must be at least .*got 0"):
        dataset.cache(0)


def test_the_fluent_form_is_the_same_classes() -> None:
    dataset = RangeDataset(100).map(double).filter(is_even).shuffle(5).take(10)

    assert isinstance(dataset, SlicedDataset)
    assert len(list(dataset)) == 10
    assert all(item % 2 == 0 for item in dataset)


def test_fetching_together_names_the_item_that_fails() -> None:
    class Together:
        def __len__(self) -> int:
            return 30

        def __getitem__(self, index: int) -> int:
            if index == 17:
                raise OSError("unreadable")
            return index

        def __getitems__(self, indices: Any) -> list[int]:
            return [self[index] for index in indices]

    with pytest.raises(OSError, match="unreadable") as caught:
        Dataloader(Together(), 10).batch(1)

    assert caught.value.__notes__[0] == "while loading item 17"


def test_fetching_together_must_give_one_item_each() -> None:
    class Fewer(RangeDataset):
        def __getitems__(self, indices: Any) -> list[int]:
            return list(indices)[1:]

    with pytest.raises(ValueError, match="returned 2 items for 3 indices"):
        Dataloader(Fewer(9), 3).batch(1)


@given(start=st.integers(0, 9), num_items=st.integers(0, 9), as_list=st.booleans())
def test_run_of_items_is_what_one_by_one_gives(
    start: int, num_items: int, *, as_list: bool
) -> None:
    data = list(range(100, 110)) if as_list else np.arange(100, 110)
    dataset = SimpleDataset[Any](data)
    indices = range(start, start + num_items)

    if num_items and indices[-1] >= 10:
        with pytest.raises(IndexError, match="outside"):
            fetch(dataset, indices)
    else:
        assert fetch(dataset, indices) == [100 + index for index in indices]


def test_a_dataset_of_somebody_else_is_asked_with_a_list() -> None:
    asked: list[Any] = []

    class Theirs:
        def __len__(self) -> int:
            return 6

        def __getitem__(self, index: int) -> int:
            return index

        def __getitems__(self, indices: list[int]) -> list[int]:
            asked.append(indices)
            return [*indices]

    batches = [batch.tolist() for batch in Dataloader(Theirs(), 3)]
    wrapped = [batch.tolist() for batch in Dataloader(SimpleDataset(Theirs()), 3)]

    assert batches == wrapped == [[0, 1, 2], [3, 4, 5]]
    assert asked == [[0, 1, 2], [3, 4, 5]] * 2


@pytest.mark.parametrize(
    ("start", "stop", "named"), [(0, 6, "stop=6"), (7, None, "start=7"), (-6, 2, "-6")]
)
def test_a_slice_outside_of_its_dataset_is_refused(
    start: int, stop: int | None, named: str
) -> None:
    with pytest.raises(IndexError, match=rf"{named} .*5 items"):
        SlicedDataset(RangeDataset(5), start, stop)

    assert list(RangeDataset(5).take(9)) == list(range(5))
    assert list(RangeDataset(5).skip(9)) == []
    assert list(SlicedDataset(RangeDataset(5), -5, 5)) == list(range(5))


def test_dir_lists_the_public_names_alone() -> None:
    assert not {"find_spec", "import_module", "TYPE_CHECKING"} & {*dir(roxxel_loader)}
    assert "SlicedDataset" in dir(roxxel_loader)
