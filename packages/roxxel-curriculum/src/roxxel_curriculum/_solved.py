"""Solved phases: who gives each sample of a phase, and how many before it."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from fractions import Fraction

    from roxxel_curriculum._blend import Blend
    from roxxel_curriculum._rounds import Run

PRIMARY = "self"
"""The name of a curriculum's primary source."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A phase, or the part of one between two edits, before it is solved.

    Attributes:
        index: Which declared phase it is.
        batch_size: Sequences in a step.
        seq_len: Tokens of a sequence.
        weights: Positive integers by source name.
        steps: Training steps; None where `epochs` decides.
        epochs: Epochs of samples that the primary gives, where `steps` is None.
        is_split: Whether it goes on with an edited phase, rather than beginning one.
    """

    index: int
    batch_size: int
    seq_len: int
    weights: Mapping[str, int]
    steps: int | None
    epochs: int | Fraction = 0
    is_split: bool = False

    @property
    def label(self) -> str:
        """What to call it in a message."""
        return f"phase {self.index}"


@dataclass(frozen=True, slots=True)
class Leg:
    """The samples of a phase between two exhaustions.

    Attributes:
        start: First sample, counted in the phase.
        stop: One past its last sample; None where no source ends it.
        blend: Who gives its samples.
        given: Samples that each source of the phase gave before it.
        ended_by: The source that runs out with its last sample.
    """

    start: int
    stop: int | None
    blend: Blend
    given: Mapping[str, int]
    ended_by: str | None


@dataclass(frozen=True, slots=True)
class Skip:
    """Data passed over: before training step `at`, that of `steps` steps."""

    at: int
    steps: int


@dataclass(frozen=True)
class SolvedPhase:
    """A phase whose every sample has a source and a rank.

    Attributes:
        piece: What was declared.
        start: First training step.
        steps: Training steps.
        skips: Skips in it, by training step counted from its start, ascending.
        legs: Stretches between exhaustions, in order.
        runs: The run of each source, and `bases` its samples before the phase.
        bases: Samples that each run had given before the phase.
        stopped_by: The source whose policy ends the run with this phase's last step.
    """

    piece: Piece
    start: int
    steps: int
    skips: tuple[Skip, ...]
    legs: tuple[Leg, ...]
    runs: Mapping[str, Run]
    bases: Mapping[str, int]
    stopped_by: str | None = None

    @property
    def stop(self) -> int:
        """One past the last training step."""
        return self.start + self.steps

    @property
    def num_samples(self) -> int:
        """Samples of its steps, those of skipped ones included."""
        return self.samples_before(self.steps)

    def data_step(self, step: int) -> int:
        """Return which step's worth of data a training step reads.

        Args:
            step: Training step, counted from the start of the phase.
        """
        if not self.skips:
            return step
        return step + sum(skip.steps for skip in self.skips if skip.at <= step)

    def samples_before(self, steps: int) -> int:
        """Return the samples passed when `steps` training steps are done."""
        return (self.data_step(steps - 1) + 1) * self.piece.batch_size if steps else 0

    def delivered(self, source: str) -> int:
        """Return the samples of a source in its steps, those of skipped ones not."""
        return self.delivered_by(self.steps).get(source, 0)

    def delivered_by(self, steps: int) -> dict[str, int]:
        """Return the samples of each source in the first `steps` training steps.

        Those of skipped steps are passed, not delivered.
        """
        size = self.piece.batch_size
        given = self.counts(self.samples_before(steps))
        for skip in self.skips:
            if skip.at < steps:
                stop = self.data_step(skip.at)
                until, before = (
                    self.counts(sample * size) for sample in (stop, stop - skip.steps)
                )
                for name in given:
                    given[name] -= until[name] - before[name]
        return given

    def steps_within(self, num_samples: int) -> int:
        """Return the most training steps that need no more than `num_samples`."""
        whole = num_samples // self.piece.batch_size
        steps, passed = whole, 0
        for skip in self.skips:
            if whole - passed <= skip.at:
                break
            passed += skip.steps
            steps = max(skip.at, whole - passed)
        return steps

    def leg_of(self, sample: int) -> int:
        """Return which leg holds a sample of the phase."""
        return bisect_right(self.legs, sample, key=_leg_start) - 1

    def counts(self, num_samples: int) -> dict[str, int]:
        """Return how many of the phase's first samples each source gives."""
        if not num_samples:
            return dict.fromkeys(self.runs, 0)
        leg = self.legs[self.leg_of(num_samples - 1)]
        counts = dict(leg.given)
        for name, count in leg.blend.counts(num_samples - leg.start).items():
            counts[name] += count
        return counts

    def place(self, source: str, rank: int) -> int:
        """Return the sample that `source` gives after `rank` others in the phase.

        Raises:
            LookupError: The source runs out before.
        """
        for leg in self.legs:
            if source not in leg.blend.sources:
                continue
            sample = leg.start + leg.blend.place(source, rank - leg.given[source])
            if leg.stop is None or sample < leg.stop:
                return sample
        raise LookupError(f"source {source!r} gives fewer than {rank + 1} samples")


def _leg_start(leg: Leg) -> int:
    return leg.start
