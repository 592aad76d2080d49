"""Steps onto devices: from a function of the step to global arrays, made ahead.

Each process reads only the rows and columns that its own devices hold. Nothing is
remembered between steps but the place: a stream that starts at step k gives what any
other stream gives from step k on.
"""

from __future__ import annotations

import inspect
import threading
from dataclasses import dataclass
from math import prod
from threading import get_ident
from time import perf_counter
from typing import (
    TYPE_CHECKING,
    Any,
    Protocol,
    Self,
    TypeAlias,
    cast,
    runtime_checkable,
)

import jax
import numpy as np
from jax.sharding import Sharding, SingleDeviceSharding

from ._buffers import is_unshared
from ._prefetch import Mode, Prefetcher
from .sharding._layout import (
    Box,
    Layout,
    Shape,
    assemble,
    index_of,
    make_layout,
    transfer,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

ShardingLike: TypeAlias = "Sharding | Callable[[Shape], Sharding] | None"
"""A sharding, a function from global shape to one, or None for the default device."""

ASKED_BYTES = 64 << 20
"""Pages of about this many bytes are asked for in one call of `will_need`."""

MAX_ASKED_STEPS = 64

PLAIN_DTYPES = frozenset(
    np.dtype(kind)
    for kind in (
        np.int32,
        np.uint32,
        np.int16,
        np.uint16,
        np.int8,
        np.uint8,
        np.float32,
    )
)
"""Dtypes that are the same on every device."""


@runtime_checkable
class RowSource(Protocol):
    """Batches as a pure function of the step, of which any part can be read alone.

    A source may also have `will_need(step, n)`: a hint that the steps from `step` to
    `step + n` come next. Where it takes a third argument, that is the slice of rows
    this process will read; a hint that cannot be so limited is not given where other
    processes read other rows.
    """

    def shape(self, step: int) -> tuple[int, ...]:
        """Return the global shape of a step's batch: rows, then columns if any."""
        ...

    def rows(self, step: int, rows: slice, columns: slice | None = None) -> Any:
        """Return part of a batch.

        Args:
            step: The step.
            rows: The rows wanted, with start and stop, without a stride.
            columns: The columns wanted, in the same form; None is all of them.

        Returns:
            An array of those rows and columns, or a pytree of such arrays. It is copied
            before the next call, so its memory may be reused.
        """
        ...


@dataclass(frozen=True)
class StreamStats:
    """How long the consumer of a stream has waited, and for what.

    Attributes:
        steps: Batches delivered.
        waited_s: Seconds the consumer spent in `next()`.
        read_s: Those of them in which the source was read.
        assemble_s: Those in which parts were copied to aligned memory.
        transfer_s: Those in which arrays were made on the devices. The copy to an
            accelerator goes on after that, in the background.
        mode: Where batches are made now: on the consumer's thread or on others.
    """

    steps: int
    waited_s: float
    read_s: float
    assemble_s: float
    transfer_s: float
    mode: Mode


def device_stream(
    source: RowSource | Callable[[int], Any],
    start: int,
    stop: int,
    sharding: ShardingLike = None,
    prefetch: int = 2,
    *,
    workers: int | None = None,
) -> DeviceStream:
    """Return the batches of steps `[start, stop)` as global arrays, in order.

    Args:
        source: A `RowSource`, such as a curriculum's sampler; or a function from step
            to the whole global batch, a pytree of numpy arrays, which every process
            then builds in full.
        start: First step.
        stop: One past the last step.
        sharding: Where batches go; a function from global shape to sharding where
            shapes change; None puts them on the default device, in each process its
            own.
        prefetch: Batches made beyond the one asked for.
        workers: Threads that make batches; 0 makes them on the consumer's thread; None
            does that too and takes one thread where batches are slow to make.

    Returns:
        An iterator and context manager; dtypes of 64 bits become 32 where JAX has them
        disabled.

    Raises:
        ValueError: The steps are no range, or the first batch does not divide.
    """
    if not 0 <= start <= stop:
        raise ValueError(
            f"steps [{start}, {stop}) are no range; give 0 <= start <= stop"
        )
    _check_counts(prefetch, workers)
    maker: _Maker
    if isinstance(source, RowSource):
        maker = _FromRows(source, sharding, start, stop)
        if start < stop:
            maker.plan(start)
    else:
        maker = _FromFunction(source, sharding)
    prefetcher = Prefetcher(maker.make, start, stop, ahead=prefetch, workers=workers)
    return DeviceStream(prefetcher, start, stop)


class DeviceStream:
    """Iterator over global batches in step order; made by `device_stream`.

    Attributes:
        step: The step that the next batch is for.
        stop: One past the last step.
    """

    def __init__(self, prefetcher: Prefetcher[_Batch], start: int, stop: int) -> None:
        self._prefetcher = prefetcher
        self._next = prefetcher.__next__
        self._start = start
        self.step = start
        self.stop = stop
        self._waited_s = 0.0
        self._read_s = 0.0
        self._assemble_s = 0.0
        self._transfer_s = 0.0

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        called = perf_counter()
        batch, thread, began, was_read, assembled, placed = self._next()
        now = perf_counter()
        self._waited_s += now - called
        if thread != get_ident():
            # Made elsewhere: only what fell into this wait was waited for.
            began, was_read, assembled, placed = (
                min(max(moment, called), now)
                for moment in (began, was_read, assembled, placed)
            )
        self._read_s += was_read - began
        self._assemble_s += assembled - was_read
        self._transfer_s += placed - assembled
        self.step += 1
        return batch

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop working ahead, and wait for a batch that is being made."""
        self._prefetcher.close()

    @property
    def stats(self) -> StreamStats:
        """A snapshot of what the consumer has waited for so far."""
        return StreamStats(
            steps=self.step - self._start,
            waited_s=self._waited_s,
            read_s=self._read_s,
            assemble_s=self._assemble_s,
            transfer_s=self._transfer_s,
            mode=self._prefetcher.mode,
        )


_Batch: TypeAlias = "tuple[Any, int, float, float, float, float]"
"""A placed batch, the thread that made it, and the moments between the stages."""


class _Maker(Protocol):
    def make(self, step: int) -> _Batch:
        """Return the batch of a step."""
        ...


class _FromRows:
    """Makes batches of a source whose parts can be read alone."""

    def __init__(
        self, source: RowSource, sharding: ShardingLike, start: int, stop: int
    ) -> None:
        self._shape = source.shape
        self._rows = source.rows
        self._layouts = _Layouts(sharding)
        self._plans: dict[Shape, _Plan] = {}
        hint = getattr(source, "will_need", None)
        self._hint = hint if callable(hint) else None
        self._hint_takes_rows = hint is not None and _takes(hint, 3)
        self._asked = start
        self._ask_at = start if callable(hint) else stop
        self._stop = stop
        self._asking = threading.Lock()

    def plan(self, step: int) -> _Plan:
        """Return where a step's batch goes and what to ask the source for."""
        shape = self._shape(step)
        plan = self._plans.get(shape)
        if plan is None:
            plan = self._plans[shape] = _Plan(self._layouts.of(shape, step))
        return plan

    def make(self, step: int) -> _Batch:
        """Return the batch of a step, after asking for the pages of those to come.

        The common case, plain rows for one device or the same for all, is spelled out:
        it runs on the consumer's thread, where every call of a function counts.
        """
        began = perf_counter()
        try:
            if step >= self._ask_at:
                self._ask(step)
            plan = self._plans.get(self._shape(step)) or self.plan(step)
            if plan.is_one_piece:
                parts = [self._rows(step, plan.rows, plan.columns)]
                was_read = perf_counter()
                if (
                    type(parts[0]) is np.ndarray
                    and parts[0].dtype in PLAIN_DTYPES
                    and parts[0].shape == plan.wanted
                    and is_unshared(parts, 0)
                ):
                    only = parts[0]
                    value = jax.make_array_from_callback(
                        plan.shape, plan.sharding, lambda _: only
                    )
                    return value, get_ident(), began, was_read, was_read, perf_counter()
            else:
                requests = plan.requests
                parts = [self._rows(step, one.rows, one.columns) for one in requests]
                was_read = perf_counter()
            leaves = self._leaves(step, plan, parts)
            assembled = perf_counter()
            value = leaves.transfer()
        except Exception as error:
            _note_step(error, step)
            raise
        return value, get_ident(), began, was_read, assembled, perf_counter()

    def _ask(self, step: int) -> None:
        """Hint at the steps to come, some 64 MiB of them, before they are needed."""
        with self._asking:
            if step < self._ask_at:
                return  # another thread has asked meanwhile
            layout = self.plan(step).layout
            num_bytes = 4 * max(prod(layout.shape), 1)
            num_steps = max(1, min(ASKED_BYTES // num_bytes, MAX_ASKED_STEPS))
            first = max(self._asked, step)
            stop = min(step + 2 * num_steps, self._stop)
            if first < stop:
                self._hint_at(layout, first, stop - first)
            self._asked = max(first, stop)
            self._ask_at = step + num_steps if self._asked < self._stop else self._stop

    def _hint_at(self, layout: Layout, step: int, num_steps: int) -> None:
        low = min(read[0][0] for read in layout.reads)
        high = max(read[0][1] for read in layout.reads)
        if self._hint is not None and self._hint_takes_rows:
            self._hint(step, num_steps, slice(low, high))
        elif self._hint is not None and (low, high) == (0, layout.shape[0]):
            self._hint(step, num_steps)

    def _leaves(self, step: int, plan: _Plan, parts: list[Any]) -> _Leaves:
        """Assemble a pytree, whose leaves may have more or fewer axes than a batch."""
        layout = plan.layout
        names, tree = _names(step, parts[0])
        stacks = [jax.tree.leaves(part)[::-1] for part in parts]
        parts.clear()  # so that the stacks alone hold the arrays
        leaves = _Leaves(tree)
        for name in names:
            values = [np.asarray(stack.pop()) for stack in stacks]
            _check(name, plan.requests, values)
            own = layout
            num_axes = values[0].ndim
            if num_axes != len(layout.shape):
                tail = values[0].shape[len(layout.shape) :]
                own = self._layouts.of(layout.shape[:num_axes] + tail, step)
                if len(own.reads) != len(values):
                    raise ValueError(
                        f"{name} has {num_axes} axes and is split otherwise than the "
                        f"batch of shape {layout.shape}; give all leaves its axes, or "
                        "split rows only"
                    )
            leaves.add(own, assemble(own, values, name))
        return leaves


class _Plan:
    """Where a batch of one shape goes, and what the source is asked for it."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.shape = layout.shape
        self.sharding = layout.sharding
        self.requests = [_Request(layout.shape, read) for read in layout.reads]
        self.is_one_piece = layout.is_one_piece
        self.rows = self.requests[0].rows
        self.columns = self.requests[0].columns
        self.wanted = self.requests[0].wanted


class _Request:
    """One read of a batch, as the source is asked for it."""

    def __init__(self, shape: Shape, read: Box) -> None:
        self.shape = shape
        self.rows = slice(*read[0])
        columns = read[1:2]
        split = bool(columns) and columns[0] != (0, shape[1])
        self.columns = slice(*columns[0]) if split else None
        self.wanted = tuple(stop - start for start, stop in read)


def _check(
    name: str, requests: list[_Request], parts: Sequence[npt.NDArray[Any]]
) -> None:
    """Raise a ValueError if the source gave something else than was asked for."""
    for request, part in zip(requests, parts, strict=True):
        if part.shape == request.wanted:
            continue
        num_axes = max(1, min(part.ndim, len(request.wanted)))
        if part.shape[:num_axes] != request.wanted[:num_axes]:
            raise ValueError(
                f"{name}: the source gave an array of shape {part.shape} for rows "
                f"{request.rows} and columns {request.columns} of a batch of shape "
                f"{request.shape}; it must begin with {request.wanted}"
            )


def _names(step: int, batch: Any) -> tuple[list[str], Any]:
    """Return what to call each leaf of a batch in errors, and the structure."""
    paths, tree = jax.tree_util.tree_flatten_with_path(batch)
    return [f"step {step}{jax.tree_util.keystr(path)}" for path, _ in paths], tree


class _Leaves:
    """The copied pieces of a pytree's leaves, on their way to the devices."""

    def __init__(self, tree: Any) -> None:
        self._tree = tree
        self._leaves: list[tuple[Layout, list[npt.NDArray[Any]]]] = []

    def add(self, layout: Layout, pieces: list[npt.NDArray[Any]]) -> None:
        self._leaves.append((layout, pieces))

    def transfer(self) -> Any:
        arrays = [transfer(layout, pieces) for layout, pieces in self._leaves]
        return jax.tree_util.tree_unflatten(self._tree, arrays)


class _FromFunction:
    """Makes batches of a function that gives whole global batches."""

    def __init__(self, function: Callable[[int], Any], sharding: ShardingLike) -> None:
        self._function = function
        self._layouts = _Layouts(sharding)

    def make(self, step: int) -> _Batch:
        """Return the batch of a step, of which the function gives the whole."""
        began = perf_counter()
        try:
            batch = self._function(step)
            was_read = perf_counter()
            names, tree = _names(step, batch)
            stack = jax.tree.leaves(batch)[::-1]
            del batch  # so that the stack alone holds the arrays
            leaves = _Leaves(tree)
            for name in names:
                leaves.add(*self._assemble(step, name, [np.asarray(stack.pop())]))
            assembled = perf_counter()
            value = leaves.transfer()
        except Exception as error:
            _note_step(error, step)
            raise
        return value, get_ident(), began, was_read, assembled, perf_counter()

    def _assemble(
        self, step: int, name: str, values: list[npt.NDArray[Any]]
    ) -> tuple[Layout, list[npt.NDArray[Any]]]:
        shape = values[0].shape
        layout = self._layouts.of(shape, step)
        if layout.reads != (tuple((0, size) for size in shape),):
            values = [values[0][index_of(read)] for read in layout.reads]
        return layout, assemble(layout, values, name)


class _Layouts:
    """The layouts met so far; shapes are few, batches many."""

    def __init__(self, sharding: ShardingLike) -> None:
        self._sharding = sharding if sharding is not None else default_sharding()
        self._known: dict[Shape, Layout] = {}

    def of(self, shape: Shape, step: int) -> Layout:
        layout = self._known.get(shape)
        if layout is None:
            layout = self._known[shape] = self._make(tuple(shape), step)
        return layout

    def _make(self, shape: Shape, step: int) -> Layout:
        sharding = self._sharding
        try:
            if not isinstance(sharding, Sharding):
                sharding = sharding(shape)
            return make_layout(shape, sharding)
        except ValueError as error:
            error.add_note(f"while placing the batch of step {step}")
            raise


def default_sharding() -> Sharding:
    """Return the placement on the default device of this process."""
    device: Any = cast("Any", jax.config).jax_default_device
    if device is None or isinstance(device, str):
        device = jax.local_devices(backend=device)[0]
    return SingleDeviceSharding(device)


def _note_step(error: Exception, step: int) -> None:
    error.add_note(f"while making the batch of step {step}")


def _check_counts(prefetch: int, workers: int | None) -> None:
    if prefetch < 0:
        raise ValueError(f"prefetch is {prefetch}; give 0 or more batches")
    if workers is not None and workers < 0:
        raise ValueError(f"workers is {workers}; give 0 or more threads, or None")


def _takes(function: Callable[..., Any], num_arguments: int) -> bool:
    try:
        inspect.signature(function).bind(*range(num_arguments))
    except (TypeError, ValueError):
        return False
    return True
