"""What a curriculum declares, and the schedule that follows from it."""

from __future__ import annotations

import operator
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING

from roxxel_curriculum._blend import resolve_weights
from roxxel_curriculum._errors import CurriculumError
from roxxel_curriculum._phase import Phase, ResolvedPhase, exact
from roxxel_curriculum._rounds import cut_spans
from roxxel_curriculum._solved import PRIMARY, Piece
from roxxel_curriculum._solver import Solver

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from roxxel_curriculum._rounds import Spans
    from roxxel_curriculum._solved import Skip, SolvedPhase
    from roxxel_curriculum._solver import Ended
    from roxxel_curriculum._source import Source

# Of the total: below it 2**-48, the unit of the blend, is no longer fine enough.
_SMALLEST_SHARE_INVERSE = 10**12


@dataclass(frozen=True)
class Declaration:
    """Everything that is said about a run before it starts.

    Attributes:
        sources: The primary first.
        phases: As declared.
        longest: Tokens of the longest sample; None for that of the longest phase.
        overlap: Tokens that neighbouring windows share, 0 or 1.
        skips: Data to pass over, by training step.
        max_epochs: Epochs that no source may exceed; None for no limit.
    """

    sources: tuple[Source, ...]
    phases: tuple[Phase, ...]
    longest: int | None
    overlap: int
    skips: tuple[Skip, ...]
    max_epochs: int | None

    @property
    def declared_longest(self) -> int:
        """`longest`, or the longest phase where it is not given."""
        return self.longest or max(phase.seq_len for phase in self.phases)


@dataclass(frozen=True)
class SolvedRun:
    """A declaration solved: which source gives which sample of every phase.

    Attributes:
        declaration: What was declared.
        longest: Tokens of the longest sample, as the run was started with.
        spans: How each source is cut, by name.
        phases: In order; an edited phase is in several pieces.
        ended: Where and why the run ends before its last declared step.
    """

    declaration: Declaration
    longest: int
    spans: Mapping[str, Spans]
    phases: tuple[SolvedPhase, ...]
    ended: Ended | None

    @property
    def total_steps(self) -> int:
        """Training steps of the run."""
        return self.phases[-1].stop

    def resolved_phases(self) -> tuple[ResolvedPhase, ...]:
        """Return the phases with every length in steps."""
        return tuple(
            ResolvedPhase(
                phase.piece.index,
                phase.start,
                phase.steps,
                phase.piece.batch_size,
                phase.piece.seq_len,
                dict(phase.piece.weights),
            )
            for phase in self.phases
        )


def solve(declaration: Declaration) -> SolvedRun:
    """Solve a declaration from its first step.

    Raises:
        CurriculumError: A phase cannot be met.
    """
    longest = declaration.declared_longest
    solver = start_solver(declaration, longest)
    for piece in pieces(declaration):
        solver.add(piece)
    return finish(declaration, longest, solver)


def solve_as_begun(declaration: Declaration) -> SolvedRun | None:
    """Solve a declaration as a run that was begun before its longest phase was added.

    Such a run keeps the `longest` of the phases it was begun with, and may have room
    where one that begins now has none. None where no such run can be met.
    """
    if declaration.longest is not None:
        return None
    lengths = accumulate((phase.seq_len for phase in declaration.phases), max)
    for longest in sorted({*lengths} - {declaration.declared_longest}, reverse=True):
        with suppress(CurriculumError):
            return solve(replace(declaration, longest=longest))
    return None


def start_solver(declaration: Declaration, longest: int) -> Solver:
    """Return a solver at the first step of a run with this longest sample."""
    return Solver(
        {
            source.name: cut_spans(
                operator.index(source.reader.num_tokens), longest, declaration.overlap
            )
            for source in declaration.sources
        },
        {source.name: source.policy for source in declaration.sources},
        declaration.skips,
        declaration.max_epochs,
    )


def finish(declaration: Declaration, longest: int, solver: Solver) -> SolvedRun:
    """Return the schedule a solver has come to, checked as a whole.

    Raises:
        CurriculumError: No step is left, or a skip stands where no step is.
    """
    if not solver.phases:
        ended = solver.ended
        raise CurriculumError(
            f"the run has no step: source {ended.source if ended else PRIMARY!r} "
            'stops it before the first one; give it another policy than "stop" '
            "or a smaller batch_size"
        )
    declared = sum(phase.steps for phase in solver.phases)
    for skip in declaration.skips:
        if skip.at >= declared and solver.ended is None:
            raise CurriculumError(
                f"a skip stands at step {skip.at} but the run has {declared} steps; "
                f"use a step below {declared}"
            )
    return SolvedRun(
        declaration, longest, solver.spans, tuple(solver.phases), solver.ended
    )


def pieces(declaration: Declaration) -> list[Piece]:
    """Return the declared phases with their weights resolved.

    Raises:
        CurriculumError: Weights name an unknown source, or one is too small to be kept.
    """
    names = [source.name for source in declaration.sources]
    result: list[Piece] = []
    for index, phase in enumerate(declaration.phases):
        label = f"phase {index}"
        weights = (
            {PRIMARY: 1} if phase.weights is None else _resolved(phase, names, label)
        )
        result.append(
            Piece(
                index,
                phase.batch_size,
                phase.seq_len,
                weights,
                phase.declared_steps,
                0 if phase.epochs is None else exact(phase.epochs),
            )
        )
    return result


def _resolved(phase: Phase, names: Sequence[str], label: str) -> dict[str, int]:
    weights = phase.weights or {}
    unknown = [name for name in weights if name not in names]
    if unknown:
        raise CurriculumError(
            f"the weights of {label} name unknown source {unknown[0]!r}; "
            f"the sources are {', '.join(map(repr, names))}"
        )
    resolved = resolve_weights(weights)
    total = sum(resolved.values())
    for name, weight in resolved.items():
        if weight * _SMALLEST_SHARE_INVERSE < total:
            raise CurriculumError(
                f"the weight of source {name!r} in {label} is {weights[name]} of "
                f"{sum(weights.values())}, below 1e-12 of the total; "
                "give it more or leave it out"
            )
    return resolved
