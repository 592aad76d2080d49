"""The place of a trainer in its run: the next step, its rows, and the log of the rest.

All bridges are made of `StepIterator`. A loop of your own may use it too.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Self, cast

from roxxel_curriculum.run_log import RunLog
from roxxel_curriculum.share import NEXT_TOKEN_FIELDS, Share

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Mapping

    from roxxel_curriculum._bind.reading import Field
    from roxxel_curriculum.curriculum import Curriculum
    from roxxel_curriculum.sampler import Sampler

__all__ = ["StepIterator"]


class StepIterator:
    """Hands out the steps of a run in order, for one process, and writes their log.

    The state is `Sampler.state` of the next step. It is the same on all processes, and
    for any number of them.

    The log is for trainers that tell digest and loss of a step at different times: a
    row waits until `write`, `state` or `close` says that it is complete. Every process
    calls these methods. They do nothing where `log_to` has opened no log.

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
        step: The next step, which is also the number of steps handed out.

    Raises:
        CurriculumError: A phase has a batch size that `count` does not divide.

    Example:
        >>> from roxxel_curriculum import Curriculum, Phase
        >>> from roxxel_curriculum.digest import batch_digest
        >>> from roxxel_curriculum.testing import PositionReader
        >>> steps = StepIterator(Curriculum(PositionReader(999), [Phase(2, 2, 8)]))
        >>> steps.log_to("runs/late")
        >>> for batch in steps:
        ...     steps.note(digest=batch_digest(batch["tokens"]))
        ...     steps.note(loss=2.5)
        >>> steps.state()["step"]
        2
        >>> steps.close()
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
        self._log: RunLog | None = None
        self._noted: dict[int, tuple[float, dict[str, Any]]] = {}

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
        """Return the state for a checkpoint, as a dict for JSON.

        The rows of all steps before are on the disk when it returns, so the log can
        continue from any checkpoint that holds this state.

        Raises the errors of `write`.
        """
        self.write()
        if self._log is not None:
            self._log.state()
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

    def log_to(
        self,
        folder: str | os.PathLike[str] | None,
        *,
        checkpoints: str | None = None,
        writes: bool = True,
    ) -> None:
        """Open the log of the run after its row of this step, unless it is open.

        Args:
            folder: As for `RunLog`; None for no log.
            checkpoints: As for `RunLog`.
            writes: Whether this process writes the log.

        Raises:
            ValueError: The log has no such row.
            StateMismatch: The log belongs to another curriculum, corpus or seed.
            FileExistsError: The log belongs to a run with other checkpoints, and this
                run begins anew.
            BlockingIOError: Another program writes the log.
        """
        if folder is not None and writes and self._log is None:
            self._log = RunLog(
                folder,
                self.sampler,
                state=self.sampler.state(self.step),
                checkpoints=checkpoints,
            )

    def note(self, step: int | None = None, **values: Any) -> None:
        """Record what is known of a step, unless its row is written.

        Args:
            step: Number of the batch, from 0; by default the newest that was handed
                out.
            values: `digest`, the whole batch's digest or a function that returns it;
                and numbers such as `loss`, which may still be on a device.
        """
        step = self.step - 1 if step is None else step
        if self._log is not None and step >= self._log.step:
            # A trainer may tell of several steps at once what it knows of their end.
            self._noted.setdefault(step, (time.perf_counter(), {}))[1].update(values)

    def write(self, stop: int | None = None) -> None:
        """Append the rows of all recorded steps before `stop`, by default of all.

        Raises:
            ValueError: A step has no digest, or is not the next one.
            OSError: A row cannot be written.
        """
        stop = self.step if stop is None else stop
        while self._log is not None and self._noted and self._log.step < stop:
            step = min(self._noted)
            at_s, values = self._noted.pop(step)
            digest: Any = values.pop("digest", None)
            whole = cast("int", digest() if callable(digest) else digest)
            numbers = {name: float(value) for name, value in values.items()}
            self._log.record(step, digest=whole, at_s=at_s, **numbers)

    def close(self, error: BaseException | None = None) -> None:
        """Append the rows that wait, and how the run ended, and close the log.

        After an error the newest step counts as not trained, and gets no row.

        Raises the errors of `write`.
        """
        try:
            self.write(self.step - (error is not None))
        finally:
            if self._log is not None:
                self._log.close(error)
                self._log = None
