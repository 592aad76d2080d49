"""From a loss function to one compiled update.

The update is a pure function of two trees, `(state, batch) -> (state, scalars)`, and
the state is donated. It is traced for the shape of every phase at the start, so that a
wrong loss function is found before anything runs, and compiled in a thread of its own
in the order of need, so that a change of phase costs no wait.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from roxxel_train._metrics import ROW_FIELDS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from roxxel_train._model_state import Tree

Scalars = dict[str, jax.Array]
"""What an update reports: `"loss"`, `"grad_norm"`, the user's own, all of shape ()."""

LossFunction = Callable[[Any, Any], Any]
"""`(model, batch)` to a scalar, to `(scalar, dict)` or to a dict with `"loss"`."""

TrainStep = Callable[[Any, Any, Any], Any]
"""`(model, optimizer, batch)`, updates both and returns what a loss function may."""


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


def descend(loss_fn: LossFunction, grad_accum_steps: int = 1) -> TrainStep:
    """Return the step that follows the gradient of a loss function.

    Args:
        loss_fn: `(model, batch)` to a scalar, `(scalar, dict)` or a dict with `"loss"`.
        grad_accum_steps: Parts that a batch is cut into; their gradients are averaged
            by a scan, so that only one part's activations are alive at a time.
    """

    def train_step(model: Any, optimizer: Any, batch: Any) -> tuple[Any, Scalars]:
        loss, aux, grads = _gradients(
            model, optimizer.wrt, loss_fn, batch, grad_accum_steps
        )
        optimizer.update(model, grads)
        return loss, {"grad_norm": optax.tree.norm(grads), **aux}

    return train_step


class Updates:
    """The compiled update for each shape of batch.

    Args:
        update: From `make_update`.
        state: The live state; its shardings are kept.
        batches: Shape, dtype and sharding of the batches, in the order of need.

    Raises:
        TypeError: The loss function returns something else than a loss.
    """

    def __init__(
        self,
        update: Callable[[Tree, Any], tuple[Tree, Scalars]],
        state: Tree,
        batches: Iterable[jax.ShapeDtypeStruct],
    ) -> None:
        shapes = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state
        )
        kept = jax.tree.map(lambda x: x.sharding, state)
        jitted = jax.jit(update, donate_argnums=0, out_shardings=(kept, None))
        distinct = {_key(batch): batch for batch in batches}
        self._lowered = {
            key: jitted.lower(shapes, batch) for key, batch in distinct.items()
        }
        self._compiled: dict[Any, Future[Any]] = {}

    def compile_ahead(self, batches: Iterable[jax.ShapeDtypeStruct]) -> None:
        """Begin to compile the updates for `batches`, in order, in the background."""
        compiler = ThreadPoolExecutor(1, thread_name_prefix="roxxel-compile")
        for key in dict.fromkeys(map(_key, batches)):
            known = self._compiled.get(key)
            if known is None or known.cancelled():
                self._compiled[key] = compiler.submit(self._lowered[key].compile)
        compiler.shutdown(wait=False)

    def for_batch(self, batch: jax.Array) -> Callable[[Tree, Any], Any]:
        """Return the compiled update for this batch; waits until it is compiled."""
        return self._compiled[_key(batch)].result()

    def close(self) -> None:
        """Give up what has not begun to compile."""
        for future in self._compiled.values():
            future.cancel()


def _key(batch: Any) -> Any:
    return batch.shape, batch.dtype, batch.sharding


def _gradients(
    model: Any, wrt: Any, loss_fn: LossFunction, batch: Any, parts: int
) -> tuple[jax.Array, Scalars, Any]:
    """Return loss, further scalars and gradients, each the mean over the parts."""

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
        value, grads = differentiate(copy, rows)
        value = jax.tree.map(_in_full, value)
        rest_after = nnx.to_pure_dict(nnx.state(copy, nnx.Not(wrt)))
        _check_same_form(rest, rest_after)
        return rest_after, (value, jax.tree.map(_in_full, nnx.to_pure_dict(grads)))

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
    (rest_after, total), _ = jax.lax.scan(add, (start, zeros), cut)
    (loss, aux), grads = jax.tree.map(lambda x: x / parts, total)
    grads = jax.tree.map(lambda x, like: x.astype(like.dtype), grads, pure_params)
    nnx.update(model, rest_after)
    gradients = nnx.state(model, wrt)
    nnx.replace_by_pure_dict(gradients, grads)
    return loss, aux, gradients


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
