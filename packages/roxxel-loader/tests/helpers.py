"""Sources, meshes and counts that several tests use."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt


_earlier: set[threading.Thread] = set()


def forget_threads() -> None:
    """Leave the threads that live now, of earlier tests, out of `threads`.

    The threads of an iteration that a test has dropped end, but at no known moment.
    """
    _earlier.clear()
    _earlier.update(threading.enumerate())


def threads() -> list[threading.Thread]:
    """Return the threads that this package has started and that still live."""
    return [
        thread
        for thread in threading.enumerate()
        if thread.name.startswith("roxxel-loader") and thread not in _earlier
    ]


def join_threads() -> None:
    """Wait for threads that were told to stop but were not waited for."""
    for thread in threads():
        thread.join(timeout=600)
    assert threads() == []


def make_mesh(shape: tuple[int, ...], names: tuple[str, ...]) -> Mesh:
    num_devices = int(np.prod(shape))
    devices = np.array(jax.devices()[:num_devices]).reshape(shape)
    return Mesh(devices, names)


def sharded(shape: tuple[int, ...], *spec: Any) -> NamedSharding:
    """Return a sharding over a mesh of `shape` with axes a, b and so on."""
    mesh = make_mesh(shape, tuple("abcd"[: len(shape)]))
    return NamedSharding(mesh, PartitionSpec(*spec))


class CountingSource:
    """Rows whose values tell step, row and column; remembers what was asked for."""

    def __init__(
        self, shape: tuple[int, int] = (16, 24), dtype: npt.DTypeLike = np.int32
    ) -> None:
        self._shape = shape
        self._dtype = np.dtype(dtype)
        self.reads: list[tuple[int, slice, slice | None]] = []
        self.num_items = 0
        self.hints: list[tuple[int, int]] = []

    def shape(self, step: int) -> tuple[int, int]:
        del step
        return self._shape

    def whole(self, step: int) -> np.ndarray:
        num_rows, num_columns = self._shape
        values = np.arange(num_rows * num_columns, dtype=self._dtype)
        return values.reshape(self._shape) + 10_000 * step

    def rows(self, step: int, rows: slice, columns: slice | None = None) -> Any:
        self.reads.append((step, rows, columns))
        part = self.whole(step)[rows, columns or slice(None)]
        self.num_items += part.size
        return part

    def will_need(self, step: int, n: int) -> None:
        self.hints.append((step, n))


def fetch(dataset: Any, indices: Sequence[int]) -> list[Any]:
    """Return items by the protocol: together if the dataset can, else one by one."""
    many = getattr(dataset, "__getitems__", None)
    if many is not None:
        return many(indices)
    return [dataset[index] for index in indices]
