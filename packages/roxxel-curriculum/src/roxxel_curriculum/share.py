"""What other frameworks' loops take from a sampler; needs no framework.

In data parallelism every process takes the same step, and its own part of that step's
rows: `Share.batch`. `next_token` turns rows of T + 1 tokens into the T columns on which
most loops train. `step_of_row` is for frameworks that ask for single rows.
`check_parts`, `check_steps` and `check_length` refuse what a trainer would cut.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Any

from roxxel_store.arguments import as_integer

from roxxel_curriculum._errors import CurriculumError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from roxxel_curriculum.sampler import Sampler

__all__ = [
    "NEXT_TOKEN_FIELDS",
    "Share",
    "check_length",
    "check_parts",
    "check_steps",
    "next_token",
    "step_of_row",
]

NEXT_TOKEN_FIELDS = ("tokens", "positions", "segment_ids", "loss_mask")
"""The fields that a sampler needs for all results of `next_token`."""


class Share:
    """One process's part of every batch: an equal share of consecutive rows.

    Args:
        sampler: The sampler of the run, the same on all processes.
        index: Which process this is, from 0.
        count: Number of processes.

    Attributes:
        index: Which process this is.
        count: Number of processes.

    Raises:
        ValueError: `index` is not less than `count`.
        CurriculumError: A phase has a batch size that `count` does not divide.

    Example:
        >>> from roxxel_curriculum import Curriculum, Phase
        >>> from roxxel_curriculum.testing import PositionReader
        >>> curriculum = Curriculum(PositionReader(10_000), [Phase(9, 4, 129)])
        >>> sampler = curriculum.sampler(seed=42)
        >>> share = Share(sampler, 1, 2)
        >>> (share.batch(8) == sampler.batch(8)[2:]).all()
        np.True_
    """

    def __init__(self, sampler: Sampler, index: int = 0, count: int = 1) -> None:
        self._sampler = sampler
        self.count = as_integer("the number of processes", count, 1)
        self.index = as_integer("the index of this process", index, 0)
        if self.index >= self.count:
            raise ValueError(
                f"the index of this process is {index} of {count} processes; the last "
                f"one is {count - 1}"
            )
        check_parts(sampler, self.count, "processes")

    @property
    def total_steps(self) -> int:
        """Number of steps of the run, the same on all processes."""
        return self._sampler.total_steps

    def rows(self, step: int) -> range:
        """Return which rows of a step's batch this process has.

        Raises:
            IndexError: The step is outside the run.
        """
        rows = self._sampler.shape(step)[0] // self.count
        return range(self.index * rows, (self.index + 1) * rows)

    def batch(self, step: int) -> Any:
        """Return this process's rows of a step, in the form of `Sampler.batch`.

        Raises:
            IndexError: The step is outside the run.
        """
        rows = self.rows(step)
        return self._sampler.rows(step, slice(rows.start, rows.stop))


def next_token(batch: Mapping[str, Any]) -> dict[str, Any]:
    """Return rows of T + 1 tokens as T columns: what to read and what to predict.

    Args:
        batch: Arrays or tensors by field, as a sampler with fields returns them; they
            must have `"tokens"` and `"loss_mask"`.

    Returns:
        `inputs`, `targets` and `weights`: the loss counts where `weights` is not 0, so
        not on withdrawn documents, prompts and padding. `positions` and `segment_ids`
        of the inputs, if the batch has them. All of these are views of the batch.

    Raises:
        KeyError: The batch lacks its tokens or its loss mask. Without the mask, a loop
            would learn what the curriculum leaves out.

    Example:
        >>> import numpy as np
        >>> tokens, mask = np.array([[5, 6, 7]]), np.array([[1, 1, 0]])
        >>> columns = next_token({"tokens": tokens, "loss_mask": mask})
        >>> columns["targets"], columns["weights"]
        (array([[6, 7]]), array([[1, 0]]))
    """
    columns = {
        "inputs": batch["tokens"][:, :-1],
        "targets": batch["tokens"][:, 1:],
        "weights": batch["loss_mask"][:, 1:],
    }
    for field in ("positions", "segment_ids"):
        if field in batch:
            columns[field] = batch[field][:, :-1]
    return columns


def step_of_row(sampler: Sampler, index: int) -> tuple[int, int]:
    """Return the step and the row in its batch of a row counted from the run's first.

    Raises:
        IndexError: The run has fewer rows.

    Example:
        >>> from roxxel_curriculum import Curriculum, Phase
        >>> from roxxel_curriculum.testing import PositionReader
        >>> phases = [Phase(3, 4, 9), Phase(2, 2, 17)]
        >>> sampler = Curriculum(PositionReader(999), phases).sampler(seed=0)
        >>> step_of_row(sampler, 4), step_of_row(sampler, 15)
        ((1, 0), (4, 1))
    """
    firsts = [0]
    for phase in sampler.phases:
        firsts.append(firsts[-1] + phase.batch_size * phase.steps)
    if not 0 <= index < firsts[-1]:
        raise IndexError(
            f"there is no row {index} in this run of {firsts[-1]}; give one below that"
        )
    at = bisect_right(firsts, index) - 1
    phase = sampler.phases[at]
    step, row = divmod(index - firsts[at], phase.batch_size)
    return phase.start + step, row


def check_parts(sampler: Sampler, parts: int, name: str) -> None:
    """Raise an error if the rows of a phase do not divide into equal parts.

    Args:
        sampler: The sampler of the run.
        parts: Number of parts of each batch.
        name: What the parts are, in the plural; may add how to get fewer of them.

    Raises:
        CurriculumError: A phase has a batch size that `parts` does not divide.

    Example:
        >>> from roxxel_curriculum import Curriculum, Phase
        >>> from roxxel_curriculum.testing import PositionReader
        >>> sampler = Curriculum(PositionReader(999), [Phase(2, 4, 9)]).sampler(0)
        >>> check_parts(sampler, 2, "processes")
    """
    for phase in sampler.phases:
        if phase.batch_size % parts:
            raise CurriculumError(
                f"phase {phase.index} has batch_size={phase.batch_size}, which {parts} "
                f"{name} cannot share evenly; use a multiple of {parts}"
            )


def check_steps(sampler: Sampler, setting: str, value: int) -> None:
    """Raise an error if a trainer would ask for more steps than the run has.

    Args:
        sampler: The sampler of the run.
        setting: What the trainer calls its number of steps.
        value: Steps that it asks for.

    Raises:
        ValueError: The run has fewer steps.

    Example:
        >>> from roxxel_curriculum import Curriculum, Phase
        >>> from roxxel_curriculum.testing import PositionReader
        >>> sampler = Curriculum(PositionReader(999), [Phase(2, 4, 9)]).sampler(0)
        >>> check_steps(sampler, "max_steps", 2)
    """
    if value > sampler.total_steps:
        raise ValueError(
            f"{setting}={value}, but the curriculum has {sampler.total_steps} steps; "
            f"set {setting} to {sampler.total_steps}"
        )


def check_length(sampler: Sampler, setting: str, value: int, over: int = 1) -> None:
    """Raise an error if a phase is longer than a trainer's table of positions.

    Args:
        sampler: The sampler of the run.
        setting: What the trainer calls the length of its table.
        value: Positions in the table.
        over: Number of tokens of a row that need no position: 1 for a trainer that only
            predicts the last token, 0 for one that also reads it.

    Raises:
        ValueError: The longest phase has more positions.

    Example:
        >>> from roxxel_curriculum import Curriculum, Phase
        >>> from roxxel_curriculum.testing import PositionReader
        >>> sampler = Curriculum(PositionReader(999), [Phase(2, 2, 9)]).sampler(0)
        >>> check_length(sampler, "max_seq_len", 8)
    """
    phase = max(sampler.phases, key=lambda each: each.seq_len)
    needed = phase.seq_len - over
    if needed > value:
        raise ValueError(
            f"phase {phase.index} has seq_len={phase.seq_len}, and {setting}={value}, "
            f"the length of the trainer's table of positions; set {setting} to "
            f"{needed} or more"
        )
