"""Solve declared phases: determine the source of every sample.

A sample is one sequence of a phase, delivered or skipped. The solver adds phases in
training order. A solved phase depends only on earlier phases, and the order of its
samples does not depend on its number of steps. All counts are Python integers, so none
overflows.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from roxxel_curriculum._errors import CurriculumError
from roxxel_curriculum._order import PRIMARY
from roxxel_curriculum._order.blend import Blend
from roxxel_curriculum._order.rounds import (
    Cursor,
    SampleStream,
    Spans,
    cut_spans,
    part_of,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from roxxel_format import TokenReader

    from roxxel_curriculum._arguments import Phase, Policy
    from roxxel_curriculum._withdrawn import Withdrawal


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


@dataclass(frozen=True, slots=True)
class MixPlan:
    """The blend of consecutive steps during which no source runs out.

    Attributes:
        start: First training step.
        stop: One past the last training step.
        shares: Share of tokens by source name.

    Example:
        >>> from roxxel_curriculum.testing import PositionReader
        >>> curriculum = Curriculum(PositionReader(10_000), [Phase(9, 4, 129)])
        >>> curriculum.plan().phases[0].mixes
        (MixPlan(start=0, stop=9, shares={'self': 1.0}),)
    """

    start: int
    stop: int
    shares: Mapping[str, float]


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

    @property
    def spent(self) -> tuple[str, ...]:
        """The sources that had no samples left when the phase started."""
        # A phase of `recorded_phases` has no legs.
        left = {*(self.legs[0].blend.sources if self.legs else self.weights)}
        return tuple(name for name in self.weights if name not in left)

    @property
    def exhausted(self) -> dict[str, int]:
        """The step in which each source runs out, for those that do, by name."""
        return {
            leg.ended_by: self.start + self.steps_within(leg.stop - 1)
            for leg in self.legs
            if leg.ended_by is not None
            and leg.stop is not None
            and leg.stop <= self.num_samples
        }

    @property
    def mixes(self) -> tuple[MixPlan, ...]:
        """The blends in training order; a blend changes when a source runs out."""
        found: list[MixPlan] = []
        for leg in self.legs:
            weights = {name: self.weights[name] for name in leg.blend.sources}
            total = sum(weights.values())
            last = self.num_samples if leg.stop is None else leg.stop
            start = self.start + self.steps_within(leg.start)
            stop = self.start + min(self.steps, self.steps_within(last))
            if start < stop:
                shares = {name: weight / total for name, weight in weights.items()}
                found.append(MixPlan(start, stop, shares))
        return tuple(found)

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

    @property
    def ended(self) -> str | None:
        """Why the run ends early; None if it trains every declared step."""
        early_stop = self.early_stop
        if early_stop is None:
            return None
        declared = [phase.declared_steps for phase in self.declaration.phases]
        known = [steps for steps in declared if steps is not None]
        # Only a solved phase tells how many steps its epochs are, and those that the
        # run does not reach are not solved. So one phase in epochs hides the total.
        has_total = len(known) == len(declared)
        total = f" of the {sum(known):,} declared" if has_total else ""
        return (
            f"source {early_stop.source!r} runs out in phase {early_stop.phase} and "
            f"its policy stops the run before step {early_stop.step:,}{total}"
        )

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


def solve(declaration: Declaration) -> Solution:
    """Solve a declaration; raises `CurriculumError` if the sources cannot meet it."""
    solver = Solver(declaration)
    for index, phase in enumerate(declaration.phases):
        solver.add(phase, index)
    return solver.solution()


class Solver:
    """Solves phases in order, and tracks how far the run has read each source."""

    def __init__(self, declaration: Declaration) -> None:
        self.phases: list[ResolvedPhase] = []
        self.early_stop: EarlyStop | None = None
        self.step = 0  # training steps solved so far
        self._declaration = declaration
        self.primary = declaration.primary
        self._longest = declaration.resolved_longest
        self.spans = {
            source.name: _spans_of(source, self._longest, declaration.overlap)
            for source in declaration.sources
        }
        self._policies = {source.name: source.policy for source in declaration.sources}
        self._order_names = declaration.order_names
        self._cursors: dict[str, Cursor] = {}

    def solve(
        self, phase: Phase, index: int, *, is_edited: bool = False
    ) -> ResolvedPhase:
        """Solve `phase` as the next phase, without adding it."""
        label = f"phase {index}"
        weights, wanted = phase.integer_weights, phase.declared_steps
        self._check_lengths(phase.seq_len, weights, label)
        cursors = {name: self._cursor(name, phase.seq_len) for name in weights}
        skips = tuple(
            Skip(skip.at - self.step, skip.steps)
            for skip in self._declaration.skips
            if skip.at >= self.step
        )
        # Samples after which no leg is needed; None if the sources decide how long the
        # phase is. All later skips count, those of later phases too: the legs that
        # begin after the phase's last sample are dropped below.
        needed = None
        if wanted is not None:
            needed = (wanted + sum(skip.steps for skip in skips)) * phase.batch_size
        # The draft has every sample that the sources can still give in this phase.
        # `solved` has only the samples of its steps.
        draft = ResolvedPhase(
            index=index,
            start=self.step,
            steps=0,
            batch_size=phase.batch_size,
            seq_len=phase.seq_len,
            weights=weights,
            is_edited=is_edited,
            skips=skips,
            legs=tuple(self._legs(weights, cursors, needed)),
            cursors=cursors,
        )
        if wanted is None:
            wanted = self._steps_of_epochs(phase, draft, label)
        steps = self._within_supply(draft, wanted, label)
        total = draft.samples_before(steps)
        solved = replace(
            draft,
            steps=steps,
            skips=tuple(skip for skip in draft.skips if skip.at < steps),
            legs=tuple(leg for leg in draft.legs if leg.start < total),
            stopped_by=self._stopper(draft) if steps < wanted else None,
        )
        self._check_max_epochs(solved, label)
        return solved

    def add(
        self, phase: Phase, index: int, *, is_edited: bool = False
    ) -> ResolvedPhase | None:
        """Solve and add `phase`; return None if the run ends before `phase` starts."""
        if self.early_stop:
            return None
        return self.append(self.solve(phase, index, is_edited=is_edited))

    def append(self, solved: ResolvedPhase) -> ResolvedPhase | None:
        """Add what `solve` returned; return None if it has no steps."""
        if solved.stopped_by is not None:
            self.early_stop = EarlyStop(solved.stop, solved.stopped_by, solved.index)
        if not solved.steps:
            return None
        for name, given in solved.counts(solved.num_samples).items():
            if given:
                stream, before = solved.cursors[name]
                self._cursors[name] = Cursor(stream, before + given)
        self.step = solved.stop
        self.phases.append(solved)
        return solved

    def solution(self) -> Solution:
        """Return the solution of the added phases; without steps, raise an error."""
        declaration, early_stop = self._declaration, self.early_stop
        if not self.phases:
            source = early_stop.source if early_stop else self.primary
            raise CurriculumError(
                f"the run has no whole step: source {source!r} runs out in the first "
                'step; use another policy than "stop" or a smaller batch_size'
            )
        for skip in declaration.skips:
            if skip.at >= self.step and early_stop is None:
                raise CurriculumError(
                    f"a skip is at step {skip.at} but the run has {self.step} steps; "
                    f"use a step below {self.step}"
                )
        return Solution(
            declaration, self._longest, self.spans, tuple(self.phases), early_stop
        )

    def _cursor(self, name: str, seq_len: int) -> Cursor:
        """Return the cursor at which the next phase starts to read a source."""
        if name not in self._cursors:
            return Cursor(SampleStream(self.spans[name], seq_len, 0, 0), 0)
        return self._cursors[name].switched_to(seq_len)

    def _legs(
        self,
        weights: Mapping[str, int],
        cursors: Mapping[str, Cursor],
        needed: int | None,
    ) -> Iterator[Leg]:
        """Yield the legs of a phase: each ends where its first source runs out.

        The last leg has no end if none of its sources runs out, and no leg begins after
        the first `needed` samples. A source whose policy is to stop ends the phase with
        its leg.
        """
        # Samples that the policy of each source still allows; None for any number.
        left: dict[str, int | None] = {}
        for name, (stream, before) in cursors.items():
            epochs = self._policies[name].epochs
            left[name] = None
            if epochs is not None:
                left[name] = max(0, stream.samples_until(epochs) - before)
        stops = {name for name in cursors if self._policies[name].then == "stop"}
        if any(left[name] == 0 for name in stops):
            return
        given = dict.fromkeys(cursors, 0)
        alive = {name: w for name, w in weights.items() if left[name] != 0}
        start = 0
        while alive and (needed is None or start < needed):
            blend = Blend(alive, self._order_names)
            # One past the sample of the blend with which each source runs out.
            ends = [
                (blend.sample_index(name, limit - given[name] - 1) + 1, name)
                for name in alive
                if (limit := left[name]) is not None
            ]
            if not ends:
                yield Leg(start, None, blend, dict(given), None)
                return
            length, name = min(ends)
            yield Leg(start, start + length, blend, dict(given), name)
            if name in stops:
                return
            for source, count in blend.counts(length).items():
                given[source] += count
            del alive[name]
            start += length

    def _steps_of_epochs(self, phase: Phase, draft: ResolvedPhase, label: str) -> int:
        """Return the number of whole steps that fit into the phase's `epochs`."""
        epochs = phase.exact_epochs
        numerator, denominator = epochs.as_integer_ratio()
        windows = self.spans[self.primary].windows_per_epoch(phase.seq_len)
        wanted = numerator * windows // denominator
        if self.primary not in draft.weights:
            raise CurriculumError(
                f"{label} lasts epochs={float(epochs):g} of the primary, "
                "which has no weight in the phase; declare steps or tokens instead"
            )
        steps = 0
        if wanted:
            try:
                samples = draft.sample_index(self.primary, wanted - 1) + 1
            except LookupError:
                if self._stopper(draft) is not None:
                    supply = draft.legs[-1].stop or 0 if draft.legs else 0
                    # Ask for one more step than fits: `solve` then applies "stop".
                    return supply // phase.batch_size + 1
                policy = self._policies[self.primary]
                stream, before = draft.cursors[self.primary]
                left = stream.samples_until(policy.epochs or 0) - before
                raise CurriculumError(
                    f"{label} lasts epochs={float(epochs):g} of the primary, "
                    f"{wanted} samples, but the primary's policy ({policy}) leaves "
                    f"{left}; use fewer epochs or let the primary repeat"
                ) from None
            steps = samples // phase.batch_size
        if not steps:
            raise CurriculumError(
                f"{label} has no whole step: {phase.batch_size} samples of "
                f"{phase.seq_len} tokens are more than epochs={float(epochs):g} of the "
                f"primary ({windows} samples per epoch); use a smaller batch_size "
                "or more epochs"
            )
        return steps

    def _stopper(self, phase: ResolvedPhase) -> str | None:
        """Return the source whose policy ends the run in this phase, if any."""
        if phase.legs:
            name = phase.legs[-1].ended_by
            stops = name is not None and self._policies[name].then == "stop"
            return name if stops else None
        for name, (stream, before) in phase.cursors.items():
            policy = self._policies[name]
            if policy.then != "stop" or policy.epochs is None:
                continue
            if stream.samples_until(policy.epochs) <= before:
                return name
        return None

    def _within_supply(self, draft: ResolvedPhase, steps: int, label: str) -> int:
        """Return `steps`, or fewer if a source's policy stops the run."""
        supply = draft.legs[-1].stop if draft.legs else 0
        fit = steps if supply is None else min(steps, draft.steps_within(supply))
        if fit < steps and self._stopper(draft) is None:
            most, _ = self._within_max_epochs(draft, fit)
            names = ", ".join(sorted(draft.weights))
            remedy = f"use at most {most}" if most else "leave the phase out"
            raise CurriculumError(
                f"{label} needs {steps} steps of {draft.batch_size} samples of "
                f"{draft.seq_len} tokens, but its sources ({names}) run out after "
                f"{fit} steps; {remedy} or let a source repeat"
            )
        return fit

    def _check_lengths(self, seq_len: int, names: Collection[str], label: str) -> None:
        spans = {name: self.spans[name] for name in names}
        first = next(iter(spans.values()))
        if first.stride(seq_len) < 1:
            raise CurriculumError(
                f"{label} has seq_len={seq_len}; "
                "with overlap=1 a sequence needs at least 2 tokens"
            )
        for name, cut in spans.items():
            if seq_len % cut.unit:
                above = -(-seq_len // cut.unit) * cut.unit
                raise CurriculumError(
                    f"{label} has seq_len={seq_len}, but source {name!r} is "
                    f"packed in bins of {cut.unit} tokens, which a sequence must not "
                    f"cut; use a multiple of {cut.unit}, such as {above}, or leave the "
                    "source out"
                )
            if cut.unit > 1 and cut.overlap:
                raise CurriculumError(
                    f"{label} reads source {name!r}, which is packed in bins of "
                    f"{cut.unit} tokens, with overlap={cut.overlap}; use overlap=0, "
                    "because bins share no tokens"
                )
        small = [
            f"{name!r} ({cut.num_tokens} tokens in {cut.num_spans} spans of "
            f"{cut.span_tokens})"
            for name, cut in spans.items()
            if not cut.windows_left(seq_len, 0)
        ]
        if small:
            fit = min(cut.span_tokens for cut in spans.values())
            name, least = min(
                ((name, cut.num_tokens) for name, cut in spans.items()),
                key=lambda each: each[1],
            )
            if least < seq_len:
                raise CurriculumError(
                    f"{label} has seq_len={seq_len}, but the whole source "
                    f"{name!r} has {least} tokens; use at most {fit}, or give it more "
                    "documents"
                    + (", or leave the source out" if len(spans) > 1 else "")
                )
            raise CurriculumError(
                f"{label} has seq_len={seq_len}, longer than the spans of "
                f"{', '.join(small)}, cut for longest={self._longest}; use at most "
                f"{fit}, leave the source out, or start a new run with a larger "
                "longest="
            )

    def _check_max_epochs(self, phase: ResolvedPhase, label: str) -> None:
        fit, name = self._within_max_epochs(phase, phase.steps)
        if name is not None:
            stream, before = phase.cursors[name]
            given = before + phase.counts(phase.num_samples)[name]
            raise CurriculumError(
                f"{label} needs {phase.steps} steps, which read source {name!r} for "
                f"{stream.epochs_started(given)} epochs with "
                f"max_epochs={self._declaration.max_epochs}; at most {fit} steps fit"
            )

    def _within_max_epochs(
        self, phase: ResolvedPhase, steps: int
    ) -> tuple[int, str | None]:
        """Return how many steps fit `max_epochs`, and the source that limits them."""
        fit, limiting = steps, None
        max_epochs = self._declaration.max_epochs
        if max_epochs is None:
            return fit, limiting
        for name, given in phase.counts(phase.samples_before(steps)).items():
            stream, before = phase.cursors[name]
            allowed = max(0, stream.samples_until(max_epochs) - before)
            if given > allowed:
                most = phase.steps_within(phase.sample_index(name, allowed))
                if most < fit:
                    fit, limiting = most, name
        return fit, limiting


def _spans_of(source: Source, longest: int, overlap: int) -> Spans:
    spans = cut_spans(source.num_tokens, longest, overlap, source.unit)
    if source.part is None:
        return spans
    return part_of(spans, source.part.spans, source.order_name, source.part.seed)
