"""What a curriculum declares, and what follows from it once it is solved."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from roxxel_format import TokenReader

    from roxxel_curriculum._order.rounds import Spans
    from roxxel_curriculum._plan.resolved_phase import ResolvedPhase, Skip
    from roxxel_curriculum.phase import Phase
    from roxxel_curriculum.policy import Policy


@dataclass(frozen=True)
class Source:
    """A corpus that a curriculum draws from.

    Attributes:
        name: Name of the source; `"self"` is the primary.
        reader: The tokens.
        policy: What the source does when it runs out.
    """

    name: str
    reader: TokenReader
    policy: Policy


@dataclass(frozen=True)
class Declaration:
    """Everything that is declared about a run before it starts.

    Attributes:
        sources: The primary first.
        phases: In the order they are trained.
        longest: Length of the longest sequence; None for that of the longest phase.
        overlap: Tokens that neighbouring windows share, 0 or 1.
        skips: Data to skip, by training step.
        max_epochs: Epochs that no source may exceed; None for no limit.
    """

    sources: tuple[Source, ...]
    phases: tuple[Phase, ...]
    longest: int | None
    overlap: int
    skips: tuple[Skip, ...]
    max_epochs: int | None

    @property
    def resolved_longest(self) -> int:
        """`longest`, or the length of the longest phase if it is not given."""
        return self.longest or max(phase.seq_len for phase in self.phases)


@dataclass(frozen=True, slots=True)
class EarlyStop:
    """A run that a source's policy ends.

    Attributes:
        step: The first training step that is not trained.
        source: Name of the source.
        phase: Index of the declared phase in which the source runs out.
    """

    step: int
    source: str
    phase: int


@dataclass(frozen=True)
class Solution:
    """A declaration solved: which source gives which sample of every phase.

    Attributes:
        declaration: What was declared.
        longest: Length of the longest sequence, as the run was started.
        spans: How each source is cut, by name.
        phases: In order; an edited phase has several entries.
        early_stop: Where and why the run ends before its last declared step.
    """

    declaration: Declaration
    longest: int
    spans: Mapping[str, Spans]
    phases: tuple[ResolvedPhase, ...]
    early_stop: EarlyStop | None

    @property
    def total_steps(self) -> int:
        """Training steps of the run."""
        return self.phases[-1].stop

    @property
    def source_names(self) -> tuple[str, ...]:
        """Names of the sources, the primary first."""
        return tuple(source.name for source in self.declaration.sources)
