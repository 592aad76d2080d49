"""The numbers of a plan: what each phase reads from each source."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class SourcePlan:
    """What one phase reads from one source.

    Attributes:
        name: Name of the source.
        weight: Weight of the source, as an integer among those of the phase.
        share: Share of the phase's tokens by its weights, before any source runs out.
        samples: Samples delivered.
        tokens: Tokens delivered.
        skipped: Samples of skipped steps.
        epochs: Passes over the source when the phase ends, counted from the start of
            the run; 1.25 is a quarter into the second pass. A source that gives nothing
            keeps the number of the phase before.
        first_step: Step of the first sample in the phase; None without a sample.
        last_step: Step of the last sample in the phase; None without a sample.
        exhausted_step: Step in which the source runs out and the others share its
            weight; None if it does not run out.
        unfinished_tokens: Tokens of the round that an earlier phase left unfinished,
            because this phase has another sequence length.
        tail_tokens: Tokens left out at the ends of epochs, too few for a sample. An
            epoch ends when the phase starts the next one, or with the last phase that
            draws from the source, if no sample is left.
        is_spent: Whether the source had nothing left when the phase started.
    """

    name: str
    weight: int
    share: float
    samples: int
    tokens: int
    skipped: int
    epochs: float
    first_step: int | None
    last_step: int | None
    exhausted_step: int | None
    unfinished_tokens: int
    tail_tokens: int
    is_spent: bool


@dataclass(frozen=True, slots=True)
class MixPlan:
    """The blend of consecutive steps between two exhaustions.

    Attributes:
        start: First training step.
        stop: One past the last.
        shares: Share of tokens by source name.
    """

    start: int
    stop: int
    shares: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class PhasePlan:
    """What one phase reads.

    Attributes:
        index: Index of the declared phase; an edited phase has several entries.
        start: First training step.
        steps: Number of training steps.
        batch_size: Sequences in a step.
        seq_len: Tokens of a sequence.
        tokens: Tokens delivered.
        skipped_steps: Number of steps whose data is skipped.
        sources: One entry for each source with a weight.
        mixes: The blends of the steps, in order.
    """

    index: int
    start: int
    steps: int
    batch_size: int
    seq_len: int
    tokens: int
    skipped_steps: int
    sources: tuple[SourcePlan, ...]
    mixes: tuple[MixPlan, ...]

    @property
    def stop(self) -> int:
        """One past the last training step."""
        return self.start + self.steps


@dataclass(frozen=True, slots=True)
class CorpusPlan:
    """One source over the whole run.

    Attributes:
        name: Name of the source.
        fingerprint: Digest of its content.
        num_tokens: Number of tokens of the source.
        num_spans: Number of spans it is cut into.
        policy: Name of the policy for when it runs out.
        tokens: Tokens delivered in the run.
        epochs: Passes over the source when the run ends.
        waste_tokens: Tokens left out: unfinished rounds and tails.
    """

    name: str
    fingerprint: str
    num_tokens: int
    num_spans: int
    policy: str
    tokens: int
    epochs: float
    waste_tokens: int


@dataclass(frozen=True, slots=True)
class PlanFigures:
    """The numbers of a plan; see `Plan`."""

    seed: int
    total_steps: int
    total_tokens: int
    longest: int
    overlap: int
    phases: tuple[PhasePlan, ...]
    sources: tuple[CorpusPlan, ...]
    skips: tuple[tuple[int, int], ...]
    ended: str | None


def short_count(number: int) -> str:
    """Return a count with at most four digits and a unit: 1852000 is `1.852 M`."""
    for unit, size in (
        ("E", 10**18),
        ("P", 10**15),
        ("T", 10**12),
        ("G", 10**9),
        ("M", 10**6),
        ("k", 10**3),
    ):
        if number >= size:
            return f"{number / size:.4g} {unit}"
    return str(number)
