"""Sampler: returns the batch of any step, and the source and window of each row."""

from __future__ import annotations

from bisect import bisect_right
from itertools import chain
from typing import TYPE_CHECKING, Any, Generic, Literal

import numpy as np
from roxxel_store.arguments import as_integer

from roxxel_curriculum._bind.inverse import checked_tokens, occurrences
from roxxel_curriculum._bind.reading import (
    RowReader,
    checked_columns,
    checked_fields,
    checked_rows,
)
from roxxel_curriculum._bind.samples import BlockCache, Location, Windows
from roxxel_curriculum._bind.sources import with_block_checks
from roxxel_curriculum._errors import CurriculumError
from roxxel_curriculum._order import ARITHMETIC_VERSION
from roxxel_curriculum._order.bijection import make_key
from roxxel_curriculum._plan.plan import make_plan
from roxxel_curriculum._withdrawn import (
    checked_document,
    masked_ranges,
    masked_steps,
)
from roxxel_curriculum.state import (
    check_past,
    checked_state,
    recorded,
    recorded_masks,
    state_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    import numpy.typing as npt
    from roxxel_format import TokenReader
    from typing_extensions import TypeVar

    from roxxel_curriculum._bind.inverse import Occurrence
    from roxxel_curriculum._bind.reading import Field, Rows
    from roxxel_curriculum._bind.samples import SampleBlock
    from roxxel_curriculum._plan.plan import Plan
    from roxxel_curriculum._plan.solution import ResolvedPhase, Solution
    from roxxel_curriculum._withdrawn import Withdrawal

    _Windows = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]
    # A type checker alone needs the default, which Python has from 3.13 on.
    Batch_co = TypeVar("Batch_co", covariant=True, default=Any)
else:
    from typing import TypeVar

    Batch_co = TypeVar("Batch_co", covariant=True)


class Sampler(Generic[Batch_co]):
    """The batches of a run, as a pure function of the step.

    `Curriculum.sampler` creates samplers. Any thread may read any step at any time. A
    sampler caches the row positions of a few steps; the cache does not affect results.

    Attributes:
        seed: Seed of the order.
        fields: Names of the fields of a batch.
        source_names: Names of the sources, the primary first.
        primary: Name of the primary source: `"self"` unless the curriculum names it.
        total_steps: Number of training steps of the run.
        longest: Sequence length that determines how sources are cut into spans. A
            resumed run keeps the value; see `Curriculum`.
        dtype: Dtype of the tokens of a batch: int32 if the sources hold integers, else
            the dtype to which NumPy promotes the dtypes of the sources.
        phases: The phases with known steps. A phase that was edited in the middle has
            several entries.
        withdrawals: The documents and tokens that the loss leaves out, each with its
            first step, in the order of these steps. A withdrawal replaces the earlier
            withdrawals of its source.

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
        self.primary = solution.declaration.primary
        self.total_steps = solution.total_steps
        self.longest = solution.longest
        self.phases: tuple[ResolvedPhase, ...] = solution.phases
        self.withdrawals: tuple[Withdrawal, ...] = solution.withdrawals
        self.dtype = solution.declaration.batch_dtype
        self.fields = checked_fields(fields)
        self._reader = RowReader(solution, self._readers, self.fields)
        self._source_keys = {
            source.name: make_key(ARITHMETIC_VERSION, seed, source.order_name)
            for source in solution.declaration.sources
        }
        self._blocks = BlockCache(self._source_keys)

    def __repr__(self) -> str:
        return (
            f"Sampler(seed={self.seed}, total_steps={self.total_steps}, "
            f"longest={self.longest})"
        )

    def plan(self) -> Plan:
        """Return what every phase reads from every source; reads no tokens.

        Compare two runs by `a.plan().diff(b.plan())`.
        """
        return make_plan(self._solution, self.seed)

    @property
    def ended(self) -> str | None:
        """Why the run ends early; None if the run trains every declared step."""
        return self._solution.ended

    @property
    def notes_on_sources(self) -> tuple[str, ...]:
        """One sentence for each source whose ids may mean other text; see `Plan`."""
        return self._solution.declaration.notes

    def shape(self, step: int) -> tuple[int, int]:
        """Return `(batch_size, seq_len)` of a step.

        Raises:
            IndexError: The step is outside `[0, total_steps)`.
        """
        phase = self.phases[self._phase_index(step)]
        return phase.batch_size, phase.seq_len

    def phase(self, step: int) -> int:
        """Return the index of the declared phase that contains a step.

        Raises:
            IndexError: The step is outside `[0, total_steps)`.
        """
        return self.phases[self._phase_index(step)].index

    def batch(self, step: int) -> Batch_co:
        """Return the batch of a step.

        Args:
            step: Training step, `0 <= step < total_steps`.

        Returns:
            If `"tokens"` is the only field, a new array of shape `(B, T) = shape(step)`
            and dtype `dtype`. Otherwise a dict of arrays of this shape by field.

        Raises:
            IndexError: The step is outside the run.
            TypeError: A source holds tokens outside the range of int32.
            ChecksumError: With `check="blocks"`, a block is damaged. The message says
                how to continue without its tokens, by `without=`.
        """
        return self.rows(step, slice(None))

    def rows(
        self,
        step: int,
        rows: Rows,
        columns: slice | None = None,
        *,
        out: npt.NDArray[Any] | None = None,
    ) -> Batch_co:
        """Return some rows and columns of a batch; reads no other tokens.

        Args:
            step: Training step, `0 <= step < total_steps`.
            rows: Slice, or integers in `[0, B)`.
            columns: Slice with step 1 or None; None for all T columns.
            out: Array for the tokens, of their shape and of the sampler's dtype, which
                this method fills. Pass the memory of your framework to save a copy.

        Returns:
            `batch(step)[rows, columns]`. The selected part of the batch, an array or a
            dict of arrays. The tokens are `out`, if it is given.

        Raises:
            IndexError: The step is outside the run, or a row outside the batch.
            TypeError: `rows` or `columns` has the wrong type, or a source holds
                tokens outside the range of int32.
            ValueError: `columns` has a step other than 1, or `out` has another shape or
                dtype.
        """
        step = as_integer("step", step)
        block = self._block(step)
        first, length = checked_columns(columns, block.seq_len)
        source, start = block.rows(step)
        chosen = checked_rows(rows, source.size)
        source, start = source[chosen], start[chosen]
        shape = source.size, length
        tokens = np.empty(shape, self.dtype) if out is None else out
        if tokens.shape != shape or tokens.dtype != self.dtype:
            raise ValueError(
                f"out has shape {tokens.shape} and dtype {tokens.dtype}, but these "
                f"rows need {shape} and {self.dtype}; pass such an array"
            )
        self._reader.read(step, source, start + first, tokens)
        batch: Any = tokens
        if self.fields == ("tokens",):
            return batch
        batch = self._reader.fields(step, source, start, first, tokens)
        return batch  # noqa: RET504 - `Any`, as only the caller's overload knows the type

    def windows(self, step: int) -> Windows:
        """Return the source and window of every row of a step; reads no tokens.

        Raises:
            IndexError: The step is outside the run.
        """
        step = as_integer("step", step)
        block = self._block(step)
        source, start = block.rows(step)
        return Windows(source.copy(), start.copy(), start + block.seq_len)

    def locate(self, step: int, row: int) -> Location:
        """Return the source, window and documents of one row of a step.

        To locate data that a run was trained on, use a sampler with the run's state.

        Raises:
            IndexError: The step is outside the run, or the row outside the batch.
        """
        windows = self.windows(step)
        row = as_integer("row", row)
        if not 0 <= row < windows.source.size:
            raise IndexError(
                f"row {row} is outside the batch of step {step}, "
                f"which has rows [0, {windows.source.size})"
            )
        index = int(windows.source[row])
        start, stop = int(windows.start[row]), int(windows.stop[row])
        documents = self._readers[index].document_spans(start, stop)[:, 0]
        known = documents[documents >= 0]  # -1 is padding
        return Location(self.source_names[index], start, stop, tuple(known.tolist()))

    def where(
        self, source: str, start: int, stop: int, until: int | None = None
    ) -> Iterator[Occurrence]:
        """Yield every place where the run reads some of the tokens `[start, stop)`.

        This is the inverse of `locate`: every row of a step that holds some of the
        tokens gives one result, clipped to the tokens. Tokens that the run never reads
        give no result. The results are computed, not searched, when they are requested:
        the cost of each does not depend on the size of the source. To search a run that
        has begun, use a sampler with the run's state.

        Args:
            source: Name of the source.
            start: Index of the first token in the source.
            stop: One past the last token.
            until: Only the training steps before this step; None for all steps.

        Returns:
            Iterator in training order, by step and row. The iterator holds the results
            of one round of the source in memory.

        Raises:
            KeyError: `source` is not the name of a source.
            IndexError: The tokens leave the source, or `until` is outside
                `[0, total_steps]`.
        """
        index = self._source_index(source)
        num_tokens = self._solution.declaration.sources[index].num_tokens
        tokens = checked_tokens(source, start, stop, num_tokens)
        end = self.total_steps if until is None else self._steps_done(until)
        key = self._source_keys[source]
        return chain.from_iterable(
            occurrences(phase, source, key, tokens, end) for phase in self.phases
        )

    def masked_steps(self, source: str, document: int) -> tuple[range, ...]:
        """Return the steps in which a document is withdrawn: its `loss_mask` is 0.

        Raises:
            KeyError: `source` is not the name of a source.
            IndexError: The source has no such document.
        """
        reader = self._readers[self._source_index(source)]
        number = checked_document(document, source, len(reader.documents))
        return masked_steps(
            self.withdrawals,
            source,
            lambda each: bool(each.documents.holds(number)),
            self.total_steps,
        )

    def masked_ranges(
        self, source: str, start: int, stop: int
    ) -> dict[tuple[int, int], tuple[range, ...]]:
        """Return the withdrawn ranges of tokens in `[start, stop)`, with their steps.

        In these steps the tokens of a range are 0, and so is their `loss_mask`. The
        tokens of withdrawn documents are not in the result; see `masked_steps`.

        Raises:
            KeyError: `source` is not the name of a source.
        """
        self._source_index(source)
        return masked_ranges(self.withdrawals, source, start, stop, self.total_steps)

    def will_need(self, step: int, n: int = 1, rows: Rows | None = None) -> None:
        """Hint to the sources that the steps `[step, step + n)` will be read soon.

        Each source gets one hint for each sequence length. Hints do not change batches.

        Args:
            step: First training step.
            n: Number of steps; steps past the end of the run are ignored.
            rows: Rows of each step that will be read; None for all rows.

        Raises:
            IndexError: `step` is negative, or a row is outside the batch.
        """
        first = as_integer("step", step)
        num_steps = as_integer("the number of steps", n)
        stop = min(first + num_steps, self.total_steps)
        ahead: dict[int, list[_Windows]] = {}
        for each in range(first, stop):
            block = self._block(each)
            source, start = block.rows(each)
            if rows is not None:
                chosen = checked_rows(rows, source.size)
                source, start = source[chosen], start[chosen]
            # A row with withdrawn tokens reads only parts of its window.
            partial = self._reader.partial_rows(each, source, start, block.seq_len)
            windows = np.delete(source, partial), np.delete(start, partial)
            ahead.setdefault(block.seq_len, []).append(windows)
        for length, of_steps in ahead.items():
            source, start = map(np.concatenate, zip(*of_steps, strict=True))
            self._reader.will_need(stop - 1, source, start, length)

    def delivered_tokens(self, step: int) -> dict[str, int]:
        """Return the number of tokens of each source in the first `step` steps.

        A formula computes the numbers, so the cost does not depend on `step`.

        Args:
            step: Training steps done, `0 <= step <= total_steps`.

        Returns:
            Number of tokens by source name. Their sum is the number of tokens in the
            batches of these steps.

        Raises:
            IndexError: The step is outside the run.
        """
        tokens = dict.fromkeys(self.source_names, 0)
        for phase, steps in self._solution.trained(self._steps_done(step)):
            for name, count in phase.delivered(steps).items():
                tokens[name] += count * phase.seq_len
        return tokens

    def planned_tokens(self, step: int) -> dict[str, float]:
        """Return each source's exact share of the tokens in the first `step` steps.

        Batches hold whole sequences, so the result differs from `delivered_tokens` by
        up to three sequences for each source. Exact shares apply from the start of the
        current phase, or from where a source last ran out in the phase. Before that,
        the result counts delivered tokens.

        Args:
            step: Training steps done, `0 <= step <= total_steps`.

        Raises:
            IndexError: The step is outside the run.
        """
        step = self._steps_done(step)
        tokens: dict[str, float] = dict(self.delivered_tokens(step))
        if not step:
            return tokens
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
        """Return the number of passes over each source in the first `step` steps.

        1.25 means a quarter of the second pass. Skipped data counts as read. If the
        last tokens of an epoch are too few for a sequence, they count as read. If a
        later phase with shorter sequences still reads them, the number falls when that
        phase begins.

        Args:
            step: Training steps done, `0 <= step <= total_steps`.

        Raises:
            IndexError: The step is outside the run.
        """
        epochs = dict.fromkeys(self.source_names, 0.0)
        for phase, steps in self._solution.trained(self._steps_done(step)):
            for name, given in phase.counts(phase.samples_before(steps)).items():
                if given:
                    stream, before = phase.cursors[name]
                    epochs[name] = stream.passes(before + given)
        return epochs

    def next_epoch(self, source: str, step: int) -> tuple[int, int] | None:
        """Return the next step in which a source begins an epoch after its first.

        A formula computes the step, so a distant step costs no more than a near step.

        Args:
            source: Name of the source.
            step: First step to consider, `0 <= step <= total_steps`.

        Returns:
            The step, and the last epoch that the source begins in this step, counted
            from 0. None if the source begins no other epoch.

        Raises:
            KeyError: `source` is not the name of a source.
            IndexError: The step is outside the run.
        """
        self._source_index(source)
        done = self._steps_done(step)
        for phase in self.phases:
            if phase.stop > done:
                found = phase.next_epoch(source, max(done, phase.start))
                if found is not None:
                    return found
        return None

    def state(self, step: int) -> dict[str, Any]:
        """Return the state from which a run resumes at `step`.

        Args:
            step: Training steps done, `0 <= step <= total_steps`.

        Returns:
            A small JSON-serialisable dict of everything that determined the batches
            before `step`. Pass the dict to `Curriculum.sampler` to resume. Its digest
            detects later changes to the dict.

        Raises:
            IndexError: The step is outside the run.
        """
        columns = self._reader.digests
        return state_of(self._solution, self.seed, self._steps_done(step), columns)

    def check(self, state: Mapping[str, Any]) -> None:
        """Check that this sampler returns the batches that a run was trained on.

        Args:
            state: What `Sampler.state` returned for the run; may be read from JSON.

        Raises:
            StateMismatch: The state and this sampler differ in data, seed or past
                phases.
        """
        state = checked_state(state)
        check_past(self._solution, self.seed, state)
        self._reader.check_columns(recorded_masks(state))

    @property
    def token_ranges(self) -> dict[str, tuple[int, int] | None]:
        """The smallest and largest token of each source, by name.

        None for a source that does not record the range, such as a source of floats.
        """
        sources = self._solution.declaration.sources
        return {source.name: source.token_range for source in sources}

    @property
    def paths(self) -> dict[str, str | tuple[str, ...] | None]:
        """The path of each source, by name: absolute, several of them, or a URL.

        None for a source whose reader is not a `Roxxel`.
        """
        sources = self._solution.declaration.sources
        return {source.name: source.path for source in sources}

    @property
    def unread_masks(self) -> str | None:
        """A warning if corpora have a loss mask that the batches lack; else None.

        Without `"loss_mask"` among its fields, a run learns prompts, and what users say
        in chats, as if they were answers.
        """
        digests = self._reader.digests
        found = [
            source.name
            for source in self._solution.declaration.sources
            if source.has_mask and digests.get(source.name) is None
        ]
        if not found:
            return None
        if "loss_mask" in self.fields:
            remedy = (
                "the column was written after the run had read from the corpus, and "
                "past masks do not change; begin a new run to leave them out"
            )
        else:
            # A list of texts is spelled alike in Python and in TOML.
            wanted = [*self.fields, "loss_mask"]
            remedy = f"give fields = {wanted} to leave them out"
        return (
            f"{', '.join(found)} {'has' if len(found) == 1 else 'have'} a column "
            "loss_mask that this run does not read, so it learns the masked tokens "
            f"too, such as prompts; {remedy}"
        )

    def _source_index(self, source: str) -> int:
        """Return the index of a source; raise KeyError for another name."""
        if source not in self.source_names:
            names = ", ".join(map(repr, self.source_names))
            raise KeyError(f"{source!r} is not a source; there are {names}")
        return self.source_names.index(source)

    def _steps_done(self, step: int) -> int:
        step = as_integer("step", step)
        if not 0 <= step <= self.total_steps:
            raise IndexError(
                f"step {step} is outside [0, {self.total_steps}]; "
                f"the run has {self.total_steps} steps"
            )
        return step

    def _phase_index(self, step: int) -> int:
        """Return the index in `phases` of the phase that contains a step, or raise."""
        step = as_integer("step", step)
        if 0 <= step < self.total_steps:
            return bisect_right(self._starts, step) - 1
        raise IndexError(self._solution.why_outside(step))

    def _block(self, step: int) -> SampleBlock:
        found = self._blocks.at(step)
        return found or self._blocks.add(self.phases[self._phase_index(step)], step)


def recorded_sampler(
    state: Mapping[str, Any],
    sources: Mapping[str, TokenReader] | None,
    fields: Iterable[Field] = ("tokens",),
    check: Literal["headers", "blocks"] = "headers",
) -> Sampler:
    """Return the sampler of the steps before the step of a state.

    Its batches are those that the run has read, whatever a curriculum declares now. For
    steps after the state's step, use `Curriculum.sampler(state=state)`.

    Args:
        state: What `Sampler.state` returned for the run; may be read from JSON.
        sources: A reader for each source of the run, by name. A reader with versions
            reads the version that the state records. Sources from which
            the run has read no row before this step may be absent. With None, the
            sampler knows plan and places, but opens no corpus: `windows` works, and any
            read of tokens or documents raises ShardError.
        fields: As for `Curriculum.sampler`.
        check: As for `Curriculum.sampler`.

    Raises:
        StateMismatch: A reader holds other tokens than the recorded source.
        CurriculumError: The state records no steps, or `sources` lacks a source.
        TypeError: A source is not a token reader.

    Example:
        >>> from roxxel_curriculum.testing import PositionReader
        >>> web = PositionReader(10_000)
        >>> sampler = Curriculum(web, [Phase(9, 4, 129)]).sampler(seed=42)
        >>> past = recorded_sampler(sampler.state(5), {"self": web})
        >>> past.total_steps, bool((past.batch(4) == sampler.batch(4)).all())
        (5, True)
    """
    past = checked_state(state)
    if not state["step"]:
        raise CurriculumError(
            "this state is at step 0, so it records no batches; "
            "give the state of a later step, or declare a Curriculum"
        )
    solution = recorded(past, sources)
    return Sampler(solution, state["seed"], fields, check)


def recorded_plan(state: Mapping[str, Any]) -> Plan:
    """Return the plan of the steps before the step of a state; opens no corpus.

    A state does not record padding, doubts about tokenizers, and why a run ends early,
    so the plan has none of them.

    Args:
        state: What `Sampler.state` returned for the run; may be read from JSON.

    Raises:
        StateMismatch: The state was modified.

    Example:
        >>> from roxxel_curriculum.testing import PositionReader
        >>> sampler = Curriculum(PositionReader(10_000), [Phase(9, 4, 129)]).sampler(42)
        >>> plan = recorded_plan(sampler.state(5))
        >>> plan.total_steps, plan.seed
        (5, 42)
    """
    past = checked_state(state)
    return make_plan(recorded(past), past["seed"])
