"""The types of batches follow from the items.

`assert_type` does nothing when it runs: pyright checks it, in the session `types`.
"""

from __future__ import annotations

from typing import Any, NamedTuple, assert_type

import jax
import numpy as np
import numpy.typing as npt
from roxxel_loader import (
    Dataloader,
    RangeDataset,
    SimpleDataset,
    StreamingDataset,
    device_stream,
    host_to_global_device_array,
)

from .helpers import sharded

NUMBERS = RangeDataset(8)


def pair(number: int) -> dict[str, float]:
    return {"x": number, "y": number * 0.5}


def first(batch: npt.NDArray[Any]) -> float:
    return float(batch[0])


def test_numbers_make_an_array() -> None:
    for batch in Dataloader(NUMBERS, 2, workers=2, seed=3):
        assert_type(batch, npt.NDArray[Any])
        assert isinstance(batch, np.ndarray)


def test_dicts_make_a_dict_of_arrays() -> None:
    for batch in Dataloader(NUMBERS.map(pair).shuffle(1), 2):
        assert_type(batch, dict[str, npt.NDArray[Any]])
        assert isinstance(batch["x"], np.ndarray)


def test_tuples_make_a_tuple_of_arrays() -> None:
    halves = SimpleDataset([0.5] * 8)
    for batch in Dataloader(NUMBERS.zip(halves).slice(4), 2):
        assert_type(batch, tuple[npt.NDArray[Any], ...])
        assert isinstance(batch, tuple)


def test_a_batch_is_what_collate_returns() -> None:
    texts = NUMBERS.map(str)
    for batch in Dataloader(texts.concat(texts), 2, collate=list):
        assert_type(batch, list[str])
        assert isinstance(batch, list)


def test_a_sharding_makes_arrays_of_jax() -> None:
    for batch in Dataloader(NUMBERS.map(pair), 8, sharding=sharded((8,), "a")):
        assert_type(batch, dict[str, jax.Array])
        assert isinstance(batch["x"], jax.Array)


def test_a_stream_and_a_mapped_batch_keep_their_types() -> None:
    stream = StreamingDataset(lambda: range(8)).filter(bool)
    for batch in Dataloader(stream, 2):
        assert_type(batch, npt.NDArray[Any])
    for value in Dataloader(NUMBERS.map_batch(sum, 4), 2).map_batches(first):
        assert_type(value, float)
        assert isinstance(value, float)


class Named(NamedTuple):
    x: npt.NDArray[Any] | jax.Array
    y: npt.NDArray[Any] | jax.Array


def test_batches_of_a_loader_become_global_with_their_type() -> None:
    sharding = sharded((8,), "a")
    halves = SimpleDataset([0.5] * 8)
    for array in Dataloader(NUMBERS, 8):
        placed = host_to_global_device_array(array, sharding)
        assert_type(placed, jax.Array)
        assert isinstance(placed, jax.Array)
    for by_name in Dataloader(NUMBERS.map(pair), 8):
        placed = host_to_global_device_array(by_name, sharding)
        assert_type(placed, dict[str, jax.Array])
        assert isinstance(placed["x"], jax.Array)
    for several in Dataloader(NUMBERS.zip(halves), 8):
        placed = host_to_global_device_array(several, sharding)
        assert_type(placed, tuple[jax.Array, ...])
        assert isinstance(placed[1], jax.Array)


def test_another_tree_becomes_global_with_its_type() -> None:
    sharding, rows = sharded((8,), "a"), np.arange(8)
    named = host_to_global_device_array(Named(rows, rows), sharding)
    nested: dict[str, Named] = {"a": Named(rows, rows)}
    placed = host_to_global_device_array(nested, sharding)

    assert_type(named, Named)
    assert_type(placed, dict[str, Named])
    assert isinstance(named.x, jax.Array)
    assert isinstance(placed["a"].y, jax.Array)


def test_steps_on_devices_are_arrays_of_jax_like_the_batches_of_their_source() -> None:
    def array(step: int) -> npt.NDArray[Any]:
        return np.full((2, 3), step)

    def fields(step: int) -> dict[str, npt.NDArray[Any]]:
        return {"tokens": array(step)}

    with device_stream(array, 0, 2) as batches:
        for batch in batches:
            assert_type(batch, jax.Array)
            assert isinstance(batch, jax.Array)
    with device_stream(fields, 0, 2) as named:
        for each in named:
            assert_type(each, dict[str, jax.Array])
            assert isinstance(each["tokens"], jax.Array)
