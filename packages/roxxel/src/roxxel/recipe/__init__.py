"""The arguments of `roxxel.models:llama`, which `roxxel plan` checks without JAX.

They are the sizes of the model (`llama_config`), the schedule of its learning rate
(`learning_rate`), and the keys here: of its optimizer, and of the function alone.
"""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003 - `check` reads the types
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from roxxel_store.arguments import Count, Entry, Rule, check, entries

from roxxel.recipe.learning_rate import LearningRate, NotNegative, Share
from roxxel.recipe.llama_config import LlamaConfig, Preset


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """What a recipe makes of the gradients, but for the learning rate.

    >>> OptimizerConfig(optimizer="muon").decays
    'matrices'

    Attributes:
        optimizer: A function of optax with a learning rate. `"muon"` updates hidden
            matrices by Muon (Jordan, 2024), and the token tables and all vectors by
            AdamW.
        optimizer_args: Further arguments of the function in optax.
        b1: Decay of the first moment. None means 0.9 for AdamW, or optax's default.
        b2: Decay of the second moment. None means 0.95 for AdamW, NAdamW, Muon and
            schedule-free AdamW, and optax's default for other optimizers.
        weight_decay: None means 0.1 if the optimizer decays weights by a mask.
        decays: `"matrices"` decays all parameters with two dimensions, `"hidden"` the
            same except the token tables, and `"all"` every parameter.
        clip: Largest norm of the gradients; larger gradients are scaled. 0 clips
            nothing.
        ema: Decay of an average of the weights, such as 0.999, corrected for its start.
            0 keeps no average.

    Raises:
        TypeError: A value has another type.
        ValueError: A value is out of range, or two values exclude each other.
    """

    optimizer: str = "adamw"
    optimizer_args: Mapping[str, Any] | None = None
    b1: Share | None = None
    b2: Share | None = None
    weight_decay: NotNegative | None = None
    decays: Literal["matrices", "hidden", "all"] = "matrices"
    clip: NotNegative = 1.0
    ema: NotNegative = 0.0

    def __post_init__(self) -> None:
        check(self)
        if self.ema >= 1:
            raise ValueError(f"ema must be at least 0 and below 1, got {self.ema}")
        if self.ema and self.optimizer.startswith("schedule_free"):
            raise ValueError(
                f"optimizer={self.optimizer!r} averages the weights itself; leave "
                f"ema={self.ema} out"
            )


KEYS = {
    "preset": Entry(Preset),
    "seed": Entry(
        Annotated[
            int,
            Rule(0, 2**63 - 1, must_be="an integer of 0 or more that fits 64 bits"),
        ]
    ),
    "z_loss": Entry(NotNegative),
    "loss_chunk": Entry(Count | None),
    **{
        name: Entry(entry.kind)
        for declared in (OptimizerConfig, LearningRate, LlamaConfig)
        for name, entry in entries(declared).items()
    },
}
"""The keys under `[model_args]`; a config may leave out all of them."""


def among(declared: type[Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of one declaration among all arguments."""
    return {name: options[name] for name in entries(declared) if name in options}
