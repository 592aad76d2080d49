"""Tokens that each source has given by a step, and tokens by its weight.

Closed formulas over the solved phases. Nothing is counted while a run trains, so a run
that resumes at any step has the numbers of one that never stopped.
"""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from roxxel_curriculum._plan.resolved_phase import ResolvedPhase


class Tally:
    """Tokens by source, up to any step.

    Args:
        phases: The solved phases, in order.
        names: Names of all sources.
    """

    def __init__(self, phases: Sequence[ResolvedPhase], names: Sequence[str]) -> None:
        self._phases = phases
        whole = (_tokens(phase, phase.steps) for phase in phases)
        # The tokens given before each phase, and after the last one.
        self._before = list(accumulate(whole, _sum, initial=dict.fromkeys(names, 0)))

    def delivered(self, index: int, step: int) -> dict[str, int]:
        """Return the tokens delivered when `step` training steps are done.

        Args:
            index: Index of the solved phase of the last of these steps.
            step: Number of steps done, at least 1.
        """
        phase = self._phases[index]
        return _sum(self._before[index], _tokens(phase, step - phase.start))

    def planned(self, index: int, step: int) -> dict[str, float]:
        """Return the tokens by weight, counted from the last exhaustion or phase.

        What came before counts as it was delivered.

        Args:
            index: Index of the solved phase of the last of these steps.
            step: Number of steps done, at least 1.
        """
        phase = self._phases[index]
        num_samples = phase.samples_before(step - phase.start)
        leg = phase.leg_of(num_samples - 1)
        planned: dict[str, float] = dict(self.delivered(index, step))
        dealt = num_samples - leg.start
        total = sum(phase.weights[name] for name in leg.blend.sources)
        for name, count in leg.blend.counts(dealt).items():
            share = dealt * phase.weights[name] / total
            planned[name] += (share - count) * phase.seq_len
        return planned


def _tokens(phase: ResolvedPhase, steps: int) -> dict[str, int]:
    samples = phase.delivered(steps)
    return {name: count * phase.seq_len for name, count in samples.items()}


def _sum(first: dict[str, int], second: dict[str, int]) -> dict[str, int]:
    return {name: count + second.get(name, 0) for name, count in first.items()}
