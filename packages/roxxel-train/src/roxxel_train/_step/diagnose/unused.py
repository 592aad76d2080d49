"""Finds the fields of a batch that a step does not use, from its traced program."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
from jax.extend.core import Literal

from roxxel_train._step.diagnose.vocabulary import PASS_ON, inner_program

if TYPE_CHECKING:
    from collections.abc import Sequence


def unused_fields(jaxpr: Any, state: Any, batch: Any) -> set[str]:
    """Return the fields that a step traced from `(state, batch)` does not use.

    A field that is only reshaped, sliced or converted is not used. A field counts as
    used if its values enter any computation, even one whose result is dropped.
    """
    num_others = len(jax.tree.leaves(state))
    found: set[str] = set()
    for index, (keys, _) in enumerate(jax.tree_util.tree_flatten_with_path(batch)[0]):
        name = getattr(keys[-1], "key", None) if keys else None
        marks = [at == num_others + index for at in range(len(jaxpr.invars))]
        if isinstance(name, str) and not _walk(jaxpr, marks)[0]:
            found.add(name)
    return found


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
