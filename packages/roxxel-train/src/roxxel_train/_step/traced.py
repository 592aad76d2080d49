"""What the traced program of a step tells about the user's function and the model.

A program shows which fields of a batch the function uses, which parameters get a
gradient, and which arrays are indexed by tokens, however the function is written.

A token without a row in an embedding table is an index out of bounds: `nnx.Embed`
returns NaN for this token, and `table[tokens]` reads another row. Lookups by position,
or by numbers that are computed from tokens, such as hashes, are not found.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import jax
import numpy as np
from jax.ad_checkpoint import checkpoint_name
from jax.extend.core import Literal
from roxxel_loader.sharding.presets import CONTEXT_AXIS

from roxxel_train._step.given import array_path, first_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from roxxel_curriculum import Sampler

_GRADIENT = "gradient of "
"""Prefix of a gradient's name in the traced program of a step."""

_PASS_ON = {
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


@dataclass
class Findings:
    """What the traced programs of all batch shapes tell.

    Attributes:
        lookups: The arrays that a program indexes by tokens.
        used: The fields of a batch that at least one program uses.
        unused: Those that at least one program does not use.
        gradients: For each parameter, whether at least one program gives it a gradient.
        whole: The batch shapes whose programs split no array over the axis `context`.
    """

    lookups: set[TokenLookup] = field(default_factory=set[TokenLookup])
    used: set[str] = field(default_factory=set[str])
    unused: set[str] = field(default_factory=set[str])
    gradients: dict[str, bool] = field(default_factory=dict[str, bool])
    whole: set[tuple[int, ...]] = field(default_factory=set[tuple[int, ...]])

    def add(self, jaxpr: Any, state: Any, batch: Any) -> None:
        """Add what a program tells that was traced from `(state, batch)`."""
        self.lookups |= _token_lookups(jaxpr, state, batch)
        for name, is_used in _used_fields(jaxpr, state, batch).items():
            (self.used if is_used else self.unused).add(name)
        for name, has_gradient in _found_gradients(jaxpr).items():
            self.gradients[name] = has_gradient or self.gradients.get(name, False)
        if not _splits_over(jaxpr, CONTEXT_AXIS):
            self.whole.add(jax.tree.leaves(batch)[0].shape)

    def check(self, sampler: Sampler) -> Iterator[str]:
        """Yield warnings about the training on the batches of a sampler.

        Raises:
            ValueError: A parameter has no row for some token of the data, the loss
                gives no parameter a gradient, or something is withdrawn and the loss
                ignores the mask.
        """
        _check_rows(sampler, self.lookups)
        yield from _without_gradient(self.gradients)
        _check_mask(sampler, self.unused)


def mark_gradients(grads: Any) -> Any:
    """Name each gradient in the traced program, for `Findings`."""

    def mark(path: Any, gradient: jax.Array) -> jax.Array:
        keys = [key.key for key in path if hasattr(key, "key")]
        return checkpoint_name(gradient, _GRADIENT + array_path((0, *keys)))

    return jax.tree_util.tree_map_with_path(mark, grads)


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


def _check_rows(sampler: Sampler, lookups: Iterable[TokenLookup]) -> None:
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


def _without_gradient(gradients: Mapping[str, bool]) -> Iterator[str]:
    """Yield a warning if a loss gives some parameters no gradient.

    Raises:
        ValueError: The loss gives no parameter a gradient.
    """
    without = [name for name, has_gradient in gradients.items() if not has_gradient]
    if not without:
        return
    if len(without) == len(gradients):
        raise ValueError(
            "loss_fn returns a loss without a gradient, as of another model or behind "
            "jax.lax.stop_gradient or jnp.argmax, so nothing would be learned; compute "
            "the loss from the argument `model` by differentiable operations"
        )
    yield (
        f"loss_fn gives {first_of(without)} no gradient (unused, or behind "
        "jax.lax.stop_gradient), so only weight decay changes it; if it is frozen on "
        "purpose, leave it out of the optimizer's wrt"
    )


def _check_mask(sampler: Sampler, unused: Collection[str]) -> None:
    """Raise ValueError if something is withdrawn and the loss ignores the mask."""
    last = {each.source: each for each in sampler.withdrawals}
    withdrawn = [each for each in last.values() if not each.is_empty]
    if withdrawn and "loss_mask" in unused:
        raise ValueError(
            f"{withdrawn[0].amount} of source {withdrawn[0].source!r} must not be "
            "learned, but the loss does not use the field 'loss_mask', so the run "
            "would learn them; weight the loss of token j of a row by "
            "loss_mask[:, j]"
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


def _used_fields(jaxpr: Any, state: Any, batch: Any) -> dict[str, bool]:
    """Return whether a step traced from `(state, batch)` uses each field of the batch.

    A field that is only reshaped, sliced or converted is not used. A field counts as
    used if its values enter any computation, even one whose result is dropped.
    """
    num_others = len(jax.tree.leaves(state))
    found: dict[str, bool] = {}
    for index, (keys, _) in enumerate(jax.tree_util.tree_flatten_with_path(batch)[0]):
        name = getattr(keys[-1], "key", None) if keys else None
        marks = [at == num_others + index for at in range(len(jaxpr.invars))]
        if isinstance(name, str):
            found[name] = _uses(jaxpr, marks)[0]
    return found


def _uses(jaxpr: Any, marks: Sequence[bool]) -> tuple[bool, list[bool]]:
    """Return whether a program uses its marked inputs, and which results are marked.

    A marked value is a field of the batch that was at most reshaped or converted.
    """
    marked = {v for v, mark in zip(jaxpr.invars, marks, strict=True) if mark}

    def is_marked(variable: Any) -> bool:
        return not isinstance(variable, Literal) and variable in marked

    for equation in jaxpr.eqns:
        operands = [is_marked(variable) for variable in equation.invars]
        if not any(operands):
            continue
        is_passed_on = equation.primitive.name in _PASS_ON and not any(operands[1:])
        results = [is_passed_on] * len(equation.outvars)
        inner = _inner_program(equation)
        if inner is not None and len(inner.invars) == len(operands):
            is_used, results = _uses(inner, operands)
            if is_used:
                return True, []
        elif not any(results):
            return True, []
        marked.update(
            v for v, mark in zip(equation.outvars, results, strict=False) if mark
        )
    return False, [is_marked(variable) for variable in jaxpr.outvars]


def _found_gradients(jaxpr: Any) -> dict[str, bool]:
    """Return whether a step computes the marked gradient of each parameter.

    JAX gives zeros to a parameter that the loss does not use, or uses only behind
    `jax.lax.stop_gradient`. Such zeros are not found behind a scan. The result is empty
    if no gradient is marked, as in a step of the user.
    """
    found: dict[str, bool] = {}
    zeros: set[Any] = set()

    def is_zero(operand: Any) -> bool:
        if isinstance(operand, Literal):
            return np.ndim(operand.val) == 0 and not operand.val
        return operand in zeros

    for equation in jaxpr.eqns:
        primitive, name = equation.primitive.name, equation.params.get("name")
        if primitive == "name" and name.startswith(_GRADIENT):
            path = name.removeprefix(_GRADIENT)
            found[path] = not is_zero(equation.invars[0])
        elif primitive in _PASS_ON and is_zero(equation.invars[0]):
            zeros.update(equation.outvars)
    return found


def _splits_over(jaxpr: Any, axis: str) -> bool:
    """Return whether a program asks for an array to be split over an axis of a mesh."""
    for equation in jaxpr.eqns:
        given = equation.params
        if equation.primitive.name == "sharding_constraint":
            asked = str(getattr(given["sharding"], "spec", ""))
        else:
            asked = str(given.get("in_specs", ""))  # of a shard_map
        if f"'{axis}'" in asked:
            return True
        inner = _inner_program(equation)
        if inner is not None and _splits_over(inner, axis):
            return True
    return False


def _token_lookups(jaxpr: Any, state: Any, batch: Any) -> set[TokenLookup]:
    """Return the arrays that a step traced from `(state, batch)` indexes by tokens."""
    paths = jax.tree_util.tree_flatten_with_path(state)[0]
    labels: list[str | None] = [array_path(keys) for keys, _ in paths]
    of_batch = jax.tree_util.tree_flatten_with_path(batch)[0]
    labels += [_TOKENS if _is_tokens(keys) else None for keys, _ in of_batch]
    found: set[TokenLookup] = set()
    _labels(jaxpr, labels, found)
    return found


def _is_tokens(keys: Sequence[Any]) -> bool:
    """Return whether a leaf of a batch, or of a `Fed`, holds the tokens."""
    if not keys:
        return True
    return getattr(keys[-1], "key", getattr(keys[-1], "name", "")) in (
        "tokens",
        "batch",
    )


def _labels(
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
    if primitive in _PASS_ON:
        return operands[:1] if _keeps_tokens(equation.outvars[0].aval.dtype) else []
    if primitive == "lt":
        is_sign = operands[0] == _TOKENS and _is_zero(equation.invars[1])
        return [_NEGATIVE] if is_sign else []
    if primitive == "select_n":
        # This `select_n` wraps negative indices; valid tokens select the first case.
        return operands[1:2] if operands[0] == _NEGATIVE else []
    inner = _inner_program(equation)
    if inner is None or len(inner.invars) != len(operands):
        return []
    return _labels(inner, operands, found)


def _inner_program(equation: Any) -> Any:
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
