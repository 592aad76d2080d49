"""Solve declared phases: determine the source of every sample.

The solver adds phases in training order. A solved phase depends only on earlier phases,
and the order of its samples does not depend on its number of steps. All counts are
Python integers, so none overflows.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from roxxel_curriculum._errors import CurriculumError
from roxxel_curriculum._order.blend import Blend
from roxxel_curriculum._order.rounds import (
    Cursor,
    SampleStream,
    Spans,
    cut_spans,
    part_of,
)
from roxxel_curriculum._plan.solution import (
    Declaration,
    EarlyStop,
    Leg,
    ResolvedPhase,
    Skip,
    Solution,
    Source,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from roxxel_curriculum.phase import Phase


def solve(declaration: Declaration) -> Solution:
    """Solve a declaration; raises `CurriculumError` if the sources cannot meet it."""
    solver = Solver(declaration)
    for index, phase in enumerate(declaration.phases):
        solver.add(phase, index)
    return solver.solution()


class Solver:
    """Solves phases in order, and tracks how far the run has read each source."""

    def __init__(self, declaration: Declaration) -> None:
        self.phases: list[ResolvedPhase] = []
        self.early_stop: EarlyStop | None = None
        self.step = 0  # training steps solved so far
        self._declaration = declaration
        self.primary = declaration.primary
        self._longest = declaration.resolved_longest
        self.spans = {
            source.name: _spans_of(source, self._longest, declaration.overlap)
            for source in declaration.sources
        }
        self._policies = {source.name: source.policy for source in declaration.sources}
        self._order_names = declaration.order_names
        self._cursors: dict[str, Cursor] = {}

    def solve(
        self, phase: Phase, index: int, *, is_edited: bool = False
    ) -> ResolvedPhase:
        """Solve `phase` as the next phase, without adding it."""
        label = f"phase {index}"
        weights = phase.integer_weights
        self._check_lengths(phase, label)
        cursors = {name: self._cursor(name, phase.seq_len) for name in weights}
        # The draft has every sample that the sources can still give in this phase.
        # `solved` has only the samples of its steps.
        draft = ResolvedPhase(
            index=index,
            start=self.step,
            steps=0,
            batch_size=phase.batch_size,
            seq_len=phase.seq_len,
            weights=weights,
            is_edited=is_edited,
            skips=tuple(
                Skip(skip.at - self.step, skip.steps)
                for skip in self._declaration.skips
                if skip.at >= self.step
            ),
            legs=tuple(self._legs(phase, cursors)),
            cursors=cursors,
        )
        wanted = phase.declared_steps
        if wanted is None:
            wanted = self._steps_of_epochs(phase, draft, label)
        steps = self._within_supply(draft, wanted, label)
        total = draft.samples_before(steps)
        solved = replace(
            draft,
            steps=steps,
            skips=tuple(skip for skip in draft.skips if skip.at < steps),
            legs=tuple(leg for leg in draft.legs if leg.start < total),
            stopped_by=self._stopper(draft) if steps < wanted else None,
        )
        self._check_max_epochs(solved, label)
        return solved

    def add(
        self, phase: Phase, index: int, *, is_edited: bool = False
    ) -> ResolvedPhase | None:
        """Solve and add `phase`; return None if the run ends before `phase` starts."""
        if self.early_stop:
            return None
        return self.append(self.solve(phase, index, is_edited=is_edited))

    def append(self, solved: ResolvedPhase) -> ResolvedPhase | None:
        """Add what `solve` returned; return None if it has no steps."""
        if solved.stopped_by is not None:
            self.early_stop = EarlyStop(solved.stop, solved.stopped_by, solved.index)
        if not solved.steps:
            return None
        for name, given in solved.counts(solved.num_samples).items():
            if given:
                stream, before = solved.cursors[name]
                self._cursors[name] = Cursor(stream, before + given)
        self.step = solved.stop
        self.phases.append(solved)
        return solved

    def solution(self) -> Solution:
        """Return the solution of the added phases; without steps, raise an error."""
        declaration, early_stop = self._declaration, self.early_stop
        if not self.phases:
            source = early_stop.source if early_stop else self.primary
            raise CurriculumError(
                f"the run has no whole step: source {source!r} runs out in the first "
                'step; use another policy than "stop" or a smaller batch_size'
            )
        for skip in declaration.skips:
            if skip.at >= self.step and early_stop is None:
                raise CurriculumError(
                    f"a skip is at step {skip.at} but the run has {self.step} steps; "
                    f"use a step below {self.step}"
                )
        return Solution(
            declaration, self._longest, self.spans, tuple(self.phases), early_stop
        )

    def _cursor(self, name: str, seq_len: int) -> Cursor:
        """Return the cursor at which the next phase starts to read a source."""
        if name not in self._cursors:
            return Cursor(SampleStream(self.spans[name], seq_len, 0, 0), 0)
        return self._cursors[name].switched_to(seq_len)

    def _legs(self, phase: Phase, cursors: Mapping[str, Cursor]) -> Iterator[Leg]:
        """Yield the legs of a phase: each ends where its first source runs out.

        The last leg has no end if none of its sources runs out. A source whose policy
        is to stop ends the phase with its leg.
        """
        # Samples that the policy of each source still allows; None for any number.
        left: dict[str, int | None] = {}
        for name, (stream, before) in cursors.items():
            epochs = self._policies[name].epochs
            left[name] = None
            if epochs is not None:
                left[name] = max(0, stream.samples_until(epochs) - before)
        # Samples after which no leg is needed; None if the sources decide how long the
        # phase is. All later skips count, those of later phases too: `solve` drops the
        # legs that begin after the phase's last sample.
        needed = None
        if phase.declared_steps is not None:
            skips = self._declaration.skips
            skipped = sum(skip.steps for skip in skips if skip.at >= self.step)
            needed = (phase.declared_steps + skipped) * phase.batch_size
        stops = {name for name in cursors if self._policies[name].then == "stop"}
        if any(left[name] == 0 for name in stops):
            return
        given = dict.fromkeys(cursors, 0)
        weights = phase.integer_weights
        alive = {name: w for name, w in weights.items() if left[name] != 0}
        start = 0
        while alive and (needed is None or start < needed):
            blend = Blend(alive, self._order_names)
            # One past the sample of the blend with which each source runs out.
            ends = [
                (blend.sample_index(name, limit - given[name] - 1) + 1, name)
                for name in alive
                if (limit := left[name]) is not None
            ]
            if not ends:
                yield Leg(start, None, blend, dict(given), None)
                return
            length, name = min(ends)
            yield Leg(start, start + length, blend, dict(given), name)
            if name in stops:
                return
            for source, count in blend.counts(length).items():
                given[source] += count
            del alive[name]
            start += length

    def _steps_of_epochs(self, phase: Phase, draft: ResolvedPhase, label: str) -> int:
        """Return the number of whole steps that fit into the phase's `epochs`."""
        epochs = phase.exact_epochs
        numerator, denominator = epochs.as_integer_ratio()
        windows = self.spans[self.primary].windows_per_epoch(phase.seq_len)
        wanted = numerator * windows // denominator
        if self.primary not in draft.weights:
            raise CurriculumError(
                f"{label} lasts epochs={float(epochs):g} of the primary, "
                "which has no weight in the phase; declare steps or tokens instead"
            )
        steps = 0
        if wanted:
            try:
                samples = draft.sample_index(self.primary, wanted - 1) + 1
            except LookupError:
                if self._stopper(draft) is not None:
                    supply = draft.legs[-1].stop or 0 if draft.legs else 0
                    # Ask for one more step than fits: `solve` then applies "stop".
                    return supply // phase.batch_size + 1
                policy = self._policies[self.primary]
                stream, before = draft.cursors[self.primary]
                left = stream.samples_until(policy.epochs or 0) - before
                raise CurriculumError(
                    f"{label} lasts epochs={float(epochs):g} of the primary, "
                    f"{wanted} samples, but the primary's policy ({policy}) leaves "
                    f"{left}; use fewer epochs or let the primary repeat"
                ) from None
            steps = samples // phase.batch_size
        if not steps:
            raise CurriculumError(
                f"{label} has no whole step: {phase.batch_size} samples of "
                f"{phase.seq_len} tokens are more than epochs={float(epochs):g} of the "
                f"primary ({windows} samples per epoch); use a smaller batch_size "
                "or more epochs"
            )
        return steps

    def _stopper(self, phase: ResolvedPhase) -> str | None:
        """Return the source whose policy ends the run in this phase, if any."""
        if phase.legs:
            name = phase.legs[-1].ended_by
            stops = name is not None and self._policies[name].then == "stop"
            return name if stops else None
        for name, (stream, before) in phase.cursors.items():
            policy = self._policies[name]
            if policy.then != "stop" or policy.epochs is None:
                continue
            if stream.samples_until(policy.epochs) <= before:
                return name
        return None

    def _within_supply(self, draft: ResolvedPhase, steps: int, label: str) -> int:
        """Return `steps`, or fewer if a source's policy stops the run."""
        supply = draft.legs[-1].stop if draft.legs else 0
        fit = steps if supply is None else min(steps, draft.steps_within(supply))
        if fit < steps and self._stopper(draft) is None:
            most, _ = self._within_max_epochs(draft, fit)
            names = ", ".join(sorted(draft.weights))
            remedy = f"use at most {most}" if most else "leave the phase out"
            raise CurriculumError(
                f"{label} needs {steps} steps of {draft.batch_size} samples of "
                f"{draft.seq_len} tokens, but its sources ({names}) run out after "
                f"{fit} steps; {remedy} or let a source repeat"
            )
        return fit

    def _check_lengths(self, phase: Phase, label: str) -> None:
        spans = {name: self.spans[name] for name in phase.integer_weights}
        first = next(iter(spans.values()))
        if first.stride(phase.seq_len) < 1:
            raise CurriculumError(
                f"{label} has seq_len={phase.seq_len}; "
                "with overlap=1 a sequence needs at least 2 tokens"
            )
        for name, cut in spans.items():
            if phase.seq_len % cut.unit:
                above = -(-phase.seq_len // cut.unit) * cut.unit
                raise CurriculumError(
                    f"{label} has seq_len={phase.seq_len}, but source {name!r} is "
                    f"packed in bins of {cut.unit} tokens, which a sequence must not "
                    f"cut; use a multiple of {cut.unit}, such as {above}, or leave the "
                    "source out"
                )
            if cut.unit > 1 and cut.overlap:
                raise CurriculumError(
                    f"{label} reads source {name!r}, which is packed in bins of "
                    f"{cut.unit} tokens, with overlap={cut.overlap}; use overlap=0, "
                    "because bins share no tokens"
                )
        small = [
            f"{name!r} ({cut.num_tokens} tokens in {cut.num_spans} spans of "
            f"{cut.span_tokens})"
            for name, cut in spans.items()
            if not cut.windows_left(phase.seq_len, 0)
        ]
        if small:
            fit = min(cut.span_tokens for cut in spans.values())
            name, least = min(
                ((name, cut.num_tokens) for name, cut in spans.items()),
                key=lambda each: each[1],
            )
            if least < phase.seq_len:
                raise CurriculumError(
                    f"{label} has seq_len={phase.seq_len}, but the whole source "
                    f"{name!r} has {least} tokens; use at most {fit}, or give it more "
                    "documents"
                    + (", or leave the source out" if len(spans) > 1 else "")
                )
            raise CurriculumError(
                f"{label} has seq_len={phase.seq_len}, longer than the spans of "
                f"{', '.join(small)}, cut for longest={self._longest}; use at most "
                f"{fit}, leave the source out, or start a new run with a larger "
                "longest="
            )

    def _check_max_epochs(self, phase: ResolvedPhase, label: str) -> None:
        fit, name = self._within_max_epochs(phase, phase.steps)
        if name is not None:
            stream, before = phase.cursors[name]
            given = before + phase.counts(phase.num_samples)[name]
            raise CurriculumError(
                f"{label} needs {phase.steps} steps, which read source {name!r} for "
                f"{stream.epochs_started(given)} epochs with "
                f"max_epochs={self._declaration.max_epochs}; at most {fit} steps fit"
            )

    def _within_max_epochs(
        self, phase: ResolvedPhase, steps: int
    ) -> tuple[int, str | None]:
        """Return how many steps fit `max_epochs`, and the source that limits them."""
        fit, limiting = steps, None
        max_epochs = self._declaration.max_epochs
        if max_epochs is None:
            return fit, limiting
        for name, given in phase.counts(phase.samples_before(steps)).items():
            stream, before = phase.cursors[name]
            allowed = max(0, stream.samples_until(max_epochs) - before)
            if given > allowed:
                most = phase.steps_within(phase.sample_index(name, allowed))
                if most < fit:
                    fit, limiting = most, name
        return fit, limiting


def _spans_of(source: Source, longest: int, overlap: int) -> Spans:
    spans = cut_spans(source.num_tokens, longest, overlap, source.unit)
    if source.part is None:
        return spans
    return part_of(spans, source.part.spans, source.order_name, source.part.seed)
