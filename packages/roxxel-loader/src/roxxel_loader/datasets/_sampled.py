"""Some of the items, drawn without replacement."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import numpy as np
from roxxel_curriculum import make_key, permute

from roxxel_loader._arguments import check_integers

from ._dataset import check_index, fetch
from ._fluent import LazyDataset

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ._dataset import Dataset

T = TypeVar("T")


class SampledDataset(LazyDataset[T]):
    """Distinct items of a dataset, chosen and ordered by a seed, with no index array.

    Args:
        dataset: Where the items come from.
        num_items: How many to draw.
        seed: Any integer; a larger `num_items` with the same seed only adds items.

    Raises:
        ValueError: More items are asked for than there are.
    """

    def __init__(self, dataset: Dataset[T], num_items: int, seed: int = 0) -> None:
        check_integers(num_items=num_items)
        if not 0 <= num_items <= len(dataset):
            raise ValueError(
                f"{num_items} items cannot be drawn from {len(dataset)}; draw between "
                "0 and all of them"
            )
        self._dataset = dataset
        self._num_items = num_items
        self._key = make_key("sample", seed)

    def __len__(self) -> int:
        return self._num_items

    def __getitem__(self, index: int, /) -> T:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[T]:
        """Return the items at `indices`."""
        positions = [check_index(index, self._num_items) for index in indices]
        chosen = permute(np.asarray(positions, np.int64), len(self._dataset), self._key)
        return fetch(self._dataset, chosen.tolist())
