"""Check whether a model's embedding tables have a row for every token of the data.

A token without a row is an index out of bounds: `nnx.Embed` returns NaN for this token,
and `table[tokens]` reads another row. The traced program of a step shows every lookup
by token, however the model is written. Lookups by position, or by numbers that are
computed from tokens, such as hashes, are not checked.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import jax
import numpy as np
from jax.extend.core import Literal

from roxxel_train._step.diagnose.objects import array_path

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from roxxel_curriculum import Sampler

PASS_ON = {
    "broadcast_in_dim",
    "convert_element_type",
    "copy",
    "dynamic_slice",
    "expand_dims",
    "gather",
    "optimization_barrier",
    "pad",
    "reshape",
    "rev",
    "sharding_constraint",
    "slice",
    "squeeze",
    "stop_gradient",
    "transpose",
}
"""Primitives whose result consists of values of the first operand."""

_TOKENS = "<tokens>"
"""Label of values that are tokens. A parameter's label is its path."""

_NEGATIVE = "<tokens < 0>"
"""Label of the condition that tokens are negative."""


@dataclass(frozen=True)
class TokenLookup:
    """An array with `num_rows` entries that a step indexes by tokens.

    `name` is the path of a parameter, such as `model/embed/embedding`, and empty for
    another array, such as logits.
    """

    name: str
    num_rows: int

    def __str__(self) -> str:
        """Return the name and the size of the array, as a clause of a message."""
        if self.name:
            return f"{self.name} has {self.num_rows} rows"
        return f"the loss indexes {self.num_rows} values by token"


def token_lookups(jaxpr: Any, state: Any, batch: Any) -> set[TokenLookup]:
    """Return the arrays that a step traced from `(state, batch)` indexes by tokens."""
    paths = jax.tree_util.tree_flatten_with_path(state)[0]
    labels: list[str | None] = [array_path(keys) for keys, _ in paths]
    of_batch = jax.tree_util.tree_flatten_with_path(batch)[0]
    labels += [_TOKENS if _is_tokens(keys) else None for keys, _ in of_batch]
    found: set[TokenLookup] = set()
    _walk(jaxpr, labels, found)
    return found


def _is_tokens(keys: Sequence[Any]) -> bool:
    """Return whether a leaf of a batch, or of a `Fed`, holds the tokens."""
    if not keys:
        return True
    return getattr(keys[-1], "key", getattr(keys[-1], "name", "")) in (
        "tokens",
        "batch",
    )


def check_rows(sampler: Sampler, lookups: Iterable[TokenLookup]) -> None:
    """Raise ValueError if a parameter has no row for some token of the data.

    Sources that do not record their greatest token are checked as they are read; see
    `missing_in_batch`.
    """
    known = _known(_greatest(sampler))
    smallest = min(
        (lookup for lookup in lookups if lookup.name),
        key=lambda lookup: (lookup.num_rows, lookup.name),
        default=None,
    )
    if smallest is None or not known:
        return
    source = max(known, key=lambda name: known[name])
    if known[source] >= smallest.num_rows:
        raise ValueError(
            f"source {source!r} holds tokens up to {known[source]}, but {smallest}; "
            f"make the model with a vocabulary of at least {known[source] + 1}"
        )


def missing_in_batch(
    sampler: Sampler, lookups: Iterable[TokenLookup], step: int
) -> str | None:
    """Describe why batch `step` gives NaN; None if every token has a row."""
    smallest = min(lookups, key=lambda lookup: lookup.num_rows, default=None)
    if smallest is None:
        return None
    of_sources = _greatest(sampler)
    known = _known(of_sources)
    if known == of_sources and max(known.values()) < smallest.num_rows:
        return None
    batch = sampler.batch(step)
    tokens = cast("Any", batch["tokens"] if isinstance(batch, dict) else batch)
    largest = int(tokens.max())
    if largest < smallest.num_rows:
        return None
    source = max(known, key=lambda name: known[name], default=None)
    corpus = ""
    if source is not None:
        corpus = f", and source {source!r} holds tokens up to {known[source]}"
    return (
        f"the batch holds token {largest}, but {smallest}{corpus}; make the model "
        f"with a vocabulary of at least {max([largest, *known.values()]) + 1}"
    )


def _greatest(sampler: Sampler) -> dict[str, int | None]:
    """Return the greatest token of each source with a weight; None if unknown."""
    read = {name for phase in sampler.phases for name, w in phase.weights.items() if w}
    return {
        name: None if seen is None else seen[1]
        for name, seen in sampler.token_ranges.items()
        if name in read
    }


def _known(greatest: Mapping[str, int | None]) -> dict[str, int]:
    return {name: token for name, token in greatest.items() if token is not None}


def _walk(
    jaxpr: Any, labels: Sequence[str | None], found: set[TokenLookup]
) -> list[str | None]:
    """Add the lookups of a program to `found`; return the labels of its results."""
    known: dict[Any, str | None] = dict(zip(jaxpr.invars, labels, strict=True))

    def label_of(variable: Any) -> str | None:
        return None if isinstance(variable, Literal) else known.get(variable)

    for equation in jaxpr.eqns:
        operands = [label_of(variable) for variable in equation.invars]
        if equation.primitive.name == "gather" and operands[1] == _TOKENS:
            found.update(_lookup(equation, operands[0]))
        elif any(operands):
            results = _results(equation, operands, found)
            known.update(zip(equation.outvars, results, strict=False))
    return [label_of(variable) for variable in jaxpr.outvars]


def _lookup(equation: Any, label: str | None) -> Iterator[TokenLookup]:
    """Yield the array that a `gather` indexes by tokens along one axis."""
    axes = equation.params["dimension_numbers"].start_index_map
    if len(axes) == 1:
        is_parameter = label not in {None, _TOKENS, _NEGATIVE}
        num_rows = equation.invars[0].aval.shape[axes[0]]
        yield TokenLookup(label if label and is_parameter else "", num_rows)


def _results(
    equation: Any, operands: list[str | None], found: set[TokenLookup]
) -> Sequence[str | None]:
    """Return the labels of the results of one equation; empty if unknown."""
    primitive = equation.primitive.name
    if primitive == "concatenate":
        return [_TOKENS] if _TOKENS in operands else []
    if primitive in PASS_ON:
        return operands[:1] if _keeps_tokens(equation.outvars[0].aval.dtype) else []
    if primitive == "lt":
        is_sign = operands[0] == _TOKENS and _is_zero(equation.invars[1])
        return [_NEGATIVE] if is_sign else []
    if primitive == "select_n":
        # This `select_n` wraps negative indices; valid tokens select the first case.
        return operands[1:2] if operands[0] == _NEGATIVE else []
    inner = inner_program(equation)
    if inner is None or len(inner.invars) != len(operands):
        return []
    return _walk(inner, operands, found)


def inner_program(equation: Any) -> Any:
    """Return the program that `jit`, `scan`, `checkpoint` and the like run, or None."""
    for value in equation.params.values():
        program = getattr(value, "jaxpr", value)
        if hasattr(program, "eqns"):
            return program
    return None


def _is_zero(operand: Any) -> bool:
    return isinstance(operand, Literal) and bool(np.all(np.asarray(operand.val) == 0))


def _keeps_tokens(dtype: Any) -> bool:
    return not np.issubdtype(dtype, np.integer) or np.dtype(dtype).itemsize >= 4
