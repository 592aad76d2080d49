"""The windows of later steps, for prefetch hints to the sources."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from roxxel_curriculum._bind.fields import checked_rows
from roxxel_curriculum._bind.reading import by_source

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import numpy.typing as npt

    from roxxel_curriculum._bind.fields import Rows
    from roxxel_curriculum._bind.samples import SampleBlock

    _Integers = npt.NDArray[np.int64]


def windows_ahead(
    blocks: Iterable[tuple[int, SampleBlock]],
    rows: Rows | None,
    masked_rows: Callable[..., _Integers],
) -> Iterator[tuple[int, int, _Integers]]:
    """Yield the windows of some steps: source index, length, and starts.

    `blocks` yields each step, with a block of samples that includes the step.
    `masked_rows(step, source, start, length)` returns the rows to leave out: a row with
    masked tokens reads only parts of its window.
    """
    wanted: dict[int, tuple[list[_Integers], list[_Integers]]] = {}
    for step, block in blocks:
        source, start = block.rows(step)
        if rows is not None:
            chosen = checked_rows(rows, source.size)
            source, start = source[chosen], start[chosen]
        masked = masked_rows(step, source, start, block.seq_len)
        if masked.size:
            source, start = np.delete(source, masked), np.delete(start, masked)
        sources, starts = wanted.setdefault(block.seq_len, ([], []))
        sources.append(source)
        starts.append(start)
    for length, (sources, starts) in wanted.items():
        start = np.concatenate(starts)
        for index, which in by_source(np.concatenate(sources)):
            yield index, length, start[which]
