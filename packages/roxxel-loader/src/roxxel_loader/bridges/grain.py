"""Batches of a curriculum as a dataset of Grain; needs the extra `grain`.

An item is a step, so Grain's own pipeline goes on from there, and its state is the
number of the next step::

    steps = StepDataset(sampler, process_index=0, process_count=1)
    batches = iter(steps.to_iter_dataset())
    batches.get_state()  # {"next_index": 0}, the same on any number of processes
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from roxxel_curriculum.share import Share
from roxxel_store import missing_extra

try:
    import grain
except ModuleNotFoundError as error:
    raise missing_extra(
        "roxxel_loader.bridges.grain", "grain", "roxxel-loader", "grain"
    ) from error

if TYPE_CHECKING:
    from typing import NoReturn

    from roxxel_curriculum import Sampler

__all__ = ["StepDataset"]


class StepDataset(grain.MapDataset[Any]):
    """The batches of a run, one item a step, for `to_iter_dataset`, `map` and the like.

    What would give processes different steps, or train the steps in another order, is
    refused: `steps[index::count]`, as Grain divides datasets among processes, `shuffle`
    and `repeat`. `steps[start:stop]` is a part of the run.

    Args:
        sampler: The sampler of the run, the same on all processes.
        process_index: Which process this is, from 0, such as `jax.process_index()`.
        process_count: Number of processes. Each gets its own rows of each batch.

    Raises:
        CurriculumError: A phase has a batch size that `process_count` does not divide.
        ValueError: `process_index` is not less than `process_count`.

    Example:
        >>> from roxxel_curriculum import Curriculum, Phase
        >>> from roxxel_curriculum.testing import PositionReader
        >>> curriculum = Curriculum(PositionReader(10_000), [Phase(9, 4, 129)])
        >>> steps = StepDataset(curriculum.sampler(seed=42))
        >>> batches = iter(steps.to_iter_dataset())
        >>> next(batches).shape, batches.get_state()
        ((4, 129), {'next_index': 1})
    """

    def __init__(
        self, sampler: Sampler, process_index: int = 0, process_count: int = 1
    ) -> None:
        super().__init__()
        self._share = Share(sampler, process_index, process_count)

    def __len__(self) -> int:
        """Return the number of steps of the run."""
        return self._share.total_steps

    def __getitem__(self, index: Any) -> Any:
        """Return this process's rows of a step, or a part of the run for a slice.

        Raises:
            IndexError: The step is outside the run.
        """
        if isinstance(index, slice):
            return self.slice(index)
        return self._share.batch(index)

    def slice(self, sl: slice) -> Any:
        """Return consecutive steps of the run.

        Raises:
            ValueError: The slice leaves out steps between its first and its last.
        """
        if sl.step not in (None, 1):
            raise ValueError(
                f"steps[::{sl.step}] would give processes different steps; pass "
                "process_index and process_count to StepDataset, which gives each "
                "process its rows of every step"
            )
        return super().slice(sl)

    def shuffle(self, *_: Any, **__: Any) -> NoReturn:
        """Refuse another order.

        Raises:
            TypeError: Always.
        """
        raise TypeError(
            "the steps of a run have an order, by the seed of their sampler; leave "
            "shuffle out"
        )

    def repeat(self, *_: Any, **__: Any) -> NoReturn:
        """Refuse another length.

        Raises:
            TypeError: Always.
        """
        raise TypeError(
            "a run ends with its last step; for more epochs, give the curriculum more "
            "steps, or its sources the policy repeat"
        )
