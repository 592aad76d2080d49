"""Checks the batches that a library delivers.

Token i of source s in the corpus is `s * SOURCE + i`, so every token of a batch shows
its source and its position.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

SOURCE = 1 << 29
ALL = 1 << 30

# Of a global batch: a source may be so many samples off its share and count as blended.
OFF = 3


def check_shape(batch: Any, shape: tuple[int, int]) -> None:
    """Check that a batch has the form that the job asks for."""
    if batch.shape != shape or batch.dtype != np.int32:
        raise ValueError(
            f"a batch is {batch.dtype} of shape {batch.shape}, not int32 of {shape}"
        )


def report(
    gather: Callable[[Any, int], list[np.ndarray]], job: Any, blend: Any | None
) -> dict[str, Any]:
    """Return the checks by name, each a bool, or None if a check does not apply.

    Args:
        gather: Returns the batches of a job, up to a limit.
        job: The whole epoch of one source of positions.
        blend: The same for two sources; None if the library cannot blend.
    """
    found: dict[str, Any] = {}
    epoch = gather(job, ALL)
    check_shape(epoch[0], (job.batch_size, job.seq_len))
    rows = np.concatenate(epoch)
    tokens = rows.ravel()
    num_tokens = job.sources[0].num_tokens
    found["consecutive"] = bool((np.diff(rows, axis=1) == 1).all())
    found["pieces"] = int((np.diff(rows, axis=1) != 1).sum(axis=1).max()) + 1
    found["exactly_once"] = len(np.unique(tokens)) == len(tokens)
    found["delivered"] = len(np.unique(tokens)) / num_tokens
    found["jump"] = float(np.median(np.abs(np.diff(rows[:, 0])))) / num_tokens
    found["resumes"] = _attempt(lambda: _resumes(gather, job, epoch))
    found["disjoint"] = _attempt(lambda: _disjoint(gather, job))
    found["blend_off"] = None
    found["blended"] = None
    if blend is not None:
        off = _attempt(lambda: blend_off(gather, blend))
        found["blend_off"] = off
        found["blended"] = off if not isinstance(off, float) else off <= OFF
    return found


def _attempt(check: Callable[[], Any]) -> Any:
    """Return the result of a check; None if the library cannot do it."""
    try:
        return check()
    except NotImplementedError:
        return None


def _resumes(
    gather: Callable[[Any, int], list[np.ndarray]], job: Any, epoch: list[np.ndarray]
) -> bool:
    start = len(epoch) * 9 // 10
    again = gather(replace(job, start=start), ALL)
    return len(again) == len(epoch) - start and all(
        np.array_equal(one, two) for one, two in zip(again, epoch[start:], strict=True)
    )


def _disjoint(gather: Callable[[Any, int], list[np.ndarray]], job: Any) -> bool:
    parts = [
        np.concatenate(gather(replace(job, process_count=2, process_index=i), ALL))
        for i in range(2)
    ]
    return not np.intersect1d(parts[0], parts[1]).size


def blend_off(gather: Callable[[Any, int], list[np.ndarray]], job: Any) -> float:
    """Return the maximum number of samples by which a batch misses the weights."""
    share = job.sources[1].weight / sum(source.weight for source in job.sources)
    counts = [
        float((batch >= SOURCE).mean()) * job.batch_size for batch in gather(job, 64)
    ]
    return max(abs(count - share * job.batch_size) for count in counts)
