"""Steps onto devices: from a function of the step to global arrays, made ahead.

Each process reads only the rows and columns that its own devices hold. Nothing is
remembered between steps but the place: a stream that starts at step k gives what any
other stream gives from step k on.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from ._arguments import check_at_least, check_callable, check_integers
from ._heap import keep_freed_memory
from ._prefetch import Mode, Prefetcher
from ._row_source import RowSource
from ._step_batches import BatchesOfFunction, BatchesOfRows
from ._thread_settings import settings_here

if TYPE_CHECKING:
    from collections.abc import Callable

    from ._step_batches import Made
    from .sharding._layout import ShardingLike


@dataclass(frozen=True)
class StreamStats:
    """How long the consumer of a stream has waited, and how long making took.

    No number ever decreases, so two snapshots tell what lay between them.

    Attributes:
        steps: Batches delivered.
        waited_s: Seconds the consumer spent making batches or waiting for them.
        read_s: Seconds in which the source was read for the delivered batches, on
            whatever thread; more than was waited for where others worked ahead.
        assemble_s: Seconds in which parts of them were copied to aligned memory.
        transfer_s: Seconds in which their arrays were made on the devices. The copy to
            an accelerator goes on after that, in the background.
        mode: Where batches are made now: `"inline"`, on the consumer's thread, or
            `"thread"`, on others.
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
        prefetch: Batches made beyond the one asked for. The consumer's own thread makes
            that many at a time.
        workers: Threads that make batches; 0 makes them on the consumer's thread; None
            does that too and takes one thread where batches are slow to make.

    Returns:
        An iterator and context manager; dtypes of 64 bits become 32 where JAX has them
        disabled.

    Raises:
        ValueError: The steps are no range, `prefetch` or `workers` is negative, or the
            first batch of a `RowSource` does not divide.
        TypeError: `source` is neither a `RowSource` nor a function, or a number is no
            integer.
    """
    check_integers(start=start, stop=stop)
    start, stop = operator.index(start), operator.index(stop)
    if not 0 <= start <= stop:
        raise ValueError(
            f"steps [{start}, {stop}) are no range; give 0 <= start <= stop"
        )
    check_at_least(0, prefetch=prefetch)
    if workers is not None:
        check_at_least(0, workers=workers)
    if isinstance(source, RowSource):
        batches = BatchesOfRows(source, sharding, start, stop)
        make_some = batches.make_some
    else:
        check_callable(source=source)
        batches = BatchesOfFunction(source, sharding)
        make_some = None
    keep_freed_memory()
    prefetcher = Prefetcher(
        batches.make,
        start,
        stop,
        ahead=prefetch,
        workers=workers,
        make_some=make_some,
        settings=settings_here,
    )
    return DeviceStream(prefetcher, start, stop)


class DeviceStream:
    """Iterator over global batches in step order; made by `device_stream`.

    Where an interrupt that was caught has made it lose or repeat a step, it raises a
    RuntimeError instead of going on with another.

    Attributes:
        step: The step that the next batch is for.
        stop: One past the last step.
    """

    def __init__(self, prefetcher: Prefetcher[Made], start: int, stop: int) -> None:
        self._prefetcher = prefetcher
        self._next = prefetcher.__next__
        self._start = start
        self.step = start
        self.stop = stop
        self._read_s = 0.0
        self._assemble_s = 0.0
        self._transfer_s = 0.0

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        step, batch, read_s, assemble_s, transfer_s = self._next()
        if step != self.step:
            raise RuntimeError(
                f"an interrupt has met this stream between two steps, so the batch of "
                f"step {step} would come instead of step {self.step}'s; start another "
                f"from step {self.step}"
            )
        self._read_s += read_s
        self._assemble_s += assemble_s
        self._transfer_s += transfer_s
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
            waited_s=self._prefetcher.waited_s,
            read_s=self._read_s,
            assemble_s=self._assemble_s,
            transfer_s=self._transfer_s,
            mode=self._prefetcher.mode,
        )
