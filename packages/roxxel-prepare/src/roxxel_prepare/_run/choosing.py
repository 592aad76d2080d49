"""Check which units a call does, and choose their runner."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from roxxel_store.arguments import as_integer

from roxxel_prepare._run.ray_runner import RayRunner
from roxxel_prepare._run.runners import ProcessRunner

if TYPE_CHECKING:
    from roxxel_prepare._run.runners import Runner


def runner_of(workers: int | None, ray: str | None) -> Runner | None:
    """Return the runner of units; None if the size of the inputs decides."""
    if ray is not None and workers not in (None, 1):
        raise ValueError(
            f"ray={ray!r} and workers={workers}: units are written by tasks of Ray or "
            "by processes; pass only one of these"
        )
    if workers is not None:
        as_integer("workers", workers, 1)
    if ray is not None:
        return RayRunner(ray or None)
    return None if workers is None else ProcessRunner(workers)


def check_part(part: object) -> None:
    """Raise ValueError for an invalid part."""
    if part is None:
        return
    is_pair = isinstance(part, (tuple, list)) and len(cast("Any", part)) == 2
    member, count = cast("Any", part if is_pair else (0, 0))
    if not 0 <= as_integer("part", member) < as_integer("part", count):
        raise ValueError(f"part={part!r} must be (i, n) with i in [0, n), as (0, 8)")
