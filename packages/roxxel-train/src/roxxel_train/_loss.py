"""What a loss function may return: the loss, and scalars to log."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

import jax
import jax.numpy as jnp

from roxxel_train._observe.recorder import ROW_FIELDS

Scalars = dict[str, jax.Array]
"""Values of shape () by the names under which they are logged."""

LOSS_WEIGHT = "loss_weight"
"""Name of the scalar that says over how many tokens a loss function took its means."""


def unpack_loss(result: Any, function: str = "loss_fn") -> tuple[jax.Array, Scalars]:
    """Split the result of a loss function into the loss and further scalars.

    Accepted are:

    - a scalar;
    - a tuple or list whose first value is the loss. Dicts among the other values give
      names to their scalars; a value without a name is `aux/1`, by its position;
    - a dict, nested or not, with one scalar named `"loss"`, or with one scalar.

    Names of nested scalars are joined by `/`, as in `aux/grad/x`. An array of shape
    (1,) counts as a scalar. Other arrays and None are allowed and left out.

    Args:
        result: Returned by the function.
        function: Name of the function, for errors.

    Raises:
        TypeError: `result` has another form, or a scalar has a name that a row of
            metrics already uses.
    """
    if isinstance(result, Mapping):
        scalars = _scalars(_leaves("", result), function)
        name = _find_loss(scalars, function)
        loss = scalars.pop(name)
    elif isinstance(result, tuple | list):
        loss, scalars = _split_sequence(cast("list[Any]", result), function)
    else:
        loss, scalars = result, {}
    if not _is_scalar(loss):
        raise TypeError(
            f"{function} returned the loss as {_describe(loss)}; "
            "return a real scalar, such as the mean over the tokens"
        )
    if not jnp.issubdtype(jnp.result_type(loss), jnp.floating):
        raise TypeError(
            f"{function} returned a loss of dtype {jnp.result_type(loss)}; "
            "return a floating-point scalar"
        )
    for name in scalars:
        if name in ROW_FIELDS or name == "loss":
            raise TypeError(
                f"{function} returned a metric named {name!r}, which is already a "
                "field of every row; rename the metric"
            )
    return _scalar(loss), {name: _scalar(value) for name, value in scalars.items()}


def _split_sequence(result: Any, function: str) -> tuple[Any, dict[str, Any]]:
    """Return the first value and the scalars among the others."""
    if not result:
        raise TypeError(
            f"{function} returned an empty {type(result).__name__}; "
            "return the loss as the first value"
        )
    fields: Any = getattr(result, "_fields", None)  # of a named tuple

    def leaves() -> Iterator[tuple[str, Any]]:
        for index, value in enumerate(result[1:], 1):
            if fields is not None:
                yield from _leaves(fields[index], value)
            else:
                yield from _leaves(
                    "" if isinstance(value, Mapping) else f"aux/{index}", value
                )

    return result[0], _scalars(leaves(), function)


def _leaves(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the values of nested dicts, lists and tuples with their paths."""
    if isinstance(value, Mapping):
        items = cast("Mapping[Any, Any]", value).items()
    elif isinstance(value, list | tuple):
        items = enumerate(cast("list[Any]", value))
    else:
        yield path, value
        return
    for key, inner in items:
        yield from _leaves(f"{path}/{key}" if path else str(key), inner)


def _scalars(leaves: Iterator[tuple[str, Any]], function: str) -> dict[str, Any]:
    """Return the scalars by path.

    Raises:
        TypeError: Two have the same path, or a value is not a number or an array.
    """
    found: dict[str, Any] = {}
    for name, value in leaves:
        if name in found:
            raise TypeError(
                f"{function} returned two metrics named {name!r}; rename one of them"
            )
        if _is_scalar(value):
            found[name] = value
        elif value is not None and not hasattr(value, "dtype"):
            raise TypeError(
                f"{function} returned {name!r} as {_describe(value)}; "
                "return a number, an array or None"
            )
    return found


def _find_loss(scalars: dict[str, Any], function: str) -> str:
    """Return the path of the loss among the scalars of a dict."""
    if "loss" in scalars:
        return "loss"
    named = [name for name in scalars if name.endswith("/loss")]
    unweighted = [name for name in scalars if name != LOSS_WEIGHT]
    for candidates in (named, unweighted):
        if len(candidates) == 1:
            return candidates[0]
    if not unweighted:
        raise TypeError(
            f"{function} returned a dict without a scalar; "
            'return the loss as a scalar named "loss"'
        )
    raise TypeError(
        f"{function} returned the scalars {' and '.join(unweighted)} "
        'but no "loss"; name the one to minimise "loss"'
    )


def _is_scalar(value: Any) -> bool:
    if isinstance(value, bool | int | float):
        return True
    dtype = getattr(value, "dtype", None)
    real = dtype is not None and any(
        jnp.issubdtype(dtype, kind) for kind in (jnp.bool_, jnp.integer, jnp.floating)
    )
    return real and value.shape in ((), (1,))


def _scalar(value: Any) -> jax.Array:
    return jnp.asarray(value).reshape(())


def _describe(value: Any) -> str:
    if hasattr(value, "shape"):
        return f"an array of shape {tuple(value.shape)} and dtype {value.dtype}"
    return f"a {type(value).__name__}"
