"""Evaluations between updates: the user's function, and the loss on held-out data."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from flax import nnx
from roxxel_loader import device_stream

from roxxel_train._compiled import CompiledAhead
from roxxel_train._loss import LOSS_WEIGHT, unpack_loss
from roxxel_train._model_state import ModelState
from roxxel_train._placement import batch_shapes

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from concurrent.futures import Executor
    from pathlib import Path

    from roxxel_curriculum import Sampler

    from roxxel_train._loss import Scalars
    from roxxel_train._model_state import Tree
    from roxxel_train._placement import BatchPlacement
    from roxxel_train._run_state import RunState
    from roxxel_train._step import LossFunction

_FIXED_FIELDS = ("kind", "step", "time")
_PREFIX = "eval_"
_UNREAD_BATCHES = 2


class Evaluator:
    """Makes the evaluations of a run, and keeps the last results.

    Args:
        eval_fn: The user's function of a `ModelState`, or None.
        held_out: The held-out data, or None.

    Attributes:
        result: The last result of `eval_fn`.
        eval_loss: The last mean loss on the held-out data.
    """

    def __init__(
        self, eval_fn: Callable[[ModelState], Any] | None, held_out: HeldOut | None
    ) -> None:
        self._eval_fn = eval_fn
        self._held_out = held_out
        self.result: Any = None
        self.eval_loss: float | None = None

    def __bool__(self) -> bool:
        """Return whether there is anything to evaluate."""
        return self._eval_fn is not None or self._held_out is not None

    @property
    def names(self) -> set[str]:
        """Names of the values on held-out data; `eval_fn` may return further ones."""
        return set() if self._held_out is None else self._held_out.names

    def compile_ahead(self, compiler: Executor) -> None:
        """Start to compile in the background."""
        if self._held_out is not None:
            self._held_out.compile_ahead(compiler)

    def close(self) -> None:
        """Cancel the compilations that have not started."""
        if self._held_out is not None:
            self._held_out.close()

    def __call__(
        self, state: RunState, is_stopping: Callable[[], bool]
    ) -> dict[str, Any] | None:
        """Return all values of an evaluation of the newest state, by name.

        Args:
            state: The state of the run.
            is_stopping: Called between batches; once it returns True, the evaluation is
                given up and returns None.

        Raises:
            TypeError: `eval_fn` returns something that cannot be logged.
        """
        values: dict[str, Any] = {}
        if self._held_out is not None:
            means = self._held_out.evaluate(state.arrays, is_stopping)
            if means is None:
                return None
            self.eval_loss = means[_PREFIX + "loss"]
            values |= means
        if self._eval_fn is not None:
            state.show()
            step = nnx.Variable(jnp.asarray(state.step))
            self.result = self._eval_fn(ModelState(state.model, state.optimizer, step))
            values |= _values(self.result, {*_FIXED_FIELDS, *values})
        return values


class HeldOut:
    """The loss over every batch of a held-out curriculum.

    The compiled program evaluates a copy of the model that is in evaluation mode. The
    live model stays in training mode, and changes that the loss function makes to the
    copy, such as drawing random numbers, are discarded.

    Args:
        sampler: The held-out batches.
        placement: Their sharding.
        loss_fn: The same function as for training.
        graphdef: Structure of `(model, optimizer)`.
        state: The live arrays; their shardings are kept.
        run_folder: Folder that keeps the choice of GPU kernels.

    Raises:
        ValueError: There is no `loss_fn`.
        TypeError: `loss_fn` does not return a loss.
    """

    def __init__(
        self,
        sampler: Sampler,
        placement: BatchPlacement,
        loss_fn: LossFunction | None,
        graphdef: Any,
        state: Tree,
        run_folder: Path | None = None,
    ) -> None:
        if loss_fn is None:
            raise ValueError("eval_curriculum needs loss_fn; give loss_fn too")

        def evaluate(state: Tree, batch: Any) -> tuple[jax.Array, Scalars]:
            model, _ = nnx.merge(graphdef, state)
            model.eval()
            loss, aux = unpack_loss(loss_fn(model, batch))
            num_tokens = jax.tree.leaves(batch)[0].size
            weight = aux.pop(LOSS_WEIGHT, jnp.asarray(num_tokens, jnp.float32))
            return weight, {"loss": loss, **aux}

        self._sampler = sampler
        self._placement = placement
        self._batches = batch_shapes(sampler, placement)
        self._programs = CompiledAhead(
            jax.jit(evaluate),
            state,
            self._batches,
            placement.sharding.mesh,
            run_folder,
        )

    @property
    def names(self) -> set[str]:
        """Names of the means that `evaluate` returns."""
        return {_PREFIX + name for name in self._programs.names}

    def compile_ahead(self, compiler: Executor) -> None:
        """Start to compile in the background."""
        self._programs.begin(compiler, self._batches)

    def close(self) -> None:
        """Cancel the compilations that have not started."""
        self._programs.close()

    def evaluate(
        self, state: Tree, is_stopping: Callable[[], bool]
    ) -> dict[str, float] | None:
        """Return the means over all tokens, named with the prefix `eval_`.

        A batch has the weight of its tokens, or its `"loss_weight"`.

        Args:
            state: The live arrays; they are not donated.
            is_stopping: Called at every batch; once it returns True, the evaluation is
                given up and returns None.

        Raises:
            ValueError: All weights are 0.
        """
        sums: dict[str, float] = {}
        total = 0.0
        for weight, means in self._results(state, is_stopping):
            if weight > 0:
                total += weight
                for name, mean in means.items():
                    sums[name] = sums.get(name, 0.0) + weight * mean
        if is_stopping():
            return None
        if not total:
            raise ValueError(
                f"{LOSS_WEIGHT!r} is 0 in every batch of eval_curriculum, so there is "
                "no mean; check the mask in loss_fn and the held-out data"
            )
        return {_PREFIX + name: value / total for name, value in sums.items()}

    def _results(
        self, state: Tree, is_stopping: Callable[[], bool]
    ) -> Iterator[tuple[float, dict[str, float]]]:
        """Yield weight and means of each batch, two batches late."""
        unread: deque[tuple[jax.Array, Scalars]] = deque()
        stream = device_stream(
            self._sampler, 0, self._sampler.total_steps, self._placement
        )
        with stream as batches:
            for phase, form in zip(self._sampler.phases, self._batches, strict=True):
                program = self._programs.program(form, is_stopping)
                if program is None:
                    return
                for _ in range(phase.start, phase.stop):
                    if is_stopping():
                        return
                    unread.append(program(state, next(batches)))
                    if len(unread) > _UNREAD_BATCHES:
                        yield _read(unread.popleft())
        yield from map(_read, unread)


def _read(result: tuple[jax.Array, Scalars]) -> tuple[float, dict[str, float]]:
    weight, means = jax.device_get(result)
    return float(weight), {name: float(mean) for name, mean in means.items()}


def _values(result: Any, taken: Collection[str]) -> dict[str, Any]:
    """Return the result of `eval_fn` as fields of a row that has the fields `taken`.

    Raises:
        TypeError: The result is neither text, a number, a dict of these, nor None.
    """
    if result is None:
        return {}
    if isinstance(result, str):
        return {"text": result}
    if not isinstance(result, Mapping):
        return {"value": _number("its result", result)}
    values: dict[str, Any] = {}
    for name, value in result.items():
        if name in taken:
            raise TypeError(
                f"eval_fn returned a value named {name!r}, which every row already "
                "has; rename the value"
            )
        is_text = isinstance(value, str)
        values[str(name)] = value if is_text else _number(repr(name), value)
    return values


def _number(what: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"eval_fn: {what} is a {type(value).__name__}; "
            "eval_fn must return text, a number, a dict of these, or None"
        ) from error
