"""Find what a step uses and which parameters it trains, from its traced program."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax.extend.core import Literal

from roxxel_train._step.diagnose.objects import GRADIENT
from roxxel_train._step.diagnose.vocabulary import PASS_ON, inner_program

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from roxxel_curriculum import Sampler


def used_fields(jaxpr: Any, state: Any, batch: Any) -> dict[str, bool]:
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
            found[name] = _walk(jaxpr, marks)[0]
    return found


def check_mask(sampler: Sampler, unused: Collection[str]) -> None:
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


def found_gradients(jaxpr: Any) -> dict[str, bool]:
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
        if primitive == "name" and name.startswith(GRADIENT):
            path = name.removeprefix(GRADIENT)
            found[path] = not is_zero(equation.invars[0])
        elif primitive in PASS_ON and is_zero(equation.invars[0]):
            zeros.update(equation.outvars)
    return found


def splits_over(jaxpr: Any, axis: str) -> bool:
    """Return whether a program asks for an array to be split over an axis of a mesh."""
    for equation in jaxpr.eqns:
        given = equation.params
        if equation.primitive.name == "sharding_constraint":
            asked = str(getattr(given["sharding"], "spec", ""))
        else:
            asked = str(given.get("in_specs", ""))  # of a shard_map
        if f"'{axis}'" in asked:
            return True
        inner = inner_program(equation)
        if inner is not None and splits_over(inner, axis):
            return True
    return False


def _walk(jaxpr: Any, marks: Sequence[bool]) -> tuple[bool, list[bool]]:
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
        is_passed_on = equation.primitive.name in PASS_ON and not any(operands[1:])
        results = [is_passed_on] * len(equation.outvars)
        inner = inner_program(equation)
        if inner is not None and len(inner.invars) == len(operands):
            is_used, results = _walk(inner, operands)
            if is_used:
                return True, []
        elif not any(results):
            return True, []
        marked.update(
            v for v, mark in zip(equation.outvars, results, strict=False) if mark
        )
    return False, [is_marked(variable) for variable in jaxpr.outvars]
