"""Steps onto devices: from a function of the step to global arrays, made ahead.

Each process reads only the rows and columns that its own devices hold. Nothing is
remembered between steps but the place: a stream that starts at step k gives what any
other stream gives from step k on.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
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

from ._prefetch import Call, Job, Mode, Prefetcher
from .sharding._layout import Layout, Shape, assemble, make_layout

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ShardingLike: TypeAlias = "Sharding | Callable[[Shape], Sharding] | None"
"""A sharding, a function from global shape to one, or None for the default device."""

ASKED_BYTES = 64 << 20
"""Pages of about this many bytes are asked for in one call of `will_need`."""

MAX_ASKED_STEPS = 64


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
        maker = _FromRows(source, sharding)
        if start < stop:
            maker.layout(start)
    else:
        maker = _FromFunction(source, sharding)
    ledger = _Ledger()
    jobs = _jobs(maker, ledger, start, stop, prefetch)
    prefetcher = Prefetcher(
        jobs, ahead=prefetch, workers=workers, on_inline=ledger.made_inline
    )
    return DeviceStream(prefetcher, ledger, start, stop)


class DeviceStream:
    """Iterator over global batches in step order; made by `device_stream`.

    Attributes:
        step: The step that the next batch is for.
        stop: One past the last step.
    """

    def __init__(
        self, prefetcher: Prefetcher[_Batch], ledger: _Ledger, start: int, stop: int
    ) -> None:
        self._prefetcher = prefetcher
        self._ledger = ledger
        self._start = start
        self.step = start
        self.stop = stop

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        began = perf_counter()
        batch = next(self._prefetcher)
        self._ledger.delivered(batch, began, perf_counter())
        self.step += 1
        return batch.value

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
        ledger = self._ledger
        return StreamStats(
            steps=self.step - self._start,
            waited_s=ledger.waited_s,
            read_s=ledger.stages_s[0],
            assemble_s=ledger.stages_s[1],
            transfer_s=ledger.stages_s[2],
            mode=self._prefetcher.mode,
        )


class _Batch:
    """A placed batch and the four moments between the stages of its making."""

    __slots__ = ("inline", "moments", "value")

    def __init__(self, value: Any, moments: tuple[float, float, float, float]) -> None:
        self.value = value
        self.moments = moments
        self.inline = False


class _Ledger:
    """Adds up the consumer's waiting; touched by the consumer's thread alone."""

    def __init__(self) -> None:
        self.waited_s = 0.0
        self.stages_s = [0.0, 0.0, 0.0]

    def made_inline(self, batch: _Batch) -> None:
        """Count all of a batch's making: the consumer's thread did it."""
        batch.inline = True
        self._add(batch.moments)

    def delivered(self, batch: _Batch, began: float, ended: float) -> None:
        """Count a wait; of a batch made elsewhere, only what fell into the wait."""
        self.waited_s += ended - began
        if not batch.inline:
            moments = [min(max(moment, began), ended) for moment in batch.moments]
            self._add(moments)

    def _add(self, moments: list[float] | tuple[float, ...]) -> None:
        for stage in range(3):
            self.stages_s[stage] += moments[stage + 1] - moments[stage]


class _Maker(Protocol):
    def make(self, step: int) -> _Batch: ...
    def will_need(self, step: int, stop: int) -> int: ...


class _FromRows:
    """Makes batches of a source whose parts can be read alone."""

    def __init__(self, source: RowSource, sharding: ShardingLike) -> None:
        self._source = source
        self._layouts = _Layouts(sharding)
        hint = getattr(source, "will_need", None)
        self._hint = hint if callable(hint) else None
        self._hint_takes_rows = hint is not None and _takes(hint, 3)

    def layout(self, step: int) -> Layout:
        shape = self._source.shape(step)
        return self._layouts.of(shape, f"step {step}")

    def make(self, step: int) -> _Batch:
        began = perf_counter()
        layout = self.layout(step)
        parts = [self._read(step, layout.shape, read) for read in layout.reads]
        was_read = perf_counter()
        first = parts[0]
        if isinstance(first, np.ndarray):
            send = assemble(layout, parts, f"step {step}")
            assembled = perf_counter()
            value = send()
        else:
            leaves, tree = jax.tree_util.tree_flatten_with_path(first)
            columns = [jax.tree_util.tree_leaves(part) for part in parts]
            sends = [
                assemble(
                    self._leaf_layout(layout, np.asarray(leaf), step),
                    [np.asarray(column[place]) for column in columns],
                    f"step {step}{jax.tree_util.keystr(path)}",
                )
                for place, (path, leaf) in enumerate(leaves)
            ]
            assembled = perf_counter()
            value = jax.tree_util.tree_unflatten(tree, [send() for send in sends])
        return _Batch(value, (began, was_read, assembled, perf_counter()))

    def will_need(self, step: int, stop: int) -> int:
        """Give a hint for some steps from `step` on; return one past the last."""
        layout = self.layout(step)
        num_bytes = 4
        for size in layout.shape:
            num_bytes *= size
        num_steps = min(max(1, ASKED_BYTES // max(num_bytes, 1)), MAX_ASKED_STEPS)
        num_steps = min(num_steps, stop - step)
        if self._hint is None or not layout.reads:
            return stop
        spans = [read[0] for read in layout.reads if read]
        low, high = min(span[0] for span in spans), max(span[1] for span in spans)
        if self._hint_takes_rows:
            self._hint(step, num_steps, slice(low, high))
        elif (low, high) == (0, layout.shape[0]):
            self._hint(step, num_steps)
        return step + num_steps

    def _read(self, step: int, shape: Shape, read: tuple[tuple[int, int], ...]) -> Any:
        rows = slice(*read[0])
        columns = None
        if len(read) > 1 and read[1] != (0, shape[1]):
            columns = slice(*read[1])
        part = self._source.rows(step, rows, columns)
        wanted = tuple(high - low for low, high in read)
        leaves = [part] if isinstance(part, np.ndarray) else jax.tree.leaves(part)
        for leaf in leaves:
            got = np.shape(leaf)[: len(wanted)]
            if got != wanted[: max(len(got), 1)]:
                raise ValueError(
                    f"step {step}: the source gave an array of shape {np.shape(leaf)} "
                    f"for rows {rows} and columns {columns} of a batch of shape "
                    f"{shape}; it must begin with {wanted}"
                )
        return part

    def _leaf_layout(self, layout: Layout, leaf: np.ndarray, step: int) -> Layout:
        """Return the layout of a leaf that may have more or fewer axes."""
        if leaf.ndim == len(layout.shape):
            return layout
        shape = layout.shape[: leaf.ndim] + leaf.shape[len(layout.shape) :]
        return self._layouts.of(shape, f"step {step}")


class _FromFunction:
    """Makes batches of a function that gives whole global batches."""

    def __init__(self, function: Callable[[int], Any], sharding: ShardingLike) -> None:
        self._function = function
        self._layouts = _Layouts(sharding)

    def make(self, step: int) -> _Batch:
        began = perf_counter()
        leaves, tree = jax.tree_util.tree_flatten_with_path(self._function(step))
        was_read = perf_counter()
        sends = [self._send(leaf, step, path) for path, leaf in leaves]
        assembled = perf_counter()
        value = jax.tree_util.tree_unflatten(tree, [send() for send in sends])
        return _Batch(value, (began, was_read, assembled, perf_counter()))

    def will_need(self, step: int, stop: int) -> int:
        """Ask for nothing: a function takes no hints."""
        del step
        return stop

    def _send(self, leaf: Any, step: int, path: Any) -> Callable[[], jax.Array]:
        values = np.asarray(leaf)
        name = f"step {step}{jax.tree_util.keystr(path)}"
        layout = self._layouts.of(values.shape, name)
        parts = [
            values[tuple(slice(low, high) for low, high in read)]
            for read in layout.reads
        ]
        return assemble(layout, parts, name)


class _Layouts:
    """The layouts met so far; shapes are few, batches many."""

    def __init__(self, sharding: ShardingLike) -> None:
        self._sharding = sharding if sharding is not None else default_sharding()
        self._known: dict[Shape, Layout] = {}

    def of(self, shape: Shape, name: str) -> Layout:
        layout = self._known.get(shape)
        if layout is None:
            layout = self._make(tuple(shape), name)
            self._known[shape] = layout
        return layout

    def _make(self, shape: Shape, name: str) -> Layout:
        sharding = self._sharding
        try:
            if not isinstance(sharding, Sharding):
                sharding = sharding(shape)
            return make_layout(shape, sharding)
        except ValueError as error:
            error.add_note(f"while placing {name}")
            raise


def default_sharding() -> Sharding:
    """Return the placement on the default device of this process."""
    device: Any = cast("Any", jax.config).jax_default_device
    if device is None or isinstance(device, str):
        device = jax.local_devices(backend=device)[0]
    return SingleDeviceSharding(device)


def _jobs(
    maker: _Maker, ledger: _Ledger, start: int, stop: int, prefetch: int
) -> Iterator[Job[_Batch]]:
    make = _noting(maker.make)
    asked = start
    for step in range(start, stop):
        if asked <= min(step + prefetch, stop - 1):
            began = perf_counter()
            asked = maker.will_need(asked, stop)
            ledger.stages_s[0] += perf_counter() - began
        yield Call(make, step)


def _noting(make: Callable[[int], _Batch]) -> Callable[[int], _Batch]:
    def noted(step: int) -> _Batch:
        try:
            return make(step)
        except Exception as error:
            error.add_note(f"while making the batch of step {step}")
            raise

    return noted


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
