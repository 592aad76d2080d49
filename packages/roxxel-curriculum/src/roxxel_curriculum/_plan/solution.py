"""The classes of a declared curriculum and of its solution.

A sample is one sequence of a phase, delivered or skipped. A solution determines the
source of every sample.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from roxxel_curriculum._order import PRIMARY

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from roxxel_format import TokenReader

    from roxxel_curriculum._order.blend import Blend
    from roxxel_curriculum._order.rounds import Cursor, Spans
    from roxxel_curriculum._plan.withdrawn import Withdrawal
    from roxxel_curriculum.phase import Phase
    from roxxel_curriculum.policy import Policy


@dataclass(frozen=True, slots=True)
class Skip:
    """Skips the data of `steps` steps before training step `at`."""

    at: int
    steps: int


class Part(NamedTuple):
    """Which part of its source a proxy reads; the numbers of the spans follow."""

    spans: int
    seed: int


@dataclass(frozen=True)
class Source:
    """A corpus that a curriculum draws from, or that a run's state records.

    What the order depends on is read from the reader once, or from the state.
    """

    name: str
    reader: TokenReader
    policy: Policy
    order_name: str  # the name in the order; `"self"` for the primary
    num_tokens: int
    dtype: np.dtype[Any]
    fingerprint: str
    tokenizer: str | None  # as the corpus records it
    token_range: tuple[int, int] | None = None  # None if the reader does not know
    unit: int = 1  # tokens of a bin; 1 if the source is not packed
    num_padding: int = 0  # tokens that are padding
    path: str | tuple[str, ...] | None = None  # None if the reader is no `Roxxel`
    has_mask: bool = False  # whether it says which tokens not to learn
    part: Part | None = None  # for a proxy; `num_tokens` are those of the whole source
    declared: str | None = None  # the tokenizer that the curriculum names instead


@dataclass(frozen=True)
class Declaration:
    """The checked arguments of a `Curriculum`."""

    sources: tuple[Source, ...]  # the primary source is first
    phases: tuple[Phase, ...]
    longest: int | None  # None for the largest `seq_len`
    overlap: int  # tokens that neighbouring windows share, 0 or 1
    skips: tuple[Skip, ...]  # sorted by step, at most one for a step
    max_epochs: int | None  # limit for every source; None for no limit
    without: Mapping[str, Withdrawal] = field(  # not learned, by source
        default_factory=dict[str, "Withdrawal"]
    )
    notes: tuple[str, ...] = ()  # doubts about the sources
    masks: Mapping[str, str | None] = field(  # see `recorded_masks`
        default_factory=dict[str, "str | None"]
    )

    @property
    def resolved_longest(self) -> int:
        """`longest` if declared, else the largest `seq_len` of the phases."""
        return self.longest or max(phase.seq_len for phase in self.phases)

    @property
    def primary(self) -> str:
        """Name of the primary source."""
        names = {order_name: name for name, order_name in self.order_names.items()}
        return names.get(PRIMARY, PRIMARY)

    @property
    def batch_dtype(self) -> np.dtype[Any]:
        """Dtype of the tokens of a batch: int32 for integers, else the promoted one."""
        dtypes = [source.dtype for source in self.sources]
        if dtypes[0].kind in "iu":
            return np.dtype(np.int32)
        return np.result_type(*dtypes)

    @property
    def order_names(self) -> dict[str, str]:
        """The name of each source in the order, by its own name."""
        return {source.name: source.order_name for source in self.sources}


@dataclass(frozen=True, slots=True)
class Leg:
    """Samples `[start, stop)` of a phase that are drawn from the same sources.

    `start` and `stop` count from the start of the phase.
    """

    start: int
    stop: int | None  # None if no source runs out
    blend: Blend
    given: Mapping[str, int]  # samples by source in this phase before this leg
    ended_by: str | None  # the source that runs out with the last sample, if any


@dataclass(frozen=True)
class ResolvedPhase:
    """A phase with known steps and samples: an entry of `Curriculum.phases`.

    Attributes:
        index: Index of the declared phase. If the weights of a phase changed during the
            run, several entries have its index.
        start: First training step.
        steps: Number of training steps.
        batch_size: Number of sequences in a step, over all processes.
        seq_len: Number of tokens in a sequence.
        weights: Weights by source name, as the smallest integers in their ratio.
        is_edited: Whether the entry continues a phase whose weights changed during the
            run.
        skips: Skips in the phase; their steps count from the start of the phase.
        legs: The legs of the phase, in order. A leg ends where a source runs out.
        cursors: How far the run had read each source when the phase started.
        stopped_by: The source whose policy ends the run after this phase, if any.

    Example:
        >>> from roxxel_curriculum.testing import PositionReader
        >>> curriculum = Curriculum(PositionReader(10_000), [Phase(9, 4, 129)])
        >>> curriculum.phases[0].stop, curriculum.phases[0].weights
        (9, {'self': 1})
    """

    index: int
    start: int
    steps: int
    batch_size: int
    seq_len: int
    weights: Mapping[str, int]
    is_edited: bool = field(default=False, repr=False, compare=False)
    skips: tuple[Skip, ...] = field(default=(), repr=False, compare=False)
    legs: tuple[Leg, ...] = field(default=(), repr=False, compare=False)
    cursors: Mapping[str, Cursor] = field(
        default_factory=dict[str, "Cursor"], repr=False, compare=False
    )
    stopped_by: str | None = field(default=None, repr=False, compare=False)

    @property
    def stop(self) -> int:
        """One past the last training step."""
        return self.start + self.steps

    @property
    def num_samples(self) -> int:
        """Number of samples, including skipped samples."""
        return self.samples_before(self.steps)

    def data_step(self, step: int) -> int:
        """Return the number of steps before a training step, including skipped steps.

        Args:
            step: Training step, counted from the start of the phase.
        """
        return step + sum(skip.steps for skip in self.skips if skip.at <= step)

    def step_of(self, data_step: int) -> int | None:
        """Return the training step that reads a data step; None if no step reads it.

        Data steps are training steps and skipped steps, counted together. This is the
        inverse of `data_step`; both steps count from the start of the phase.
        """
        skipped = 0
        for skip in self.skips:
            first = skip.at + skipped
            if data_step < first:
                break
            if data_step < first + skip.steps:
                return None
            skipped += skip.steps
        return data_step - skipped

    def unbroken_steps(self, step: int) -> range:
        """Return the training steps around `step` that no skip interrupts.

        Args:
            step: A step of this phase, counted from the start of the run.
        """
        marks = [0, *(skip.at for skip in self.skips), self.steps]
        after = bisect_right(marks, step - self.start, hi=len(marks) - 1)
        return range(self.start + marks[after - 1], self.start + marks[after])

    def samples_before(self, steps: int) -> int:
        """Return the number of samples in the first `steps` steps and their skips."""
        return (self.data_step(steps - 1) + 1) * self.batch_size if steps else 0

    def delivered(self, steps: int) -> dict[str, int]:
        """Return the delivered samples of each source in the first `steps` steps."""
        given = self.counts(self.samples_before(steps))
        for skip in self.skips:
            if skip.at < steps:
                stop = self.data_step(skip.at)
                until = self.counts(stop * self.batch_size)
                before = self.counts((stop - skip.steps) * self.batch_size)
                for name in given:
                    given[name] -= until[name] - before[name]
        return given

    def steps_within(self, num_samples: int) -> int:
        """Return the number of training steps that fit into `num_samples` samples."""
        data_steps = num_samples // self.batch_size
        steps, skipped = data_steps, 0
        for skip in self.skips:
            if data_steps - skipped <= skip.at:
                break
            skipped += skip.steps
            # The samples may end inside the skip: then the steps before it fit.
            steps = max(skip.at, data_steps - skipped)
        return steps

    def next_epoch(self, source: str, step: int) -> tuple[int, int] | None:
        """Return the result of `Sampler.next_epoch` if it is in this phase, else None.

        Args:
            source: Name of the source.
            step: First step to consider, `step >= start`.
        """
        if source not in self.cursors:
            return None
        stream, before = self.cursors[source]
        read = before + self.counts(self.samples_before(step - self.start))[source]
        # The first sample of the next epoch, counted in the stream as `read` is.
        first = stream.samples_until(max(stream.epoch + 1, stream.epochs_started(read)))
        if first >= before + self.counts(self.num_samples)[source]:
            return None
        found = self.steps_within(self.sample_index(source, first - before))
        # A step may begin several epochs of a small source: return the last.
        after = before + self.counts(self.samples_before(found + 1))[source]
        return self.start + found, stream.epochs_started(after) - 1

    def leg_of(self, sample: int) -> Leg:
        """Return the leg that holds a sample of the phase."""
        return self.legs[bisect_right(self.legs, sample, key=attrgetter("start")) - 1]

    def counts(self, num_samples: int) -> dict[str, int]:
        """Return the number of samples of each source in the first `num_samples`."""
        if not num_samples:
            return dict.fromkeys(self.cursors, 0)
        leg = self.leg_of(num_samples - 1)
        counts = dict(leg.given)
        for name, count in leg.blend.counts(num_samples - leg.start).items():
            counts[name] += count
        return counts

    def sample_index(self, source: str, rank: int) -> int:
        """Return the index in the phase of the source's sample `rank`, both from 0.

        Raises:
            LookupError: The source runs out before this sample.
        """
        for leg in self.legs:
            if source not in leg.blend:
                continue
            rank_in_leg = rank - leg.given[source]
            sample = leg.start + leg.blend.sample_index(source, rank_in_leg)
            if leg.stop is None or sample < leg.stop:
                return sample
        raise LookupError(f"source {source!r} gives fewer than {rank + 1} samples")


@dataclass(frozen=True, slots=True)
class EarlyStop:
    """Where a run ends because a source runs out and its policy is `"stop"`."""

    step: int  # the number of steps that the run trains
    source: str
    phase: int  # index of the declared phase in which the source runs out


@dataclass(frozen=True)
class Solution:
    """The solved phases of a declaration, which determine the source of each sample."""

    declaration: Declaration
    longest: int  # the declared, recorded or default value
    spans: Mapping[str, Spans]  # by source name
    phases: tuple[ResolvedPhase, ...]  # may split a declared phase
    early_stop: EarlyStop | None  # None if the run trains every declared step
    withdrawals: tuple[Withdrawal, ...] = ()  # in the order of their steps

    @property
    def total_steps(self) -> int:
        """Number of training steps of the run; 0 for a run that has trained none."""
        return self.phases[-1].stop if self.phases else 0

    def trained(self, step: int) -> Iterator[tuple[ResolvedPhase, int]]:
        """Yield each phase that begins before `step`, and its steps before it."""
        for phase in self.phases:
            if phase.start < step:
                yield phase, min(step, phase.stop) - phase.start

    def why_outside(self, step: int) -> str:
        """Return the message for a step that the run does not have."""
        message = f"step {step} is outside the run, which has {self.total_steps} steps"
        early_stop = self.early_stop
        if early_stop is not None and step >= self.total_steps:
            message += (
                f"; source {early_stop.source!r} runs out in phase {early_stop.phase} "
                'and its policy is "stop"'
            )
        return message

    @property
    def source_names(self) -> tuple[str, ...]:
        """Names of the sources, the primary first."""
        return tuple(source.name for source in self.declaration.sources)
