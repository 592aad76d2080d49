"""Sampler: the batch of any step, and where each of its rows is read."""

from __future__ import annotations

from bisect import bisect_right
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from roxxel_curriculum._bind.fields import (
    checked_columns,
    checked_fields,
    checked_rows,
    fill_fields,
)
from roxxel_curriculum._bind.past import check_past
from roxxel_curriculum._bind.samples import Location, Windows, make_block
from roxxel_curriculum._bind.sources import batch_dtype, token_range, with_block_checks
from roxxel_curriculum._errors import as_integer
from roxxel_curriculum._order import ARITHMETIC_VERSION
from roxxel_curriculum._order.bijection import make_key
from roxxel_curriculum.state import state_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import numpy.typing as npt

    from roxxel_curriculum._bind.fields import Field, Rows
    from roxxel_curriculum._bind.samples import SampleBlock
    from roxxel_curriculum._plan.solution import ResolvedPhase, Solution

_BLOCK_SAMPLES = 16384
"""Samples per block. A full block costs 0.1 us a sample; a block of 64 samples costs 3
to 5 us a sample. `tests-integration/benchmarks/curriculum_index.py` measures both."""

_KEPT_BLOCKS = 6
"""Blocks to keep. Prefetch hints reach 2**15 samples ahead, in up to four blocks. Two
more leave room for the block being read and for one step read out of order."""


class Sampler:
    """The batches of a run as a pure function of the step.

    `Curriculum.sampler` makes samplers. Any thread may read any step at any time. A
    sampler caches the row positions of a few blocks of steps; the cache affects no
    result.

    Attributes:
        seed: Seed of the order.
        fields: Names of the fields of a batch.
        source_names: Names of the sources, the primary (`"self"`) first.
        total_steps: Training steps of the run.
        longest: Length of the longest sequence that the sources are cut for. The first
            step of the run fixes it.
        dtype: Dtype of the tokens of a batch: int32 if the sources hold integers, else
            the dtype to which NumPy promotes the dtypes of the sources.
        phases: The phases as they are trained; an edited phase has several entries.

    Example:
        >>> from roxxel_curriculum.testing import PositionReader
        >>> curriculum = Curriculum(PositionReader(10_000), [Phase(9, 4, 129)])
        >>> sampler = curriculum.sampler(seed=42)
        >>> sampler.rows(8, [0, 3]).shape, sampler.delivered_tokens(9)
        ((2, 129), {'self': 4644})
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
        self.longest = solution.longest
        self.phases: tuple[ResolvedPhase, ...] = solution.phases
        self.dtype = batch_dtype(self._readers)
        self.fields = checked_fields(fields)
        self._source_keys = {
            name: make_key(ARITHMETIC_VERSION, seed, name) for name in self.source_names
        }
        # Threads need no lock: `_block` replaces this tuple and never modifies it.
        self._blocks: tuple[SampleBlock, ...] = ()

    def __repr__(self) -> str:
        return (
            f"Sampler(seed={self.seed}, total_steps={self.total_steps}, "
            f"longest={self.longest})"
        )

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
            New array of shape `(B, T)` and dtype `dtype`. Unless `"tokens"` is the
            only field, a dict of arrays of that shape by field.

        Raises:
            IndexError: The step is outside the run.
            TypeError: A source holds tokens outside the range of int32.
        """
        return self.rows(step, slice(None))

    def rows(self, step: int, rows: Rows, columns: slice | None = None) -> Any:
        """Return some rows and columns of a step, reading only those.

        Args:
            step: Training step, `0 <= step < total_steps`.
            rows: Slice, or integers in `[0, B)`.
            columns: Slice without a step; None for all T.

        Returns:
            `batch(step)[rows, columns]`. If a batch is a dict, a dict of its arrays,
            each indexed this way.

        Raises:
            IndexError: The step is outside the run, or a row outside the batch.
            TypeError: `rows` or `columns` has the wrong type, or a source holds
                tokens outside the range of int32.
            ValueError: `columns` has a step.
        """
        step = as_integer(step, "step must be an integer")
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
        """Return the source and window of every row of a step; reads no tokens.

        Raises:
            IndexError: The step is outside the run.
        """
        step = as_integer(step, "step must be an integer")
        block = self._block(step)
        source, start = block.rows(step)
        return Windows(source.copy(), start.copy(), start + block.seq_len)

    def locate(self, step: int, row: int) -> Location:
        """Return the source, tokens and documents that one row of a step is read from.

        To locate what a run has trained, use a sampler with the state of that run.

        Raises:
            IndexError: The step is outside the run, or the row outside the batch.
        """
        windows = self.windows(step)
        row = as_integer(row, "row must be an integer")
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

        Each source gets one hint for each sequence length. Hints change no batch.

        Args:
            step: First training step; steps past the end of the run are ignored.
            n: Number of steps.
            rows: Rows of every step that will be read; None for all.

        Raises:
            IndexError: The first step or a row is below 0, or a row outside the batch.
        """
        wanted: dict[tuple[int, int], list[npt.NDArray[np.int64]]] = {}
        first = as_integer(step, "step must be an integer")
        num_steps = as_integer(n, "the number of steps must be an integer")
        stop = min(first + num_steps, self.total_steps)
        for ahead in range(first, stop):
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
        """Return the number of tokens of each source in the first `step` steps.

        A formula computes the numbers: the last step costs no more than the first.

        Args:
            step: Training steps done, `0 <= step <= total_steps`.

        Returns:
            Number of tokens by source name. Their sum is the number of tokens in the
            batches of these steps.

        Raises:
            IndexError: The step is outside the run.
        """
        step = self._steps_done(step)
        index = bisect_right(self._starts, step) - 1
        tokens = dict(self._tokens_before[index])
        self._add_tokens(tokens, self.phases[index], step)
        return tokens

    def planned_tokens(self, step: int) -> dict[str, float]:
        """Return each source's number of tokens if its share were exact at every step.

        Exact shares apply since the phase started, or since a source last ran out in
        it. For earlier samples, the delivered tokens count. So the result differs from
        `delivered_tokens` by at most three samples for each source.

        Args:
            step: Training steps done, `0 <= step <= total_steps`.

        Raises:
            IndexError: The step is outside the run.
        """
        step = self._steps_done(step)
        if not step:
            return dict.fromkeys(self.source_names, 0.0)
        tokens: dict[str, float] = dict(self.delivered_tokens(step))
        phase = self.phases[self._phase_index(step - 1)]
        num_samples = phase.samples_before(step - phase.start)
        leg = phase.leg_of(num_samples - 1)
        dealt = num_samples - leg.start
        total = sum(phase.weights[name] for name in leg.blend.sources)
        for name, count in leg.blend.counts(dealt).items():
            share = dealt * phase.weights[name] / total
            tokens[name] += (share - count) * phase.seq_len
        return tokens

    def epochs(self, step: int) -> dict[str, float]:
        """Return the passes over each source in the first `step` steps.

        1.25 is a quarter into the second pass. Skipped data counts as read, and so do
        the last tokens of an epoch that are too few for a sample. A phase of shorter
        samples may still read these tokens, so the number may fall.

        Args:
            step: Training steps done, `0 <= step <= total_steps`.

        Raises:
            IndexError: The step is outside the run.
        """
        step = self._steps_done(step)
        epochs = dict.fromkeys(self.source_names, 0.0)
        for phase in self.phases:
            steps = min(step, phase.stop) - phase.start
            if steps <= 0:
                break
            for name, given in phase.counts(phase.samples_before(steps)).items():
                if given:
                    stream, before = phase.cursors[name]
                    epochs[name] = stream.passes(before + given)
        return epochs

    def next_epoch(self, source: str, step: int) -> tuple[int, int] | None:
        """Return the next step in which a source begins an epoch after its first.

        A formula computes the step, however far away it is.

        Args:
            source: Name of the source.
            step: First step that counts, `0 <= step <= total_steps`.

        Returns:
            The step, `step` or later, and the newest epoch that the source begins in
            this step, counted from 0. None if the source begins no further epoch.

        Raises:
            KeyError: There is no such source.
            IndexError: The step is outside the run.
        """
        step = self._steps_done(step)
        if source not in self.source_names:
            known = ", ".join(map(repr, self.source_names))
            raise KeyError(f"{source!r} is not a source; there are {known}")
        for phase in self.phases[max(0, bisect_right(self._starts, step) - 1) :]:
            found = phase.next_epoch(source, max(step, phase.start))
            if found is not None:
                return found
        return None

    def state(self, step: int) -> dict[str, Any]:
        """Return what the order of the steps before `step` depends on.

        Args:
            step: Training steps done, `0 <= step <= total_steps`; the next is `step`.

        Returns:
            A small JSON-serialisable dict. Pass it to `Curriculum.sampler` to resume.
            Its digest detects later changes to the dict.

        Raises:
            IndexError: The step is outside the run.
        """
        return state_of(self._solution, self.seed, self._steps_done(step))

    def check(self, state: Mapping[str, Any]) -> None:
        """Check that this sampler has the batches that the run of `state` trained on.

        Args:
            state: What `Sampler.state` returned, also after a round trip through JSON.

        Raises:
            StateMismatch: The past differs; the message lists the differences.
        """
        check_past(self._solution, self.seed, state)

    @property
    def token_ranges(self) -> dict[str, tuple[int, int] | None]:
        """Least and greatest token of each source, by name.

        None for a source that does not record them, such as a source of floats.
        """
        ranges = map(token_range, self._readers)
        return dict(zip(self.source_names, ranges, strict=True))

    @cached_property
    def _tokens_before(self) -> list[dict[str, int]]:
        """For each phase, the number of tokens that each source gives before it."""
        tokens = dict.fromkeys(self.source_names, 0)
        before: list[dict[str, int]] = []
        for phase in self.phases:
            before.append(dict(tokens))
            self._add_tokens(tokens, phase, phase.stop)
        return before

    @staticmethod
    def _add_tokens(tokens: dict[str, int], phase: ResolvedPhase, step: int) -> None:
        """Add the tokens that a phase delivers before step `step` of the run."""
        for name, count in phase.delivered(step - phase.start).items():
            tokens[name] += count * phase.seq_len

    def _steps_done(self, step: int) -> int:
        step = as_integer(step, "step must be an integer")
        if not 0 <= step <= self.total_steps:
            raise IndexError(
                f"step {step} is outside [0, {self.total_steps}], the steps that can "
                "be done in this run"
            )
        return step

    def _phase_index(self, step: int) -> int:
        """Return the index in `phases` for a step; raises if it is outside the run."""
        step = as_integer(step, "step must be an integer")
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

        A step that follows a kept block is read in sequence, so its whole block is
        computed. Any other step is computed alone: its neighbours may never be read.
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
        """Return the windows of some rows; reads each source once."""
        if len(source_indices) == 1:
            return self._readers[source_indices[0]].read(start, length, self.dtype)
        tokens = np.empty((start.size, length), self.dtype)
        for index in source_indices:
            rows = np.flatnonzero(source == index)
            if rows.size:
                reader = self._readers[index]
                tokens[rows] = reader.read(start[rows], length, self.dtype)
        return tokens
