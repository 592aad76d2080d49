"""The numbers of a plan: what each phase reads from each source."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from roxxel_curriculum._withdrawn import amount

if TYPE_CHECKING:
    from roxxel_curriculum._plan.solution import MixPlan


@dataclass(frozen=True, slots=True)
class SourcePlan:
    """What one phase reads from one source.

    Attributes:
        name: Name of the source.
        weight: Weight of the source in the phase, as an integer; see `ResolvedPhase`.
        share: The weight divided by the sum of the phase's weights.
        samples: Number of samples (sequences) delivered.
        tokens: Number of tokens delivered.
        skipped: Number of samples in skipped steps.
        epochs: Number of passes over the source from the start of the run to the end of
            the phase; 1.25 means a quarter of the second pass.
        first_step: First step that reads the source in the phase; None if none does.
        last_step: Last step that reads the source in the phase; None if none does.
        exhausted_step: Step of the phase in which the source runs out, if any.
        unfinished_tokens: Number of unread tokens in the round that an earlier phase
            left unfinished, because this phase has another sequence length.
        tail_tokens: Number of unread tokens at the ends of epochs, too few for a
            sample. An epoch ends when the phase reads the next epoch. In the last phase
            that reads the source, an epoch also ends when no sample is left.
        is_spent: Whether the source had no samples left when the phase started.

    Example:
        >>> from roxxel_curriculum.testing import PositionReader
        >>> curriculum = Curriculum(PositionReader(10_000), [Phase(9, 4, 129)])
        >>> (source,) = curriculum.plan().phases[0].sources
        >>> source.name, source.samples, source.tokens, source.last_step
        ('self', 36, 4644, 8)
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
class PhasePlan:
    """What one phase reads.

    Attributes:
        index: Index of the declared phase. If the weights of a phase changed during the
            run, several entries of `Plan.phases` have its index.
        start: First training step.
        steps: Number of training steps.
        batch_size: Number of sequences in a step, over all processes.
        seq_len: Number of tokens in a sequence.
        tokens: Number of tokens delivered.
        skipped_steps: Number of steps whose data the phase skips.
        sources: One entry for each source with a weight.
        mixes: The blends in training order; a blend changes when a source runs out.

    Example:
        >>> from roxxel_curriculum.testing import PositionReader
        >>> curriculum = Curriculum(PositionReader(10_000), [Phase(9, 4, 129)])
        >>> (phase,) = curriculum.plan().phases
        >>> phase.stop, phase.tokens
        (9, 4644)
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
    """What the whole run reads from one source.

    Attributes:
        name: Name of the source.
        fingerprint: Digest of the source's content.
        num_tokens: Number of tokens in the source.
        num_spans: Number of spans that the source is cut into.
        policy: What happens when the source runs out, such as `stop after 2`.
        tokens: Number of tokens delivered in the run.
        epochs: Number of passes over the source in the run.
        waste_tokens: Sum of `unfinished_tokens` and `tail_tokens` of this source over
            all phases.
        unit: Number of tokens in a bin; 1 if the source is not packed.
        padding_tokens: Number of tokens in the source that are padding of bins.

    Example:
        >>> from roxxel_curriculum.testing import PositionReader
        >>> curriculum = Curriculum(PositionReader(10_000), [Phase(9, 4, 129)])
        >>> (corpus,) = curriculum.plan().sources
        >>> corpus.num_tokens, corpus.policy, corpus.epochs
        (10000, 'repeat', 0.4644)
    """

    name: str
    fingerprint: str
    num_tokens: int
    num_spans: int
    policy: str
    tokens: int
    epochs: float
    waste_tokens: int
    unit: int = 1
    padding_tokens: int = 0

    @property
    def waste_share(self) -> float:
        """Share of the source that stays unread in a pass."""
        return self.waste_tokens / (self.num_tokens * max(1.0, self.epochs))


@dataclass(frozen=True, slots=True)
class WithdrawnPlan:
    """What the run leaves out of the loss of one source, from a step on.

    If both numbers are 0, the run learns the whole source again.

    Attributes:
        step: First step that leaves out the documents and tokens.
        source: Name of the source.
        documents: Number of withdrawn documents.
        tokens: Number of tokens in withdrawn ranges, not counting the documents.
        digest: Digest of the documents and ranges.
        is_read: Whether the run reads the source from this step on.

    Example:
        >>> from roxxel_curriculum.testing import PositionReader
        >>> curriculum = Curriculum(
        ...     PositionReader(10_000), [Phase(9, 4, 129)], without={"self": [3, 7]}
        ... )
        >>> (withdrawn,) = curriculum.plan().withdrawn
        >>> withdrawn.step, withdrawn.source, withdrawn.amount
        (0, 'self', '2 documents')
    """

    step: int
    source: str
    documents: int
    tokens: int
    digest: str
    is_read: bool

    @property
    def amount(self) -> str:
        """The numbers of documents and of tokens, as text."""
        return amount(self.documents, self.tokens)


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
    withdrawn: tuple[WithdrawnPlan, ...] = ()
    notes_on_sources: tuple[str, ...] = ()
