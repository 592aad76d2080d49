"""Measure what differs between two branches, and between a branch and its run."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from roxxel_ckpt import Checkpointer

from roxxel.config import make_pair
from roxxel.runs.again import explanations
from roxxel.runs.compared import common_steps, compare_checkpoints, compare_rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import numpy.typing as npt

    from roxxel.runs.run import Run

_ROOTS = ("model/", "optimizer/")


@dataclass(frozen=True)
class Arrays:
    """The arrays of a checkpoint.

    Attributes:
        digest: SHA-256 of model and optimizer, random streams included.
        parameters: The trained parameters, by name.
    """

    digest: str
    parameters: Mapping[str, npt.NDArray[Any]]

    @classmethod
    def at(cls, run: Run, step: int) -> Arrays:
        """Read the arrays of a run's checkpoint."""
        config = run.config
        assert config is not None  # noqa: S101 - `replay` checks it
        model, optimizer = make_pair(config, run.files.data().state)
        path = f"{run.path}/checkpoints"
        with Checkpointer(path, model, optimizer, read_only=True) as checkpointer:
            checkpointer.restore(step)
        whole = {"model": nnx.state(model), "optimizer": nnx.state(optimizer)}
        return cls(_digest(whole), dict(_leaves(nnx.state(model, nnx.Param))))

    @property
    def parameters_digest(self) -> str:
        """SHA-256 of the parameters alone."""
        return _digest_of(self.parameters.items())

    def distance(self, other: Arrays) -> float:
        """Return the Euclidean distance of the parameters."""
        return math.sqrt(
            sum(
                float(np.square(_wide(a) - _wide(other.parameters[name])).sum())
                for name, a in self.parameters.items()
            )
        )

    @property
    def norm(self) -> float:
        """The Euclidean norm of the parameters."""
        parameters = self.parameters.values()
        return math.sqrt(sum(float(np.square(_wide(a)).sum()) for a in parameters))


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
        rows = f"{self.num_rows} rows of its log"
        if self.step is None:
            text = f"no step with a checkpoint in both; {rows} "
            text += (
                "are equal"
                if self.first_difference is None
                else f"differ from step {self.first_difference} on"
            )
        elif self.is_equal and self.first_difference is None:
            return f"equals the run bit for bit at step {self.step:,}, and in {rows}"
        else:
            at = self.first_difference
            where = "" if at is None else f"; the log differs from step {at:,} on"
            text = f"differs from the run at step {self.step:,}{where}"
        return f"{text}; {'; '.join(self.reasons)}" if self.reasons else text


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
            first, _, of_set = name.partition("/")
            # The mean over all held-out sets would mix in the text that is left out.
            if name != "loss" and not (of_set and first in {"loss", "eval_loss"}):
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


def _leaves(state: Any) -> Iterator[tuple[str, npt.NDArray[Any]]]:
    tree = nnx.to_pure_dict(state)
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf = jax.random.key_data(leaf)  # noqa: PLW2901 - its words
        yield jax.tree_util.keystr(path), np.asarray(leaf)


def _digest(parts: Mapping[str, Any]) -> str:
    return _digest_of(
        (f"{part}{name}", leaf)
        for part, state in parts.items()
        for name, leaf in _leaves(state)
    )


def _digest_of(leaves: Any) -> str:
    digest = hashlib.sha256()
    for name, leaf in leaves:
        digest.update(f"{name} {leaf.dtype} {leaf.shape}\n".encode())
        digest.update(np.ascontiguousarray(leaf).tobytes())
    return digest.hexdigest()


def _wide(leaf: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    return leaf.astype(np.float64)
