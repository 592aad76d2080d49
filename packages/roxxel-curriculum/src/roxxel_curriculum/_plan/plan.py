"""Plan: what every phase reads from every source, known before the first step."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field, fields, is_dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from roxxel_store import published
from roxxel_store.screen import in_html

from roxxel_curriculum._order.rounds import Cursor
from roxxel_curriculum._plan.changes import changes
from roxxel_curriculum._plan.figures import (
    CorpusPlan,
    PhasePlan,
    PlanFigures,
    SourcePlan,
    WithdrawnPlan,
)
from roxxel_curriculum._plan.tables import (
    notes_on_longest,
    render_brief,
    render_text,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from os import PathLike

    from matplotlib.figure import Figure

    from roxxel_curriculum._order.rounds import Spans
    from roxxel_curriculum._plan.solution import (
        ResolvedPhase,
        Solution,
        Source,
    )


@dataclass(frozen=True, slots=True)
class PlanDiff:
    """The changes between two plans; `bool(diff)` is False if there are none.

    Attributes:
        step: The first step whose batch may change; None if no batch changes.
        changes: One sentence for each change.
        causes: The changes that change batches, not only totals or notes.

    Example:
        >>> from roxxel_curriculum.testing import PositionReader
        >>> curriculum = Curriculum(PositionReader(10_000), [Phase(9, 4, 129)])
        >>> longer = Curriculum(PositionReader(10_000), [Phase(12, 4, 129)])
        >>> found = curriculum.plan().diff(longer.plan())
        >>> found.step, found.changes[0]
        (9, 'phase 0 has 12 steps instead of 9')
    """

    step: int | None
    changes: tuple[str, ...]
    causes: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.changes)

    def __str__(self) -> str:
        if self.step is None:
            head = "every batch is the same"
        elif self.step == 0:
            head = "every batch changes"
        else:
            head = f"batches change from step {self.step:,} on"
        return "\n".join([head, *(f"- {change}" for change in self.changes)])


@dataclass(frozen=True, slots=True)
class Plan(PlanFigures):
    """What a run will read.

    `str(plan)` returns plain-text tables, and a notebook shows the same tables.

    Attributes:
        seed: Seed of the run; the other numbers do not depend on it.
        total_steps: Number of training steps of the run.
        total_tokens: Number of tokens delivered.
        longest: Sequence length that determines how sources are cut into spans. A
            resumed run keeps the value; see `Curriculum`.
        overlap: Number of tokens that neighbouring windows share.
        phases: What each phase reads, in training order.
        sources: What the run reads from each source, the primary first.
        skips: Pairs `(at, count)`: before training step `at`, the run skips the data of
            `count` steps.
        ended: Why the run ends early; None if the run trains every declared step.
        withdrawn: Documents and tokens that the loss leaves out, and from which steps
            on.
        notes_on_sources: One sentence for each source whose ids may mean other text
            than those of the other sources, because no tokenizer is recorded.

    Example:
        >>> from roxxel_curriculum.testing import PositionReader
        >>> curriculum = Curriculum(PositionReader(10_000), [Phase(9, 4, 129)])

        >>> plan = curriculum.plan(seed=42)
        >>> plan.total_tokens, plan.sources[0].epochs
        (4644, 0.4644)
    """

    _: KW_ONLY
    _solution: Solution = field(repr=False, compare=False)

    def __str__(self) -> str:
        return render_text(self)

    @property
    def brief(self) -> str:
        """The plan in two lines: what the run is, and the tokens of each source."""
        return render_brief(self)

    def _repr_html_(self) -> str:
        return f"<pre>{in_html(render_text(self))}</pre>"

    @property
    def notes_on_longest(self) -> tuple[str, ...]:
        """One sentence for each phase with sequences longer than `longest`."""
        return notes_on_longest(self)

    def diff(self, other: Plan) -> PlanDiff:
        """Return what changes from this plan to `other`, and from which step on."""
        seeds = self.seed, other.seed
        found = [*changes(self._solution, other._solution, seeds)]
        return PlanDiff(
            step=min((x.step for x in found if x.step is not None), default=None),
            changes=(*(x.text for x in found), *_changed_figures(self, other)),
            causes=tuple(x.text for x in found if x.step is not None),
        )

    def plot(self, path: str | PathLike[str] | None = None) -> Figure:
        """Draw the tokens of each source over the steps.

        Args:
            path: File to save the picture to; its suffix selects the format.

        Returns:
            A matplotlib figure outside pyplot's registry, so it needs no `close`.

        Raises:
            ModuleNotFoundError: matplotlib is missing; install the `plot` extra.
            OSError: `path` is a folder, a link or a device, or cannot be written.
        """
        from roxxel_curriculum._plan.picture import draw

        figure: Any = draw(self)
        if path is not None:
            kind = Path(path).suffix.removeprefix(".") or None
            with published(path) as file:
                figure.savefig(file, format=kind)
        return figure

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as dicts, lists, numbers and strings, for JSON."""
        names = [each.name for each in fields(PlanFigures)]
        return {name: _plain(getattr(self, name)) for name in names}


def _changed_figures(before: PlanFigures, after: PlanFigures) -> Iterator[str]:
    old = {source.name: source for source in before.sources}
    for source in after.sources:
        was = old.get(source.name)
        if was is not None and was.tokens != source.tokens:
            yield (
                f"source {source.name!r} gives {source.tokens:,} tokens "
                f"instead of {was.tokens:,}, {source.epochs:.6g} epochs "
                f"instead of {was.epochs:.6g}"
            )
    known = {*notes_on_longest(before)}
    yield from (note for note in notes_on_longest(after) if note not in known)


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return {each.name: _plain(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, dict):
        pairs = cast("dict[str, Any]", value)
        return {key: _plain(item) for key, item in pairs.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in cast("tuple[Any, ...]", value)]
    return value


def make_plan(solution: Solution, seed: int) -> Plan:
    """Return the plan of a solved curriculum; reads no tokens."""
    cursors: dict[str, Cursor] = {}
    totals = [phase.counts(phase.num_samples) for phase in solution.phases]
    last_phases = {
        name: index
        for index, counts in enumerate(totals)
        for name, given in counts.items()
        if given
    }
    phases: list[PhasePlan] = []
    by_source: dict[str, list[SourcePlan]] = {name: [] for name in solution.spans}
    for index, (phase, used) in enumerate(zip(solution.phases, totals, strict=True)):
        last_here = {name for name in used if last_phases.get(name) == index}
        rows = [*_source_rows(phase, used, cursors, last_here)]
        for row in rows:
            by_source[row.name].append(row)
        phases.append(
            PhasePlan(
                index=phase.index,
                start=phase.start,
                steps=phase.steps,
                batch_size=phase.batch_size,
                seq_len=phase.seq_len,
                tokens=phase.steps * phase.batch_size * phase.seq_len,
                skipped_steps=sum(skip.steps for skip in phase.skips),
                sources=tuple(rows),
                mixes=phase.mixes,
            )
        )
    return Plan(
        seed=seed,
        total_steps=solution.total_steps,
        total_tokens=sum(phase.tokens for phase in phases),
        longest=solution.longest,
        overlap=solution.declaration.overlap,
        phases=tuple(phases),
        sources=tuple(
            _corpus_row(source, solution.spans[source.name], by_source[source.name])
            for source in solution.declaration.sources
        ),
        skips=tuple((skip.at, skip.steps) for skip in solution.declaration.skips),
        ended=solution.ended,
        withdrawn=tuple(
            WithdrawnPlan(
                each.step,
                each.source,
                len(each.documents),
                len(each.tokens),
                each.digest,
                is_read=any(
                    row.last_step is not None and row.last_step >= each.step
                    for row in by_source.get(each.source, ())
                ),
            )
            for each in solution.withdrawals
        ),
        notes_on_sources=solution.declaration.notes,
        _solution=solution,
    )


def _corpus_row(source: Source, spans: Spans, rows: Sequence[SourcePlan]) -> CorpusPlan:
    return CorpusPlan(
        name=source.name,
        fingerprint=source.fingerprint,
        num_tokens=spans.num_tokens,
        unit=source.unit,
        # The part that a proxy reads has about as much as the rest.
        padding_tokens=source.num_padding * spans.num_tokens // source.num_tokens,
        num_spans=spans.num_spans,
        policy=str(source.policy),
        tokens=sum(row.tokens for row in rows),
        epochs=rows[-1].epochs if rows else 0.0,
        waste_tokens=sum(row.unfinished_tokens + row.tail_tokens for row in rows),
    )


def _source_rows(
    phase: ResolvedPhase,
    used: Mapping[str, int],
    cursors: dict[str, Cursor],
    last_here: set[str],
) -> Iterator[SourcePlan]:
    """Yield what a phase reads from each of its sources.

    Everything that needs all sources of the phase is computed once, so the time grows
    with the number of sources and not with its square.

    Args:
        phase: The phase.
        used: Number of samples that the phase takes from each source.
        cursors: How far the earlier phases have read each source that they read;
            advanced to the end of this phase.
        last_here: Sources that no later phase reads.
    """
    delivered = phase.delivered(phase.steps)
    weight = sum(phase.weights.values())
    steps = _steps_that_read(phase)
    exhausted = {
        leg.ended_by: phase.start + phase.steps_within(leg.stop - 1)
        for leg in phase.legs
        if leg.ended_by is not None
        and leg.stop is not None
        and leg.stop <= phase.num_samples
    }
    spent = phase.spent
    for name in phase.weights:
        stream, before = phase.cursors[name]
        earlier, given = cursors.get(name), before + used[name]
        unfinished = 0
        if used[name]:
            if earlier is not None and earlier.stream is not stream and not before:
                unfinished = earlier.stream.unfinished_tokens(earlier.given)
            cursors[name] = Cursor(stream, given)
        cursor = cursors.get(name)
        first, last = steps.get(name, (None, None))
        yield SourcePlan(
            name=name,
            weight=phase.weights[name],
            share=phase.weights[name] / weight,
            samples=delivered[name],
            tokens=delivered[name] * phase.seq_len,
            skipped=used[name] - delivered[name],
            epochs=0.0 if cursor is None else cursor.stream.passes(cursor.given),
            first_step=first,
            last_step=last,
            exhausted_step=exhausted.get(name),
            unfinished_tokens=unfinished,
            tail_tokens=stream.tail_tokens(before, given, is_last=name in last_here),
            is_spent=name in spent,
        )


def _steps_that_read(phase: ResolvedPhase) -> dict[str, tuple[int, int]]:
    """Return the first and the last step that read each source of a phase."""
    size = phase.batch_size
    marks = sorted({0, *(skip.at for skip in phase.skips), phase.steps})
    steps: dict[str, tuple[int, int]] = {}
    for start, stop in pairwise(marks):
        first = phase.data_step(start) * size
        low = phase.counts(first)
        high = phase.counts(first + (stop - start) * size)
        for name, until in high.items():
            if low[name] < until:
                begin, end = (
                    phase.start
                    + start
                    + (phase.sample_index(name, rank) - first) // size
                    for rank in (low[name], until - 1)
                )
                steps[name] = (steps.get(name, (begin,))[0], end)
    return steps
