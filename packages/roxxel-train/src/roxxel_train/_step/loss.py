"""The numbers of an update: what a loss function returns, and what the host reads.

A loss function may return scalars to log and losses of rows beside the loss. The
devices pack the digest of the batch and the loss by source into one small array, the
tally, so a step costs one transfer to the host. The host unpacks the tally when it
reads the loss of the same update.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from roxxel_curriculum.digest import device_digest, from_halves
from roxxel_curriculum.run_log import LOSS_OF, TIMING_FIELDS

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

Scalars = dict[str, jax.Array]
"""Scalars, arrays of shape (), by their names in the log."""

LOSS_WEIGHT = "loss_weight"
"""Name of the scalar with the number of tokens over which the loss is a mean."""

_ROW_LOSS = "row_loss"
"""Name of the array of shape (B,) with the mean loss of each row of a batch."""

_ROW_WEIGHT = "row_weight"
"""Name of the array of shape (B,) with the number of tokens that count in each row."""

SKIPPED = "skipped"
"""Name of the scalar with the number of updates that `skip_spikes` has left out."""

_ROW_FIELDS = TIMING_FIELDS | {
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

_NUM_HEAD = 3
"""Number of values of a tally before the sums: the digest, and whether there is one."""


def as_number(value: Any) -> float:
    """Return a number as a float, also the number of an array of shape (1,).

    Raises:
        TypeError, ValueError, OverflowError: The value is no number, or too large.
    """
    return float(value.reshape(()) if getattr(value, "shape", ()) == (1,) else value)


def described(value: Any) -> str:
    """Return what kind of value this is, for an error."""
    if hasattr(value, "shape"):
        return f"an array of shape {tuple(value.shape)} and dtype {value.dtype}"
    if _is_too_large(value):
        return "an int too large for a float"
    return f"a {type(value).__name__}"


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
        if name in _ROW_FIELDS:
            raise TypeError(
                f"{function} returned a metric named {name!r}, which is a "
                "reserved name; rename the metric"
            )
    if _ROW_WEIGHT in rows and _ROW_LOSS not in rows:
        raise TypeError(
            f"{function} returned {_ROW_WEIGHT!r} without {_ROW_LOSS!r}; return both"
        )
    logged = {name: _as_array(value) for name, value in scalars.items()}
    return UnpackedLoss(_as_array(loss), logged, rows)


@dataclass(frozen=True)
class Tally:
    """The unpacked tally of one update.

    `loss_sums` and `weights` have one value for each source: the sum of `row_weight *
    row_loss` and of `row_weight` over the rows of the source. Both are 0 if the loss
    function returns no `row_loss`. `digest` is the `batch_digest`, or None if the batch
    has no tokens.
    """

    digest: int | None
    loss_sums: npt.NDArray[np.float32]
    weights: npt.NDArray[np.float32]


def tally(
    batch: Any, source: jax.Array, rows: Mapping[str, jax.Array], num_sources: int
) -> jax.Array:
    """Return the tally of an update as one uint32 array, inside a jitted function.

    `batch` and `source` are those of a `Fed`. `rows` has what the loss function
    returned for each row: nothing, `row_loss`, or `row_loss` and `row_weight`.
    """
    tokens = batch.get("tokens") if isinstance(batch, dict) else batch
    if tokens is None:
        head = jnp.zeros(_NUM_HEAD, jnp.uint32)
    else:
        head = jnp.append(device_digest(tokens), jnp.uint32(1))
    sums = jnp.zeros((2, num_sources), jnp.float32)
    if rows:
        sums = _sums(jax.tree.leaves(batch)[0].shape[1], source, rows, num_sources)
    return jnp.append(head, jax.lax.bitcast_convert_type(sums.ravel(), jnp.uint32))


def read_tally(packed: npt.NDArray[np.uint32]) -> Tally:
    """Unpack the result of `tally`."""
    *halves, has_digest = packed[:_NUM_HEAD]
    loss_sums, weights = packed[_NUM_HEAD:].view(np.float32).reshape(2, -1)
    return Tally(from_halves(halves) if has_digest else None, loss_sums, weights)


def without_losses(packed: jax.Array) -> jax.Array:
    """Return the tally of an update whose losses do not count, only its tokens."""
    return packed.at[_NUM_HEAD:].set(0)


def check_names(scalars: Mapping[str, Any], sources: Sequence[str]) -> None:
    """Check that no metric of the user is named like a loss by source."""
    for source in sources:
        if (name := LOSS_OF + source) in scalars:
            raise TypeError(
                f"loss_fn returned {_ROW_LOSS!r} and a metric named {name!r}, "
                "under which the trainer logs the loss of this source; rename the "
                "metric"
            )


def _without_rows(
    leaves: Iterable[tuple[str, Any]], rows: dict[str, jax.Array], function: str
) -> Iterator[tuple[str, Any]]:
    """Yield the other leaves; move `row_loss` and `row_weight` to `rows`."""
    for name, value in leaves:
        if name not in (_ROW_LOSS, _ROW_WEIGHT) or value is None:
            yield name, value
        elif getattr(value, "ndim", None) != 1:
            raise TypeError(
                f"{function} returned {name!r} as {described(value)}; "
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
                f"{function} returned {name!r} as {described(value)}; "
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
        f"{function} returned {name} as {described(value)}; "
        "return a real scalar, such as the mean over the tokens (`.mean()`)"
    )


def _is_scalar(value: Any) -> bool:
    if isinstance(value, bool | int | float):
        return not _is_too_large(value)
    dtype = getattr(value, "dtype", None)
    real = dtype is not None and any(
        jnp.issubdtype(dtype, kind) for kind in (jnp.bool_, jnp.integer, jnp.floating)
    )
    return real and value.shape in ((), (1,))


def _as_array(value: Any) -> jax.Array:
    if isinstance(value, int | float | np.generic | np.ndarray):
        found = as_number(cast("Any", value))
        # JAX would keep the low bits of an int64, and refuse a larger int of Python.
        value = value if abs(found) < 2**31 else found
    return jnp.asarray(value).reshape(())


def _is_too_large(value: Any) -> bool:
    return isinstance(value, int) and abs(value) > sys.float_info.max


def _sums(
    columns: int, source: jax.Array, rows: Mapping[str, jax.Array], num_sources: int
) -> jax.Array:
    """Return the sums of loss and of weight by source, shape `(2, num_sources)`."""
    for name, values in rows.items():
        if values.shape != source.shape:
            raise TypeError(
                f"loss_fn returned {name!r} of shape {values.shape} for a batch of "
                f"{source.shape[0]} rows; return one value for each row"
            )
    # By default the weight of a row is its number of tokens: means are over tokens, and
    # after an edit two metrics rows may have phases of different lengths between them.
    weight = rows.get(_ROW_WEIGHT, jnp.full(source.shape, columns))
    weight = weight.astype(jnp.float32)
    # The mean loss of a fully masked row may be 0 / 0, and NaN * 0 is NaN.
    loss = jnp.where(weight > 0, rows[_ROW_LOSS].astype(jnp.float32) * weight, 0)
    is_of = source[None, :] == jnp.arange(num_sources)[:, None]
    return jnp.where(is_of, jnp.stack([loss, weight])[:, None, :], 0).sum(-1)
