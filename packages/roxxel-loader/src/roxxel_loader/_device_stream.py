"""Batches of consecutive steps as global arrays, made ahead.

Each process reads only the rows and columns that its own devices hold. A stream keeps
no state except the step: a stream from step k gives the batches that any other stream
gives from step k on.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import jax
import numpy as np

from ._arguments import check_at_least, check_callable, check_integers
from ._prefetch import Prefetcher
from ._row_source import Hints, RowSource
from .sharding._global_arrays import copy_parts, put_on_devices
from .sharding._layout import Layouts, index_of

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from .sharding._layout import Box, Layout, Shape, ShardingLike

    Leaf = tuple[str, Layout, list[npt.NDArray[Any]]]
    """A leaf of a batch: its name, its layout, and the values of `layout.reads`."""


@dataclass(frozen=True)
class StreamStats:
    """Progress and waiting time of a stream; no value ever decreases.

    Attributes:
        steps: Batches delivered.
        waited_s: Seconds the consumer spent making batches or waiting for them.
        read_s: Seconds spent reading the source for the delivered batches, on any
            thread.
        assemble_s: Seconds spent copying their values to aligned host memory.
        transfer_s: Seconds spent in the JAX calls that make their arrays. The copy to
            an accelerator continues in the background.
    """

    steps: int
    waited_s: float
    read_s: float
    assemble_s: float
    transfer_s: float


def device_stream(
    source: RowSource | Callable[[int], Any],
    start: int,
    stop: int,
    sharding: ShardingLike = None,
    prefetch: int = 2,
    *,
    workers: int = 1,
) -> DeviceStream:
    """Return the batches of steps `[start, stop)` as global arrays, in order.

    Args:
        source: A `RowSource`, such as a curriculum's sampler; or a function from step
            to the whole global batch, a pytree of numpy arrays, which every process
            then builds in full. Values are copied, so a source may reuse its memory.
        start: First step.
        stop: One past the last step.
        sharding: Sharding of the batches, or a function from global shape to sharding;
            None puts each process's batches on its default device.
        prefetch: Batches made beyond the requested one.
        workers: Threads that make batches; 0 makes each batch on the consumer's thread
            when it is requested.

    Returns:
        An iterator and context manager; 64-bit dtypes become 32-bit unless JAX has 64
        bits enabled.

    Raises:
        ValueError: The steps are not a range, `prefetch` or `workers` is negative, or
            the first batch of a `RowSource` does not divide.
        TypeError: `source` is neither a `RowSource` nor a function, or a number is not
            an integer.
    """
    check_integers(start=start, stop=stop)
    start, stop = operator.index(start), operator.index(stop)
    if not 0 <= start <= stop:
        raise ValueError(
            f"steps [{start}, {stop}) are not a range; give 0 <= start <= stop"
        )
    check_at_least(0, prefetch=prefetch, workers=workers)
    if isinstance(source, RowSource):
        read = _RowReader(source, sharding, start, stop)
    else:
        check_callable(source=source)
        read = _FunctionReader(source, sharding)

    def make(step: int) -> _Made:
        return _make(read, step)

    prefetcher = Prefetcher(make, start, stop, ahead=prefetch, workers=workers)
    return DeviceStream(prefetcher, start, stop)


class DeviceStream:
    """Iterator over global batches in step order; made by `device_stream`.

    Attributes:
        step: The step of the next batch.
        stop: One past the last step.
    """

    def __init__(self, prefetcher: Prefetcher[_Made], start: int, stop: int) -> None:
        self._prefetcher = prefetcher
        self._start = start
        self.step = start
        self.stop = stop
        self._read_s = 0.0
        self._assemble_s = 0.0
        self._transfer_s = 0.0

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        made = next(self._prefetcher)
        if made.step != self.step:
            raise RuntimeError(
                f"an interrupt between two steps lost the batch of step {self.step}; "
                f"start another stream from step {self.step}"
            )
        self._read_s += made.read_s
        self._assemble_s += made.assemble_s
        self._transfer_s += made.transfer_s
        self.step += 1
        return made.batch

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop working ahead and wait for the batches in progress."""
        self._prefetcher.close()

    @property
    def stats(self) -> StreamStats:
        """A snapshot of the progress and the waiting time."""
        return StreamStats(
            steps=self.step - self._start,
            waited_s=self._prefetcher.waited_s,
            read_s=self._read_s,
            assemble_s=self._assemble_s,
            transfer_s=self._transfer_s,
        )


class _Made(NamedTuple):
    step: int
    batch: Any
    read_s: float
    assemble_s: float
    transfer_s: float


def _make(read: Callable[[int], tuple[list[Leaf], Any]], step: int) -> _Made:
    """Return the batch of a step: read, copied to host memory, put on the devices."""
    began = perf_counter()
    try:
        leaves, tree = read(step)
        was_read = perf_counter()
        copies = [
            (layout, copy_parts(layout, parts, name)) for name, layout, parts in leaves
        ]
        assembled = perf_counter()
        arrays = [put_on_devices(layout, copy) for layout, copy in copies]
    except Exception as error:
        error.add_note(f"while making the batch of step {step}")
        raise
    return _Made(
        step,
        jax.tree.unflatten(tree, arrays),
        was_read - began,
        assembled - was_read,
        perf_counter() - assembled,
    )


class _FunctionReader:
    """Reads steps of a function that builds whole global batches."""

    def __init__(self, function: Callable[[int], Any], sharding: ShardingLike) -> None:
        self._function = function
        self._layouts = Layouts(sharding)

    def __call__(self, step: int) -> tuple[list[Leaf], Any]:
        names, values, tree = _flatten(step, self._function(step))
        leaves: list[Leaf] = []
        for name, value in zip(names, values, strict=True):
            layout = self._layouts.of(value.shape)
            parts = [value[index_of(read)] for read in layout.reads]
            leaves.append((name, layout, parts))
        return leaves, tree


class _RowReader:
    """Reads the parts of a `RowSource` that this process's devices hold.

    Raises:
        ValueError: The first batch does not divide.
    """

    def __init__(
        self, source: RowSource, sharding: ShardingLike, start: int, stop: int
    ) -> None:
        self._source = source
        self._layouts = Layouts(sharding)
        self._hints = Hints(source, start, stop)
        if start < stop:
            self._layouts.of(source.shape(start))

    def __call__(self, step: int) -> tuple[list[Leaf], Any]:
        layout = self._layouts.of(self._source.shape(step))
        if step >= self._hints.ask_at:
            self._hints.ask(step, layout)
        given = [
            self._source.rows(step, *_arguments(read, layout.shape))
            for read in layout.reads
        ]
        names, _, tree = _flatten(step, given[0])
        columns = zip(*(_flatten(step, part)[1] for part in given), strict=True)
        leaves: list[Leaf] = []
        for name, column in zip(names, columns, strict=True):
            parts = list(column)
            _check_shapes(name, layout, parts)
            leaves.append((name, self._layout_of(layout, parts, name), parts))
        return leaves, tree

    def _layout_of(
        self, layout: Layout, parts: list[npt.NDArray[Any]], name: str
    ) -> Layout:
        """Return the layout of a leaf, which may have more or fewer axes."""
        num_axes = parts[0].ndim
        if num_axes == len(layout.shape):
            return layout
        tail = parts[0].shape[len(layout.shape) :]
        own = self._layouts.of((*layout.shape[:num_axes], *tail))
        if len(own.reads) != len(parts):
            raise ValueError(
                f"{name} has {num_axes} axes and its sharding splits other axes than "
                f"that of the batch of shape {layout.shape}; give all leaves the axes "
                "of the batch, or split rows only"
            )
        return own


def _arguments(read: Box, shape: Shape) -> tuple[slice, slice | None]:
    """Return the rows and columns of a read, as `RowSource.rows` expects them."""
    rows = slice(*read[0])
    for columns in read[1:2]:
        if columns != (0, shape[1]):
            return rows, slice(*columns)
    return rows, None


def _check_shapes(name: str, layout: Layout, parts: list[npt.NDArray[Any]]) -> None:
    """Raise a ValueError if the source gave another part than the requested one."""
    for read, part in zip(layout.reads, parts, strict=True):
        wanted = tuple(stop - start for start, stop in read)
        num_axes = max(1, min(part.ndim, len(wanted)))
        if part.shape[:num_axes] != wanted[:num_axes]:
            rows, columns = _arguments(read, layout.shape)
            raise ValueError(
                f"{name}: the source gave an array of shape {part.shape} for rows "
                f"{rows} and columns {columns} of a batch of shape {layout.shape}; "
                f"the shape must begin with {wanted}"
            )


def _flatten(step: int, batch: Any) -> tuple[list[str], list[npt.NDArray[Any]], Any]:
    """Return the names of a batch's leaves for errors, their values, the structure."""
    paths, tree = jax.tree_util.tree_flatten_with_path(batch)
    names = [f"step {step}{jax.tree_util.keystr(path)}" for path, _ in paths]
    return names, [np.asarray(leaf) for _, leaf in paths], tree
