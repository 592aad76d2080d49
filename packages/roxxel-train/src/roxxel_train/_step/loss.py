"""What a loss function may return: the loss, scalars to log, and losses of rows."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
from roxxel_curriculum.run_log import TIMING_FIELDS

Scalars = dict[str, jax.Array]
"""Scalars, arrays of shape (), by their names in the log."""

LOSS_WEIGHT = "loss_weight"
"""Name of the scalar with the number of tokens over which the loss is a mean."""

ROW_LOSS = "row_loss"
"""Name of the array of shape (B,) with the mean loss of each row of a batch."""

ROW_WEIGHT = "row_weight"
"""Name of the array of shape (B,) with the number of tokens that count in each row."""

SKIPPED = "skipped"
"""Name of the scalar with the number of updates that `skip_spikes` has left out."""

ROW_FIELDS = TIMING_FIELDS | {
    "kind",
    "step",
    "phase",
    "loss_mean",
    "loss_since_save",
    "tokens",
    "tokens_by_source",
    "planned_tokens_by_source",
    "rows_by_source",
    "digest",
    SKIPPED,
}
"""Names that the trainer reserves: a loss function must not return them."""


def perplexity(
    name: str, mean_loss: float, others: Collection[str]
) -> dict[str, float]:
    """Return `{name: exp(mean_loss)}`.

    The dict is empty if the value overflows a float, or if the loss function itself
    returned this name (`others` has its names).
    """
    try:
        return {} if name in others else {name: math.exp(mean_loss)}
    except OverflowError:
        return {}


class UnpackedLoss(NamedTuple):
    """The parts of the result of a loss function.

    `rows` has the arrays `"row_loss"` and `"row_weight"` that the function returned.
    """

    loss: jax.Array
    scalars: Scalars
    rows: dict[str, jax.Array]


def unpack_loss(result: Any, function: str = "loss_fn") -> UnpackedLoss:
    """Split the result of a loss function into the loss and further values.

    A loss function may return:

    - a scalar;
    - a tuple or list whose first value is the loss. Scalars in dicts among the other
      values keep their keys as names; another scalar is named by its position, such as
      `aux/1`. One of the dicts may repeat the loss itself as `"loss"`;
    - a dict or a named tuple, nested or not, with one scalar named `"loss"`, which is
      nested only if all scalars are. Without it there must be exactly one scalar.

    The name of a nested scalar is its path, as in `aux/grad/x`. An array of shape (1,)
    counts as a scalar. Other arrays and None are allowed and ignored, except arrays
    named `"row_loss"` and `"row_weight"`, which have one value for each row.
    """
    rows: dict[str, jax.Array] = {}
    if hasattr(result, "_asdict"):
        result = result._asdict()
    if isinstance(result, Mapping):
        leaves = list(_without_rows(_leaves("", result), rows, function))
        scalars = _scalars(leaves, function)
        name = _find_loss(dict(leaves), scalars, function)
        loss = scalars.pop(name)
    elif isinstance(result, tuple | list):
        loss, scalars = _split_sequence(cast("list[Any]", result), rows, function)
    else:
        loss, scalars = result, {}
    if not _is_scalar(loss):
        raise _not_a_scalar("the loss", loss, function)
    if not jnp.issubdtype(jnp.result_type(loss), jnp.floating):
        raise TypeError(
            f"{function} returned a loss of dtype {jnp.result_type(loss)}; "
            "return a floating-point scalar"
        )
    for name in scalars:
        if name == "loss":
            raise TypeError(
                f"{function} returned a metric named 'loss' beside the loss, which may "
                "be another value; rename or drop the metric"
            )
        if name in ROW_FIELDS:
            raise TypeError(
                f"{function} returned a metric named {name!r}, which is a "
                "reserved name; rename the metric"
            )
    if ROW_WEIGHT in rows and ROW_LOSS not in rows:
        raise TypeError(
            f"{function} returned {ROW_WEIGHT!r} without {ROW_LOSS!r}; return both"
        )
    logged = {name: _scalar(value) for name, value in scalars.items()}
    return UnpackedLoss(_scalar(loss), logged, rows)


def _without_rows(
    leaves: Iterable[tuple[str, Any]], rows: dict[str, jax.Array], function: str
) -> Iterator[tuple[str, Any]]:
    """Yield the other leaves; move `row_loss` and `row_weight` to `rows`."""
    for name, value in leaves:
        if name not in (ROW_LOSS, ROW_WEIGHT) or value is None:
            yield name, value
        elif getattr(value, "ndim", None) != 1:
            raise TypeError(
                f"{function} returned {name!r} as {_describe(value)}; "
                "return one value for each row, of shape (batch_size,)"
            )
        else:
            rows[name] = value


def _split_sequence(
    result: Any, rows: dict[str, jax.Array], function: str
) -> tuple[Any, dict[str, Any]]:
    """Return the loss and the other scalars; move arrays of row values to `rows`."""
    if not result:
        raise TypeError(
            f"{function} returned an empty {type(result).__name__}; "
            "return the loss as the first value"
        )
    loss, *others = result
    if not _is_scalar(loss):
        raise _not_a_scalar("the loss", loss, function)
    leaves = [
        leaf
        for index, value in enumerate(others, 1)
        for leaf in _leaves("" if isinstance(value, Mapping) else f"aux/{index}", value)
    ]
    scalars = _scalars(_without_rows(leaves, rows, function), function)
    if "loss" in scalars and scalars["loss"] is loss:
        del scalars["loss"]
    return loss, scalars


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


def _scalars(leaves: Iterable[tuple[str, Any]], function: str) -> dict[str, Any]:
    """Return the scalars by path, without other arrays and None."""
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


def _find_loss(
    leaves: Mapping[str, Any], scalars: Mapping[str, Any], function: str
) -> str:
    """Return the path of the loss in the dict that a loss function returned.

    `leaves` has all values of the dict by path, and `scalars` those that are scalars. A
    value named "loss" that is not a scalar is an error. Otherwise the trainer would
    minimise the dict's only scalar, which may be a metric.
    """
    if "loss" in scalars:
        return "loss"
    within = [name for name in leaves if "loss" in name.split("/")]
    named = [name for name in within if name.rpartition("/")[2] == "loss"]
    for name in named:
        if name not in scalars:
            raise _not_a_scalar(repr(name), leaves[name], function)
    unweighted = [name for name in scalars if name != LOSS_WEIGHT]
    # A scalar above a nested loss may be the sum to minimise, and that loss its part.
    is_nested = all("/" in name for name in unweighted)
    for candidates in (named if is_nested else [], unweighted):
        if len(candidates) == 1:
            if within and candidates[0] not in within:
                raise _not_a_scalar(repr(within[0]), leaves[within[0]], function)
            return candidates[0]
    if not unweighted:
        raise TypeError(
            f"{function} returned a dict without a scalar; "
            'return the loss as a scalar named "loss"'
        )
    raise TypeError(
        f"{function} returned the scalars {' and '.join(unweighted)} "
        'but no "loss"; rename the scalar to minimise to "loss"'
    )


def _not_a_scalar(name: str, value: Any, function: str) -> TypeError:
    return TypeError(
        f"{function} returned {name} as {_describe(value)}; "
        "return a real scalar, such as the mean over the tokens (`.mean()`)"
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
