"""One checkpoint put into live objects: planned, read whole, then set at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from roxxel_ckpt import _store
from roxxel_ckpt._compare import RestoreReport, check_restorable, plan_restore
from roxxel_ckpt._description import read_tree
from roxxel_ckpt._leaves import (
    LiveState,
    from_stored,
    is_read_as_numpy,
    stored_template,
)
from roxxel_ckpt.errors import CheckpointError, brief

if TYPE_CHECKING:
    from collections.abc import Mapping

    from etils import epath


def read_into(
    live: LiveState,
    place: epath.Path,
    step: int,
    *,
    strict: bool,
    on_mismatch: str,
    rename: Mapping[str, str] | None,
) -> RestoreReport:
    """Read a checkpoint into live objects, in their shardings.

    Args:
        live: The leaves of the live objects.
        place: Directory of the step.
        step: The step.
        strict: As for `Checkpointer.restore`.
        on_mismatch: As for `Checkpointer.restore`.
        rename: As for `Checkpointer.restore`.

    Returns:
        What happened to every leaf.

    Raises:
        CheckpointMismatchError: The checkpoint does not fit; nothing has changed.
        CheckpointError: It cannot be read; nothing has changed.
    """
    plan = plan_restore(step, read_tree(place), live.specs, rename)
    check_restorable(plan.report, str(place), strict=strict, on_mismatch=on_mismatch)
    wanted = {
        name: live.leaves[name] for name in plan.source if live.specs[name].is_stored
    }
    targets = {
        plan.source[name]: None if is_read_as_numpy(leaf) else stored_template(leaf)
        for name, leaf in wanted.items()
    }
    try:
        stored = _store.read_arrays(place, targets)
    except Exception as error:
        raise CheckpointError(
            f"{place}: the arrays cannot be read ({brief(error)}); restore another step"
        ) from error
    live.update(
        {
            name: from_stored(stored[plan.source[name]], leaf)
            for name, leaf in wanted.items()
        }
    )
    return plan.report
