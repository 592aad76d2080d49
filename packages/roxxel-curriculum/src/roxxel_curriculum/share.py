"""The rows of each batch that one process of several trains on, without any framework.

In data parallelism every process takes the same step, and its own part of that step's
rows. The bridges to other libraries hand out `Share.batch`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from roxxel_store.arguments import as_integer

from roxxel_curriculum._errors import CurriculumError

if TYPE_CHECKING:
    from roxxel_curriculum.sampler import Sampler


class Share:
    """One process's part of every batch: as many consecutive rows as each other's.

    Args:
        sampler: The sampler of the run, the same on all processes.
        index: Which process this is, from 0.
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
        self._count = as_integer("the number of processes", count, 1)
        self._index = as_integer("the index of this process", index, 0)
        if self._index >= self._count:
            raise ValueError(
                f"the index of this process is {index} of {count} processes; the last "
                f"one is {count - 1}"
            )
        for phase in sampler.phases:
            if phase.batch_size % self._count:
                raise CurriculumError(
                    f"phase {phase.index} has batch_size={phase.batch_size}, which "
                    f"{count} processes cannot share evenly; use a multiple of {count}"
                )

    @property
    def total_steps(self) -> int:
        """Number of steps of the run, the same on all processes."""
        return self._sampler.total_steps

    def batch(self, step: int) -> Any:
        """Return this process's rows of a step, in the form of `Sampler.batch`.

        Raises:
            IndexError: The step is outside the run.
        """
        rows = self._sampler.shape(step)[0] // self._count
        first = self._index * rows
        return self._sampler.rows(step, slice(first, first + rows))
