"""The optimizer of a recipe: clipping, an update by name, a schedule, an average."""

from __future__ import annotations

import functools
import inspect
from types import FunctionType
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from optax import contrib
from roxxel_store.arguments import nearest

from roxxel.recipe import OptimizerConfig, among
from roxxel.recipe.learning_rate import LearningRate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

_OTHER_USES = {"dpsgd", "lbfgs", "noisy_sgd", "schedule_free", "sophia"}
"""Functions of optax whose updates need more than gradients, parameters and a loss."""

_TABLES = ("embed_tokens", "lm_head")
"""Matrices with a row for each token."""

_DEFAULTS: dict[str, dict[str, Any]] = {
    "adamw": {"b2": 0.95},
    "nadamw": {"b2": 0.95},
    "schedule_free_adamw": {"b2": 0.95},
    # Updates of the size of AdamW's, so rate and decay of AdamW fit (Liu et al., Muon
    # is Scalable for LLM Training, 2025).
    "muon": {"b2": 0.95, "consistent_rms": 0.2},
}
_WEIGHT_DECAY = 0.1


class RecipeOptimizer(nnx.Optimizer[Any]):
    """The optimizer of a recipe, for any model.

    The trainer evaluates the `averaged` parameters, and logs if a start changes
    `rate_at`.

    Args:
        model: The model whose parameters it updates.
        total_steps: Step at which the learning rate is final.
        **recipe: Fields of `OptimizerConfig` and of `LearningRate`.

    >>> model = nnx.Linear(2, 2, rngs=nnx.Rngs(0))
    >>> optimizer = RecipeOptimizer(model, 100, optimizer="lion", peak_rate=1e-4)
    >>> f"{optimizer.rate_at(8):.1e}"
    '1.0e-04'
    """

    def __init__(self, model: nnx.Module, total_steps: int, **recipe: Any) -> None:
        tx = make_optimizer(total_steps, **recipe)
        super().__init__(model, tx, wrt=nnx.Param)
        self.learning_rate = _declared(total_steps, recipe)[1]
        self.made_by: str | None = None

    def rate_at(self, step: int) -> float:
        """Return the learning rate of the update that follows `step` updates."""
        return float(self.learning_rate.at(step))

    def averaged(self, model: nnx.Module) -> Any:
        """Return the averaged parameters of a model; None if the recipe has none.

        The average is the one of `ema`, or the one that schedule-free optimizers
        evaluate.
        """
        states = jax.tree.leaves(_pure(self.opt_state), is_leaf=_is_average)
        found = [each for each in states if _is_average(each)]
        if not found:
            return None
        if isinstance(found[0], WeightAverage):
            return found[0].average
        parameters = _pure(nnx.state(model, self.wrt))
        return contrib.schedule_free_eval_params(found[0], parameters)


class WeightAverage(NamedTuple):
    """State of `_average_weights`."""

    num_updates: jax.Array
    average: Any


def _pure(tree: Any) -> Any:
    """Return a tree with values in place of Variables; Flax 0.12.8 renamed `pure`."""
    return (getattr(nnx, "as_pure", None) or nnx.pure)(tree)


def _optimizer_names() -> list[str]:
    names: list[str] = []
    for module in (optax, contrib):
        for name, function in vars(module).items():
            if not isinstance(function, FunctionType | functools.partial):
                continue
            if name.startswith(("_", "scale_by_")) or name in _OTHER_USES:
                continue
            if "learning_rate" in inspect.signature(function).parameters:
                names.append(name)
    return sorted(names)


def make_optimizer(total_steps: int, **recipe: Any) -> optax.GradientTransformation:
    """Return the transformation of gradients that a recipe describes.

    Args:
        total_steps: Step at which the learning rate is final.
        **recipe: Fields of `OptimizerConfig` and of `LearningRate`.

    Raises:
        TypeError: A value has another type.
        ValueError: A name is unknown, or a value is out of range.
    """
    config, rate = _declared(total_steps, recipe)
    check_choice("optimizer", config.optimizer, _optimizer_names())
    # inject_hyperparams keeps the learning rate where the trainer's log reads it. All
    # other arguments stay out of the state, so that a resumed run can change them.
    scheduled = optax.inject_hyperparams(_update(config))(
        learning_rate=lambda step: rate.at(step, jnp)
    )
    # Without clipping, a place is left for it: checkpoints name moments by their place.
    clipping = (
        optax.clip_by_global_norm(config.clip) if config.clip else optax.identity()
    )
    averages = [_average_weights(config.ema)] if config.ema else []
    return optax.chain(clipping, scheduled, *averages)


def check_choice(name: str, value: str, choices: Iterable[str]) -> None:
    """Raise ValueError, with the nearest choice, unless a value is one of them."""
    known = list(choices)
    if value not in known:
        hint = nearest(value, known)
        raise ValueError(
            f"{name} {value!r} is unknown; choose one of {', '.join(known)}"
            f"{'; ' * bool(hint)}{hint}"
        )


def _average_weights(decay: float) -> optax.GradientTransformation:
    """Return a transformation that keeps an exponential average of the new weights.

    After t updates, the weights of update i have the share `decay ** (t - i)`, divided
    by the sum of the shares (Kingma and Ba, Adam, 2015, section 3).
    """

    def init(params: Any) -> WeightAverage:
        copied = jax.tree.map(jnp.copy, params)
        return WeightAverage(jnp.zeros((), jnp.int32), copied)

    def update(updates: Any, state: Any, params: Any = None) -> Any:
        count = state.num_updates + 1
        share = (1 - decay) / (1 - decay ** count.astype(jnp.float32))
        new = optax.apply_updates(params, updates)
        average = jax.tree.map(
            lambda old, x: (old + share * (x - old)).astype(old.dtype),
            state.average,
            new,
        )
        return updates, WeightAverage(count, average)

    return optax.GradientTransformation(init, update)


def _is_average(state: Any) -> bool:
    return isinstance(state, WeightAverage | contrib.ScheduleFreeState)


def _declared(
    total_steps: int, recipe: Mapping[str, Any]
) -> tuple[OptimizerConfig, LearningRate]:
    own = among(OptimizerConfig, recipe)
    schedule = {name: x for name, x in recipe.items() if name not in own}
    return OptimizerConfig(**own), LearningRate(total_steps, **schedule)


def _function(optimizer: str) -> Callable[..., Any]:
    return getattr(optax, optimizer, None) or getattr(contrib, optimizer)


def _update(config: OptimizerConfig) -> Callable[..., optax.GradientTransformation]:
    """Return the update of a recipe as a function of only the learning rate."""
    optimizer, more = config.optimizer, dict(config.optimizer_args or {})
    given = {"b1": config.b1, "b2": config.b2, "weight_decay": config.weight_decay}
    chosen = {name: value for name, value in given.items() if value is not None}
    _check_arguments(optimizer, more)
    function = _COMPOSED.get(optimizer) or _function(optimizer)
    parameters = inspect.signature(function).parameters
    arguments = {**_DEFAULTS.get(optimizer, {}), **chosen, **more}
    masked_by = next((x for x in parameters if x in {"mask", "weight_decay_mask"}), "")
    if "weight_decay" in parameters and masked_by:
        arguments.setdefault("weight_decay", _WEIGHT_DECAY)
        arguments[masked_by] = _masks(config.decays)
    for name, value in chosen.items():
        if name not in parameters:
            raise ValueError(
                f"{name}={value} is given, but optax's {optimizer} has no such "
                f"argument; leave {name} out, or choose another optimizer"
            )
        if name == "weight_decay" and not masked_by and config.decays != "all":
            raise ValueError(
                f"weight_decay={value} is given, but optax's {optimizer} decays "
                'every parameter; write decays = "all" too, or leave weight_decay out'
            )

    def named(learning_rate: Any) -> optax.GradientTransformation:
        return function(learning_rate=learning_rate, **arguments)

    return named


def _check_arguments(optimizer: str, more: dict[str, Any]) -> None:
    parameters = inspect.signature(_function(optimizer)).parameters
    of_recipe = {"learning_rate", "b1", "b2", "weight_decay", "mask"}
    of_recipe |= {"weight_decay_mask", "muon_weight_dimension_numbers"}
    # `_muon` gives tables and vectors to `optax.adamw`, which does not get these.
    of_recipe |= {name for name in parameters if name.startswith("adam_")}
    known = [name for name in parameters if name not in of_recipe]
    for name, value in more.items():
        if name in {"b1", "b2", "weight_decay"}:
            raise ValueError(
                f"optimizer_args has {name!r}, which is a key of its own; write "
                f"{name} = {value} under [model_args]"
            )
        check_choice(f"the argument of optax's {optimizer}", name, known)


def _muon(
    learning_rate: Any,
    *,
    weight_decay: float,
    mask: Any,
    b1: float = 0.9,
    b2: float,
    **more: Any,
) -> optax.GradientTransformation:
    """Return Muon for hidden matrices, and AdamW for tables and vectors."""
    muon = contrib.muon(
        learning_rate,
        weight_decay=weight_decay,
        weight_decay_mask=mask,
        # Our matrices have the shape (outputs, inputs).
        muon_weight_dimension_numbers=contrib.MuonDimensionNumbers(1, 0),
        **more,
    )
    adamw = optax.adamw(
        learning_rate, b1=b1, b2=b2, weight_decay=weight_decay, mask=mask
    )

    def labels(params: Any) -> Any:
        is_hidden = _masks("hidden")(params)
        return jax.tree.map(lambda x: "muon" if x else "adamw", is_hidden)

    return optax.partition({"muon": muon, "adamw": adamw}, labels)


def _schedule_free_adamw(
    learning_rate: Any,
    *,
    weight_decay: float,
    mask: Any,
    b1: float = 0.9,
    b2: float,
    eps: float = 1e-8,
    **more: Any,
) -> optax.GradientTransformation:
    """Return optax's `schedule_free_adamw` with a mask for the weight decay."""
    base = optax.chain(
        optax.scale_by_rms(b2, eps, eps_in_sqrt=False, bias_correction=True),
        optax.add_decayed_weights(weight_decay, mask),
        optax.scale_by_learning_rate(learning_rate),
    )
    return contrib.schedule_free(base, learning_rate, b1=b1, **more)


_COMPOSED: dict[str, Callable[..., optax.GradientTransformation]] = {
    "muon": _muon,
    "schedule_free_adamw": _schedule_free_adamw,
}


def _masks(decays: str) -> Callable[[Any], Any]:
    """Return a function that says which parameters decay."""

    def of(path: Any, x: Any) -> bool:
        is_table = any(name in jax.tree_util.keystr(path) for name in _TABLES)
        if decays == "all":
            return True
        return x.ndim > 1 and not (decays == "hidden" and is_table)

    return lambda params: jax.tree_util.tree_map_with_path(of, params)
