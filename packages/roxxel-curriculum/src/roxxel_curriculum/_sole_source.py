"""Consecutive steps that read one source alone: nothing is looked up for a batch.

Of a small batch the looking up takes longer than the reading. So where a reader can
check many windows at once, those of all steps that were worked out together are checked
together, and a step is a part of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from roxxel_curriculum._block import SoleBlock
from roxxel_curriculum._memory import aligned_batch, is_worth_aligning

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from roxxel_format import TokenReader

    from roxxel_curriculum._block import Block
    from roxxel_curriculum._solved import SolvedPhase


class _WindowReader(Protocol):
    def read(self, first: int, stop: int) -> npt.NDArray[Any]: ...


class SoleSource:
    """The batches of some consecutive training steps.

    Attributes:
        first: First step.
        stop: One past the last.
        shape: Rows of a step, and tokens of a row.
        batch_size: Rows of a step.
        seq_len: Tokens of a row.
        every_row: All rows of a step, in the usual form.
        source: Index of the source.
    """

    def __init__(
        self,
        source: int,
        windows: _WindowReader,
        starts: npt.NDArray[np.int64],
        steps: range,
        shape: tuple[int, int],
    ) -> None:
        self.source = source
        self.first = steps.start
        self.stop = steps.stop
        self.shape = self.batch_size, self.seq_len = shape
        self.every_row = slice(0, self.batch_size)
        self._starts = starts.reshape(-1, self.batch_size)
        self._windows = windows

    def starts(self, first: int, stop: int) -> npt.NDArray[np.int64]:
        """Return where the rows of the steps `[first, stop)` begin, a line a step."""
        return self._starts[first - self.first : stop - self.first]

    def batch(self, step: int) -> npt.NDArray[Any]:
        """Return the tokens of a step, `first <= step < stop`."""
        low = (step - self.first) * self.batch_size
        return self._windows.read(low, low + self.batch_size)


def sole_source(
    block: Block,
    phase: SolvedPhase,
    readers: tuple[TokenReader, ...],
    dtype: np.dtype[Any],
) -> SoleSource | None:
    """Return the batches of a block, None where they must be put together.

    Args:
        block: Worked out, of several steps.
        phase: Its phase.
        readers: Of all sources.
        dtype: Of a batch.
    """
    if not isinstance(block, SoleBlock) or phase.skips:
        return None
    prepare = getattr(readers[block.source], "window_reader", None)
    if prepare is None:
        return None
    shape = block.batch_size, phase.piece.seq_len
    empty = aligned_batch if is_worth_aligning(shape, dtype) else None
    return SoleSource(
        block.source,
        prepare(block.starts, phase.piece.seq_len, dtype, empty),
        block.starts,
        range(phase.start + block.first, phase.start + min(block.stop, phase.steps)),
        shape,
    )
