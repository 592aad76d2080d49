"""The setting `skip_spikes`, which says what a spike is; read without JAX."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, cast

from roxxel_store.arguments import nearest

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
    """

    deviations: float = 8.0
    window: int = 64
    what: tuple[str, ...] = ("loss", "grad_norm")

    @classmethod
    def of(cls, given: SkipSpikes) -> SpikeRule:
        """Return the rule that the setting `skip_spikes` declares.

        Raises:
            TypeError: The setting, or one of its values, has a wrong type.
            ValueError: A name is unknown, or a value is out of range.
        """
        known = [each.name for each in fields(cls)]
        values: dict[str, Any] = dict(given)
        for name in values:
            if name not in known:
                hint = nearest(name, known) or "use one of these"
                raise ValueError(
                    f"skip_spikes has the key {name!r}, but its keys are "
                    f"{', '.join(known)}; {hint}"
                )
        _check_number(values, "deviations", float, 0)
        _check_number(values, "window", int, 7)
        if "what" in values:
            values["what"] = _names(values["what"])
        return cls(**values)


def _check_number(
    values: dict[str, Any], name: str, kind: type[int | float], above: int
) -> None:
    if name not in values:
        return
    value: Any = values[name]
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or (kind is int and value != value // 1):
        what = "an integer" if kind is int else "a number"
        raise TypeError(f"skip_spikes: {name} must be {what}, got {value!r}")
    if not above < value < float("inf"):
        raise ValueError(f"skip_spikes: {name} must be above {above}, got {value!r}")
    values[name] = kind(value)


def _names(value: Any) -> tuple[str, ...]:
    names = [value] if isinstance(value, str) else value
    if (
        not isinstance(names, Sequence)
        or not names
        or not all(isinstance(each, str) for each in cast("Sequence[Any]", names))
    ):
        raise TypeError(
            f'skip_spikes: what must name values, such as ["loss"], got {value!r}'
        )
    return tuple(dict.fromkeys(cast("Sequence[str]", names)))
