"""Makes the input of an update from the rows of a sampler.

Computing sources and parts reads no tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from roxxel_train._step.fed import Fed
from roxxel_train._step.parts import deal_rows

if TYPE_CHECKING:
    import numpy.typing as npt
    from roxxel_curriculum import Sampler


class FedRows:
    """The batches of a sampler as `Fed`, for `device_stream`."""

    def __init__(self, sampler: Sampler, num_parts: int = 1) -> None:
        self._sampler = sampler
        self._num_parts = num_parts
        self._last_order: tuple[int, npt.NDArray[np.int32]] | None = None

    def shape(self, step: int) -> tuple[int, int]:
        """Return the shape of a batch."""
        return self._sampler.shape(step)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the tokens of a batch."""
        return self._sampler.dtype

    def rows(
        self,
        step: int,
        rows: slice,
        columns: slice | None = None,
        *,
        out: npt.NDArray[Any] | None = None,
    ) -> Fed:
        """Return part of a batch and its sources; the tokens fill `out`."""
        source = self._sampler.windows(step).source.astype(np.int32)
        order = None if self._num_parts == 1 else self._order(step, source)[rows]
        tokens = self._sampler.rows(step, rows, columns, out=out)
        return Fed(tokens, source[rows], order)

    def will_need(self, step: int, n: int = 1, rows: slice | None = None) -> None:
        """Pass a hint to the sampler."""
        self._sampler.will_need(step, n, rows)

    def _order(self, step: int, source: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
        """Return the order of a whole batch, computed once for all its devices."""
        last = self._last_order
        if last is None or last[0] != step:
            last = self._last_order = step, deal_rows(source, self._num_parts)
        return last[1]
