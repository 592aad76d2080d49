"""Say what is wrong with the objects and functions that a trainer was given.

The likeliest objects are those of neighbouring libraries: an optax transformation in
place of an `nnx.Optimizer`, or a model of Linen or Equinox. About a function that it
cannot call or trace, JAX prints dozens of lines, most of them its own, and never says
what a trainer gives to the function.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from traceback import walk_tb
from typing import TYPE_CHECKING, Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen, nnx
from flax.errors import TraceContextError
from jax.core import Tracer

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence
    from types import FrameType

_WRAPPED = "nnx.Optimizer(model, {}, wrt=nnx.Param)"

_MODES = ("deterministic", "use_running_average")
"""Attributes that `nnx.Module.eval` sets to True."""

_RATES = ("rate", "dropout_rate")
"""Attributes that hold the share of values that a module drops in training mode."""

_LIBRARIES = {"jax", "flax", "optax"}

_MISTAKES = (TypeError, ValueError, LookupError, AttributeError)
"""The errors of Python and JAX for an array or a model used as something else."""

_NEED_VALUES = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
)


class FunctionError(TypeError):
    """A user's function does something that a trainer does not support."""


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


def check_returned(pair: Any) -> None:
    """Check what a function given as model has returned."""
    if not (isinstance(pair, tuple | list) and len(pair) == 2):
        raise TypeError(
            f"the function given as model returned a {type(pair).__name__}; "
            "it must return (model, nnx.Optimizer)"
        )
    if not isinstance(pair[0], nnx.Module):
        raise TypeError(
            "the function given as model returned "
            f"a {type(pair[0]).__name__} as its first value; "
            "it must return (model, nnx.Optimizer)"
        )
    check_optimizer(pair[1], "the function given as model returned as its second value")


def check_no_strays(pair: Any, state: Any) -> None:
    """Check that the state holds every array of the modules.

    Some versions of Flax leave an array without a Variable out of the state.
    """
    held = {id(x) for x in jax.tree.leaves(state)}
    for path, node in nnx.iter_graph(pair):
        if isinstance(node, nnx.Module):
            for name, value in vars(node).items():
                if isinstance(value, Tracer) and id(value) not in held:
                    raise TypeError(
                        f"{array_path((*path, name))} is an array without a Variable, "
                        "which a model given as a function cannot hold; wrap the array "
                        "in an nnx.Variable"
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


def check_call(name: str, function: Callable[..., Any], arguments: str) -> None:
    """Check by its signature that a function accepts these positional arguments.

    >>> check_call("loss_fn", lambda model, batch, rng: 0, "model, batch")
    Traceback (most recent call last):
    TypeError: loss_fn takes (model, batch, rng), but the trainer calls \
loss_fn(model, batch); bind the other arguments, as by functools.partial
    """
    if inspect.iscoroutinefunction(function):
        raise TypeError(f"{name} is an async function; give an ordinary function")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return  # a function of C code may have no signature
    given = arguments.split(", ") if arguments else []
    try:
        signature.bind(*given)
    except TypeError:
        taken = ", ".join(map(str, signature.parameters.values()))
        is_more = len(signature.parameters) > len(given)
        remedy = (
            "bind the other arguments, as by functools.partial"
            if is_more
            else "give a function of these arguments"
        )
        raise TypeError(
            f"{name} takes ({taken}), but the trainer calls {name}({arguments}); "
            f"{remedy}"
        ) from None


def evaluation_mode(model: nnx.Module) -> Iterator[str]:
    """Yield a warning if the model would train in evaluation mode."""
    found = list(_evaluating(model))
    if found:
        yield (
            f"the model is in evaluation mode ({first_of(found)}), so it trains "
            "without dropout and without new running averages; call model.train() "
            "before the Trainer if this is not wanted (a loss_fn that sets the mode "
            "itself is fine)"
        )


def untrained_array(model: nnx.Module, wrt: Any) -> Iterator[str]:
    """Yield a warning if the model holds floats outside of Variables."""
    is_trained = nnx.filterlib.to_predicate(wrt)
    found = [
        array_path((0, *path))
        for path, leaf in nnx.iter_graph(model)
        if isinstance(leaf, jax.Array | np.ndarray)
        and jnp.issubdtype(leaf.dtype, jnp.inexact)
        and not is_trained(path, leaf)
    ]
    if found:
        yield (
            f"{first_of(found)} is an array outside any nnx.Variable, so it is saved "
            "but never trained; make it an nnx.Param to train it, or an nnx.Variable "
            "if it is a constant"
        )


@contextmanager
def explained(how: str, what: str = "the function") -> Generator[None]:
    """Raise `FunctionError` for an error that a sentence explains better than JAX.

    `how` says what the trainer gives to the code, which is called `what` if no line of
    its own raises the error.
    """
    try:
        yield
    except Exception as error:
        frame, line = list(_own(error))[-1]
        package = frame.f_globals["__name__"].partition(".")[0]
        # Without a frame of its own, the function itself belongs to a library.
        is_of_library = package == __name__.partition(".")[0]
        position = f"{frame.f_code.co_filename}:{line}"
        place = what if is_of_library else position
        reason = _reason(error)
        if reason is not None:
            # The traceback of JAX says nothing more, and hides this sentence.
            raise FunctionError(f"{place} {reason}") from None
        *_, (raising, _) = walk_tb(error.__traceback__)
        has_said = package == "roxxel" or (is_of_library and raising is frame)
        if has_said or not isinstance(error, _MISTAKES):
            raise  # the trainer, or a model of Roxxel, has said what is wrong
        message = str(error).partition("\n")[0].rstrip(".")
        raise FunctionError(
            f"{place} raises {type(error).__name__} ({message}); {how}"
        ) from error


def how_called(fed: Any) -> str:
    """Say how the trainer calls a loss or a step with a batch, or a `Fed` with one."""
    batch = getattr(fed, "batch", fed)
    if isinstance(batch, Mapping):
        arrays = cast("Mapping[str, Any]", batch)
        parts = ", ".join(f"{name!r} {_form(each)}" for name, each in arrays.items())
        what, tokens = f"a dict of arrays ({parts})", 'batch["tokens"]'
        more = "fields= names the arrays"
    else:
        what, tokens = f"one array of tokens, {_form(batch)}", "batch"
        more = (
            'with fields=("tokens", "segment_ids"), or fields = ["tokens", '
            '"segment_ids"] under [trainer], it is a dict of arrays'
        )
    return (
        "the trainer calls loss_fn(model, batch) and train_step(model, optimizer, "
        f"batch), where batch is {what}: use {tokens}[:, :-1] as inputs and "
        f"{tokens}[:, 1:] as targets; {more}"
    )


def array_path(path: tuple[Any, ...]) -> str:
    """Return a path such as `optimizer/opt_state/0/mu` from keys of Flax or JAX."""
    first, *rest = (getattr(key, "key", key) for key in path)
    return "/".join([("model", "optimizer", "spikes")[first], *map(str, rest)])


def first_of(names: Sequence[str]) -> str:
    """Return the first of some names, and how many more there are."""
    return f"{names[0]} and {len(names) - 1} more" if len(names) > 1 else names[0]


def pure(tree: Any) -> Any:
    """Return a tree with values in place of Variables; Flax 0.12.8 renamed `pure`."""
    return (getattr(nnx, "as_pure", None) or nnx.pure)(tree)


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


def _reason(error: Exception) -> str | None:
    """Describe what the code does that JAX or Flax refuse; None for any other error."""
    if isinstance(error, TraceContextError):
        return (
            "changes a Variable of an object from outside of the function, such as a "
            "global model; use the model that the function gets as its argument"
        )
    if isinstance(error, jax.errors.NonConcreteBooleanIndexError):
        return (
            "selects elements by a boolean array, so their number is unknown when the "
            "trainer compiles the function; weight them instead, as in "
            "jnp.where(mask, x, 0).sum() / mask.sum()"
        )
    if isinstance(error, _NEED_VALUES):
        return (
            "needs the value of an array (if, float(), range(), NumPy), but the "
            "trainer compiles the function; use jnp.where, jax.lax.cond or "
            "jax.debug.print, or set JAX_DISABLE_JIT=1 to look at values"
        )
    return None


def _form(array: Any) -> str:
    return f"{array.dtype}{list(array.shape)}"


def _own(error: BaseException) -> Iterator[tuple[FrameType, int]]:
    """Yield the frames and lines outside of libraries, the innermost last."""
    for frame, line in walk_tb(error.__traceback__):
        if _LIBRARIES.isdisjoint(Path(frame.f_code.co_filename).parts):
            yield frame, line
