"""Plan: what every phase reads from every source, known before the first step.

A plan is numbers, the tables and notes in which people read them, and what differs
between two plans.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field, fields, is_dataclass
from itertools import pairwise
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, cast

from roxxel_store import published
from roxxel_store.screen import aligned, counted, in_html, short_count

from roxxel_curriculum._order.rounds import Cursor, cut_spans
from roxxel_curriculum._plan.changes import changes
from roxxel_curriculum._withdrawn import amount

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from os import PathLike

    from matplotlib.figure import Figure

    from roxxel_curriculum._order.rounds import Spans
    from roxxel_curriculum._plan.solution import (
        MixPlan,
        ResolvedPhase,
        Solution,
        Source,
    )

_Row: TypeAlias = "tuple[str, ...] | str"
"""The cells of a table's row, or the heading of the rows below."""

_PHASE_COLUMNS = (
    *("source", "share", "samples", "tokens", "epochs so far", "from-to", "waste"),
)
_MOST_EPOCHS = 4
_TOO_OFTEN = (
    f"; more than about {_MOST_EPOCHS} passes help less and less (Muennighoff et al., "
    "Scaling Data-Constrained Language Models, 2023, arXiv 2305.16264), so add text, "
    "train fewer steps, or set max_epochs"
)
_MOST_WASTE = 0.25
_SOURCE_COLUMNS = ("source", "holds", "read", "epochs", "waste", "when it runs out")
_WIDTH = 80
_MOST_SOURCES = 4
"""Number of sources that a brief plan names."""


@dataclass(frozen=True, slots=True)
class Plan:
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
    _: KW_ONLY
    _solution: Solution = field(repr=False, compare=False)

    def __str__(self) -> str:
        return _text(self)

    @property
    def brief(self) -> str:
        """The plan in two lines: what the run is, and the tokens of each source."""
        return _brief(self)

    def _repr_html_(self) -> str:
        return f"<pre>{in_html(_text(self))}</pre>"

    @property
    def notes_on_longest(self) -> tuple[str, ...]:
        """One sentence for each phase with sequences longer than `longest`."""
        return _notes_on_longest(self)

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

        names = [source.name for source in self.sources if source.tokens]
        figure: Any = draw(self._solution.phases, names, _headline(self))
        if path is not None:
            kind = Path(path).suffix.removeprefix(".") or None
            with published(path) as file:
                figure.savefig(file, format=kind)
        return figure

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as dicts, lists, numbers and strings, for JSON."""
        names = (each.name for each in fields(self) if each.repr)
        return {name: _plain(getattr(self, name)) for name in names}


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
        # A run that stops early does not reach all declared skips.
        skips=tuple(
            (phase.start + skip.at, skip.steps)
            for phase in solution.phases
            for skip in phase.skips
        ),
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
    exhausted = phase.exhausted
    spent = {*phase.spent}
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


def _changed_figures(before: Plan, after: Plan) -> Iterator[str]:
    old = {source.name: source for source in before.sources}
    for source in after.sources:
        was = old.get(source.name)
        if was is not None and was.tokens != source.tokens:
            yield (
                f"source {source.name!r} gives {source.tokens:,} tokens "
                f"instead of {was.tokens:,}, {source.epochs:.6g} epochs "
                f"instead of {was.epochs:.6g}"
            )
    known = {*_notes_on_longest(before)}
    yield from (note for note in _notes_on_longest(after) if note not in known)


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return {each.name: _plain(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, dict):
        pairs = cast("dict[str, Any]", value)
        return {key: _plain(item) for key, item in pairs.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in cast("tuple[Any, ...]", value)]
    return value


class _Table(NamedTuple):
    columns: tuple[str, ...]
    rows: list[_Row]

    @property
    def widths(self) -> list[int]:
        """Width of each column, in characters."""
        rows = [self.columns, *(row for row in self.rows if not isinstance(row, str))]
        return [max(map(len, column)) for column in zip(*rows, strict=True)]


def _text(plan: Plan) -> str:
    """Return the tables and notes as plain text; notes wrap at 80 columns."""
    lines = [_headline(plan)]
    for table in _tables(plan):
        rules = tuple("-" * width for width in table.widths)
        rows = (table.columns, rules, *table.rows)
        cells = iter(aligned([row for row in rows if not isinstance(row, str)]))
        texts = (row if isinstance(row, str) else next(cells) for row in rows)
        lines += ["", *texts]
    notes = [
        line
        for note in _notes(plan)
        for line in wrap(note, _WIDTH, subsequent_indent="  ", break_on_hyphens=False)
    ]
    if notes:
        lines += ["", *notes]
    return "\n".join(lines)


def _tables(plan: Plan) -> tuple[_Table, _Table]:
    """Return two tables: sources within phases, and sources over the whole run."""
    order = {source.name: index for index, source in enumerate(plan.sources)}
    phases: list[_Row] = []
    before = None
    for phase in plan.phases:
        # A phase edited while it was trained is two entries or more.
        edited = ", edited" if phase.index == before else ""
        before = phase.index
        phases.append(
            f"phase {phase.index}{edited}: steps {phase.start:,}-{phase.stop - 1:,} of "
            f"{phase.batch_size} x {phase.seq_len}"
        )
        phases += _phase_rows(phase, order)
    sources: list[_Row] = [
        (
            source.name,
            short_count(source.num_tokens),
            short_count(source.tokens),
            f"{source.epochs:.3f}",
            f"{short_count(source.waste_tokens)} ({100 * source.waste_share:.2f} %)",
            source.policy,
        )
        for source in plan.sources
    ]
    return _Table(_PHASE_COLUMNS, phases), _Table(_SOURCE_COLUMNS, sources)


def _headline(plan: Plan) -> str:
    """Return one line: steps, tokens, phases, sources and seed."""
    return (
        f"{plan.total_steps:,} steps, {short_count(plan.total_tokens)} tokens, "
        f"{counted(len({phase.index for phase in plan.phases}), 'phase')}, "
        f"{counted(len(plan.sources), 'source')}, seed {plan.seed}"
    )


def _brief(plan: Plan) -> str:
    """Return two lines: the headline, and what the run reads from each source."""
    parts = [
        f"{each.name} {short_count(each.tokens)} of {short_count(each.num_tokens)}"
        for each in plan.sources[:_MOST_SOURCES]
    ]
    left = len(plan.sources) - len(parts)
    more = f" and {left} more sources" if left else ""
    num_notes = sum(1 for _ in _notes(plan))
    notes = f"; {counted(num_notes, 'note')}" if num_notes else ""
    return f"{_headline(plan)}\ntokens: {', '.join(parts)}{more}{notes}"


def _phase_rows(phase: PhasePlan, order: Mapping[str, int]) -> Iterator[_Row]:
    for source in sorted(phase.sources, key=lambda source: order[source.name]):
        yield (
            source.name,
            f"{source.share:.4g}",
            f"{source.samples:,}",
            short_count(source.tokens),
            f"{source.epochs:.3f}" if source.samples or source.skipped else "-",
            _from_to(source),
            short_count(source.unfinished_tokens + source.tail_tokens),
        )


def _from_to(source: SourcePlan) -> str:
    if source.first_step is None or source.last_step is None:
        return "-"
    return f"{source.first_step:,}-{source.last_step:,}"


def _notes(plan: Plan) -> Iterator[str]:
    for phase in plan.phases:
        yield from _notes_on_phase(phase)
    yield from _notes_on_reading(plan)
    for source in plan.sources:
        if source.unit > 1:
            share = 100 * source.padding_tokens / source.num_tokens
            yield (
                f"{source.name} is packed in bins of {source.unit:,} tokens; "
                f"{share:.3g} % of its tokens are padding, which loss_mask leaves out"
            )
    for at, count in plan.skips:
        yield f"before step {at:,} the data of {count:,} steps is skipped"
    for each in plan.withdrawn:
        yield (
            f"from step {each.step:,} on, {each.amount} of {each.source} "
            f"{'is' if each.documents + each.tokens <= 1 else 'are'} withdrawn: "
            "loss_mask is 0 on the tokens"
            + ("" if each.is_read else "; the run reads no tokens of this source then")
        )
    if plan.ended is not None:
        yield plan.ended
    yield from _notes_on_longest(plan)
    yield from plan.notes_on_sources
    changes = sum(
        before.seq_len != after.seq_len for before, after in pairwise(plan.phases)
    )
    if changes > 4:
        yield (
            f"the sequence length changes {changes} times, "
            "and each change leaves a round unfinished"
        )


def _notes_on_reading(plan: Plan) -> Iterator[str]:
    for source in plan.sources:
        if source.epochs > 1:
            too_often = _TOO_OFTEN if source.epochs > _MOST_EPOCHS else ""
            yield f"{source.name} is read {source.epochs:.2f} times{too_often}"
        if source.waste_share > _MOST_WASTE:
            yield (
                f"{source.name} leaves {100 * source.waste_share:.0f} % of each pass "
                "unread, because it is small for sequences of this length; use shorter "
                "sequences or more text"
            )


def _notes_on_phase(phase: PhasePlan) -> Iterator[str]:
    for source in phase.sources:
        if source.exhausted_step is not None:
            yield (
                f"phase {phase.index}: {source.name} runs out in step "
                f"{source.exhausted_step:,}; the others share its weight from there"
            )
    for source in phase.sources:
        if source.is_spent:
            name = f"phase {phase.index}: {source.name}"
            yield f"{name} has run out and gives no samples"


def _notes_on_longest(plan: Plan) -> tuple[str, ...]:
    """Return a sentence for each phase with sequences longer than `longest`."""
    long = (phase for phase in plan.phases if phase.seq_len > plan.longest)
    # An edited phase has several entries, which often give the same sentence; keep one.
    return tuple(dict.fromkeys(_note_on_longest(plan, phase) for phase in long))


def _note_on_longest(plan: Plan, phase: PhasePlan) -> str:
    corpora = {source.name: source for source in plan.sources}
    length = phase.seq_len
    sizes = [
        (corpora[source.name].num_tokens, corpora[source.name].unit)
        for source in phase.sources
    ]
    now, declared = (
        max(
            100 * cut_spans(size, longest, plan.overlap, unit).num_spans * length / size
            for size, unit in sizes
        )
        for longest in (plan.longest, length)
    )
    return (
        f"phase {phase.index} has sequences of {length} tokens, longer than "
        f"longest={plan.longest}, which is fixed at the first step of a run: a round "
        f"of the phase is up to {now:.1f} % of a source ({declared:.1f} % with "
        f"longest={length}), and a change of length leaves the rest of a round unread; "
        f"declare longest={length} at the start of a run that may get such a phase"
    )
