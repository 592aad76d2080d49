"""The setting `skip_spikes`, which says what a spike is; read without JAX."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from roxxel_store.arguments import Amount, Rule, read

SkipSpikes = Mapping[str, int | float | str | Sequence[str]]
"""Any of `deviations`, `window` and `what`; `SpikeRule` has the defaults."""


@dataclass(frozen=True)
class SpikeRule:
    """The rule that says which updates are spikes and are not applied.

    Attributes:
        deviations: A spike is more than this number of median absolute deviations
            above the median.
        window: Number of applied updates whose values are compared. The first updates
            of a phase, as many as this number, are never spikes.
        what: Names of the values that are compared: `"loss"`, `"grad_norm"`, or a
            scalar that the step returns. One spike among them suffices.
        least_deviation: Smallest deviation, as a share of the median: without it, a
            flat loss would have spikes.
    """

    least_deviation: ClassVar[float] = 1e-3

    deviations: Amount = 8.0
    window: Annotated[int, Rule(at_least=8)] = 64
    what: Annotated[Sequence[str], Rule(is_filled=True)] = ("loss", "grad_norm")

    @classmethod
    def of(cls, given: SkipSpikes) -> SpikeRule:
        """Return the rule that the setting `skip_spikes` declares.

        Raises:
            ValueError: A key is unknown, or a value is wrong.
        """
        what = given.get("what")
        names = {"what": [what]} if isinstance(what, str) else {}
        return read(cls, {**given, **names}, ["skip_spikes"])
