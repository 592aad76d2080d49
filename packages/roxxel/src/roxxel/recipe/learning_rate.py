"""The learning rate of every step of a run: warm-up, schedule and decay.

The values are arithmetic on steps, so `roxxel plan` shows them without JAX, and the
compiled update computes the same formulas with `jax.numpy`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
from roxxel_store.arguments import Rule, check

RECIPE = "roxxel.models:llama"
"""The model's function whose arguments declare a `LearningRate`."""

Schedule = Literal["cosine", "wsd", "linear", "constant", "inverse_sqrt"]
"""What the rate does between the warm-up and the last steps of a run."""

_Steps = Annotated[int, Rule(at_least=0)]
NotNegative = Annotated[float, Rule(at_least=0)]
Share = Annotated[float, Rule(at_least=0, at_most=1, must_be="a share from 0 to 1")]

_TO_THE_END = {"cosine", "linear"}
_WSD_DECAY = 0.2


@dataclass(frozen=True)
class LearningRate:
    """A schedule of the learning rate.

    Lengths are steps, or shares of `total_steps` if they are below 1 and written as
    floats, such as `0.05`. Shares follow the run when you extend it.

    >>> rate = LearningRate(100, schedule="wsd", peak_rate=1.0, warmup=10, decay=0.2)
    >>> [float(rate.at(step)) for step in (0, 5, 50, 80, 90, 100)]
    [0.0, 0.5, 1.0, 1.0, 0.55, 0.1]

    Attributes:
        total_steps: Step at which the rate is final. Later steps keep the final rate.
        schedule: What the rate does. `"cosine"` and `"linear"` fall from the warm-up
            to the end. `"constant"` holds the peak, `"wsd"` (warm-up, stable, decay: Hu
            et al., MiniCPM, 2024) holds the peak and falls in the last steps, and
            `"inverse_sqrt"` falls with the square root of the step (Vaswani et al.,
            2017).
        peak_rate: Highest rate.
        warmup: Length of the linear rise from 0. None means a twelfth of the run.
        decay: Length of the linear fall to the final rate at the end. None means a
            fifth of the run for `"wsd"`, and no such fall for other schedules.
        decay_from: Step at which the linear fall begins, instead of `decay`. Use it for
            the cooldown of a branch that starts at this step.
        final_share: Final rate divided by the peak.

    Raises:
        TypeError: A value has another type.
        ValueError: A name is unknown, a value is out of range, or two values exclude
            each other.
    """

    total_steps: _Steps
    schedule: Schedule = "cosine"
    peak_rate: NotNegative = 6e-4
    warmup: NotNegative | None = None
    decay: NotNegative | None = None
    decay_from: _Steps | None = None
    final_share: Share = 0.1

    def __post_init__(self) -> None:
        check(self)
        if self.decay is not None and self.decay_from is not None:
            raise ValueError(
                f"decay={self.decay} and decay_from={self.decay_from} both say where "
                "the decay begins; give one of them"
            )
        if self.decay is not None and self.schedule in _TO_THE_END:
            raise ValueError(
                f"decay={self.decay} has no effect on schedule={self.schedule!r}, "
                'which falls until the end; leave decay out, or use schedule="wsd"'
            )
        # The formula of a run of one step needs a second one.
        if self.warmup_steps >= max(self.total_steps, 2):
            raise ValueError(
                f"warmup={self.warmup_steps} must be less than "
                f"total_steps={self.total_steps}"
            )
        start = self.decay_start
        if start is None:
            return
        if not 0 <= start < max(self.total_steps, 1):
            what = "decay" if self.decay_from is None else "decay_from"
            raise ValueError(
                f"{what}={getattr(self, what)} lets the decay begin at step {start}, "
                f"but the run has the steps 0 to {self.total_steps}; give an earlier "
                "beginning, or more steps"
            )
        if start < self.warmup_steps and self.decay_from is None:
            raise ValueError(
                f"warmup and decay need {self.warmup_steps} and "
                f"{self.total_steps - start} steps, but the run has only "
                f"{self.total_steps}; shorten one of them"
            )

    @property
    def warmup_steps(self) -> int:
        """Length of the warm-up in steps."""
        if self.warmup is None:
            return max(1, self.total_steps // 12)
        return self._steps("warmup", self.warmup)

    @property
    def decay_start(self) -> int | None:
        """Step at which the linear fall to the end begins, if there is one."""
        if self.decay_from is not None:
            return self.decay_from
        decay = self.decay
        if decay is None and self.schedule == "wsd":
            decay = _WSD_DECAY
        if decay is None:
            return None
        return self.total_steps - self._steps("decay", decay)

    def at(self, step: Any, xp: Any = np) -> Any:
        """Return the rate of the update that follows `step` updates.

        Args:
            step: Updates done, a number or an array.
            xp: `numpy`, or `jax.numpy` inside a compiled function.
        """
        start, warmup, total = self.decay_start, self.warmup_steps, self.total_steps
        final = self.final_share * self.peak_rate
        step = xp.asarray(step, xp.float32 if xp is not np else np.float64)
        held = step if start is None else xp.minimum(step, start)
        rising = self.peak_rate * held / max(warmup, 1)
        rate = xp.where(held < warmup, rising, self._after_warmup(held, xp))
        if start is None:
            return rate
        end = xp.minimum(final, rate)
        left = xp.clip((total - step) / max(total - start, 1), 0, 1)
        return xp.where(step > start, end + (rate - end) * left, rate)

    def _after_warmup(self, step: Any, xp: Any) -> Any:
        """Return the rate of the schedule, without warm-up and decay."""
        warmup, peak = self.warmup_steps, self.peak_rate
        if self.schedule == "inverse_sqrt":
            first = max(warmup, 1)
            return peak * xp.sqrt(first / xp.maximum(step, first))
        if self.schedule not in _TO_THE_END:
            return peak
        length = max(self.total_steps, 2) - warmup
        left = 1 - xp.clip((step - warmup) / length, 0, 1)
        if self.schedule == "cosine":
            left = (1 + xp.cos(math.pi * (1 - left))) / 2
        return peak * (self.final_share + (1 - self.final_share) * left)

    def _steps(self, name: str, value: float) -> int:
        """Return a length in steps, given in steps or as a share of the run."""
        if not isinstance(value, float):
            return value
        if value >= 1:
            raise ValueError(
                f"{name} must be an integer of steps or a share of the run below 1, "
                f"got {value}"
            )
        return round(value * self.total_steps)
