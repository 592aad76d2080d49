"""Explain why a user's function cannot be called as a trainer calls it.

JAX reports such mistakes in a traceback of dozens of lines, most of them its own, and
never says what a trainer gives to the function.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from traceback import walk_tb
from typing import TYPE_CHECKING, Any, cast

import jax
from flax.errors import TraceContextError

from roxxel_train._step.fed import Fed

if TYPE_CHECKING:
    from collections.abc import Generator
    from types import FrameType

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


@contextmanager
def explained(fed: Any) -> Generator[None]:
    """Raise `FunctionError` for an error that a sentence explains better than JAX.

    `fed` is what the traced function receives: a batch, or a `Fed` with a batch.
    """
    try:
        yield
    except Exception as error:
        frame, line = list(_own(error))[-1]
        package = frame.f_globals["__name__"].partition(".")[0]
        # Without a frame of its own, the function itself belongs to a library.
        is_of_library = package == __name__.partition(".")[0]
        position = f"{frame.f_code.co_filename}:{line}"
        place = "the function" if is_of_library else position
        reason = _reason(error)
        if reason is not None:
            # The traceback of JAX says nothing more, and hides this sentence.
            raise FunctionError(f"{place} {reason}") from None
        *_, (raising, _) = walk_tb(error.__traceback__)
        has_said = package == "roxxel" or (is_of_library and raising is frame)
        if has_said or not isinstance(error, _MISTAKES):
            raise  # the trainer, or a model of Roxxel, has said what is wrong
        batch = fed.batch if isinstance(fed, Fed) else fed
        message = str(error).partition("\n")[0].rstrip(".")
        raise FunctionError(
            f"{place} raises {type(error).__name__} ({message}); the trainer calls "
            "loss_fn(model, batch) and train_step(model, optimizer, batch), where "
            f"{_described(batch)}"
        ) from error


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


def _described(batch: Any) -> str:
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
        f"batch is {what}: use {tokens}[:, :-1] as inputs and {tokens}[:, 1:] as "
        f"targets; {more}"
    )


def _form(array: Any) -> str:
    return f"{array.dtype}{list(array.shape)}"


def _own(error: BaseException) -> Iterator[tuple[FrameType, int]]:
    """Yield the frames and lines outside of libraries, the innermost last."""
    for frame, line in walk_tb(error.__traceback__):
        if _LIBRARIES.isdisjoint(Path(frame.f_code.co_filename).parts):
            yield frame, line
