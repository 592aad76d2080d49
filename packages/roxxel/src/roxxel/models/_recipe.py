"""The function that a config names: model, optimizer and loss function."""

from __future__ import annotations

from dataclasses import fields
from difflib import get_close_matches
from functools import partial
from inspect import signature
from typing import TYPE_CHECKING, Any, cast

import jax
import optax
from flax import nnx
from roxxel_store.arguments import as_integer

from roxxel.models._checks import check_number
from roxxel.models._config import LlamaConfig, RopeScaling
from roxxel.models._llama import Llama
from roxxel.models._loss import next_token_loss

if TYPE_CHECKING:
    from collections.abc import Callable

PRESETS: dict[str, Callable[..., LlamaConfig]] = {
    "tiny": LlamaConfig.tiny,
    "small": LlamaConfig.small,
    "medium": LlamaConfig.medium,
    "large": LlamaConfig.large,
    "llama_3_2_1b": LlamaConfig.llama_3_2_1b,
}


def llama(
    *,
    total_steps: int,
    preset: str = "small",
    seed: int = 0,
    peak_rate: float = 6e-4,
    warmup_steps: int | None = None,
    final_share: float = 0.1,
    weight_decay: float = 0.1,
    z_loss: float = 0.0,
    loss_chunk: int | None = None,
    **sizes: Any,
) -> tuple[Llama, nnx.Optimizer[Llama], Callable[..., Any]]:
    """Return a decoder, its optimizer and its loss function.

    A config names this function by `model = "roxxel.models:llama"`, and `[model_args]`
    holds its arguments.

    Args:
        total_steps: Step at which the learning rate reaches its final value. A config
            may leave it out: it is then the last step of the run.
        preset: Sizes of the model, a name of `PRESETS`.
        seed: Seed of the initial weights.
        peak_rate: Highest learning rate.
        warmup_steps: Steps to the highest rate. None means a twelfth of `total_steps`.
        final_share: Final learning rate divided by the highest one.
        weight_decay: Decay of matrices by AdamW. Scales of RMSNorm do not decay.
        z_loss: As for `next_token_loss`.
        loss_chunk: As for `next_token_loss`.
        **sizes: Fields of `LlamaConfig` that differ from the preset. `rope_scaling` may
            be a mapping of the fields of `RopeScaling`.

    Raises:
        TypeError: A value has another type.
        ValueError: A name is unknown, or a value is out of range.
    """
    if not isinstance(cast("object", preset), str) or preset not in PRESETS:
        raise ValueError(
            f"preset {preset!r} is unknown; the presets are {', '.join(PRESETS)}"
        )
    known = {field.name for field in fields(LlamaConfig)}
    for name in sizes:
        if name not in known:
            names = [*signature(llama).parameters, *known]
            near = get_close_matches(name, names, n=3, cutoff=0)
            raise ValueError(
                f"{name!r} is neither an argument of roxxel.models.llama nor a field "
                f"of LlamaConfig; the nearest are {', '.join(near)}, and docs/guides/"
                "model.md explains all"
            )
    as_integer("seed", seed, 0)
    check_number("z_loss", z_loss)
    if loss_chunk is not None:
        as_integer("loss_chunk", loss_chunk, 1)
    if isinstance(sizes.get("rope_scaling"), dict):
        sizes["rope_scaling"] = _rope_scaling(sizes["rope_scaling"])
    model = Llama(PRESETS[preset](**sizes), rngs=nnx.Rngs(seed))
    transformation = make_optimizer(
        total_steps,
        peak_rate=peak_rate,
        warmup_steps=warmup_steps,
        final_share=final_share,
        weight_decay=weight_decay,
    )
    optimizer = nnx.Optimizer(model, transformation, wrt=nnx.Param)
    loss_fn = partial(next_token_loss, z_loss=z_loss, loss_chunk=loss_chunk)
    return model, optimizer, loss_fn


def make_optimizer(
    total_steps: int,
    *,
    peak_rate: float = 6e-4,
    warmup_steps: int | None = None,
    final_share: float = 0.1,
    weight_decay: float = 0.1,
) -> optax.GradientTransformation:
    """Return AdamW with clipped gradients, a linear warm-up and a cosine decay.

    The arguments are those of `llama`. After `total_steps`, the learning rate stays at
    its final value.
    """
    as_integer("total_steps", total_steps, 0)
    check_number("peak_rate", peak_rate)
    check_number("final_share", final_share, most=1)
    check_number("weight_decay", weight_decay)
    if warmup_steps is not None:
        as_integer("warmup_steps", warmup_steps, 0)
    warmup = max(1, total_steps // 12) if warmup_steps is None else warmup_steps
    if warmup >= max(total_steps, 2):
        raise ValueError(
            f"warmup_steps={warmup} must be less than total_steps={total_steps}"
        )
    rate = optax.warmup_cosine_decay_schedule(
        init_value=0.0,
        peak_value=peak_rate,
        warmup_steps=warmup,
        decay_steps=max(total_steps, 2),
        end_value=peak_rate * final_share,
    )
    # inject_hyperparams keeps the learning rate where the trainer's log reads it.
    adamw = optax.inject_hyperparams(optax.adamw, static_args=("mask",))(
        learning_rate=rate, b2=0.95, weight_decay=weight_decay, mask=_matrices
    )
    return optax.chain(optax.clip_by_global_norm(1.0), adamw)


def _rope_scaling(given: dict[str, Any]) -> RopeScaling:
    known = {field.name for field in fields(RopeScaling)}
    if wrong := sorted(given.keys() - known):
        raise ValueError(
            f"rope_scaling has the key {wrong[0]!r}; its keys are "
            f"{', '.join(sorted(known))}"
        )
    if missing := sorted({"kind", "factor"} - given.keys()):
        raise ValueError(f"rope_scaling lacks {missing[0]!r}; write this key too")
    return RopeScaling(**given)


def _matrices(parameters: Any) -> Any:
    """Return which parameters decay: those with two dimensions."""
    return jax.tree.map(lambda x: x.ndim > 1, parameters)
