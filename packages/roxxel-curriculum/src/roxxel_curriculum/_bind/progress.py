"""Compute how much of each source a run has read after some steps."""

from __future__ import annotations

from bisect import bisect_left
from functools import cached_property
from operator import attrgetter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from roxxel_curriculum._plan.solution import ResolvedPhase


class Progress:
    """Tells how much of each source a run reads in its first steps.

    The methods do not check their arguments; `Sampler` documents and checks them.
    """

    def __init__(
        self, phases: Sequence[ResolvedPhase], source_names: Sequence[str]
    ) -> None:
        self._phases = phases
        self._source_names = source_names

    def delivered_tokens(self, step: int) -> dict[str, int]:
        """Return the result of `Sampler.delivered_tokens`."""
        index = self._index_before(step)
        tokens = dict(self._tokens_before[index])
        _add_tokens(tokens, self._phases[index], step)
        return tokens

    def planned_tokens(self, step: int) -> dict[str, float]:
        """Return the result of `Sampler.planned_tokens`."""
        tokens: dict[str, float] = dict(self.delivered_tokens(step))
        if not step:
            return tokens
        phase = self._phases[self._index_before(step)]
        num_samples = phase.samples_before(step - phase.start)
        leg = phase.leg_of(num_samples - 1)
        dealt = num_samples - leg.start
        total = sum(phase.weights[name] for name in leg.blend.sources)
        for name, count in leg.blend.counts(dealt).items():
            share = dealt * phase.weights[name] / total
            tokens[name] += (share - count) * phase.seq_len
        return tokens

    def epochs(self, step: int) -> dict[str, float]:
        """Return the result of `Sampler.epochs`."""
        epochs = dict.fromkeys(self._source_names, 0.0)
        for phase in self._phases:
            steps = min(step, phase.stop) - phase.start
            if steps <= 0:
                break
            for name, given in phase.counts(phase.samples_before(steps)).items():
                if given:
                    stream, before = phase.cursors[name]
                    epochs[name] = stream.passes(before + given)
        return epochs

    def next_epoch(self, source: str, step: int) -> tuple[int, int] | None:
        """Return the result of `Sampler.next_epoch`."""
        for phase in self._phases[self._index_before(step) :]:
            found = phase.next_epoch(source, max(step, phase.start))
            if found is not None:
                return found
        return None

    @cached_property
    def _tokens_before(self) -> list[dict[str, int]]:
        """Number of tokens of each source before each phase."""
        tokens = dict.fromkeys(self._source_names, 0)
        before: list[dict[str, int]] = []
        for phase in self._phases:
            before.append(dict(tokens))
            _add_tokens(tokens, phase, phase.stop)
        return before

    def _index_before(self, step: int) -> int:
        """Return the index of the phase with step `step - 1`; 0 for step 0."""
        return bisect_left(self._phases, step, key=attrgetter("stop"))


def _add_tokens(tokens: dict[str, int], phase: ResolvedPhase, step: int) -> None:
    """Add the tokens that a phase delivers before step `step` of the run."""
    for name, count in phase.delivered(step - phase.start).items():
        tokens[name] += count * phase.seq_len
