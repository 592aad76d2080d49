"""The function that a config names: model, optimizer and loss function."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, cast

from flax import nnx
from roxxel_store.arguments import Table, check_table
from roxxel_store.records import find_object

from roxxel.models._llama import Llama, made_by
from roxxel.models._loss import next_token_loss
from roxxel.models._optimizer import RecipeOptimizer, check_choice
from roxxel.recipe import KEYS, among
from roxxel.recipe.llama_config import LlamaConfig, llama_config

if TYPE_CHECKING:
    from collections.abc import Callable


class _MadeLoss(partial[Any]):
    """A loss function that says who made it, as its model and optimizer do."""

    __slots__ = ("made_by",)  # `functools.wraps` would copy an entry of `__dict__`

    made_by: str | None


def llama(
    *,
    total_steps: int,
    preset: str = "small",
    seed: int = 0,
    z_loss: float = 0.0,
    loss_chunk: int | None = None,
    **options: Any,
) -> tuple[Llama, RecipeOptimizer, Callable[..., Any]]:
    """Return a decoder, its optimizer and its loss function.

    A config names this function by `model = "roxxel.models:llama"`, and `[model_args]`
    holds its arguments. `docs/guides/model.md` has all of them in one table.

    Args:
        total_steps: Step at which the learning rate reaches its final value. A config
            may leave it out: it is then the last step of the run.
        preset: Sizes of the model, a name of `PRESETS`.
        seed: Seed of the initial weights.
        z_loss: As for `next_token_loss`.
        loss_chunk: As for `next_token_loss`.
        **options: Fields of `OptimizerConfig` and of `LearningRate`, and fields of
            `LlamaConfig` that differ from the preset. `rope_scaling` may be a
            mapping of the fields of `RopeScaling`.

    Raises:
        ValueError: A name is unknown, or a value has another type or is out of range.
    """
    given = {"total_steps": total_steps, "preset": preset, "seed": seed}
    given |= {"z_loss": z_loss, "loss_chunk": loss_chunk, **options}
    for name in options:
        check_choice("the key of roxxel.models.llama", name, KEYS)
    check_table(Table(KEYS), given)
    sizes = among(LlamaConfig, options)
    recipe = {name: x for name, x in options.items() if name not in sizes}
    model = Llama(llama_config(preset, **sizes), rngs=nnx.Rngs(seed))
    optimizer = RecipeOptimizer(model, total_steps, **recipe)
    loss_fn = _MadeLoss(next_token_loss, z_loss=z_loss, loss_chunk=loss_chunk or None)
    model.made_by = optimizer.made_by = loss_fn.made_by = made_by("llama", given)
    return model, optimizer, loss_fn


def remade(text: str) -> tuple[Llama, RecipeOptimizer | None]:
    """Return a new model like the one that `made_by` describes, and its optimizer.

    The description may come from a stranger's run, so it names a function of this
    package, and never other code. The optimizer is None if `Llama` made the model.

    Raises:
        ValueError: The text is no such description, or a value is out of range.
        TypeError: A value has another type.
    """
    found = find_object(text.encode()) or {}
    function, args = found.get("function"), found.get("args")
    if isinstance(args, dict):
        given = cast("dict[str, Any]", args)
        if function == "llama":
            model, optimizer, _ = llama(**given)
            return model, optimizer
        if function == "Llama":
            return Llama(llama_config(**given), rngs=nnx.Rngs(0)), None
    raise ValueError(
        "its log names no model of roxxel.models; give the function that makes the "
        "model"
    )
