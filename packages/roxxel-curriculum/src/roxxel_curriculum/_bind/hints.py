"""The windows of later steps, for prefetch hints to the sources."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from roxxel_curriculum._bind.fields import checked_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import numpy.typing as npt

    from roxxel_curriculum._bind.fields import Rows
    from roxxel_curriculum._bind.samples import SampleBlock


def windows_ahead(
    blocks: Iterable[tuple[int, SampleBlock]],
    rows: Rows | None,
    masked_rows: Callable[..., npt.NDArray[np.int64]],
) -> dict[tuple[int, int], npt.NDArray[np.int64]]:
    """Return the starts of the windows of some steps, by source index and length.

    `blocks` yields each step, with a block of samples that includes the step.
    `masked_rows(step, source, start, length)` returns the rows to leave out: a row with
    masked tokens reads only parts of its window.
    """
    wanted: dict[tuple[int, int], list[npt.NDArray[np.int64]]] = {}
    for step, block in blocks:
        source, start = block.rows(step)
        chosen = checked_rows(slice(None) if rows is None else rows, source.size)
        source, start = source[chosen], start[chosen]
        masked = masked_rows(step, source, start, block.seq_len)
        source, start = np.delete(source, masked), np.delete(start, masked)
        for index in block.source_indices:
            starts = start[source == index]
            if starts.size:
                wanted.setdefault((index, block.seq_len), []).append(starts)
    return {key: np.concatenate(parts) for key, parts in wanted.items()}
