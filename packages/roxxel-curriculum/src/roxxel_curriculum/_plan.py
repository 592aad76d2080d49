"""Plan: what every phase takes from every source, known before the first step."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, cast

from roxxel_curriculum._plan_diff import PlanDiff, compare_plans
from roxxel_curriculum._plan_text import plan_html, plan_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from os import PathLike

    from matplotlib.figure import Figure

    from roxxel_curriculum._declaration import SolvedRun
    from roxxel_curriculum._schedule import SolvedPhase


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
            start; 1.25 is a quarter into the second.
        first_step: Step of its first sample in the phase; None if it gives none.
        last_step: Step of its last sample in the phase.
        exhausted_step: Step in which it runs out and its share goes to the others.
        unfinished_tokens: Tokens left behind in the round that the phase before left
            unfinished, for this phase has another length of sample.
        tail_tokens: Tokens left out at the ends of epochs, too few for a sample.
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


def make_plan(schedule: SolvedRun, seed: int) -> Plan:
    """Return the plan of a schedule; reads no tokens."""
    phases: list[PhasePlan] = []
    tokens: dict[str, int] = {}
    waste: dict[str, int] = {}
    epochs: dict[str, float] = {}
    runs: dict[str, tuple[Any, int]] = {}
    for phase in schedule.phases:
        planned = _plan_phase(phase, runs)
        phases.append(planned)
        for source in planned.sources:
            lost = source.unfinished_tokens + source.tail_tokens
            tokens[source.name] = tokens.get(source.name, 0) + source.tokens
            waste[source.name] = waste.get(source.name, 0) + lost
            if source.samples or source.skipped:
                epochs[source.name] = source.epochs
    ended = schedule.ended
    return Plan(
        seed=seed,
        total_steps=schedule.total_steps,
        total_tokens=sum(phase.tokens for phase in phases),
        longest=schedule.longest,
        overlap=schedule.declaration.overlap,
        phases=tuple(phases),
        sources=tuple(
            CorpusPlan(
                name=source.name,
                fingerprint=source.reader.fingerprint,
                num_tokens=source.reader.num_tokens,
                num_spans=schedule.spans[source.name].num_spans,
                policy=str(source.policy),
                tokens=tokens.get(source.name, 0),
                epochs=epochs.get(source.name, 0.0),
                waste_tokens=waste.get(source.name, 0),
            )
            for source in schedule.declaration.sources
        ),
        skips=tuple((skip.at, skip.steps) for skip in schedule.declaration.skips),
        ended=None
        if ended is None
        else f"source {ended.source!r} runs out in {ended.declared_phase} and its "
        f"policy stops the run before step {ended.step}",
    )


def _delivered(phase: SolvedPhase) -> Iterator[tuple[int, int, int]]:
    """Yield training step, first and one past last sample of each unbroken stretch."""
    size = phase.piece.batch_size
    marks = sorted({0, *(skip.at for skip in phase.skips), phase.steps})
    for start, stop in pairwise(marks):
        first = phase.data_step(start) * size
        yield start, first, first + (stop - start) * size


def _plan_phase(phase: SolvedPhase, runs: dict[str, tuple[Any, int]]) -> PhasePlan:
    piece = phase.piece
    stretches = list(_delivered(phase))
    counts = [
        (start, first, phase.counts(first), phase.counts(stop))
        for start, first, stop in stretches
    ]
    passed = phase.counts(phase.num_samples)
    total_weight = sum(piece.weights.values())
    exhausted = {
        leg.ended_by: phase.start + phase.steps_within(leg.stop - 1)
        for leg in phase.legs
        if leg.ended_by is not None
        and leg.stop is not None
        and leg.stop <= phase.num_samples
    }
    sources: list[SourcePlan] = []
    for name, weight in piece.weights.items():
        run, base = phase.runs[name], phase.bases[name]
        samples = 0
        first_step: int | None = None
        last_step: int | None = None
        for start, first, low, high in counts:
            given = high[name] - low[name]
            if not given:
                continue
            samples += given
            begin = phase.start + start
            last_place = phase.place(name, high[name] - 1)
            last_step = begin + (last_place - first) // piece.batch_size
            if first_step is None:
                first_place = phase.place(name, low[name])
                first_step = begin + (first_place - first) // piece.batch_size
        unfinished = 0
        if passed[name]:
            before = runs.get(name)
            if before is not None and before[0] is not run and base == 0:
                stride = run.spans.stride(before[0].seq_len)
                unfinished = before[0].unfinished(before[1]) * stride
            runs[name] = run, base + passed[name]
        sources.append(
            SourcePlan(
                name=name,
                weight=weight,
                share=weight / total_weight,
                samples=samples,
                tokens=samples * piece.seq_len,
                skipped=passed[name] - samples,
                epochs=_epochs(run, base + passed[name]),
                first_step=first_step,
                last_step=last_step,
                exhausted_step=exhausted.get(name),
                unfinished_tokens=unfinished,
                tail_tokens=run.tail_tokens(base, base + passed[name]),
            )
        )
    return PhasePlan(
        index=piece.index,
        start=phase.start,
        steps=phase.steps,
        batch_size=piece.batch_size,
        seq_len=piece.seq_len,
        tokens=phase.steps * piece.batch_size * piece.seq_len,
        skipped_steps=sum(skip.steps for skip in phase.skips),
        sources=tuple(sources),
        mixes=tuple(_mixes(phase)),
    )


def _mixes(phase: SolvedPhase) -> Iterator[MixPlan]:
    for leg in phase.legs:
        weights = {name: phase.piece.weights[name] for name in leg.blend.sources}
        total = sum(weights.values())
        last = phase.num_samples if leg.stop is None else leg.stop
        start = phase.start + phase.steps_within(leg.start)
        stop = phase.start + min(phase.steps, phase.steps_within(last))
        if start < stop:
            shares = {name: weight / total for name, weight in weights.items()}
            yield MixPlan(start, stop, shares)


def _epochs(run: Any, given: int) -> float:
    """Return passes over a source by the depth reached: whole ones and a part."""
    spans = run.spans
    stride = spans.stride(run.seq_len)
    first = run.first_epoch_samples
    if given < first or not given:
        used = run.depth * spans.num_spans + given * stride
        return run.epoch + used / spans.num_tokens
    whole, rest = divmod(given - first, spans.windows_per_epoch(run.seq_len))
    return run.epoch + 1 + whole + rest * stride / spans.num_tokens


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        pairs = cast("dict[str, Any]", value)
        return {key: _plain(item) for key, item in pairs.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in cast("tuple[Any, ...]", value)]
    return value
