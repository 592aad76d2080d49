"""Measure what differs between two branches, and between a branch and its run."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from flax import nnx
from roxxel_curriculum.run_log import EVAL_LOSS, LOSS_OF

from roxxel.config import make_pair
from roxxel.runs.again import explanations
from roxxel.runs.compared import common_steps, compare_checkpoints, compare_rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import numpy.typing as npt

    from roxxel.runs.run import Run

    Parameters = Mapping[str, npt.NDArray[Any]]

_ROOTS = ("model/", "optimizer/")


def parameters(run: Run, step: int) -> Parameters:
    """Return the trained parameters of a run's checkpoint, by name."""
    config = run.config
    assert config is not None  # noqa: S101 - `replay` checks it
    made, _ = make_pair(config, run.files.data().state)
    state = nnx.to_pure_dict(nnx.state(run.model(step, made), nnx.Param))
    leaves = jax.tree_util.tree_flatten_with_path(state)[0]
    return {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in leaves}


def norm(parameters: Parameters, other: Parameters | None = None) -> float:
    """Return the Euclidean norm of parameters, or of their difference from others."""
    total = 0.0
    for name, values in parameters.items():
        origin = 0 if other is None else other[name]
        size = np.abs(np.subtract(values, origin, dtype=np.result_type(values, float)))
        total += float(np.square(size).sum())
    return math.sqrt(total)


@dataclass(frozen=True)
class Comparison:
    """Whether the control branch is its run, bit for bit.

    Attributes:
        step: Last step at which both have a checkpoint; None without one.
        is_equal: Whether model and optimizer are equal there.
        num_rows: Rows of both logs that were compared.
        first_difference: Step of the first row whose values differ; None if all agree.
        reasons: What differs between run and control, and may explain it.
    """

    step: int | None
    is_equal: bool
    num_rows: int
    first_difference: int | None
    reasons: Sequence[str] = ()

    def __str__(self) -> str:
        """Return the comparison as one sentence."""
        if self.step is None:
            state = "has no step with a checkpoint in common with the run"
        elif self.is_equal:
            state = f"equals the run bit for bit at step {self.step:,}"
        else:
            state = f"differs from the run at step {self.step:,}"
        first = self.first_difference
        where = "are equal" if first is None else f"differ from step {first:,} on"
        rows = f"{self.num_rows} rows of its log {where}"
        return "; ".join([state, rows, *self.reasons])


def compare(run: Run, control: Run, start: int) -> Comparison:
    """Compare the control branch with the run from which it began."""
    steps = common_steps(run.files, control.files, start)
    common = max(steps, default=None)
    is_equal = common is not None and not any(
        each.what.startswith(_ROOTS)
        for each in compare_checkpoints(run.files, control.files, common)[0]
    )
    rows = [_train_rows(each, start) for each in (run, control)]
    both = rows[0].keys() & rows[1].keys()
    # The control also logs held-out losses, and at other steps.
    differing, num_rows = compare_rows(*([x[step] for step in both] for x in rows))
    first = differing[0].step + 1 if differing else None
    reasons: list[str] = []
    if first is not None or not is_equal:
        reasons = [*_other_fields(run, control), *explanations(run, control)]
    return Comparison(common, is_equal, num_rows, first, reasons)


def losses(run: Run, start: int) -> dict[str, dict[int, float]]:
    """Return the losses of a branch by name and step.

    The names are those of the log: `loss`, `loss/web`, `eval_loss/withdrawn`.
    """
    found: dict[str, dict[int, float]] = {}
    columns = run.files.columns
    for table in (columns.train, columns.evaluations):
        for name in table.fields():
            # Not `eval_loss`: this mean over all sets mixes in the text left out.
            if name != "loss" and not name.startswith((LOSS_OF, f"{EVAL_LOSS}/")):
                continue
            steps, values = table.values(name)
            kept = (steps > start) & ~np.isnan(values)
            if kept.any():
                pairs = zip(steps[kept].tolist(), values[kept].tolist(), strict=True)
                found[name] = dict(pairs)
    return found


def _other_fields(run: Run, control: Run) -> Iterator[str]:
    fields = [each.files.settings.get("fields") for each in (run, control)]
    if fields[0] != fields[1]:
        yield (
            f"the run's batches had the fields {fields[0]} and the branches have "
            f"{fields[1]}, so their programs are others; train with the field "
            "loss_mask from the first day"
        )


def _train_rows(run: Run, start: int) -> dict[int, dict[str, Any]]:
    rows = (row for row in run.metrics if row["kind"] == "train")
    return {row["step"]: row for row in rows if row["step"] > start}
