"""Model and optimizer as one tree of arrays, and one update of this tree.

The compiled update takes and returns nested dicts: traversing NNX objects at every step
costs tens of milliseconds for 200 arrays, and a dict can be donated whole. The trainer
reads the arrays from the objects at the start, and puts the newest arrays into the
objects before an evaluation, before a save and at the end.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec

from roxxel_train._step.given import array_path, explained, pure
from roxxel_train._step.loss import (
    LOSS_WEIGHT,
    SKIPPED,
    Scalars,
    check_names,
    tally,
    unpack_loss,
    without_losses,
)
from roxxel_train._step.spikes import WINDOW, judge
from roxxel_train._step.traced import mark_gradients

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from roxxel_train._step.fed import Fed
    from roxxel_train._step.spike_rule import SpikeRule

Tree = Any
"""Nested dicts of arrays, `{0: model, 1: optimizer}`; `skip_spikes` adds a `WINDOW`."""

LossFunction = Callable[[Any, Any], Any]
"""Maps `(model, batch)` to a loss, in any form that `unpack_loss` accepts."""

TrainStep = Callable[[Any, Any, Any], Any]
"""Updates the model and the optimizer of `(model, optimizer, batch)` in place, and
returns a loss in any form that `unpack_loss` accepts."""

FedStep = Callable[[Any, Any, "Fed"], Any]
"""As `TrainStep`, with a `Fed` in place of the batch."""

_HOW_UPDATED = (
    "the trainer gives its update the gradients, the parameters, and the loss as "
    "value: use an optimizer that needs no more, or a train_step that gives it more"
)


@dataclass(frozen=True)
class ModelState:
    """The argument of `eval_fn`.

    The next update donates the arrays: copy arrays that you want to keep.

    Attributes:
        model: The model with its newest values.
        optimizer: The optimizer of the model, with its newest values.
        step: Updates done; `int(state.step[...])` reads the number.

    Example:
        >>> def describe(state: ModelState) -> str:
        ...     return f"{type(state.model).__name__} at {int(state.step[...])}"
        >>> model = nnx.Linear(2, 2, rngs=nnx.Rngs(0))
        >>> optimizer = nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)
        >>> describe(ModelState(model, optimizer, nnx.Variable(jnp.int32(7))))
        'Linear at 7'
    """

    model: nnx.Module
    optimizer: nnx.Optimizer[Any]
    step: nnx.Variable[Any]


def take(model: nnx.Module, optimizer: nnx.Optimizer[Any]) -> Tree:
    """Return the arrays of both objects as one tree, without a copy."""
    return nnx.to_pure_dict(nnx.state((model, optimizer)))


def put(model: nnx.Module, optimizer: nnx.Optimizer[Any], tree: Tree) -> None:
    """Put the arrays of a tree into both objects, without a copy."""
    nnx.update((model, optimizer), of_objects(tree))


def of_objects(tree: Tree) -> Tree:
    """Return the arrays of model and optimizer in a tree."""
    return {key: part for key, part in tree.items() if key != WINDOW}


def show_average(model: nnx.Module, optimizer: nnx.Optimizer[Any]) -> None:
    """Put the optimizer's averaged parameters into the model, if it has any."""
    averaged = getattr(optimizer, "averaged", None)
    parameters = None if averaged is None else averaged(model)
    if parameters is not None:
        nnx.update(model, parameters)


def restart(
    model: nnx.Module,
    optimizer: nnx.Optimizer[Any],
    names: Collection[str] | None = None,
) -> None:
    """Give an optimizer the state with which it begins, for the model as it is now.

    Some states begin as copies of the parameters, such as an average of the weights.

    Args:
        model: The model.
        optimizer: Its optimizer.
        names: Names of leaves, as in a checkpoint; only these begin anew. None stands
            for all.
    """
    parameters = pure(nnx.state(model, optimizer.wrt))
    shardings = jax.tree.map(lambda x: x.sharding, pure(optimizer.opt_state))
    state = jax.jit(optimizer.tx.init, out_shardings=shardings)(parameters)
    begun = dict(nnx.to_flat_state(nnx.state(state)))
    if names is not None:
        begun = {
            path: leaf
            for path, leaf in begun.items()
            if "/".join(("optimizer", "opt_state", *map(str, path))) in names
        }
    nnx.update(optimizer.opt_state, nnx.from_flat_state(begun))


def is_sound(tree: Tree) -> bool:
    """Return whether every array is alive; a failed update may have deleted some."""
    return not any(x.is_deleted() for x in jax.tree.leaves(tree))


def signature(tree: Tree) -> str:
    """Return a hash of every path, shape and dtype."""
    lines = [
        f"{jax.tree_util.keystr(path)} {leaf.shape} {leaf.dtype}"
        for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]
    ]
    return hashlib.blake2b("\n".join(lines).encode(), digest_size=16).hexdigest()


def jit_update(
    graphdef: Any,
    step: FedStep,
    state: Tree,
    sources: Sequence[str],
    spikes: SpikeRule | None = None,
) -> Any:
    """Return the jitted update `(state, fed) -> (state, scalars, tally)`.

    The update donates the state and keeps its shardings. `graphdef` is the structure of
    `(model, optimizer)`, which `step` updates in place. The scalars are `"loss"` and
    the scalars of `step`. If `optax.inject_hyperparams` keeps the learning rate in the
    state, `"learning_rate"` is a scalar too. `sources` are the names of the sources,
    and `read_tally` unpacks the tally.

    With `spikes`, the state has a `WINDOW`, and an update that is a spike leaves the
    model and the optimizer as they were. The scalar `"skipped"` counts such updates.
    """

    def update(state: Tree, fed: Fed) -> tuple[Tree, Scalars, jax.Array]:
        before = of_objects(state)
        model, optimizer = nnx.merge(graphdef, before)
        result = step(model, optimizer, fed)
        loss, aux, rows = unpack_loss(result, "train_step")
        new_state = nnx.to_pure_dict(nnx.state((model, optimizer)))
        _check_same_form(before, new_state)
        if rows:
            check_names(aux, sources)
        scalars = {**_learning_rate(new_state), "loss": loss, **aux}
        packed = tally(fed.batch, fed.source, rows, len(sources))
        if spikes is None:
            return new_state, scalars, packed
        skip, window = judge(spikes, state[WINDOW], scalars)
        kept = jax.tree.map(
            lambda old, new: jnp.where(skip, old, new), before, new_state
        )
        scalars[SKIPPED] = window[SKIPPED]
        packed = jnp.where(skip, without_losses(packed), packed)
        return {**kept, WINDOW: window}, scalars, packed

    shardings = jax.tree.map(lambda x: x.sharding, state)
    whole = _replicated(jax.tree.leaves(shardings)[0])
    return jax.jit(update, donate_argnums=0, out_shardings=(shardings, None, whole))


def _replicated(sharding: Any) -> Any:
    """Return a sharding in which every device of the mesh holds the whole array."""
    if isinstance(sharding, NamedSharding):
        return NamedSharding(sharding.mesh, PartitionSpec())
    return sharding


def choose_step(
    loss_fn: LossFunction | None, train_step: TrainStep | None, grad_accum_steps: int
) -> FedStep:
    """Return `train_step`, or a gradient step on `loss_fn` if `train_step` is None."""
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
    return lambda model, optimizer, fed: train_step(model, optimizer, fed.batch)


def descend(loss_fn: LossFunction, grad_accum_steps: int = 1) -> FedStep:
    """Return a step that updates the model by the gradient of a loss function.

    A scan averages the gradients of the `grad_accum_steps` parts of a batch, so only
    the activations of one part are alive at a time. `Fed.order` says which rows a part
    holds. Without the scalar `"loss_weight"`, every part counts equally. If the loss is
    a mean over unmasked tokens, `loss_fn` should return their number as
    `"loss_weight"`: loss and gradients are then means over all unmasked tokens of the
    batch.
    """

    def step(model: Any, optimizer: Any, fed: Fed) -> tuple[Any, Scalars]:
        loss, aux, rows, grads = _gradients(
            model, optimizer.wrt, loss_fn, fed, grad_accum_steps
        )
        grads = mark_gradients(grads)
        # optax documents `value`, for `reduce_on_plateau`, `polyak_sgd` and `momo`.
        takes = isinstance(optimizer.tx, optax.GradientTransformationExtraArgs)
        with explained(_HOW_UPDATED, "the optimizer"):
            optimizer.update(model, grads, **({"value": loss} if takes else {}))
        return loss, {"grad_norm": optax.tree.norm(grads), **aux, **rows}

    return step


def _gradients(
    model: Any, wrt: Any, loss_fn: LossFunction, fed: Fed, parts: int
) -> tuple[jax.Array, Scalars, Scalars, Any]:
    """Return loss, further scalars, values of rows, and gradients.

    Loss, scalars and gradients are means over the parts. The values of rows are in the
    order of the whole batch.

    The weight of a part is its `"loss_weight"`, or 1 without this scalar. The scalar
    `"loss_weight"` itself is the sum over the parts. If the sum is 0, loss and scalars
    are unweighted means, and the gradients are 0.
    """

    def loss_and_aux(model: Any, batch: Any) -> tuple[jax.Array, Any]:
        loss, scalars, rows = unpack_loss(loss_fn(model, batch))
        return loss, (scalars, rows)

    differentiate = nnx.value_and_grad(
        loss_and_aux, argnums=nnx.DiffState(0, wrt), has_aux=True
    )
    if parts == 1:
        (loss, (aux, rows)), grads = differentiate(model, fed.batch)
        return loss, aux, rows, grads

    graphdef, params, rest = nnx.split(model, wrt, ...)
    pure_params = nnx.to_pure_dict(params)

    def of_part(rest: Any, rows: Any) -> tuple[Any, Any, Scalars]:
        copy = nnx.merge(graphdef, pure_params, rest)
        (loss, (aux, of_rows)), grads = differentiate(copy, rows)
        rest_after = nnx.to_pure_dict(nnx.state(copy, nnx.Not(wrt)))
        _check_same_form({0: rest}, {0: rest_after})
        counted: Scalars = {}
        if LOSS_WEIGHT in aux:
            counted[LOSS_WEIGHT] = _at_least_float32(aux.pop(LOSS_WEIGHT))
        weight = counted.get(LOSS_WEIGHT, jnp.ones(()))
        means = (loss, aux, nnx.to_pure_dict(grads))
        # The loss of a fully masked part may be 0 / 0, and NaN * 0 is NaN.
        weighted = jax.tree.map(
            lambda x: jnp.where(weight > 0, _at_least_float32(x) * weight, 0), means
        )
        unweighted = jax.tree.map(_at_least_float32, (loss, aux))
        return rest_after, (weight, counted, weighted, unweighted), of_rows

    def add(carry: Any, rows: Any) -> tuple[Any, Scalars]:
        rest, sums = carry
        rest, terms, of_rows = of_part(rest, rows)
        return (rest, jax.tree.map(jnp.add, sums, terms)), of_rows

    order = fed.order.reshape(-1, parts)
    cut = _parts_of(fed, parts)
    start = nnx.to_pure_dict(rest)
    first = jax.tree.map(lambda x: x[0], cut)
    zeros = jax.tree.map(
        lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(of_part, start, first)[1]
    )
    (rest_after, sums), of_parts = jax.lax.scan(add, (start, zeros), cut)
    back = order.argsort(axis=1)
    rows = jax.tree.map(
        lambda x: jnp.take_along_axis(x.T, back, axis=1).reshape(-1), of_parts
    )
    weight, counted, total, unweighted = sums
    is_masked = weight == 0
    loss, aux, grads = jax.tree.map(
        lambda x: x / jnp.where(is_masked, 1, weight), total
    )
    # The loss function decides what the loss of a fully masked batch is.
    loss, aux = jax.tree.map(
        lambda mean, x: jnp.where(is_masked, x / parts, mean), (loss, aux), unweighted
    )
    grads = jax.tree.map(lambda x, like: x.astype(like.dtype), grads, pure_params)
    nnx.update(model, rest_after)
    gradients = nnx.state(model, wrt)
    nnx.replace_by_pure_dict(gradients, grads)
    return loss, aux | counted, rows, gradients


def _parts_of(fed: Fed, parts: int) -> Any:
    """Return the batch with its parts along a new first axis."""
    order = fed.order.reshape(-1, parts)
    return jax.tree.map(lambda x: _cut(x, order), fed.batch)


def _cut(x: jax.Array, order: jax.Array) -> jax.Array:
    """Return the rows of every part, of shape `(parts, groups, columns)`."""
    groups = x.reshape(*order.shape, -1)
    return jnp.take_along_axis(groups, order[..., None], axis=1).swapaxes(0, 1)


def _at_least_float32(x: jax.Array) -> jax.Array:
    """Convert an array to float32 or wider, for sums over many parts."""
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


def _check_same_form(before: Tree, after: Tree) -> None:
    """Check that an update keeps the path, shape and dtype of every array."""
    forms = [
        {
            array_path(path): f"{leaf.dtype}{list(leaf.shape)}"
            for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]
        }
        for tree in (before, after)
    ]
    for path in sorted(forms[0].keys() | forms[1].keys()):
        old, new = (form.get(path, "nothing") for form in forms)
        if old != new:
            raise TypeError(
                f"an update changes {path} from {old} to {new}; "
                "create every Variable with the model, in its final shape and dtype"
            )


def _learning_rate(state: Tree) -> Scalars:
    """Return the learning rate if `optax.inject_hyperparams` keeps it in the state."""
    for path, leaf in jax.tree_util.tree_flatten_with_path(state)[0]:
        keys = [getattr(entry, "key", None) for entry in path]
        if keys[-2:] == ["hyperparams", "learning_rate"] and leaf.ndim == 0:
            return {"learning_rate": leaf}
    return {}
