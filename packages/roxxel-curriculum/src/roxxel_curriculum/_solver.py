"""From declared phases to solved ones: who gives which samples, and from where.

Phases are solved one after another, from the past alone: nothing about a phase depends
on those after it, nor the order inside it on how many steps it has. All counts are
Python integers.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from roxxel_curriculum._blend import Blend
from roxxel_curriculum._errors import CurriculumError
from roxxel_curriculum._rounds import Run
from roxxel_curriculum._solved import PRIMARY, Leg, Piece, Skip, SolvedPhase

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from roxxel_curriculum._policy import Policy
    from roxxel_curriculum._rounds import Spans


@lru_cache(maxsize=512)
def _blend(weights: tuple[tuple[str, int], ...]) -> Blend:
    return Blend(dict(weights))


@dataclass(frozen=True, slots=True)
class Ended:
    """A run that a source's policy ends: before training step `step`."""

    step: int
    source: str
    declared_phase: str


class Solver:
    """Solves phases in order, carrying where each source stands.

    Args:
        spans: How each source is cut, by name.
        policies: What each does when it runs out.
        skips: By training step of the run.
        max_epochs: Epochs that no source may exceed; None for no limit.
    """

    def __init__(
        self,
        spans: Mapping[str, Spans],
        policies: Mapping[str, Policy],
        skips: Sequence[Skip] = (),
        max_epochs: int | None = None,
    ) -> None:
        self.phases: list[SolvedPhase] = []
        self.ended: Ended | None = None
        self.step = 0
        self.spans = spans
        self._policies = policies
        self._skips = sorted(skips, key=lambda skip: skip.at)
        self._max_epochs = max_epochs
        self._runs: dict[str, tuple[Run, int]] = {}

    def solve(self, piece: Piece) -> SolvedPhase:
        """Return the phase that `piece` would be here, without going on to it.

        Raises:
            CurriculumError: The piece cannot be met; the message says why, in numbers.
        """
        self._check_lengths(piece)
        runs = {name: self._run(name, piece.seq_len) for name in piece.weights}
        # As long as its sources last, to be cut to its steps.
        draft = SolvedPhase(
            piece=piece,
            start=self.step,
            steps=0,
            skips=tuple(
                Skip(skip.at - self.step, skip.steps)
                for skip in self._skips
                if skip.at >= self.step
            ),
            legs=tuple(self._legs(piece, runs)),
            runs={name: run for name, (run, _) in runs.items()},
            bases={name: given for name, (_, given) in runs.items()},
        )
        wanted = piece.steps if piece.steps is not None else self._by_epochs(draft)
        steps = self._within_supply(draft, wanted)
        total = draft.samples_before(steps)
        phase = SolvedPhase(
            piece=piece,
            start=self.step,
            steps=steps,
            skips=tuple(skip for skip in draft.skips if skip.at < steps),
            legs=tuple(leg for leg in draft.legs if leg.start < total),
            runs=draft.runs,
            bases=draft.bases,
            stopped_by=self._stopper(draft) if steps < wanted else None,
        )
        self._check_epochs(phase)
        return phase

    def add(self, piece: Piece) -> SolvedPhase | None:
        """Solve `piece` and go on to its end; None where the run has ended before."""
        if self.ended:
            return None
        phase = self.solve(piece)
        if phase.stopped_by is not None:
            self.ended = Ended(phase.stop, phase.stopped_by, piece.label)
        if not phase.steps:
            return None
        for name, given in phase.counts(phase.num_samples).items():
            if given:
                self._runs[name] = phase.runs[name], phase.bases[name] + given
        self.step = phase.stop
        self.phases.append(phase)
        return phase

    def _run(self, name: str, seq_len: int) -> tuple[Run, int]:
        """Return the run a source would draw from, and the samples it gave there."""
        if name not in self._runs:
            return Run(self.spans[name], seq_len, 0, 0), 0
        run, given = self._runs[name]
        if run.seq_len == seq_len:
            return run, given
        epoch, depth = run.after(given)
        return Run(run.spans, seq_len, epoch, depth), 0

    def _legs(self, piece: Piece, runs: Mapping[str, tuple[Run, int]]) -> Iterable[Leg]:
        left: dict[str, int | None] = {}
        for name, (run, base) in runs.items():
            epochs = self._policies[name].epochs
            if epochs is None:
                left[name] = None
            else:
                left[name] = max(0, run.samples_until(epochs) - base)
        needed = None
        if piece.steps is not None:
            passed = sum(skip.steps for skip in self._skips if skip.at >= self.step)
            needed = (piece.steps + passed) * piece.batch_size
        stops = {name for name in runs if self._policies[name].then == "stop"}
        if any(left[name] == 0 for name in stops):
            return
        given = dict.fromkeys(runs, 0)
        alive = {name: w for name, w in piece.weights.items() if left[name] != 0}
        start = 0
        while alive and (needed is None or start < needed):
            blend = _blend(tuple(sorted(alive.items())))
            ends = [
                (blend.place(name, limit - given[name] - 1) + 1, name)
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

    def _by_epochs(self, phase: SolvedPhase) -> int:
        """Return the whole steps until the primary has given its epochs of samples."""
        piece = phase.piece
        spans = self.spans[PRIMARY]
        numerator, denominator = piece.epochs.as_integer_ratio()
        windows = spans.windows_per_epoch(piece.seq_len)
        wanted = numerator * windows // denominator
        if PRIMARY not in piece.weights:
            raise CurriculumError(
                f"{piece.label} lasts epochs={float(piece.epochs):g} of the primary, "
                "which has no weight in it; give steps or tokens instead"
            )
        if not wanted:
            return 0
        try:
            samples = phase.place(PRIMARY, wanted - 1) + 1
        except LookupError:
            supply = phase.legs[-1].stop or 0 if phase.legs else 0
            if self._stopper(phase) is not None:
                return supply // piece.batch_size + 1  # more than there is: it stops
            run, base = phase.runs[PRIMARY], phase.bases[PRIMARY]
            left = run.samples_until(self._policies[PRIMARY].epochs or 0) - base
            raise CurriculumError(
                f"{piece.label} lasts epochs={float(piece.epochs):g} of the primary, "
                f"{wanted} samples, but the primary has {left} left by its policy "
                f"({self._policies[PRIMARY]}); give fewer epochs or let it repeat"
            ) from None
        return samples // piece.batch_size

    def _stopper(self, phase: SolvedPhase) -> str | None:
        """Return the source that ends the run where the phase's supply ends."""
        if phase.legs:
            name = phase.legs[-1].ended_by
            stops = name is not None and self._policies[name].then == "stop"
            return name if stops else None
        for name, run in phase.runs.items():
            policy = self._policies[name]
            if policy.then != "stop" or policy.epochs is None:
                continue
            if run.samples_until(policy.epochs) <= phase.bases[name]:
                return name
        return None

    def _within_supply(self, phase: SolvedPhase, steps: int) -> int:
        """Return `steps`, or fewer where a source's policy stops the run."""
        piece = phase.piece
        if not steps:
            raise CurriculumError(
                f"{piece.label} has no whole step: {piece.batch_size} samples of "
                f"{piece.seq_len} tokens are more than epochs="
                f"{float(piece.epochs):g} of the primary holds "
                f"({self.spans[PRIMARY].windows_per_epoch(piece.seq_len)} samples an "
                "epoch); take a smaller batch_size or more epochs"
            )
        supply = phase.legs[-1].stop if phase.legs else 0
        stopper = self._stopper(phase)
        fit = steps if supply is None else min(steps, phase.steps_within(supply))
        if fit < steps and stopper is None:
            most, _ = self._within_epochs(phase, fit)
            names = ", ".join(sorted(piece.weights))
            remedy = f"ask at most {most}" if most else "leave the phase out"
            raise CurriculumError(
                f"{piece.label} asks {steps} steps of {piece.batch_size} samples of "
                f"{piece.seq_len} tokens, but its sources ({names}) run out after "
                f"{fit} steps; {remedy} or let a source repeat"
            )
        return fit

    def _check_lengths(self, piece: Piece) -> None:
        if self.spans[next(iter(piece.weights))].stride(piece.seq_len) < 1:
            raise CurriculumError(
                f"{piece.label} has seq_len={piece.seq_len}; "
                "with overlap=1 a sample needs at least 2 tokens"
            )
        small = [
            f"{name!r} ({spans.num_tokens} tokens in {spans.num_spans} spans of "
            f"{spans.span_tokens})"
            for name in piece.weights
            for spans in (self.spans[name],)
            if not spans.windows_left(piece.seq_len, 0)
        ]
        if small:
            fit = min(self.spans[name].span_tokens for name in piece.weights)
            longest = self.spans[next(iter(piece.weights))].longest
            raise CurriculumError(
                f"{piece.label} has seq_len={piece.seq_len}, longer than the spans of "
                f"{', '.join(small)}, cut for longest={longest}; use at most {fit}, "
                "leave the source out, or declare a new run with a larger longest="
            )

    def _check_epochs(self, phase: SolvedPhase) -> None:
        fit, name = self._within_epochs(phase, phase.steps)
        if name is not None:
            given = phase.bases[name] + phase.counts(phase.num_samples)[name]
            raise CurriculumError(
                f"{phase.piece.label} asks {phase.steps} steps, which takes source "
                f"{name!r} through {phase.runs[name].epochs_begun(given)} "
                f"epochs with max_epochs={self._max_epochs}; "
                f"at most {fit} steps fit"
            )

    def _within_epochs(self, phase: SolvedPhase, steps: int) -> tuple[int, str | None]:
        """Return `steps`, or fewer by `max_epochs` and the source that has no more."""
        fit, limiting = steps, None
        if self._max_epochs is None:
            return fit, limiting
        for name, given in phase.counts(phase.samples_before(steps)).items():
            left = phase.runs[name].samples_until(self._max_epochs)
            allowed = max(0, left - phase.bases[name])
            if given > allowed:
                most = phase.steps_within(phase.place(name, allowed))
                if most < fit:
                    fit, limiting = most, name
        return fit, limiting
