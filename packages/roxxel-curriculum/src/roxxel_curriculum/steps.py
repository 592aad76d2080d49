"""The steps of a run in order, for loops that save their place in the data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from roxxel_curriculum.share import NEXT_TOKEN_FIELDS, Share

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from roxxel_curriculum._bind.fields import Field
    from roxxel_curriculum.curriculum import Curriculum
    from roxxel_curriculum.sampler import Sampler

__all__ = ["StepIterator"]


class StepIterator:
    """Hands out the steps of a run in order, for one process.

    The state is `Sampler.state` of the next step. It is the same on all processes, and
    for any number of them.

    Args:
        curriculum: What the run reads. You may edit the future of a run between two
            starts; `restore` refuses a state of another past.
        seed: Seed of the order.
        index: Which process this is, from 0.
        count: Number of processes.
        fields: Fields of each batch, as for `Curriculum.sampler`.

    Attributes:
        curriculum: What the run reads, as given.
        sampler: The sampler of the run.
        share: The rows of this process.
        step: The next step, which is also the number of steps done.

    Raises:
        CurriculumError: A phase has a batch size that `count` does not divide.

    Example:
        >>> from roxxel_curriculum import Curriculum, Phase
        >>> from roxxel_curriculum.testing import PositionReader
        >>> curriculum = Curriculum(PositionReader(10_000), [Phase(9, 4, 129)])
        >>> steps = StepIterator(curriculum, seed=42)
        >>> next(steps)["tokens"].shape, steps.state()["step"]
        ((4, 129), 1)
    """

    def __init__(
        self,
        curriculum: Curriculum,
        seed: int = 0,
        index: int = 0,
        count: int = 1,
        *,
        fields: Iterable[Field] = NEXT_TOKEN_FIELDS,
    ) -> None:
        self.curriculum, self._place = curriculum, (index, count)
        self._fields = tuple(fields)
        self._use(curriculum.sampler(seed, fields=self._fields), 0)

    def _use(self, sampler: Sampler, step: int) -> None:
        self.share = Share(sampler, *self._place)
        self.sampler, self.step = sampler, step

    def __iter__(self) -> Self:
        """Return the iterator."""
        return self

    def __next__(self) -> Any:
        """Return this process's rows of the next step."""
        if self.step == self.sampler.total_steps:
            raise StopIteration
        batch = self.share.batch(self.step)
        self.step += 1
        return batch

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint, as a dict for JSON."""
        return self.sampler.state(self.step)

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue at the step of a state.

        Raises:
            StateMismatch: The state belongs to other data, another seed or another
                past.
        """
        sampler = self.curriculum.sampler(
            self.sampler.seed, state=state, fields=self._fields
        )
        self._use(sampler, state["step"])
