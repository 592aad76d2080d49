"""The batch of a step as global arrays: read, assembled in host memory, transferred.

A source of rows is asked for just the parts that this process's devices hold; a
function gives whole batches, of which the parts are taken.
"""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import jax
import numpy as np

from ._buffers import to_hand_over
from ._prefetch import SLOW_S
from ._row_source import Hints
from .sharding._layout import Layouts, index_of
from .sharding._transfer import assemble, transfer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from ._row_source import RowSource
    from .sharding._layout import Box, Layout, Shape, ShardingLike
    from .sharding._put import Put

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


Made: TypeAlias = tuple[int, Any, float, float, float]
"""A step and its batch on the devices; the seconds of reading it, of assembling and of
transferring."""


_GROUP_BATCHES = 8
"""Batches that are transferred together at most: each number of them that comes often
has a compiled program of its own."""


class BatchesOfRows:
    """Batches of a source whose parts can be read alone.

    Raises:
        ValueError: The first batch does not divide.
    """

    def __init__(
        self, source: RowSource, sharding: ShardingLike, start: int, stop: int
    ) -> None:
        self._shape = source.shape
        self._rows = source.rows
        self._layouts = Layouts(sharding)
        self._plans: dict[Shape, _Plan] = {}
        self._hints = Hints(source, start, stop)
        if start < stop:
            self._plan(start)

    def make(self, step: int) -> Made:
        """Return the batch of a step, after asking for the pages of those to come."""
        made: list[Made] = []
        self.make_some(step, 1, made.append)
        return made[0]

    def make_some(self, step: int, num: int, add: Callable[[Made], None]) -> bool:
        """Make the batches of a step and those after it.

        Those that are transferred sooner with others than alone, small ones for the
        host's one device, are read before any of them is transferred.

        Args:
            step: First step.
            num: Batches to make, if none is slow to read.
            add: Called with each, in order; with those read before an error too.

        Returns:
            Whether the last was slow.
        """
        group = _Group(add)
        is_slow = False
        began = perf_counter()
        for at in range(step, step + num):
            try:
                batch = self._read(at, began)
            except Exception as error:
                _note_step(error, at)
                group.transfer()
                raise
            is_slow = perf_counter() - began > SLOW_S
            group.take(batch)
            if is_slow:
                break
            began = perf_counter()
        return group.transfer() > SLOW_S or is_slow

    def _read(self, step: int, began: float) -> _Piece | Made:
        """Read the batch of a step; transfer it too, unless it goes with others.

        That common case, rows for one device or the same for all, is spelled out: it
        runs on the consumer's thread, where every call of a function counts.
        """
        plan = self._plans.get(self._shape(step)) or self._plan(step)
        if step >= self._hints.ask_at:
            self._hints.ask(step, plan.layout)
        if plan.put is not None:
            parts = [self._rows(step, plan.rows, plan.columns)]
            was_read = assembled = perf_counter()
            if (
                type(parts[0]) is np.ndarray
                and parts[0].dtype in PLAIN_DTYPES
                and parts[0].shape == plan.wanted
            ):
                only = to_hand_over(parts, 0, plan.alias_bytes)
                if only is not parts[0]:
                    assembled = perf_counter()
                read_s, assemble_s = was_read - began, assembled - was_read
                if plan.put.goes_together(only):
                    return _Piece(step, plan.put, only, read_s, assemble_s)
                array = plan.put.one(only)
                return step, array, read_s, assemble_s, perf_counter() - assembled
        else:
            parts = [self._rows(step, one.rows, one.columns) for one in plan.requests]
            was_read = perf_counter()
        return _transferred(step, self._leaves(step, plan, parts), began, was_read)

    def _plan(self, step: int) -> _Plan:
        """Return, and keep, where a step's batch goes and what to ask the source."""
        shape = self._shape(step)
        plan = self._plans[shape] = _Plan(self._layouts.of(shape, step))
        return plan

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


class BatchesOfFunction:
    """Batches of a function that gives whole global batches."""

    def __init__(self, function: Callable[[int], Any], sharding: ShardingLike) -> None:
        self._function = function
        self._layouts = Layouts(sharding)

    def make(self, step: int) -> Made:
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
            return _transferred(step, leaves, began, was_read)
        except Exception as error:
            _note_step(error, step)
            raise

    def _assemble(
        self, step: int, name: str, values: list[npt.NDArray[Any]]
    ) -> tuple[Layout, list[npt.NDArray[Any]]]:
        shape = values[0].shape
        layout = self._layouts.of(shape, step)
        if layout.reads != (tuple((0, size) for size in shape),):
            values = [values[0][index_of(read)] for read in layout.reads]
        return layout, assemble(layout, values, name)


class _Piece(NamedTuple):
    """A batch that was read, to be transferred as one piece.

    Attributes:
        step: Its step.
        put: Makes its array.
        values: What it holds; nobody may write to it.
        read_s: Seconds of reading it.
        assemble_s: Seconds of copying it.
    """

    step: int
    put: Put
    values: npt.NDArray[Any]
    read_s: float
    assemble_s: float


class _Group:
    """Batches on their way to the devices, of which alike pieces go together.

    Args:
        add: Called with each that is made, in order.
    """

    def __init__(self, add: Callable[[Made], None]) -> None:
        self._add = add
        self._pieces: list[_Piece] = []

    def take(self, batch: _Piece | Made) -> None:
        """Take the next batch; one that was made already goes on at once."""
        pieces = self._pieces
        if not isinstance(batch, _Piece):
            if pieces:
                self.transfer()
            self._add(batch)
            return
        if pieces and (
            batch.put is not pieces[0].put
            or batch.values.dtype != pieces[0].values.dtype
            or len(pieces) == _GROUP_BATCHES
        ):
            self.transfer()
        self._pieces.append(batch)

    def transfer(self) -> float:
        """Make the arrays of the pieces; return the seconds that each took.

        Where that fails, they are made one by one: those before the one that cannot be
        are delivered, and the error is of its step.
        """
        pieces, self._pieces = self._pieces, []
        if not pieces:
            return 0.0
        began = perf_counter()
        try:
            arrays = pieces[0].put(*[piece.values for piece in pieces])
        except Exception as error:
            if len(pieces) == 1:
                _note_step(error, pieces[0].step)
                raise
            return max([self._transfer_one(piece) for piece in pieces])
        each_s = (perf_counter() - began) / len(pieces)
        for (step, _, _, read_s, assemble_s), array in zip(pieces, arrays, strict=True):
            self._add((step, array, read_s, assemble_s, each_s))
        return each_s

    def _transfer_one(self, piece: _Piece) -> float:
        self._pieces = [piece]
        return self.transfer()


class _Plan:
    """Where a batch of one shape goes, and what the source is asked for it."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.requests = [_Request(layout.shape, read) for read in layout.reads]
        self.put = layout.put
        self.alias_bytes = layout.alias_bytes
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


def _transferred(step: int, leaves: _Leaves, began: float, was_read: float) -> Made:
    assembled = perf_counter()
    batch = leaves.transfer()
    transfer_s = perf_counter() - assembled
    return step, batch, was_read - began, assembled - was_read, transfer_s


def _note_step(error: Exception, step: int) -> None:
    error.add_note(f"while making the batch of step {step}")
