"""`device_stream`: prefetch batches of consecutive steps as global arrays.

Each process reads only the rows and columns that its own devices hold. A batch is a
function of the source and the step, so a stream may start at any step.
"""

from __future__ import annotations

import inspect
import operator
import threading
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any, Protocol, cast, overload, runtime_checkable

import jax
import numpy as np
from roxxel_store.arguments import as_integer

from ._arguments import check_callable
from ._pipeline.iterate import BatchIterator, make_global
from .sharding._global_arrays import (
    HostBatch,
    HostLeaf,
    aligned_empty,
    device_dtype,
    host_batch,
    layouts,
    shape_of,
    whole_leaf,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt
    from typing_extensions import TypeVar

    from .sharding._global_arrays import Box, Layout, Shape, ShardingLike

    # A type checker alone needs the default, which Python has from 3.13 on.
    Batch_co = TypeVar("Batch_co", covariant=True, default=Any)
else:
    from typing import TypeVar

    Batch_co = TypeVar("Batch_co", covariant=True)

HINTED_VALUES = 1 << 21
"""Number of array elements that one call of `will_need` covers. A call covers whole
steps, at least one, even if that step has more elements. The first call covers twice as
many elements, 32768 rows of 128 elements, which fit the cache of a curriculum."""

_ONE_LEAF = jax.tree.structure(0)


@runtime_checkable
class RowSource(Protocol[Batch_co]):
    """Batches as a pure function of the step; any part of a batch can be read alone.

    A source may also have a method `will_need(step, n)`: a hint that the loader will
    read the steps `[step, step + n)` next. If `will_need` accepts a third argument, the
    loader passes the slice of rows that this process reads. Otherwise the loader calls
    `will_need` only if this process reads all rows.

    If `rows` has a keyword `out`, and the source a `dtype`, the loader passes an array
    of this dtype for the values of one device. A source that fills this array and
    returns it, alone or as a leaf, saves a copy. It must not use the array later.

    Example:
        >>> class Steps:
        ...     def shape(self, step):
        ...         return (4, 2)
        ...     def rows(self, step, rows, columns=None):
        ...         return np.full((rows.stop - rows.start, 2), step)
        >>> next(device_stream(Steps(), 5, 6)).tolist()
        [[5, 5], [5, 5], [5, 5], [5, 5]]
    """

    def shape(self, step: int) -> tuple[int, ...]:
        """Return the global shape of a step's batch: rows, then columns if any."""
        ...

    def rows(self, step: int, rows: slice, columns: slice | None = None) -> Batch_co:
        """Return part of a batch.

        Args:
            step: The step.
            rows: Slice of rows, with a start and a stop and without a step.
            columns: Slice of columns, in the same form; None means all columns.

        Returns:
            An array of the requested rows and columns, or a pytree of such arrays. Each
            thread copies the arrays of a step before it calls `rows` for its next step.
            So a source may reuse the arrays when the same thread reads its next step,
            but not within a step and not for another thread.
        """
        ...


@overload
def device_stream(
    source: RowSource[npt.NDArray[Any]] | Callable[[int], npt.NDArray[Any]],
    start: int,
    stop: int,
    sharding: ShardingLike = None,
    prefetch: int | None = None,
    *,
    workers: int = 1,
) -> BatchIterator[jax.Array]: ...
@overload
def device_stream(
    source: RowSource[dict[str, npt.NDArray[Any]]]
    | Callable[[int], dict[str, npt.NDArray[Any]]],
    start: int,
    stop: int,
    sharding: ShardingLike = None,
    prefetch: int | None = None,
    *,
    workers: int = 1,
) -> BatchIterator[dict[str, jax.Array]]: ...
@overload
def device_stream(
    source: RowSource[Any] | Callable[[int], Any],
    start: int,
    stop: int,
    sharding: ShardingLike = None,
    prefetch: int | None = None,
    *,
    workers: int = 1,
) -> BatchIterator[Any]: ...
def device_stream(
    source: RowSource[Any] | Callable[[int], Any],
    start: int,
    stop: int,
    sharding: ShardingLike = None,
    prefetch: int | None = None,
    *,
    workers: int = 1,
) -> BatchIterator[Any]:
    """Return the batches of steps `[start, stop)` as global arrays, in order.

    Args:
        source: A `RowSource`, such as a curriculum's sampler; or a function from step
            to the whole global batch, a pytree of numpy arrays. Every process calls the
            function, so every process builds the whole batch. The loader copies the
            values of a step before the same thread makes its next batch. So a function
            may reuse its arrays from step to step, if each thread has arrays of its
            own.
        start: First step.
        stop: One past the last step.
        sharding: Sharding of the batches, or a function from global shape to sharding;
            None puts each process's batches on its default device.
        prefetch: Number of batches to prefetch. None prefetches up to 16 batches if
            they hold at most 4 MiB together, but always at least 2.
        workers: Threads that make batches. With 0, the consumer's thread makes each
            batch when it is requested.

    Returns:
        An iterator, which is also a context manager. For a type checker, its items are
        `jax.Array` where the source gives arrays, and dicts of them where it gives
        dicts. 64-bit dtypes become 32-bit unless
        `jax_enable_x64` is set.

    Raises:
        ValueError: `[start, stop)` is not a range of steps, `prefetch` or `workers` is
            negative, or the sharding does not divide a `RowSource`'s first batch.
        TypeError: `source` is neither a `RowSource` nor a function, or a number is not
            an integer.

    Example:
        >>> import numpy as np
        >>> for batch in device_stream(lambda step: np.full((2, 3), step), 7, 9):
        ...     print(batch)
        [[7 7 7]
         [7 7 7]]
        [[8 8 8]
         [8 8 8]]
    """
    start, stop = as_integer("start", start), as_integer("stop", stop)
    if not 0 <= start <= stop:
        raise ValueError(
            f"[{start}, {stop}) is not a range of steps; give 0 <= start <= stop"
        )
    workers = as_integer("workers", workers, 0)
    if prefetch is not None:
        prefetch = as_integer("prefetch", prefetch, 0)
    layout_of = layouts(sharding)
    if isinstance(source, RowSource):
        read = _RowReader(source, layout_of, start, stop)
    else:
        check_callable(source=source)
        read = partial(_read_whole, source)
    make = partial(make_global, read, layout_of)
    return BatchIterator(make, start, stop, ahead=prefetch, workers=workers)


def _read_whole(source: Callable[[int], Any], step: int) -> HostBatch:
    return host_batch(f"step {step}", [source(step)], whole_leaf)


class _RowReader:
    """Reads the rows and columns of a `RowSource` that this process's devices hold."""

    def __init__(
        self,
        source: RowSource,
        layout_of: Callable[[Shape], Layout],
        start: int,
        stop: int,
    ) -> None:
        self._source = source
        self._layout_of = layout_of
        self._out_dtype = _out_dtype(source)
        self._hints = _Hints(source, start, stop)
        if start < stop:
            layout_of(source.shape(start))

    def __call__(self, step: int) -> HostBatch:
        layout = self._layout_of(self._source.shape(step))
        self._hints.give(step, layout)
        memory: list[npt.NDArray[Any]] = []
        reads, dtype = layout.parts, self._out_dtype
        wanted = [_arguments(read, layout.shape) for read in reads]
        if dtype is None:
            parts = [self._source.rows(step, *each) for each in wanted]
        else:
            memory = [aligned_empty(shape_of(read), dtype) for read in reads]
            rows: Any = self._source.rows
            parts = [
                rows(step, *each, out=out)
                for each, out in zip(wanted, memory, strict=True)
            ]
            if all(map(operator.is_, parts, memory)):
                pieces = list(zip(reads, memory, strict=True))
                leaf = HostLeaf(f"step {step}", layout.shape, pieces, is_aligned=True)
                return HostBatch([leaf], _ONE_LEAF)

        def to_leaf(name: str, values: list[npt.NDArray[Any]]) -> HostLeaf:
            _check_shapes(name, layout.shape, reads, values)
            # A leaf may have fewer or more axes than the batch.
            num_axes = min(values[0].ndim, len(layout.shape))
            tail = values[0].shape[num_axes:]
            spans = tuple((0, size) for size in tail)
            boxes = [(*read[:num_axes], *spans) for read in reads]
            shape = (*layout.shape[:num_axes], *tail)
            is_aligned = [*map(id, values)] == [*map(id, memory)]
            pieces = list(zip(boxes, values, strict=True))
            return HostLeaf(name, shape, pieces, is_aligned)

        return host_batch(f"step {step}", parts, to_leaf)


class _Hints:
    """Calls `will_need` of the source, if it exists, and never twice for a step."""

    def __init__(self, source: object, start: int, stop: int) -> None:
        hint = getattr(source, "will_need", None)
        self._hint: Callable[..., Any] | None = hint if callable(hint) else None
        self._takes_rows = self._hint is not None and _takes_rows(self._hint)
        self._hinted = start
        self._due = start
        self._stop = stop
        self._lock = threading.Lock()

    def give(self, step: int, layout: Layout) -> None:
        """Call `will_need` if a hint is due before `step` is read."""
        if self._hint is None:
            return
        with self._lock:
            if step < self._due:
                return
            num_steps = max(1, HINTED_VALUES // max(prod(layout.shape), 1))
            first = max(self._hinted, step)
            stop = min(step + 2 * num_steps, self._stop)
            if first < stop:
                self._call(self._hint, layout, first, stop - first)
            self._hinted = max(first, stop)
            self._due = step + num_steps if self._hinted < self._stop else self._stop

    def _call(
        self, hint: Callable[..., Any], layout: Layout, step: int, num_steps: int
    ) -> None:
        low = min(part[0][0] for part in layout.parts)
        high = max(part[0][1] for part in layout.parts)
        if self._takes_rows:
            hint(step, num_steps, slice(low, high))
        elif (low, high) == (0, layout.shape[0]):
            hint(step, num_steps)


def _out_dtype(source: RowSource) -> np.dtype[Any] | None:
    """Return the dtype of the arrays that a source fills; None if it fills none."""
    dtype: Any = getattr(source, "dtype", None)
    if not isinstance(dtype, np.dtype):
        return None
    try:
        inspect.signature(source.rows).bind(0, slice(1), None, out=None)
    except (TypeError, ValueError):
        return None
    found = cast("np.dtype[Any]", dtype)
    return found if device_dtype(found, "the source's batch") == found else None


def _takes_rows(hint: Callable[..., Any]) -> bool:
    try:
        inspect.signature(hint).bind(0, 1, slice(1))
    except (TypeError, ValueError):
        return False
    return True


def _arguments(read: Box, shape: Shape) -> tuple[slice, slice | None]:
    """Convert a box to the arguments of `RowSource.rows`.

    The result is `(rows, columns)`; `columns` is None if the box has all columns.
    """
    rows = slice(*read[0])
    for columns in read[1:2]:
        if columns != (0, shape[1]):
            return rows, slice(*columns)
    return rows, None


def _check_shapes(
    name: str, shape: Shape, reads: Sequence[Box], parts: list[npt.NDArray[Any]]
) -> None:
    """Raise a ValueError if a part has other rows or columns, or another dtype."""
    for read, part in zip(reads, parts, strict=True):
        wanted = shape_of(read)
        num_axes = max(1, min(part.ndim, len(wanted)))
        if part.shape[:num_axes] != wanted[:num_axes]:
            rows, columns = _arguments(read, shape)
            raise ValueError(
                f"{name}: the source returned an array of shape {part.shape} for rows "
                f"{rows} and columns {columns} of a batch of shape {shape}; "
                f"return an array whose shape begins with {wanted}"
            )
        first, of_first = parts[0], (parts[0].dtype, parts[0].shape[num_axes:])
        if (part.dtype, part.shape[num_axes:]) != of_first:
            raise ValueError(
                f"{name}: the source returned {part.dtype} of shape {part.shape} for "
                f"rows {slice(*read[0])}, but {first.dtype} of shape {first.shape} for "
                f"rows {slice(*reads[0][0])}; return one dtype and one shape of items"
            )
