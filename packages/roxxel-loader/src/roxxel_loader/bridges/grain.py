"""Batches of a curriculum as a dataset of Grain; needs the extra `grain`.

An item is a step, so Grain's own pipeline goes on from there. Its state is the
sampler's state, which says to which data a step belongs::

    steps = StepDataset(sampler, process_index=0, process_count=1)
    batches = iter(steps.to_iter_dataset())
    batches.get_state()  # sampler.state(0), the same on any number of processes
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
    from collections.abc import Callable
    from typing import NoReturn

    from roxxel_curriculum import Sampler

__all__ = ["StepDataset"]


class StepDataset(grain.MapDataset[Any]):
    """The batches of a run: an item for each step. Begin with `to_iter_dataset`.

    The state of an iterator is `Sampler.state` of its step. `set_state` checks it, so a
    loop cannot continue with other data, another seed or another past.

    `map` transforms each batch in the threads that read it, and `steps[start:stop]` is
    a part of the run. Use Grain's other transformations after `to_iter_dataset`: before
    it they would lose the state, give processes different steps
    (`steps[index::count]`), or train the steps in another order.

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
        >>> next(batches).shape, batches.get_state()["step"]
        ((4, 129), 1)
    """

    def __init__(
        self, sampler: Sampler, process_index: int = 0, process_count: int = 1
    ) -> None:
        super().__init__()
        self.sampler = sampler
        self.steps = range(sampler.total_steps)
        self._place = process_index, process_count
        self._share = Share(sampler, process_index, process_count)
        self._transforms: tuple[Callable[[Any], Any], ...] = ()

    def __len__(self) -> int:
        """Return the number of steps."""
        return len(self.steps)

    def __getitem__(self, index: Any) -> Any:
        """Return this process's rows of a step, or a part of the run for a slice.

        Raises:
            IndexError: The step is outside the run.
        """
        if isinstance(index, slice):
            return self.slice(index)
        try:
            step = self.steps[index]
        except IndexError:
            raise IndexError(
                f"there is no step {index} in these {len(self)} steps; give one below "
                f"{len(self)}"
            ) from None
        batch = self._share.batch(step)
        for transform in self._transforms:
            batch = transform(batch)
        return batch

    def slice(self, sl: slice) -> StepDataset:
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
        return self._with(self.steps[sl], self._transforms)

    def map(self, transform: Any) -> StepDataset:
        """Return the same steps, transformed by a function or `grain.transforms.Map`.

        The transformation must return one item for each batch.
        """
        function = getattr(transform, "map", transform)
        return self._with(self.steps, (*self._transforms, function))

    def to_iter_dataset(
        self, read_options: Any = None, *, allow_nones: bool = False
    ) -> Any:
        """Return an iterable dataset whose state says which data it belongs to."""
        return _Batches(self, read_options, allow_nones)

    def threaded(self, read_options: Any, allow_nones: bool) -> Any:
        """Return Grain's own iterable dataset, whose state is a number."""
        return super().to_iter_dataset(read_options, allow_nones=allow_nones)

    def of_worker(self, part: slice) -> StepDataset:
        """Return the steps that one worker of `mp_prefetch` reads."""
        return self._with(self.steps[part], self._transforms)

    def _with(
        self, steps: range, transforms: tuple[Callable[[Any], Any], ...]
    ) -> StepDataset:
        found = StepDataset(self.sampler, *self._place)
        found.steps, found._transforms = steps, transforms
        return found

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        """Refuse transformations that lose the state, or change which step is next.

        Raises:
            TypeError: Always.
        """
        raise TypeError(
            "an item of StepDataset is a step of the run, whose order is that of its "
            "sampler; leave shuffle and repeat out (the seed, the phases and the "
            "policies of the curriculum say what is read), and use other "
            "transformations after to_iter_dataset()"
        )

    shuffle = repeat = seed = filter = batch = _refuse
    map_with_index = random_map = _refuse


class _Batches(grain.IterDataset[Any]):
    def __init__(
        self, steps: StepDataset, read_options: Any, allow_nones: bool
    ) -> None:
        super().__init__()
        self._steps = steps
        self._options = read_options, allow_nones

    def __iter__(self) -> Any:
        return _Iterator(self._steps, iter(self._steps.threaded(*self._options)))

    def set_slice(self, part: slice, sequential_slice: bool = False) -> None:
        """Keep the steps of one worker; `mp_prefetch` puts all steps back in order."""
        if sequential_slice:
            raise ValueError(
                "mp_prefetch(sequential_slice=True) would train the steps in another "
                "order; leave sequential_slice out"
            )
        self._steps = self._steps.of_worker(part)


class _Iterator(grain.DatasetIterator[Any]):
    def __init__(self, steps: StepDataset, batches: Any) -> None:
        super().__init__(batches)
        self._steps = steps
        self._batches = batches

    def __next__(self) -> Any:
        return next(self._batches)

    def get_state(self) -> dict[str, Any]:
        sampler, steps = self._steps.sampler, self._steps.steps
        index = self._batches.get_state()["next_index"]
        next_step = steps.start + index * steps.step
        return sampler.state(min(next_step, sampler.total_steps))

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on at the step of a state.

        Raises:
            StateMismatch: The state belongs to other data, another seed or another
                past.
            IndexError: The step is before or after those of this part of the run.
        """
        steps = self._steps.steps
        self._steps.sampler.check(state)
        # Rounded up: a worker of `mp_prefetch` has only every n-th step.
        index = -((steps.start - state["step"]) // steps.step)
        if not 0 <= index <= len(steps):
            raise IndexError(
                f"the state is of step {state['step']}, but this part of the run has "
                f"the steps [{steps.start}, {steps.stop}); set it on a part with this "
                "step"
            )
        self._batches.set_state({"next_index": index})
