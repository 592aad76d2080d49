"""A phase solved: its steps, and which source gives each of its samples."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from roxxel_curriculum._order.blend import Blend
    from roxxel_curriculum._order.rounds import Cursor

_START = attrgetter("start")


@dataclass(frozen=True, slots=True)
class Skip:
    """Skipped data: before training step `at`, that of `steps` steps."""

    at: int
    steps: int


@dataclass(frozen=True, slots=True)
class Leg:
    """The samples of a phase between two exhaustions.

    Attributes:
        start: First sample, counted from the start of the phase.
        stop: One past the last sample; None if no source ends the leg.
        blend: Assigns the samples to sources.
        given: Samples that each source of the phase gave before the leg.
        ended_by: The source that runs out with the last sample.
    """

    start: int
    stop: int | None
    blend: Blend
    given: Mapping[str, int]
    ended_by: str | None


@dataclass(frozen=True)
class ResolvedPhase:
    """A phase with its steps and samples resolved: an entry of `Curriculum.phases`.

    Attributes:
        index: Index of the declared phase; an edited phase has several entries.
        start: First training step.
        steps: Number of training steps.
        batch_size: Sequences in a step, over all processes.
        seq_len: Tokens of a sequence.
        weights: Share of tokens by source name, as the smallest integers of that ratio.
        is_edited: Whether the entry continues an edited phase.
        skips: Skips within the phase, by training step counted from its start.
        legs: The samples between exhaustions, in order.
        cursors: How far each source had been read when the phase started.
        stopped_by: The source whose policy ends the run with the last step.
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
        """Number of samples, those of skipped steps included."""
        return self.samples_before(self.steps)

    def data_step(self, step: int) -> int:
        """Return the number of steps whose data precedes that of a training step.

        Args:
            step: Training step, counted from the start of the phase.
        """
        return step + sum(skip.steps for skip in self.skips if skip.at <= step)

    def unbroken_steps(self, step: int) -> range:
        """Return the training steps around one that no skip interrupts.

        Args:
            step: Training step of the run, in this phase.
        """
        marks = [0, *(skip.at for skip in self.skips), self.steps]
        after = bisect_right(marks, step - self.start, hi=len(marks) - 1)
        return range(self.start + marks[after - 1], self.start + marks[after])

    def samples_before(self, steps: int) -> int:
        """Return the samples used when `steps` training steps are done."""
        return (self.data_step(steps - 1) + 1) * self.batch_size if steps else 0

    def delivered(self, steps: int) -> dict[str, int]:
        """Return the samples of each source in the first `steps` training steps.

        Samples of skipped steps do not count.
        """
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
        """Return the most training steps that use at most `num_samples` samples."""
        whole = num_samples // self.batch_size
        steps, skipped = whole, 0
        for skip in self.skips:
            if whole - skipped <= skip.at:
                break
            skipped += skip.steps
            steps = max(skip.at, whole - skipped)
        return steps

    def leg_of(self, sample: int) -> Leg:
        """Return the leg that holds a sample of the phase."""
        return self.legs[bisect_right(self.legs, sample, key=_START) - 1]

    def counts(self, num_samples: int) -> dict[str, int]:
        """Return how many of the phase's first samples each source gives."""
        if not num_samples:
            return dict.fromkeys(self.cursors, 0)
        leg = self.leg_of(num_samples - 1)
        counts = dict(leg.given)
        for name, count in leg.blend.counts(num_samples - leg.start).items():
            counts[name] += count
        return counts

    def sample_index(self, source: str, rank: int) -> int:
        """Return the sample that `source` gives after `rank` others in the phase.

        Raises:
            LookupError: The source runs out before.
        """
        for leg in self.legs:
            if source not in leg.blend.sources:
                continue
            rank_in_leg = rank - leg.given[source]
            sample = leg.start + leg.blend.sample_index(source, rank_in_leg)
            if leg.stop is None or sample < leg.stop:
                return sample
        raise LookupError(f"source {source!r} gives fewer than {rank + 1} samples")
