"""From a loss function to one update: a pure function `(state, batch)` of two trees."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from roxxel_train._metrics import ROW_FIELDS

if TYPE_CHECKING:
    from roxxel_train._model_state import Tree

Scalars = dict[str, jax.Array]
"""What an update reports: `"loss"`, `"grad_norm"`, the user's own, all of shape ()."""

LossFunction = Callable[[Any, Any], Any]
"""`(model, batch)` to a scalar, to `(scalar, dict)` or to a dict with `"loss"`."""

TrainStep = Callable[[Any, Any, Any], Any]
"""`(model, optimizer, batch)`, updates both and returns what a loss function may."""


LOSS_WEIGHT = "loss_weight"
"""Scalar by which a loss function says over how many tokens its means were taken."""


def unpack_loss(result: Any) -> tuple[jax.Array, Scalars]:
    """Split what a loss function returned into the loss and further scalars.

    Raises:
        TypeError: It is none of the three forms, or something in it is no scalar.
    """
    aux: Any = {}
    if isinstance(result, Mapping):
        if "loss" not in result:
            raise TypeError(
                f"loss_fn returned a dict with the keys {sorted(map(str, result))}; "
                'one of them must be "loss"'
            )
        loss = result["loss"]
        aux = {name: value for name, value in result.items() if name != "loss"}
    elif isinstance(result, tuple) and len(result) == 2:
        loss, aux = result
    else:
        loss = result
    if not isinstance(aux, Mapping):
        raise TypeError(
            f"loss_fn returned (loss, {type(aux).__name__}); "
            "the second must be a dict of scalars, which are logged"
        )
    _check_scalar("loss", loss)
    if not jnp.issubdtype(jnp.result_type(loss), jnp.floating):
        raise TypeError(
            f"loss_fn returned a loss of dtype {jnp.result_type(loss)}; "
            "it must be a floating-point scalar"
        )
    for name, value in aux.items():
        _check_name(name)
        _check_scalar(name, value)
    return jnp.asarray(loss), {name: jnp.asarray(value) for name, value in aux.items()}


def make_update(
    graphdef: Any,
    train_step: TrainStep,
) -> Callable[[Tree, Any], tuple[Tree, Scalars]]:
    """Return the pure function of one update.

    Args:
        graphdef: Structure of `(model, optimizer)`, as `nnx.split` gives it.
        train_step: Updates both objects; `descend` makes one from a loss function.

    Returns:
        `(state, batch) -> (state, scalars)`, not yet compiled.
    """

    def update(state: Tree, batch: Any) -> tuple[Tree, Scalars]:
        model, optimizer = nnx.merge(graphdef, state)
        loss, aux = unpack_loss(train_step(model, optimizer, batch))
        new_state = nnx.to_pure_dict(nnx.state((model, optimizer)))
        _check_same_form(state, new_state)
        return new_state, {**_learning_rate(new_state), "loss": loss, **aux}

    return update


def jit_update(graphdef: Any, train_step: TrainStep, state: Tree) -> Any:
    """Return the update, jitted: it takes over the state's arrays and keeps its place.

    Args:
        graphdef: As for `make_update`.
        train_step: Likewise.
        state: The live state, whose shardings the new one has too.
    """
    kept = jax.tree.map(lambda x: x.sharding, state)
    update = make_update(graphdef, train_step)
    return jax.jit(update, donate_argnums=0, out_shardings=(kept, None))


def choose_step(
    loss_fn: LossFunction | None, train_step: TrainStep | None, grad_accum_steps: int
) -> TrainStep:
    """Return the user's own step, or the one that follows the gradient of the loss.

    Raises:
        ValueError: There is neither, or the user's step is to be cut into parts.
    """
    if train_step is None:
        if loss_fn is None:
            raise ValueError("give loss_fn, or train_step in its place")
        return descend(loss_fn, grad_accum_steps)
    if grad_accum_steps != 1:
        raise ValueError(
            f"grad_accum_steps={grad_accum_steps} needs loss_fn; "
            "your own train_step cuts its batches itself"
        )
    return train_step


def descend(loss_fn: LossFunction, grad_accum_steps: int = 1) -> TrainStep:
    """Return the step that follows the gradient of a loss function.

    Args:
        loss_fn: `(model, batch)` to a scalar, `(scalar, dict)` or a dict with `"loss"`.
        grad_accum_steps: Parts that a batch is cut into; their gradients are averaged
            by a scan, so that only one part's activations are alive at a time. Where
            the loss is a mean over the tokens that a mask leaves, and the scalar
            `"loss_weight"` their number, the result is the mean over all of them.
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

    A part counts as much as its `"loss_weight"` says, once for each if it has none.
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

    def part(rest: Any, rows: Any) -> tuple[Any, Any]:
        copy = nnx.merge(graphdef, pure_params, rest)
        (loss, aux), grads = differentiate(copy, rows)
        rest_after = nnx.to_pure_dict(nnx.state(copy, nnx.Not(wrt)))
        _check_same_form(rest, rest_after)
        counted: Scalars = {}
        if LOSS_WEIGHT in aux:
            counted[LOSS_WEIGHT] = _in_full(aux.pop(LOSS_WEIGHT))
        weight = counted.get(LOSS_WEIGHT, jnp.ones(()))
        means = (loss, aux, nnx.to_pure_dict(grads))
        # A part in which nothing counts may well have a loss of 0 / 0.
        weighted = jax.tree.map(
            lambda x: jnp.where(weight > 0, _in_full(x) * weight, 0), means
        )
        return rest_after, (weight, counted, weighted)

    def add(carry: Any, rows: Any) -> tuple[Any, None]:
        rest, total = carry
        rest, given = part(rest, rows)
        return (rest, jax.tree.map(jnp.add, total, given)), None

    # Part k takes the rows k, k + parts, ...: so each device keeps its own rows.
    cut = jax.tree.map(
        lambda x: x.reshape(-1, parts, *x.shape[1:]).swapaxes(0, 1), batch
    )
    start = nnx.to_pure_dict(rest)
    first = jax.tree.map(lambda x: x[0], cut)
    zeros = jax.tree.map(
        lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(part, start, first)[1]
    )
    (rest_after, sums), _ = jax.lax.scan(add, (start, zeros), cut)
    weight, counted, total = sums
    loss, aux, grads = jax.tree.map(lambda x: x / weight, total)
    grads = jax.tree.map(lambda x, like: x.astype(like.dtype), grads, pure_params)
    nnx.update(model, rest_after)
    gradients = nnx.state(model, wrt)
    nnx.replace_by_pure_dict(gradients, grads)
    return loss, aux | counted, gradients


def _in_full(x: jax.Array) -> jax.Array:
    """Return numbers that can be summed: at least float32."""
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


def _check_same_form(before: Tree, after: Tree) -> None:
    """Check that an update keeps every array of the state and its shape and dtype.

    Raises:
        TypeError: It does not; the first one is named.
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
                f"an update makes {new} of {old} at {path} of the state; it "
                "must keep its form, so create every Variable with the model, "
                "in its final shape and dtype"
            )


def _learning_rate(state: Tree) -> Scalars:
    """Return the learning rate that `optax.inject_hyperparams` keeps, if it does."""
    for path, leaf in jax.tree_util.tree_flatten_with_path(state)[0]:
        keys = [getattr(entry, "key", None) for entry in path]
        if keys[-2:] == ["hyperparams", "learning_rate"] and leaf.ndim == 0:
            return {"learning_rate": leaf}
    return {}


def _check_name(name: Any) -> None:
    """Check that a metric can stand in a row beside the fields that are there."""
    if not isinstance(name, str):
        raise TypeError(
            f"loss_fn returned a metric named {name!r}; a name must be a str"
        )
    if name in ROW_FIELDS or name == "loss":
        raise TypeError(
            f"loss_fn returned a metric named {name!r}, which every row has already; "
            "give it another name"
        )


def _check_scalar(name: str, value: Any) -> None:
    if not _is_scalar(value):
        raise TypeError(
            f"loss_fn returned {name} as {_describe(value)}; "
            "it must be a real scalar, so take its mean or leave it out"
        )


def _is_scalar(value: Any) -> bool:
    if isinstance(value, bool | int | float):
        return True
    dtype = getattr(value, "dtype", None)
    real = dtype is not None and any(
        jnp.issubdtype(dtype, kind) for kind in (jnp.bool_, jnp.integer, jnp.floating)
    )
    return real and value.shape == ()


def _describe(value: Any) -> str:
    if hasattr(value, "shape"):
        return f"an array of shape {tuple(value.shape)} and dtype {value.dtype}"
    return f"a {type(value).__name__}"
