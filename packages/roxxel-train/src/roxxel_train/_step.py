"""One update of model and optimizer: a pure function `(state, batch)` of two trees."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from roxxel_train._loss import LOSS_WEIGHT, Scalars, unpack_loss

if TYPE_CHECKING:
    from roxxel_train._model_state import Tree

LossFunction = Callable[[Any, Any], Any]
"""`(model, batch)` to a loss in any form that `unpack_loss` accepts."""

TrainStep = Callable[[Any, Any, Any], Any]
"""`(model, optimizer, batch)`: updates both and returns what a loss function may."""


def make_update(
    graphdef: Any,
    train_step: TrainStep,
) -> Callable[[Tree, Any], tuple[Tree, Scalars]]:
    """Return one update as a pure function.

    Args:
        graphdef: Structure of `(model, optimizer)`, returned by `nnx.split`.
        train_step: Updates both objects; `descend` makes one from a loss function.

    Returns:
        `(state, batch) -> (state, scalars)`, not yet compiled. The scalars are
        `"loss"`, those of `train_step`, and `"learning_rate"` where
        `optax.inject_hyperparams` keeps the learning rate in the state.
    """

    def update(state: Tree, batch: Any) -> tuple[Tree, Scalars]:
        model, optimizer = nnx.merge(graphdef, state)
        loss, aux = unpack_loss(train_step(model, optimizer, batch), "train_step")
        new_state = nnx.to_pure_dict(nnx.state((model, optimizer)))
        _check_same_form(state, new_state)
        return new_state, {**_learning_rate(new_state), "loss": loss, **aux}

    return update


def jit_update(graphdef: Any, train_step: TrainStep, state: Tree) -> Any:
    """Return the jitted update, which donates the state and keeps its shardings.

    Args:
        graphdef: Structure of `(model, optimizer)`.
        train_step: Updates both objects.
        state: The live state.
    """
    shardings = jax.tree.map(lambda x: x.sharding, state)
    update = make_update(graphdef, train_step)
    return jax.jit(update, donate_argnums=0, out_shardings=(shardings, None))


def choose_step(
    loss_fn: LossFunction | None, train_step: TrainStep | None, grad_accum_steps: int
) -> TrainStep:
    """Return the user's own step, or the step along the gradient of the loss.

    Raises:
        ValueError: Both functions are None, or `grad_accum_steps` is not 1 and the step
            is the user's.
    """
    if train_step is None:
        if loss_fn is None:
            raise ValueError(
                "loss_fn and train_step are both None; give loss_fn or train_step"
            )
        return descend(loss_fn, grad_accum_steps)
    if grad_accum_steps != 1:
        raise ValueError(
            f"grad_accum_steps={grad_accum_steps} has no effect on train_step; "
            "accumulate inside train_step, or give loss_fn instead"
        )
    return train_step


def descend(loss_fn: LossFunction, grad_accum_steps: int = 1) -> TrainStep:
    """Return a step along the gradient of a loss function.

    Args:
        loss_fn: `(model, batch)` to a loss in any form that `unpack_loss` accepts.
        grad_accum_steps: Parts of a batch. A scan averages their gradients, so only the
            activations of one part are alive at a time. If the loss is a mean over
            unmasked tokens and the scalar `"loss_weight"` is their number, the
            result is the mean over all unmasked tokens of the batch.
    """

    def train_step(model: Any, optimizer: Any, batch: Any) -> tuple[Any, Scalars]:
        loss, aux, grads = _gradients(
            model, optimizer.wrt, loss_fn, batch, grad_accum_steps
        )
        optimizer.update(model, grads)
        return loss, {"grad_norm": optax.tree.norm(grads), **aux}

    return train_step


def _gradients(
    model: Any, wrt: Any, loss_fn: LossFunction, batch: Any, parts: int
) -> tuple[jax.Array, Scalars, Any]:
    """Return loss, further scalars and gradients, each the mean over the parts.

    The mean weighs each part by its `"loss_weight"`, or equally without one.
    """

    def loss_and_aux(model: Any, batch: Any) -> tuple[jax.Array, Scalars]:
        return unpack_loss(loss_fn(model, batch))

    differentiate = nnx.value_and_grad(
        loss_and_aux, argnums=nnx.DiffState(0, wrt), has_aux=True
    )
    if parts == 1:
        (loss, aux), grads = differentiate(model, batch)
        return loss, aux, grads

    graphdef, params, rest = nnx.split(model, wrt, ...)
    pure_params = nnx.to_pure_dict(params)

    def of_part(rest: Any, rows: Any) -> tuple[Any, Any]:
        copy = nnx.merge(graphdef, pure_params, rest)
        (loss, aux), grads = differentiate(copy, rows)
        rest_after = nnx.to_pure_dict(nnx.state(copy, nnx.Not(wrt)))
        _check_same_form(rest, rest_after)
        counted: Scalars = {}
        if LOSS_WEIGHT in aux:
            counted[LOSS_WEIGHT] = _at_least_float32(aux.pop(LOSS_WEIGHT))
        weight = counted.get(LOSS_WEIGHT, jnp.ones(()))
        means = (loss, aux, nnx.to_pure_dict(grads))
        # The loss of a fully masked part may be 0 / 0, and NaN * 0 is NaN.
        weighted = jax.tree.map(
            lambda x: jnp.where(weight > 0, _at_least_float32(x) * weight, 0), means
        )
        return rest_after, (weight, counted, weighted)

    def add(carry: Any, rows: Any) -> tuple[Any, None]:
        rest, sums = carry
        rest, terms = of_part(rest, rows)
        return (rest, jax.tree.map(jnp.add, sums, terms)), None

    # Part k holds the rows k, k + parts, ...: every device keeps its own rows, and
    # every part has rows on all devices. Consecutive rows would have to move.
    cut = jax.tree.map(
        lambda x: x.reshape(-1, parts, *x.shape[1:]).swapaxes(0, 1), batch
    )
    start = nnx.to_pure_dict(rest)
    first = jax.tree.map(lambda x: x[0], cut)
    zeros = jax.tree.map(
        lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(of_part, start, first)[1]
    )
    (rest_after, sums), _ = jax.lax.scan(add, (start, zeros), cut)
    weight, counted, total = sums
    loss, aux, grads = jax.tree.map(lambda x: x / weight, total)
    grads = jax.tree.map(lambda x, like: x.astype(like.dtype), grads, pure_params)
    nnx.update(model, rest_after)
    gradients = nnx.state(model, wrt)
    nnx.replace_by_pure_dict(gradients, grads)
    return loss, aux | counted, gradients


def _at_least_float32(x: jax.Array) -> jax.Array:
    """Widen numbers so that sums over many parts stay exact enough."""
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


def _check_same_form(before: Tree, after: Tree) -> None:
    """Check that an update keeps every array of the state, its shape and its dtype.

    Raises:
        TypeError: An array is new, lost or changed; the message names the first.
    """
    forms = [
        {
            jax.tree_util.keystr(path): f"{leaf.dtype}{list(leaf.shape)}"
            for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]
        }
        for tree in (before, after)
    ]
    for path in sorted(forms[0].keys() | forms[1].keys()):
        old, new = (form.get(path, "nothing") for form in forms)
        if old != new:
            raise TypeError(
                f"an update changes {path} of the state from {old} to {new}; "
                "create every Variable with the model, in its final shape and dtype"
            )


def _learning_rate(state: Tree) -> Scalars:
    """Return the learning rate if `optax.inject_hyperparams` keeps it in the state."""
    for path, leaf in jax.tree_util.tree_flatten_with_path(state)[0]:
        keys = [getattr(entry, "key", None) for entry in path]
        if keys[-2:] == ["hyperparams", "learning_rate"] and leaf.ndim == 0:
            return {"learning_rate": leaf}
    return {}
