"""Another order, computed instead of stored."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import numpy as np
from roxxel_curriculum import make_key, permute

from ._dataset import check_index, fetch
from ._fluent import LazyDataset

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ._dataset import Dataset

T = TypeVar("T")


class ShuffledDataset(LazyDataset[T]):
    """The items of a dataset in an order that depends on the seed and their number.

    The order is a keyed bijection: no index array is built, however many items there
    are, and every item appears exactly once.

    Args:
        dataset: Where the items come from.
        seed: Any integer; each gives another order, the same on every machine.
    """

    def __init__(self, dataset: Dataset[T], seed: int = 0) -> None:
        self._dataset = dataset
        self._key = make_key("shuffle", seed)

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int, /) -> T:
        position = check_index(index, len(self._dataset))
        return self._dataset[self._positions([position])[0]]

    def __getitems__(self, indices: Sequence[int]) -> list[T]:
        """Return the items at `indices`."""
        return fetch(self._dataset, self._positions(indices))

    def _positions(self, indices: Sequence[int]) -> list[int]:
        positions = permute(
            np.asarray(indices, np.int64), len(self._dataset), self._key
        )
        return positions.tolist()
