"""The types of batches follow from the items.

`assert_type` does nothing when it runs: pyright checks it, in the session `types`.
"""

from __future__ import annotations

from typing import Any, assert_type

import jax
import numpy as np
import numpy.typing as npt
from roxxel_loader import Dataloader, RangeDataset, SimpleDataset, StreamingDataset

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
