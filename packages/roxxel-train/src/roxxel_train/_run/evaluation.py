"""Evaluations between updates: the user's function, and the loss on held-out data."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from statistics import fmean
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from flax import nnx
from roxxel_ckpt.activity import doing
from roxxel_format import ChecksumError
from roxxel_loader import device_stream

from roxxel_train._run.held_out import EVAL_LOSS
from roxxel_train._step.compiled import CompiledAhead, check_weight
from roxxel_train._step.loss import LOSS_WEIGHT, perplexity, unpack_loss
from roxxel_train._step.placement import batch_shapes
from roxxel_train._step.step import ModelState, of_objects, show_average

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from pathlib import Path

    from roxxel_curriculum import Sampler

    from roxxel_train._run.state import RunState
    from roxxel_train._step.loss import Scalars
    from roxxel_train._step.placement import BatchPlacement
    from roxxel_train._step.step import LossFunction, Tree
    from roxxel_train.config import TrainConfig

_FIXED_FIELDS = ("kind", "step", "time")
_LOSS, _EXP = EVAL_LOSS, "perplexity"
_UNREAD_BATCHES = 2


class Evaluator:
    """Evaluates a run; keeps the last `result` of `eval_fn`, and last `eval_loss`."""

    def __init__(
        self,
        config: TrainConfig,
        placement: BatchPlacement,
        graphdef: Any,
        state: RunState,
    ) -> None:
        self._eval_fn = config.eval_fn
        self.held_out: HeldOut | None = None
        if state.held_out.samplers:
            self.held_out = HeldOut(
                state.held_out.samplers,
                config.mean_sets,
                placement,
                config.loss_fn,
                graphdef,
                state.arrays,
                state.path,
            )
        self._unseen_metric: str | None = None
        self.result: Any = None
        self.eval_loss: float | None = None

    def __bool__(self) -> bool:
        """Return whether the run has an `eval_fn` or held-out data."""
        return self._eval_fn is not None or self.held_out is not None

    def check_best_metric(
        self, name: str | None, of_training: set[str] | None, *, is_recorded: bool
    ) -> None:
        """Check that a run measures the metric that ranks its checkpoints.

        An unknown metric passes if there is an `eval_fn`, which may return the metric,
        or if checkpoints of the run recorded the metric (`is_recorded`). Later
        `metric_warning` warns if the run does not measure the metric. Nothing is
        checked while some names are unknown (None).
        """
        of_held_out = set[str]() if self.held_out is None else self.held_out.names
        if of_training is None or of_held_out is None:
            return
        known = {*of_training, *of_held_out, "loss_since_save"}
        if name is None or name in known:
            return
        if self._eval_fn is None and not is_recorded:
            raise ValueError(
                f"best_metric={name!r} is not measured by this run; "
                f"name one of {', '.join(sorted(known))}"
            )
        self._unseen_metric = name

    def metric_warning(self, measured: Collection[str] | None = None) -> str | None:
        """Return a warning if no new checkpoint can become the best; else None.

        The method returns the warning only once. `measured` has the names of the
        metrics after an evaluation, and is None at the start of a run.
        """
        name = self._unseen_metric
        if name is None or (measured is None and self._eval_fn is not None):
            return None
        self._unseen_metric = None
        if measured is not None and name in measured:
            return None
        return (
            f"this run ranks its checkpoints by {name!r} and measures no such number, "
            "so no new checkpoint can become the best; return the number from eval_fn, "
            "or give best_metric= to rank by another one"
        )

    def __call__(
        self, state: RunState, is_stopping: Callable[[], bool]
    ) -> dict[str, Any] | None:
        """Evaluate the newest state; return values by name, or None after a stop."""
        values: dict[str, Any] = {}
        if self.held_out is not None:
            means = self.held_out.evaluate(state.arrays, is_stopping)
            if means is None:
                return None
            self.eval_loss = means.get(_LOSS)
            values |= means
        if self._eval_fn is not None:
            state.show()
            step = nnx.Variable(jnp.asarray(state.step))
            with doing("eval_fn"):
                self.result = self._eval_fn(
                    ModelState(state.model, state.optimizer, step)
                )
            values |= _values(self.result, {*_FIXED_FIELDS, *values})
        return values


class HeldOut:
    """The loss over every batch of each held-out set.

    `samplers` has the sampler of each set by name, and `in_mean` the names of the sets
    whose mean is `eval_loss`. The only set of a run may have the empty name; otherwise
    each value is named after its set, as in `eval_loss/web`.

    The compiled program evaluates a copy of the model in evaluation mode. The trained
    model stays in training mode. If the optimizer averages the weights, the copy has
    the averaged weights. Changes that the loss function makes to the copy, such as
    advancing random streams, are discarded.
    """

    def __init__(
        self,
        samplers: Mapping[str, Sampler],
        in_mean: Collection[str],
        placement: BatchPlacement,
        loss_fn: LossFunction | None,
        graphdef: Any,
        state: Tree,
        run_folder: Path | None = None,
    ) -> None:
        if loss_fn is None:
            raise ValueError("eval_curriculum needs loss_fn; give loss_fn too")

        def evaluate(state: Tree, batch: Any) -> tuple[jax.Array, Scalars]:
            model, optimizer = nnx.merge(graphdef, of_objects(state))
            show_average(model, optimizer)
            model.eval()
            loss, aux, _ = unpack_loss(loss_fn(model, batch))
            num_tokens = jax.tree.leaves(batch)[0].size
            return jnp.asarray(num_tokens, jnp.float32), {"loss": loss, **aux}

        self.samplers = samplers
        self._in_mean = in_mean
        self._placement = placement
        self._shapes = {
            name: batch_shapes(sampler, placement) for name, sampler in samplers.items()
        }
        self.shapes = [shape for shapes in self._shapes.values() for shape in shapes]
        self.programs = CompiledAhead(
            jax.jit(evaluate),
            state,
            self.shapes,
            placement.sharding.mesh,
            run_folder,
        )
        if any(sampler.total_steps > 1 for sampler in samplers.values()):
            check_weight(self.programs, "eval_curriculum averages batches")

    @property
    def names(self) -> set[str] | None:
        """Names of the values that an evaluation returns; None if not known yet."""
        names = self.programs.names
        if names is None:
            return None
        mean = {_LOSS} if self._in_mean else set[str]()
        return mean | {
            _name(value, of_set)
            for of_set in self.samplers
            for value in names - {LOSS_WEIGHT}
        }

    def evaluate(
        self, state: Tree, is_stopping: Callable[[], bool]
    ) -> dict[str, float] | None:
        """Return the means of each set, their perplexity, and `eval_loss`.

        With named sets, `eval_loss` is the mean of the losses in the mean. `state` is
        not donated. The result is None once `is_stopping()` returns True.
        """
        values: dict[str, float] = {}
        losses: list[float] = []
        for name in self.samplers:
            with doing(f"evaluate {_argument(name)}"):
                means = self._means(name, state, is_stopping)
            if means is None:
                return None
            loss = means["loss"]
            if name in self._in_mean:
                losses.append(loss)
            for value, mean in {**means, **perplexity(_EXP, loss, means)}.items():
                values[_name(value, name)] = mean
        return values if not losses else {_LOSS: fmean(losses), **values}

    def _means(
        self, name: str, state: Tree, is_stopping: Callable[[], bool]
    ) -> dict[str, float] | None:
        """Return the means over all tokens of a set.

        The weight of a batch is its `"loss_weight"`, or without this scalar its number
        of tokens.
        """
        sums: dict[str, float] = {}
        total = 0.0
        try:
            for weight, means in self._results(name, state, is_stopping):
                if weight > 0:
                    total += weight
                    for value, mean in means.items():
                        sums[value] = sums.get(value, 0.0) + weight * mean
        except ChecksumError as error:
            # Its remedy must not be taken for one of the training data.
            reason = f"{_argument(name)}: {error.reason}"
            raise error.reworded(reason, error.remedy) from error
        if is_stopping():
            return None
        if not total:
            raise ValueError(
                f"{LOSS_WEIGHT!r} is 0 in every batch of {_argument(name)}, so the "
                "mean loss is undefined; check the mask in loss_fn and the held-out "
                "data"
            )
        return {value: total_of / total for value, total_of in sums.items()}

    def _results(
        self, name: str, state: Tree, is_stopping: Callable[[], bool]
    ) -> Iterator[tuple[float, dict[str, float]]]:
        """Yield the weight and the means of each batch, two batches later."""
        unread: deque[tuple[jax.Array, Scalars]] = deque()
        sampler, number = self.samplers[name], 0
        stream = device_stream(sampler, 0, sampler.total_steps, self._placement)
        with stream as batches:
            for phase, form in zip(sampler.phases, self._shapes[name], strict=True):
                program = self.programs.program(form, is_stopping)
                if program is None:
                    return
                for _ in range(phase.start, phase.stop):
                    if is_stopping():
                        return
                    batch = next(batches)
                    number += 1
                    read = None
                    with doing(f"{_argument(name)}, batch {number}", waits=True):
                        unread.append(program(state, batch))
                        if len(unread) > _UNREAD_BATCHES:
                            read = _read(unread.popleft())
                    if read is not None:
                        yield read
        yield from map(_read, unread)


def _argument(of_set: str) -> str:
    """Return the argument of the trainer that gives a held-out set."""
    return f"eval_curriculum[{of_set!r}]" if of_set else "eval_curriculum"


def _name(value: str, of_set: str) -> str:
    """Return the name under which a value of a held-out set is logged."""
    return f"eval_{value}/{of_set}" if of_set else f"eval_{value}"


def _read(result: tuple[jax.Array, Scalars]) -> tuple[float, dict[str, float]]:
    num_tokens, means = jax.device_get(result)
    weight = float(means.pop(LOSS_WEIGHT, num_tokens))
    return weight, {name: float(mean) for name, mean in means.items()}


def _values(result: Any, taken: Collection[str]) -> dict[str, Any]:
    """Return the result of `eval_fn` as fields of a row; refuse names in `taken`."""
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
            "eval_fn must return text, a number, a dict of both, or None"
        ) from error
