"""Sampler: the rows of any step, and the windows they are read from."""

from __future__ import annotations

import operator
from bisect import bisect_right
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from roxxel_curriculum._differences import check_past
from roxxel_curriculum._fields import checked_fields, fill_fields
from roxxel_curriculum._order import ARITHMETIC_VERSION
from roxxel_curriculum._order.bijection import make_key
from roxxel_curriculum._samples import Location, Windows, make_block
from roxxel_curriculum._selection import checked_columns, checked_rows
from roxxel_curriculum._sources import batch_dtype, with_block_checks
from roxxel_curriculum._tally import Tally
from roxxel_curriculum.state import state_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import numpy.typing as npt

    from roxxel_curriculum._fields import Field
    from roxxel_curriculum._plan.declaration import Solution
    from roxxel_curriculum._plan.resolved_phase import ResolvedPhase
    from roxxel_curriculum._samples import SampleBlock
    from roxxel_curriculum._selection import Rows

_BLOCK_SAMPLES = 16384
"""Samples computed together, at 0.1 us each; 64 samples alone need 0.2 to 0.3 ms. See
`tests-integration/benchmarks/curriculum_index.py`."""

_KEPT_BLOCKS = 6
"""A loader hints at up to 2**15 samples ahead, which are in up to four blocks."""


class Sampler:
    """The batches of a run as a pure function of the step.

    Any thread may read any step at any time. A sampler keeps a few blocks of computed
    positions, but no result depends on them. Made by `Curriculum.sampler`.

    Attributes:
        seed: Seed of the order.
        fields: Names of the fields of a batch.
        source_names: Names of the sources, the primary (`"self"`) first.
        total_steps: Training steps of the run.
        dtype: Dtype of the tokens of a batch: int32 for integers, else as stored.
        phases: The phases as they are trained; an edited phase has several entries.
    """

    def __init__(
        self,
        solution: Solution,
        seed: int,
        fields: Iterable[Field] = ("tokens",),
        check: Literal["headers", "blocks"] = "headers",
    ) -> None:
        if check not in ("headers", "blocks"):
            raise ValueError(f'check must be "headers" or "blocks", got {check!r}')
        self._solution = solution
        self._starts = [phase.start for phase in solution.phases]
        self._readers = tuple(
            source.reader if check == "headers" else with_block_checks(source)
            for source in solution.declaration.sources
        )
        self.seed = seed
        self.source_names = solution.source_names
        self.total_steps = solution.total_steps
        self.phases: tuple[ResolvedPhase, ...] = solution.phases
        self.dtype = batch_dtype(self._readers)
        self.fields = checked_fields(fields)
        self._source_keys = {
            name: make_key(ARITHMETIC_VERSION, seed, name) for name in self.source_names
        }
        # Replaced as a whole and never modified, so that threads need no lock.
        self._blocks: tuple[SampleBlock, ...] = ()

    def __repr__(self) -> str:
        return f"Sampler(seed={self.seed}, total_steps={self.total_steps})"

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_blocks": ()}

    def shape(self, step: int) -> tuple[int, int]:
        """Return `(batch size, tokens of a sequence)` of a step.

        Raises:
            IndexError: The step is outside `[0, total_steps)`.
        """
        phase = self.phases[self._phase_index(step)]
        return phase.batch_size, phase.seq_len

    def phase(self, step: int) -> int:
        """Return the index of the declared phase of a step.

        Raises:
            IndexError: The step is outside `[0, total_steps)`.
        """
        return self.phases[self._phase_index(step)].index

    def batch(self, step: int) -> Any:
        """Return every row of a step.

        Args:
            step: Training step, `0 <= step < total_steps`.

        Returns:
            New array of shape `(B, T)` and type `dtype`; with more fields than
            `"tokens"`, a dict of arrays of that shape by field.

        Raises:
            IndexError: The step is outside the run.
            TypeError: A source holds integers that int32 cannot.
        """
        return self.rows(step, slice(None))

    def rows(self, step: int, rows: Rows, columns: slice | None = None) -> Any:
        """Return some rows and columns of a step, reading only those.

        Args:
            step: Training step, `0 <= step < total_steps`.
            rows: Slice, or integers in `[0, B)`.
            columns: Slice without a step; None for all T.

        Returns:
            `batch(step)[rows, columns]`, or the same of each field.

        Raises:
            IndexError: The step or a row is outside the run or the batch.
            TypeError: `rows` or `columns` has the wrong type, or a source holds
                integers that int32 cannot.
            ValueError: `columns` has a step.
        """
        step = operator.index(step)
        block = self._block(step)
        first, length = checked_columns(columns, block.seq_len)
        source, start = block.rows(step)
        chosen = checked_rows(rows, source.size)
        source, start = source[chosen], start[chosen]
        tokens = self._read(block.source_indices, source, start + first, length)
        if self.fields == ("tokens",):
            return tokens
        return fill_fields(
            self.fields, tokens, source, start, self._readers, first_column=first
        )

    def windows(self, step: int) -> Windows:
        """Return the source and the tokens of every row of a step; reads no tokens.

        Raises:
            IndexError: The step is outside the run.
        """
        step = operator.index(step)
        block = self._block(step)
        source, start = block.rows(step)
        return Windows(source.copy(), start.copy(), start + block.seq_len)

    def locate(self, step: int, row: int) -> Location:
        """Return where one row of a step is read, with its documents.

        Raises:
            IndexError: The step is outside the run, or the row outside the batch.
        """
        windows = self.windows(step)
        row = operator.index(row)
        if not 0 <= row < windows.source.size:
            raise IndexError(
                f"row {row} is outside the batch of step {step}, "
                f"which has rows [0, {windows.source.size})"
            )
        index = int(windows.source[row])
        start, stop = int(windows.start[row]), int(windows.stop[row])
        spans = self._readers[index].document_spans(start, stop)
        documents = tuple(int(document) for document in spans[:, 0])
        return Location(self.source_names[index], start, stop, documents)

    def will_need(self, step: int, n: int = 1, rows: Rows | None = None) -> None:
        """Hint to the sources that the steps `[step, step + n)` will be read soon.

        Each source gets one hint for all windows of one length. Reading without hints
        gives the same batches.

        Args:
            step: First training step; steps past the end of the run are ignored.
            n: Number of steps.
            rows: Only these rows of every step; None for all.

        Raises:
            IndexError: The first step or a row is below 0, or a row outside the batch.
        """
        wanted: dict[tuple[int, int], list[npt.NDArray[np.int64]]] = {}
        first = operator.index(step)
        for ahead in range(first, min(first + n, self.total_steps)):
            block = self._block(ahead)
            source, start = block.rows(ahead)
            chosen = checked_rows(slice(None) if rows is None else rows, source.size)
            source, start = source[chosen], start[chosen]
            for index in block.source_indices:
                starts = start[source == index]
                if starts.size:
                    wanted.setdefault((index, block.seq_len), []).append(starts)
        for (index, length), parts in wanted.items():
            self._readers[index].will_need(np.concatenate(parts), length)

    def delivered_tokens(self, step: int) -> dict[str, int]:
        """Return the tokens that each source has given when `step` steps are done.

        A closed formula: as quick for the last step as for the first.

        Args:
            step: Training steps done, `0 <= step <= total_steps`.

        Returns:
            Tokens by name of every source; their sum is the tokens of the batches.

        Raises:
            IndexError: The step is outside the run.
        """
        step = self._steps_done(step)
        if not step:
            return dict.fromkeys(self.source_names, 0)
        return self._tally.delivered(self._phase_index(step - 1), step)

    def planned_tokens(self, step: int) -> dict[str, float]:
        """Return the tokens by the weights of each source for the same steps.

        Shares count from the start of the phase or the last exhaustion in it; tokens
        before that count as they were delivered. So the result differs from
        `delivered_tokens` by at most three samples for each source.

        Args:
            step: Training steps done, `0 <= step <= total_steps`.

        Raises:
            IndexError: The step is outside the run.
        """
        step = self._steps_done(step)
        if not step:
            return dict.fromkeys(self.source_names, 0.0)
        return self._tally.planned(self._phase_index(step - 1), step)

    def state(self, step: int) -> dict[str, Any]:
        """Return what the order of the steps before `step` depends on.

        Args:
            step: Training steps done, `0 <= step <= total_steps`; the next is `step`.

        Returns:
            A small JSON-serialisable dict; give it to `Curriculum.sampler` to resume.

        Raises:
            IndexError: The step is outside the run.
        """
        return state_of(self._solution, self.seed, self._steps_done(step))

    def check(self, state: Mapping[str, Any]) -> None:
        """Check that the run that wrote a state trained the batches of this sampler.

        Args:
            state: What `state` returned, perhaps read back from JSON.

        Raises:
            StateMismatch: The past differs; the message names every difference.
        """
        check_past(self._solution, self.seed, state)

    @cached_property
    def _tally(self) -> Tally:
        return Tally(self.phases, self.source_names)

    def _steps_done(self, step: int) -> int:
        step = operator.index(step)
        if not 0 <= step <= self.total_steps:
            raise IndexError(
                f"step {step} is outside [0, {self.total_steps}], the steps that can "
                "be done in this run"
            )
        return step

    def _phase_index(self, step: int) -> int:
        """Return the index of the solved phase of a step.

        Raises:
            IndexError: The step is outside the run.
        """
        step = operator.index(step)
        if 0 <= step < self.total_steps:
            return bisect_right(self._starts, step) - 1
        message = f"step {step} is outside the run, which has {self.total_steps} steps"
        early_stop = self._solution.early_stop
        if early_stop is not None and step >= self.total_steps:
            message += (
                f"; source {early_stop.source!r} runs out in phase {early_stop.phase} "
                'and its policy is "stop"'
            )
        raise IndexError(message)

    def _block(self, step: int) -> SampleBlock:
        """Return a block that holds a step.

        A step that follows a kept block is computed with its whole block. Any other
        step is computed alone, because its neighbours may never be read.
        """
        blocks = self._blocks
        for block in blocks:
            if step in block.steps:
                return block
        phase = self.phases[self._phase_index(step)]
        steps = range(step, step + 1)
        if any(step - 1 in block.steps for block in blocks):
            size = max(1, _BLOCK_SAMPLES // phase.batch_size)
            start = phase.start + (step - phase.start) // size * size
            unbroken = phase.unbroken_steps(step)
            steps = range(max(start, unbroken.start), min(start + size, unbroken.stop))
        block = make_block(phase, steps, self._source_keys)
        self._blocks = (block, *blocks[: _KEPT_BLOCKS - 1])
        return block

    def _read(
        self,
        source_indices: tuple[int, ...],
        source: npt.NDArray[np.int64],
        start: npt.NDArray[np.int64],
        length: int,
    ) -> npt.NDArray[Any]:
        """Return the windows of some rows, read once from each of their sources."""
        if len(source_indices) == 1:
            return self._readers[source_indices[0]].read(start, length, self.dtype)
        tokens = np.empty((start.size, length), self.dtype)
        for index in source_indices:
            rows = np.flatnonzero(source == index)
            if rows.size:
                reader = self._readers[index]
                tokens[rows] = reader.read(start[rows], length, self.dtype)
        return tokens
