"""Plan: what every phase takes from every source, known before the first step."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, cast

from roxxel_curriculum._plan_diff import PlanDiff, compare_plans
from roxxel_curriculum._plan_text import plan_html, plan_text

if TYPE_CHECKING:
    from collections.abc import Mapping
    from os import PathLike

    from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True)
class SourcePlan:
    """What one phase takes from one source.

    Attributes:
        name: Name of the source.
        weight: Its weight, as an integer among those of the phase.
        share: Share of the phase's tokens by its weights, before any source runs out.
        samples: Samples delivered.
        tokens: Tokens delivered.
        skipped: Samples passed over by skips.
        epochs: Passes over the source when the phase ends, counted from the run's
            start; 1.25 is a quarter into the second. Of a source that gives nothing,
            what it was before.
        first_step: Step of its first sample in the phase; None if it gives none.
        last_step: Step of its last sample in the phase.
        exhausted_step: Step in which it runs out and its share goes to the others.
        unfinished_tokens: Tokens left behind in the round that the phase before left
            unfinished, for this phase has another length of sample.
        tail_tokens: Tokens left out at the ends of epochs, too few for a sample. An
            epoch ends where the phase begins the next, or with the last phase that
            draws from the source, if no sample is left.
        is_spent: Whether it had nothing left when the phase began, and gives nothing.
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
    """The mixture of some consecutive steps, from one exhaustion to the next.

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
    """What one phase takes.

    Attributes:
        index: Which declared phase it is; one edited in place is in several pieces.
        start: First training step.
        steps: Training steps.
        batch_size: Sequences in a step.
        seq_len: Tokens of a sequence.
        tokens: Tokens delivered.
        skipped_steps: Steps whose data is passed over.
        sources: One entry for each source with a weight.
        mixes: What the steps are made of, in order.
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
        num_tokens: Tokens it holds.
        num_spans: Spans it is cut into.
        policy: What it does when it runs out.
        tokens: Tokens delivered in the run.
        epochs: Passes over it when the run ends.
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
class Plan:
    """What a run will read.

    `str(plan)` is a table of plain text, a notebook shows it as one, and so does
    `rich.print(plan)`.

    Attributes:
        seed: Seed of the run; the numbers are the same for every seed.
        total_steps: Training steps.
        total_tokens: Tokens delivered.
        longest: Tokens of the longest sample the run is laid out for.
        overlap: Tokens that neighbouring windows share.
        phases: In order.
        sources: The primary first.
        skips: Pairs of training step and the steps whose data is passed over before it.
        ended: Why the run ends before its last declared step; None if it does not.
    """

    seed: int
    total_steps: int
    total_tokens: int
    longest: int
    overlap: int
    phases: tuple[PhasePlan, ...]
    sources: tuple[CorpusPlan, ...]
    skips: tuple[tuple[int, int], ...]
    ended: str | None

    def __str__(self) -> str:
        return plan_text(self)

    def __rich__(self) -> Any:
        from roxxel_curriculum._plan_rich import plan_renderable

        return plan_renderable(self)

    def _repr_html_(self) -> str:
        return plan_html(self)

    def diff(self, other: Plan) -> PlanDiff:
        """Return what `other` changes, and from which step on."""
        return compare_plans(self, other)

    def plot(self, path: str | PathLike[str] | None = None) -> Figure:
        """Draw the tokens of each source over the steps.

        Args:
            path: Where to save the picture; its ending says in which format.

        Returns:
            A matplotlib figure, which nothing else holds.

        Raises:
            ModuleNotFoundError: matplotlib is missing; install the `plot` extra.
        """
        from roxxel_curriculum._plot import draw_plan

        figure: Any = draw_plan(self)
        if path is not None:
            figure.savefig(path)
        return figure

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as dicts, lists, numbers and strings, for JSON."""
        return _plain(asdict(self))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        pairs = cast("dict[str, Any]", value)
        return {key: _plain(item) for key, item in pairs.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in cast("tuple[Any, ...]", value)]
    return value
