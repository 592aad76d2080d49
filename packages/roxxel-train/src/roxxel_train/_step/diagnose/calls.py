"""Explains why a user's function cannot be called as a trainer calls it.

JAX reports such mistakes in a traceback of dozens of lines, most of them its own, and
never mentions an argument of the trainer.
"""

from __future__ import annotations

import inspect
import linecache
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from traceback import walk_tb
from typing import TYPE_CHECKING, Any, cast, get_args

import jax
from flax import nnx
from flax.errors import TraceContextError
from roxxel_curriculum import Field

from roxxel_train._step.fed import Fed

if TYPE_CHECKING:
    from collections.abc import Generator
    from types import FrameType

_FIELDS: tuple[str, ...] = get_args(Field)
_LIBRARIES = {"jax", "flax", "optax"}
_NEEDS_VALUE = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
)
_OURS = Path(__file__).parents[2]

_ELSEWHERE = (
    "input_ids",
    "inputs",
    "labels",
    "targets",
    "target",
    "attention_mask",
    "mask",
    "x",
    "y",
)
"""Names under which other libraries hold parts of a batch."""

_MISFIT = re.compile(r"incompatible shapes|the same shape", re.IGNORECASE)
_ATTRIBUTE = re.compile(r"(?:Tracer|'dict' object) has no attribute '?(\w+)")
_UNPACKING = re.compile(r",.*=\s*(\w+)\s*(?:#.*)?$")
_STRING_INDEX = re.compile(r"string index.*'(\w+)'")
_UNHASHABLE = re.compile(r"unhashable type: 'slice'")
_NOT_CALLABLE = re.compile(r"'(\w+)' object is not callable")
_NOT_AN_ARRAY = re.compile(
    r"(?:Cannot determine dtype of |Value |'|<class '(?:[\w<>]+\.)*)(\w+)"
    r"(?:\(|'> as an abstract array|'> is not a valid JAX type"
    r"|' object (?:is not subscriptable|has no attribute "
    r"'(?:shape|dtype|ndim|size|astype|reshape|at|T|sum|mean)'))"
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
        path = frame.f_code.co_filename
        batch = fed.batch if isinstance(fed, Fed) else fed
        if Path(path).parent.parent == _OURS:
            # The function itself belongs to a library.
            position, words = "the function", _swapped(error, frame)
        else:
            position, words = f"{path}:{line}", _explanation(error, frame, line, batch)
            misfit = _misfit(error, batch)
            if words is None and misfit is not None:
                raise FunctionError(f"{position} {misfit}") from error
        if words is None:
            raise
        # The traceback of JAX says nothing more, and hides this sentence.
        raise FunctionError(f"{position} {words}") from None


def _explanation(
    error: Exception, frame: FrameType, line: int, batch: Any
) -> str | None:
    """Return what the code at a frame does wrong; None for any other error."""
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
    if isinstance(error, _NEEDS_VALUE):
        return (
            "needs the value of an array (if, float(), range(), NumPy), but the "
            "trainer compiles the function; use jnp.where, jax.lax.cond or "
            "jax.debug.print, or set JAX_DISABLE_JIT=1 to look at values"
        )
    if isinstance(error, ValueError):
        return _unpacked(error, frame, line, batch)
    if not isinstance(error, TypeError | KeyError | AttributeError):
        return None
    words = _read_by_name(error, batch)
    if words is None and isinstance(batch, Mapping):
        words = _read_as_array(error, frame, cast("Mapping[str, Any]", batch))
    return words or _swapped(error, frame)


def _misfit(error: Exception, batch: Any) -> str | None:
    """Explain arrays of shapes that an operation cannot combine."""
    message = str(error).partition("\n")[0].rstrip(".")
    if not isinstance(error, TypeError | ValueError) or not _MISFIT.search(message):
        return None
    is_dict = isinstance(batch, Mapping)
    tokens = 'batch["tokens"]' if is_dict else "batch"
    shape = jax.tree.leaves(batch["tokens"] if is_dict else batch)[0].shape
    remedy = "print the .shape of each array there"
    if {str(shape[1]), str(shape[1] - 1)} <= {*re.findall(r"\d+", message)}:
        remedy = f"use {tokens}[:, :-1] as inputs and {tokens}[:, 1:] as targets"
    return (
        f"combines arrays whose shapes do not fit ({message}), where {tokens} has "
        f"shape {shape}; {remedy}"
    )


def _read_by_name(error: Exception, batch: Any) -> str | None:
    """Explain how a function read a part of the batch that the batch does not have."""
    key = error.args[0] if isinstance(error, KeyError) and error.args else None
    index = None if isinstance(batch, Mapping) else _STRING_INDEX.search(str(error))
    attribute = _ATTRIBUTE.search(str(error))
    if index is not None:
        name, reads = index[1], f"batch[{index[1]!r}]"
    elif attribute is not None:
        name, reads = attribute[1], f"batch.{attribute[1]}"
    else:
        name, reads = str(key), f"batch[{key!r}]"
    if index is None and name not in {*_FIELDS, *_ELSEWHERE}:
        return None  # another object of the function
    if attribute is None and isinstance(batch, Mapping) and name in batch:
        return None
    if not isinstance(batch, Mapping):
        other = name if name in _FIELDS and name != "tokens" else "segment_ids"
        remedy = (
            "use batch[:, :-1] as inputs and batch[:, 1:] as targets"
            if name not in _FIELDS
            else f'pass fields=("tokens", "{other}") to get a dict of arrays, or '
            f'fields = ["tokens", "{other}"] under [trainer]'
        )
        return (
            f"reads {reads}, but a batch of this run is one array of tokens; {remedy}"
        )
    names = ", ".join(map(repr, cast("Mapping[str, Any]", batch)))
    if name in batch:
        remedy = f"read batch[{name!r}]"
    elif name in _FIELDS:
        remedy = f"add {name!r} to fields="
    else:
        remedy = 'inputs are batch["tokens"][:, :-1] and targets batch["tokens"][:, 1:]'
    return f"reads {reads}, but the batches of this run have {names}; {remedy}"


def _unpacked(error: ValueError, frame: FrameType, line: int, batch: Any) -> str | None:
    """Explain `inputs, targets = batch`."""
    code = linecache.getline(frame.f_code.co_filename, line)
    assigned = _UNPACKING.search(code)
    value = None if assigned is None else frame.f_locals.get(assigned[1])
    if "values to unpack" not in str(error) or jax.tree.structure(
        value
    ) != jax.tree.structure(batch):
        return None
    tokens = 'batch["tokens"]' if isinstance(batch, Mapping) else "batch"
    return (
        "unpacks the batch, which is no pair of inputs and targets; "
        f"use {tokens}[:, :-1] as inputs and {tokens}[:, 1:] as targets"
    )


def _read_as_array(
    error: Exception, frame: FrameType, batch: Mapping[str, Any]
) -> str | None:
    """Explain how a function used a dict of arrays by field as one array."""
    key = error.args[0] if isinstance(error, KeyError) and error.args else None
    names = ", ".join(map(repr, batch))
    keys = cast("tuple[Any, ...]", key) if isinstance(key, tuple) else (key,)
    found = _NOT_AN_ARRAY.search(str(error))
    is_read_as_array = (
        any(part is Ellipsis or isinstance(part, slice) for part in keys)
        or _UNHASHABLE.search(str(error)) is not None
        or (found is not None and found[1] == "dict")
    )
    if is_read_as_array and any(
        isinstance(value, dict) and cast("dict[str, Any]", value).keys() == batch.keys()
        for value in frame.f_locals.values()
    ):
        return (
            "uses the batch as one array, but with fields= a batch of this run is a "
            f'dict of arrays ({names}); read batch["tokens"]'
        )
    return None


def _swapped(error: Exception, frame: FrameType) -> str | None:
    """Explain an error of a function that takes model and batch in another order."""
    called = _NOT_CALLABLE.search(str(error))
    if called is not None and (called[1].endswith("Tracer") or called[1] == "dict"):
        what = "calls an array, such as the batch, as a function"
    else:
        used = _NOT_AN_ARRAY.search(str(error))
        modules = {
            type(value).__name__
            for value in frame.f_locals.values()
            if isinstance(value, nnx.Module)
        }
        if used is None or used[1] not in modules:
            return None
        what = f"uses a module ({used[1]}) as an array"
    return (
        f"{what}; the trainer calls loss_fn(model, batch) and train_step(model, "
        "optimizer, batch), in this order, and model(...) gives logits"
    )


def _own(error: BaseException) -> Iterator[tuple[FrameType, int]]:
    """Yield the frames and lines outside of libraries, the innermost last."""
    for frame, line in walk_tb(error.__traceback__):
        if _LIBRARIES.isdisjoint(Path(frame.f_code.co_filename).parts):
            yield frame, line
