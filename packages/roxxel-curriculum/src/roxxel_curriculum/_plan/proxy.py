"""A small run that repeats its data as a big run will.

A proxy reads the same share of every source's spans, for that share of the steps. A
span has the same rounds as in the big run, so each source begins its epochs at the same
points of the schedule. Where the big run sees a token four times, a small run over the
whole sources may see it once. So it prefers blends that repeat too much in the big run
(*Repetition mismatch*, arXiv 2606.07597).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import floor
from numbers import Real
from typing import TYPE_CHECKING, Generic, TypeVar

from roxxel_store.arguments import as_integer

from roxxel_curriculum._arguments import Phase
from roxxel_curriculum._errors import CurriculumError
from roxxel_curriculum._plan.solution import Part, Solver

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from roxxel_curriculum._order.rounds import Spans
    from roxxel_curriculum._plan.plan import Plan
    from roxxel_curriculum._plan.solution import Declaration, ResolvedPhase, Solution

_Curriculum = TypeVar("_Curriculum")


@dataclass(frozen=True)
class Proxy(Generic[_Curriculum]):
    """A small run that repeats its data as a big run will; see `Curriculum.proxy`.

    `str(proxy)` shows the epochs of both, phase by phase.

    Attributes:
        curriculum: The curriculum of the small run.
        scale: Its share of the tokens of the big run.
        plan: The plan of the small run.
        whole: The plan of the big run.
        epochs: For each phase, by source: the epochs of the big and of the small run at
            its end.
        notes: What cannot match, one sentence for each.

    Example:
        >>> from roxxel_curriculum import Curriculum
        >>> from roxxel_curriculum.testing import PositionReader
        >>> big = Curriculum(PositionReader(203_840), [Phase(400, 8, 65)])
        >>> proxy = big.proxy(scale=1 / 8)
        >>> proxy.plan.total_steps, big.total_steps
        (50, 400)
        >>> [[round(x, 2) for x in pair["self"]] for pair in proxy.epochs]
        [[1.02, 1.02]]
    """

    curriculum: _Curriculum
    scale: float
    plan: Plan
    whole: Plan
    epochs: Sequence[Mapping[str, tuple[float, float]]]
    notes: tuple[str, ...]

    def __str__(self) -> str:
        """Return as text the steps and epochs of both runs, and what cannot match."""
        steps = f"{self.plan.total_steps:,} of {self.whole.total_steps:,} steps"
        tokens = f"{self.plan.total_tokens:,} of {self.whole.total_tokens:,} tokens"
        lines = [
            f"{steps}, {tokens} (scale {self.scale:.4g})",
            "epochs at the end of each phase, in the run and in the proxy:",
        ]
        for index, ends in enumerate(self.epochs):
            parts = (
                f"{name} {big:.3f} {small:.3f}" for name, (big, small) in ends.items()
            )
            lines.append(f"  phase {index}: {', '.join(parts)}")
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])


def checked_scale(scale: float | None, tokens: int | None, total_tokens: int) -> float:
    """Return the share of the tokens that a proxy reads.

    Raises:
        CurriculumError: Both or none of `scale` and `tokens` are given, or the value is
            out of range.
    """
    if (scale is None) == (tokens is None):
        raise CurriculumError(
            "a proxy needs scale or tokens, and not both; give scale=1/16, for example"
        )
    if tokens is not None:
        found = as_integer("tokens", tokens) / total_tokens
    elif isinstance(scale, bool) or not isinstance(scale, Real):
        raise TypeError(f"scale must be a number such as 1/16, got {scale!r:.50}")
    else:
        found = float(scale)
    if not 0 < found <= 1:
        raise CurriculumError(
            f"a proxy of scale {found:.4g} is no part of the run's {total_tokens:,} "
            "tokens; give a scale above 0 and at most 1"
        )
    return found


def chosen_part(spans: Spans, scale: float, seed: int) -> Part:
    """Return the part of a source that a proxy reads."""
    count = min(spans.num_spans, max(1, floor(spans.num_spans * scale + 0.5)))
    return Part(count, seed)


def proxy_phases(
    declaration: Declaration, whole: Solution, scale: float
) -> list[Phase]:
    """Return the phases of a proxy.

    A phase ends at the step after which the tokens read so far from each source are
    closest to their share, so roundings do not add up.

    Args:
        declaration: The proxy's declaration, with the phases of the big run.
        whole: The solution of the big run.
        scale: Share of the steps that the proxy trains.

    Raises:
        CurriculumError: The parts of the sources are too small for one step of some
            phase.
    """
    solver = Solver(declaration)
    phases: list[Phase] = []
    wanted: dict[str, float] = dict.fromkeys(whole.source_names, 0.0)
    read = wanted
    for phase in whole.phases:
        wanted = _tokens_after(wanted, phase, scale)
        choices = [
            (declared, _tokens_after(read, solved))
            for declared, solved in _near_share(
                solver, phase, whole.source_names, scale
            )
        ]
        if not choices:
            break
        declared, read = min(choices, key=lambda each: _distance(each[1], wanted))
        phases.append(declared)
        solver.add(declared, phase.index)
    if not phases:
        raise _too_small(scale, "a source runs out in the first step")
    return phases


def _near_share(
    solver: Solver, phase: ResolvedPhase, names: Iterable[str], scale: float
) -> Iterator[tuple[Phase, ResolvedPhase]]:
    """Yield a phase, shortened to some numbers of steps near its share, and solved."""
    # A source that no phase reads must still be named, by the weight 0.
    weights = {**dict.fromkeys(names, 0), **phase.weights}
    # Skipped data counts as read, and a proxy skips nothing.
    about = floor(phase.num_samples // phase.batch_size * scale)
    has_any = False
    for steps in range(max(1, about - 1), about + 3):
        declared = Phase(steps, phase.batch_size, phase.seq_len, weights)
        try:
            solved = solver.solve(declared, phase.index)
        except CurriculumError as error:
            if not has_any:
                raise _too_small(scale, str(error)) from error
            return  # The part of a source is read to its end.
        if solved.steps:  # none if a source has run out, which stops the run
            has_any = True
            yield declared, solved


def _tokens_after(
    before: Mapping[str, float], phase: ResolvedPhase, scale: float = 1
) -> dict[str, float]:
    """Return the tokens read from each source once a phase has read its part too."""
    counts = phase.counts(phase.num_samples)
    return {
        name: tokens + counts.get(name, 0) * phase.seq_len * scale
        for name, tokens in before.items()
    }


def _distance(read: Mapping[str, float], wanted: Mapping[str, float]) -> float:
    return max(abs(read[name] - wanted[name]) for name in wanted)


def _too_small(scale: float, reason: str) -> CurriculumError:
    return CurriculumError(
        f"a proxy of scale {scale:.4g} is too small for this run ({reason}); give a "
        "larger scale"
    )


def epochs_at_ends(
    phases: Iterable[ResolvedPhase], names: Sequence[str]
) -> list[dict[str, float]]:
    """Return how often each source was read at the end of each phase.

    Only windows count: tokens that an epoch leaves unread do not.
    """
    epochs = dict.fromkeys(names, 0.0)
    found: list[dict[str, float]] = []
    for phase in phases:
        for name, count in phase.counts(phase.num_samples).items():
            spans = phase.cursors[name].stream.spans
            epochs[name] += count / spans.windows_per_epoch(phase.seq_len)
        found.append(dict(epochs))
    return found


def notes_on_proxy(whole: Solution, small: Solution, scale: float) -> tuple[str, ...]:
    """Return a sentence for each thing that a proxy does differently from its run."""
    notes: list[str] = []
    skipped = sum(skip.steps for phase in whole.phases for skip in phase.skips)
    if skipped:
        notes.append(
            f"the run skips the data of {skipped:,} steps, which a proxy trains instead"
        )
    batch_tokens = max(phase.batch_size * phase.seq_len for phase in small.phases)
    ends = [epochs_at_ends(each.phases, whole.source_names) for each in (whole, small)]
    for name in whole.source_names:
        spans, part = whole.spans[name], small.spans[name]
        differences = (abs(a[name] - b[name]) for a, b in zip(*ends, strict=False))
        greatest = max(differences, default=0.0)
        if greatest * part.num_tokens > batch_tokens:
            notes.append(
                f"source {name!r} has {spans.num_spans} spans of "
                f"{spans.span_tokens:,} tokens, and the proxy reads {part.num_spans}, "
                f"which is {part.num_spans / spans.num_spans:.3g} of it instead of "
                f"{scale:.3g}: its epochs differ by up to {greatest:.3g}; give a "
                "larger scale"
            )
    return tuple(notes)
