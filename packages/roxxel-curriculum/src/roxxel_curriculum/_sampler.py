"""Sampler: the rows of any step, and where each of them came from."""

from __future__ import annotations

import operator
from bisect import bisect_right
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from roxxel_curriculum._bijection import make_key
from roxxel_curriculum._block import grouped, in_row_order, make_block
from roxxel_curriculum._fields import checked_fields, fill_fields
from roxxel_curriculum._memory import new_batch
from roxxel_curriculum._selection import checked_columns, checked_rows, is_every_row
from roxxel_curriculum._sole_source import SoleSource, sole_source
from roxxel_curriculum._source import batch_dtype, checking_reader
from roxxel_curriculum._state import differences, state_of
from roxxel_curriculum._state_form import StateMismatch
from roxxel_curriculum._tally import Tally
from roxxel_curriculum._version import ARITHMETIC_VERSION
from roxxel_curriculum._windows import Location, Upcoming, Windows

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from roxxel_format import TokenReader

    from roxxel_curriculum._block import Block, Group
    from roxxel_curriculum._declaration import SolvedRun
    from roxxel_curriculum._fields import Field
    from roxxel_curriculum._phase import ResolvedPhase
    from roxxel_curriculum._selection import Rows

# Of fewer, numpy's calls take longer than its work; of more, arrays leave the caches.
_BLOCK_SAMPLES = 16384
# A loader tells `will_need` of up to 2**15 samples ahead, which lie in four blocks.
_KEPT_BLOCKS = 6


class Sampler:
    """The batches of a run as a pure function of the step.

    Nothing is remembered but a few blocks of worked-out positions, and no result
    depends on them, so any thread may ask for any step at any time. Made by
    `Curriculum.sampler`.

    Attributes:
        seed: Seed of the order.
        fields: What a batch holds.
        source_names: Names of the sources, the primary (`"self"`) first.
        total_steps: Training steps of the run.
        dtype: Type of a batch of tokens: int32 for integers, else as stored.
    """

    def __init__(
        self,
        schedule: SolvedRun,
        seed: int,
        fields: Iterable[Field] = ("tokens",),
        check: Literal["headers", "blocks"] = "headers",
    ) -> None:
        if check not in ("headers", "blocks"):
            raise ValueError(f'check must be "headers" or "blocks", got {check!r}')
        self._schedule = schedule
        self._phases = schedule.phases
        self._starts = [phase.start for phase in schedule.phases]
        sources = schedule.declaration.sources
        self._readers: tuple[TokenReader, ...] = tuple(
            source.reader if check == "headers" else checking_reader(source)
            for source in sources
        )
        self.seed = seed
        self.source_names = tuple(source.name for source in sources)
        self.total_steps = schedule.total_steps
        self.dtype = batch_dtype(self._readers)
        self.fields = checked_fields(fields)
        self._sources = {
            name: (index, make_key(ARITHMETIC_VERSION, seed, name))
            for index, name in enumerate(self.source_names)
        }
        # Replaced whole, never changed: threads see one or another.
        self._blocks: tuple[tuple[Block, SoleSource | None], ...] = ()
        self._near: SoleSource | None = None

    def __repr__(self) -> str:
        return f"Sampler(seed={self.seed}, total_steps={self.total_steps})"

    def __getstate__(self) -> dict[str, Any]:
        # Worked out anew, where they are needed; open files cannot be sent.
        return vars(self) | {"_blocks": (), "_near": None}

    @property
    def phases(self) -> tuple[ResolvedPhase, ...]:
        """The phases as they are trained; one edited in place is in several pieces."""
        return self._schedule.resolved_phases()

    def shape(self, step: int) -> tuple[int, int]:
        """Return `(batch size, tokens of a sequence)` of a step.

        Raises:
            IndexError: The step is outside `[0, total_steps)`.
        """
        near = self._near
        if near is not None and type(step) is int and near.first <= step < near.stop:
            return near.shape
        piece = self._phases[self._piece(step)].piece
        return piece.batch_size, piece.seq_len

    def phase(self, step: int) -> int:
        """Return which of the declared phases a step is in.

        Raises:
            IndexError: The step is outside `[0, total_steps)`.
        """
        return self._phases[self._piece(step)].piece.index

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
        near = self._near
        if near is not None and type(step) is int and near.first <= step < near.stop:
            return near.batch(step)
        return self._whole(*self._block(step))

    def _whole(self, block: Block, data_step: int) -> Any:
        """Return every row of a step."""
        seq_len = self._phases[block.phase].piece.seq_len
        size = block.batch_size, seq_len
        tokens = self._read_groups(block.groups(data_step), size)
        if self.fields == ("tokens",):
            return tokens
        source, starts = in_row_order(block, data_step)
        return fill_fields(self.fields, tokens, source, starts, self._readers)

    def rows(self, step: int, rows: Rows, columns: slice | None = None) -> Any:
        """Return some rows of a step, reading only those, and only some columns.

        Args:
            step: Training step, `0 <= step < total_steps`.
            rows: Slice, or integers in `[0, B)`.
            columns: Slice without a step; None for all T.

        Returns:
            `batch(step)[rows, columns]`, or the same of each field.

        Raises:
            IndexError: The step or a row is outside.
            TypeError: `rows` or `columns` is of the wrong type.
            ValueError: `columns` has a step.
        """
        near = self._near
        if (
            near is not None
            and columns is None
            and type(step) is int
            and near.first <= step < near.stop
            and type(rows) is slice
            and rows == near.every_row
        ):
            return near.batch(step)
        block, data_step = self._block(step)
        seq_len = self._phases[block.phase].piece.seq_len
        first, length = checked_columns(columns, seq_len)
        if length == seq_len and is_every_row(rows, block.batch_size):
            return self.batch(step)
        chosen = checked_rows(rows, block.batch_size)
        source, starts = in_row_order(block, data_step)
        source, starts = source[chosen], starts[chosen]
        groups = grouped(source, starts + first)
        tokens = self._read_groups(groups, (source.size, length))
        if self.fields == ("tokens",):
            return tokens
        return fill_fields(
            self.fields, tokens, source, starts, self._readers, first_column=first
        )

    def windows(self, step: int) -> Windows:
        """Return source and tokens of every row of a step, without reading any."""
        block, data_step = self._block(step)
        source, start = in_row_order(block, data_step)
        stop = start + self._phases[block.phase].piece.seq_len
        return Windows(source, start, stop)

    def locate(self, step: int, row: int) -> Location:
        """Return where one row of a step came from, with its documents.

        Raises:
            IndexError: The step or the row is outside.
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

    def upcoming(
        self, step: int, n: int = 1, rows: Rows | None = None
    ) -> Iterator[Upcoming]:
        """Yield what the steps `[step, step + n)` will read, in order, by source.

        Args:
            step: First training step; steps past the end of the run hold nothing.
            n: Steps to look at.
            rows: Only these rows of every step; None for all.
        """
        for ahead in range(step, min(step + n, self.total_steps)):
            block, data_step = self._block(ahead)
            length = self._phases[block.phase].piece.seq_len
            for index, _, starts in self._groups(block, data_step, rows):
                yield Upcoming(self.source_names[index], starts, length)

    def will_need(self, step: int, n: int = 1, rows: Rows | None = None) -> None:
        """Tell the sources which windows the steps `[step, step + n)` will read.

        A source is told once of all windows of one length.
        """
        wanted: dict[tuple[int, int], list[npt.NDArray[np.int64]]] = {}
        ahead, stop = operator.index(step), min(step + n, self.total_steps)
        while ahead < stop:
            block, data_step = self._block(ahead)
            near = self._near
            if near is not None and near.first <= ahead < near.stop:
                until = min(stop, near.stop)
                starts = near.starts(ahead, until)
                if rows is not None and not is_every_row(rows, near.batch_size):
                    starts = starts[:, checked_rows(rows, near.batch_size)]
                key = near.source, near.seq_len
                wanted.setdefault(key, []).append(starts.ravel())
                ahead = until
                continue
            length = self._phases[block.phase].piece.seq_len
            for index, _, starts in self._groups(block, data_step, rows):
                wanted.setdefault((index, length), []).append(starts)
            ahead += 1
        for (index, length), starts in wanted.items():
            self._readers[index].will_need(np.concatenate(starts), length)

    def _groups(self, block: Block, data_step: int, rows: Rows | None) -> list[Group]:
        """Return some rows of a step by source; all for None."""
        if rows is None or is_every_row(rows, block.batch_size):
            return block.groups(data_step)
        source, starts = in_row_order(block, data_step)
        chosen = checked_rows(rows, block.batch_size)
        return grouped(source[chosen], starts[chosen])

    def delivered_tokens(self, step: int) -> dict[str, int]:
        """Return the tokens that each source has given when `step` steps are done.

        A closed formula: as quick for the last step as for the first.

        Args:
            step: Training steps done, `0 <= step <= total_steps`.

        Returns:
            Tokens by source, all sources named; together the tokens of the batches.

        Raises:
            IndexError: The step is outside the run.
        """
        step = self._done(step)
        if not step:
            return dict.fromkeys(self.source_names, 0)
        return self._tally.delivered(self._piece(step - 1), step)

    def planned_tokens(self, step: int) -> dict[str, float]:
        """Return the tokens that the weights ask of each source in the same steps.

        Shares are counted from the start of the phase or the last exhaustion in it, and
        what came before as it was delivered; so it differs from `delivered_tokens` by
        at most three samples for each source.

        Args:
            step: Training steps done, `0 <= step <= total_steps`.

        Raises:
            IndexError: The step is outside the run.
        """
        step = self._done(step)
        if not step:
            return dict.fromkeys(self.source_names, 0.0)
        return self._tally.planned(self._piece(step - 1), step)

    def state(self, step: int) -> dict[str, Any]:
        """Return what the order of the steps before `step` depends on.

        Args:
            step: Training steps done, `0 <= step <= total_steps`; next comes `step`.

        Returns:
            A small dict that `json` can hold; give it to `Curriculum.sampler` to go on.

        Raises:
            IndexError: The step is outside the run.
        """
        return state_of(self._schedule, self.seed, self._done(step))

    def check(self, state: Mapping[str, Any]) -> None:
        """Check that a run with this state trained what this sampler gives.

        Args:
            state: What `state` gave, perhaps read back from JSON.

        Raises:
            StateMismatch: Something the past depends on differs; the message names
                every difference.
        """
        found = differences(self._schedule, self.seed, state)
        if found:
            raise StateMismatch(found)

    @cached_property
    def _tally(self) -> Tally:
        return Tally(self._phases, self.source_names)

    @cached_property
    def _is_safe(self) -> tuple[bool, ...]:
        """For each source, whether every token of its type fits the batch's."""
        return tuple(
            np.can_cast(reader.dtype, self.dtype, "safe") for reader in self._readers
        )

    def _done(self, step: int) -> int:
        """Return a number of steps that can be done."""
        step = operator.index(step)
        if not 0 <= step <= self.total_steps:
            raise IndexError(
                f"step {step} is outside [0, {self.total_steps}], the steps that can "
                "be done in this run"
            )
        return step

    def _piece(self, step: int) -> int:
        """Return which solved phase a step is in."""
        step = operator.index(step)
        if not 0 <= step < self.total_steps:
            raise IndexError(self._outside(step))
        return bisect_right(self._starts, step) - 1

    def _outside(self, step: int) -> str:
        message = f"step {step} is outside the run, which has {self.total_steps} steps"
        ended = self._schedule.ended
        if ended is not None and step >= self.total_steps:
            message += (
                f"; source {ended.source!r} runs out in {ended.declared_phase} and "
                'its policy is "stop"'
            )
        return message

    def _block(self, step: int) -> tuple[Block, int]:
        """Return a block that holds a step, and the step's worth of data."""
        step = operator.index(step)
        index = self._piece(step)
        phase = self._phases[index]
        data_step = phase.data_step(step - phase.start)
        blocks = self._blocks
        before = index, data_step - 1
        if data_step == 0 and index:
            earlier = self._phases[index - 1]
            before = index - 1, earlier.data_step(earlier.steps - 1)
        follows = False
        for block, near in blocks:
            if block.phase == index and block.first <= data_step < block.stop:
                self._near = near
                return block, data_step
            follows |= (
                block.phase == before[0] and block.first <= before[1] < block.stop
            )
        first, stop = data_step, data_step + 1
        if follows:
            size = max(1, _BLOCK_SAMPLES // phase.piece.batch_size)
            last = phase.data_step(phase.steps - 1) + 1
            first = data_step // size * size
            stop = min(first + size, last)
        made = make_block(phase, index, first, stop, self._sources)
        near = None
        if follows and self.fields == ("tokens",):
            near = sole_source(made, phase, self._readers, self.dtype)
        self._near = near
        self._blocks = ((made, near), *blocks[: _KEPT_BLOCKS - 1])
        return made, data_step

    def _read_groups(
        self, groups: Sequence[Group], shape: tuple[int, int]
    ) -> npt.NDArray[Any]:
        """Return the tokens of rows that are all in these groups, of `shape`."""
        length = shape[1]
        if len(groups) == 1:  # whose rows are in order
            index, _, starts = groups[0]
            return self._read(index, starts, length)
        tokens = new_batch(shape, self.dtype)
        for index, rows, starts in groups:
            tokens[rows] = self._read_part(index, starts, length)
        return tokens

    def _read(
        self, index: int, starts: npt.NDArray[np.int64], length: int
    ) -> npt.NDArray[Any]:
        """Return windows of one source as the batch's type."""
        reader = self._readers[index]
        out = new_batch((starts.size, length), self.dtype)
        return reader.read(starts, length, self.dtype, out)

    def _read_part(
        self, index: int, starts: npt.NDArray[np.int64], length: int
    ) -> npt.NDArray[Any]:
        """Return windows of one source to be copied into a batch.

        As stored where every token fits, for then the copy casts as it goes; else the
        reader casts, which refuses what does not fit.
        """
        if self._is_safe[index]:
            return self._readers[index].read(starts, length)
        return self._read(index, starts, length)
