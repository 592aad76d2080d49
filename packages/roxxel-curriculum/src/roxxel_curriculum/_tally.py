"""How many tokens each source has given by a step, and how many its weight asks for.

Closed formulas over the solved phases: nothing is counted as a run goes on, so a run
that resumes anywhere has the numbers of one that never stopped.
"""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from roxxel_curriculum._solved import SolvedPhase


class Tally:
    """Tokens by source, up to any step.

    Args:
        phases: The solved phases, in order.
        names: Names of all sources.
    """

    def __init__(self, phases: Sequence[SolvedPhase], names: Sequence[str]) -> None:
        self._phases = phases
        whole = (_tokens(phase, phase.delivered_by(phase.steps)) for phase in phases)
        # What had been given when each phase began, and when the last one ended.
        self._before = list(accumulate(whole, _sum, initial=dict.fromkeys(names, 0)))

    def delivered(self, index: int, step: int) -> dict[str, int]:
        """Return the tokens delivered when `step` training steps are done.

        Args:
            index: Phase that the last of them is in.
            step: Steps done, one at least.
        """
        phase = self._phases[index]
        here = _tokens(phase, phase.delivered_by(step - phase.start))
        return _sum(self._before[index], here)

    def planned(self, index: int, step: int) -> dict[str, float]:
        """Return the same by the weights alone, since the last exhaustion or phase."""
        phase = self._phases[index]
        num_samples = phase.samples_before(step - phase.start)
        leg = phase.legs[phase.leg_of(num_samples - 1)]
        planned: dict[str, float] = dict(self.delivered(index, step))
        dealt = num_samples - leg.start
        total = sum(phase.piece.weights[name] for name in leg.blend.sources)
        for name, count in leg.blend.counts(dealt).items():
            share = dealt * phase.piece.weights[name] / total
            planned[name] += (share - count) * phase.piece.seq_len
        return planned


def _tokens(phase: SolvedPhase, samples: Mapping[str, int]) -> dict[str, int]:
    return {name: count * phase.piece.seq_len for name, count in samples.items()}


def _sum(first: dict[str, int], second: dict[str, int]) -> dict[str, int]:
    return {name: count + second.get(name, 0) for name, count in first.items()}
