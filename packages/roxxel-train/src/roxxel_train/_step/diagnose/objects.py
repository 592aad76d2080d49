"""Check that a trainer can train the objects that it was given.

The likeliest mistakes are objects of neighbouring libraries: an optax transformation in
place of an `nnx.Optimizer`, or a model of Linen or Equinox.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen, nnx
from jax.ad_checkpoint import checkpoint_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_WRAPPED = "nnx.Optimizer(model, {}, wrt=nnx.Param)"

GRADIENT = "gradient of "
"""Prefix of a gradient's name in the traced program of a step."""

_MODES = ("deterministic", "use_running_average")
"""Attributes that `nnx.Module.eval` sets to True."""

_RATES = ("rate", "dropout_rate")
"""Attributes that hold the share of values that a module drops in training mode."""


def array_path(path: tuple[Any, ...]) -> str:
    """Return a path such as `optimizer/opt_state/0/mu` from keys of Flax or JAX."""
    first, *rest = (getattr(key, "key", key) for key in path)
    return "/".join([("model", "optimizer", "spikes")[first], *map(str, rest)])


def check_model(model: Any) -> None:
    """Check that a model is an NNX module or a function, or say how to make it one."""
    if isinstance(model, nnx.Optimizer):
        raise TypeError(
            "model is an nnx.Optimizer; give the model first: "
            "Trainer(model, optimizer, ...)"
        )
    if isinstance(model, nnx.Module):
        return
    kind = type(model).__name__
    if isinstance(model, type):
        raise TypeError(
            f"model is the class {model.__name__}; give an instance, such as "
            f"{model.__name__}(..., rngs=nnx.Rngs(0)), or a function that returns "
            "(model, optimizer)"
        )
    if isinstance(model, linen.Module):
        raise TypeError(
            f"model is a {kind}, a Linen module; give an NNX module: "
            "nnx.bridge.ToNNX(model, rngs=nnx.Rngs(0)).lazy_init(batch)"
        )
    if not callable(model) or not jax.tree_util.all_leaves([model]):
        raise TypeError(
            f"model is a {kind}; give a Flax NNX module or a function "
            "that returns (model, optimizer)"
        )


def check_optimizer(optimizer: Any, where: str = "optimizer is") -> None:
    """Check that an optimizer is an `nnx.Optimizer`, or say how to make it one."""
    if isinstance(optimizer, optax.GradientTransformation):
        raise TypeError(
            f"{where} an optax transformation; give an nnx.Optimizer around it: "
            + _WRAPPED.format("transformation")
        )
    own = getattr(nnx, "ModelAndOptimizer", ())  # holds a model of its own
    if not isinstance(optimizer, nnx.Optimizer) or isinstance(optimizer, own):
        what = "None" if optimizer is None else f"a {type(optimizer).__name__}"
        raise TypeError(
            f"{where} {what}; give the nnx.Optimizer of the model: "
            + _WRAPPED.format("optax.adamw(1e-3)")
        )


def check_pair(model: nnx.Module, optimizer: nnx.Optimizer[Any]) -> None:
    """Check that an optimizer trains parameters of this model.

    Raises:
        TypeError: A Variable to train holds several arrays.
        ValueError: The model has none of the Variables that the optimizer trains, or
            the optimizer was made for parameters of other shapes.
    """
    wrt = optimizer.wrt
    _check_trained(model, wrt)
    trained = nnx.state(model, wrt)
    if not jax.tree.leaves(trained):
        found = sorted({type(x).__name__ for _, x in _variables(model)})
        held = (
            f"holds Variables of {', '.join(found)}" if found else "holds no Variable"
        )
        raise ValueError(
            f"optimizer has wrt={getattr(wrt, '__name__', wrt)}, and the model "
            f"({type(model).__name__}) {held}, so nothing would be trained; make the "
            f"optimizer with wrt=nnx.Param, after the model has its parameters"
        )
    if type(optimizer) is not nnx.Optimizer:
        return  # a subclass may hold another state
    given = pure(optimizer.opt_state)
    expected = jax.eval_shape(optimizer.tx.init, pure(trained))
    shapes = [[x.shape for x in jax.tree.leaves(tree)] for tree in (given, expected)]
    if shapes[0] != shapes[1]:
        raise ValueError(
            "optimizer was made for another model; make the optimizer from this model: "
            + _WRAPPED.format("transformation")
        )


def _check_trained(model: nnx.Module, wrt: Any) -> None:
    """Check that each Variable to train holds one array."""
    is_trained = nnx.filterlib.to_predicate(wrt)
    for path, variable in _variables(model):
        if not is_trained(path, variable):
            continue
        value = variable.get_value()
        if not jax.tree_util.all_leaves([value]):
            raise TypeError(
                f"{array_path((0, *path))} holds a {type(value).__name__}; hold each "
                f"array in an nnx.{type(variable).__name__} of its own, as in "
                "`nnx.List(map(nnx.Param, jax.tree.leaves(tree)))`"
            )


def mark_gradients(grads: Any) -> Any:
    """Name each gradient in the traced program, for `found_gradients`."""

    def mark(path: Any, gradient: jax.Array) -> jax.Array:
        keys = [key.key for key in path if hasattr(key, "key")]
        return checkpoint_name(gradient, GRADIENT + array_path((0, *keys)))

    return jax.tree_util.tree_map_with_path(mark, grads)


def check_gradients(gradients: Mapping[str, bool]) -> str | None:
    """Return a warning if a loss gives some parameters no gradient; else None.

    Raises:
        ValueError: The loss gives no parameter a gradient.
    """
    without = [name for name, has_gradient in gradients.items() if not has_gradient]
    if not without:
        return None
    if len(without) == len(gradients):
        raise ValueError(
            "loss_fn returns a loss without a gradient, as of another model or behind "
            "jax.lax.stop_gradient or jnp.argmax, so nothing would be learned; compute "
            "the loss from the argument `model` by differentiable operations"
        )
    others = f" and {len(without) - 1} more" if len(without) > 1 else ""
    return (
        f"loss_fn gives {without[0]}{others} no gradient (unused, or behind "
        "jax.lax.stop_gradient), so only weight decay changes it; if it is frozen on "
        "purpose, leave it out of the optimizer's wrt"
    )


def pure(tree: Any) -> Any:
    """Return a tree with values in place of Variables; Flax 0.12.8 renamed `pure`."""
    return (getattr(nnx, "as_pure", None) or nnx.pure)(tree)


def evaluation_mode(model: nnx.Module) -> str | None:
    """Return a warning if the model would train in evaluation mode; else None."""
    found = list(_evaluating(model))
    if not found:
        return None
    others = f" and {len(found) - 1} more" if len(found) > 1 else ""
    return (
        f"the model is in evaluation mode ({found[0]}{others}), so it trains without "
        "dropout and without new running averages; call model.train() before the "
        "Trainer if this is not wanted (a loss_fn that sets the mode itself is fine)"
    )


def untrained_array(model: nnx.Module, wrt: Any) -> str | None:
    """Return a warning if the model holds floats outside of Variables; else None."""
    is_trained = nnx.filterlib.to_predicate(wrt)
    found = [
        array_path((0, *path))
        for path, leaf in nnx.iter_graph(model)
        if isinstance(leaf, jax.Array | np.ndarray)
        and jnp.issubdtype(leaf.dtype, jnp.inexact)
        and not is_trained(path, leaf)
    ]
    if not found:
        return None
    others = f" and {len(found) - 1} more" if len(found) > 1 else ""
    return (
        f"{found[0]}{others} is an array outside any nnx.Variable, so it is saved but "
        "never trained; make it an nnx.Param to train it, or an nnx.Variable if it is "
        "a constant"
    )


def _evaluating(model: nnx.Module) -> Iterator[str]:
    """Yield each module in evaluation mode, as `path: attribute=True`."""
    for path, module in nnx.iter_graph(model):
        if not isinstance(module, nnx.Module):
            continue
        rates = [getattr(module, name, None) for name in _RATES]
        if any(isinstance(rate, int | float) and rate == 0 for rate in rates):
            continue  # in training mode, this module would drop nothing either
        for name in _MODES:
            if getattr(module, name, None) is True:
                where = "/".join(map(str, path)) or type(module).__name__
                yield f"{where}: {name}=True"


def _variables(model: nnx.Module) -> Iterator[tuple[Any, nnx.Variable[Any]]]:
    for path, node in nnx.iter_graph(model):
        if isinstance(node, nnx.Variable):
            yield path, node
