"""The evaluations of a run: the loss on its held-out sets, and the user's function.

Held-out losses of all starts of a run choose the best checkpoint, and form one curve of
`eval_loss`. So a set is pinned under its name, like the sources of a run: a corpus that
has grown is read at its first version, and other data is an error.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from flax import nnx
from roxxel_ckpt.activity import doing
from roxxel_curriculum import StateMismatch
from roxxel_curriculum.run_log import EVAL_LOSS
from roxxel_curriculum.state import recorded_masks
from roxxel_format import ChecksumError
from roxxel_loader import device_stream

from roxxel_train._step.compiled import CompiledAhead, check_weight
from roxxel_train._step.loss import (
    LOSS_WEIGHT,
    as_number,
    described,
    perplexity,
    unpack_loss,
)
from roxxel_train._step.placement import batch_shapes
from roxxel_train._step.step import of_objects, show_average
from roxxel_train.errors import RunMismatchError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
    from pathlib import Path

    from roxxel_curriculum import Curriculum, Sampler

    from roxxel_train._step.loss import Scalars
    from roxxel_train._step.placement import BatchPlacement
    from roxxel_train._step.step import LossFunction, ModelState, Tree
    from roxxel_train.config import TrainConfig

_FIXED_FIELDS = ("kind", "step", "time")
_UNREAD_BATCHES = 2


@dataclass(frozen=True)
class HeldOutSets:
    """The held-out sets of a run.

    Attributes:
        samplers: The sampler of each set, by name. A run with one set may leave it
            unnamed, and the name is then empty.
        record: The record for a checkpoint and `run.json`: the state of each set that
            the run has ever had, and the names of the sets of `eval_loss`.
        notes: One sentence for each doubt about a set; see
            `Curriculum.compare_held_out`.
    """

    samplers: Mapping[str, Sampler]
    record: Mapping[str, Any]
    notes: Sequence[str]

    @classmethod
    def of(
        cls,
        config: TrainConfig,
        training: Curriculum,
        past: Mapping[str, Any] | None,
        metric: str | None,
        where: str,
    ) -> HeldOutSets:
        """Return the sets of a config, as the run in `where` has recorded them.

        `past` is the `record` of an earlier start; None for a new run. `metric` ranks
        the checkpoints of the run.

        Raises:
            RunMismatchError: A set has other data than in the earlier start, or a mean
                over other sets ranks the checkpoints.
            CurriculumError: A set has another tokenizer than the training data.
        """
        past = past or {}
        states, before = dict(past.get("states", {})), past.get("names", [])
        sets, names = config.held_out, config.mean_sets or before
        samplers: dict[str, Sampler] = {}
        for name, curriculum in sets.items():
            past_state = states.get(name)
            try:
                sampler = _pinned(config, curriculum, past_state)
            except StateMismatch as error:
                # Its cause would be taken for a difference of the training data.
                raise _mismatch(where, name, error.differences) from None
            samplers[name] = sampler
            if past_state is None or not recorded_masks(past_state):
                # Masks are pinned by the first start with the field `loss_mask`.
                states[name] = sampler.state(sampler.total_steps)
        if metric in (None, EVAL_LOSS):
            _check_ranking(before, names, where)
        notes = [
            note
            for name, curriculum in sets.items()
            for note in training.compare_held_out(curriculum, name)
        ]
        return cls(samplers, {"names": names, "states": states}, notes)

    def check(self, record: Mapping[str, Any], where: str) -> None:
        """Raise RunMismatchError if a checkpoint has measured other data.

        `record` is the checkpoint's record, which another program may have written.
        """
        for name, state in record.get("states", {}).items():
            if name in self.samplers and self.record["states"][name] != state:
                raise _mismatch(where, name, ["another program has changed it"])

    def problems(self) -> Iterator[str]:
        """Read the first and the last batch of each set; yield why this fails."""
        for name, sampler in self.samplers.items():
            try:
                for step in sorted({0, sampler.total_steps - 1}):
                    sampler.batch(step)
            except (OSError, ValueError) as error:
                what = f"held-out set {name!r}" if name else "held-out set"
                yield f"{what}: {error}"


class Evaluator:
    """Evaluates a run; keeps the last `result` of `eval_fn`, and last `eval_loss`."""

    def __init__(
        self,
        config: TrainConfig,
        sets: HeldOutSets,
        placement: BatchPlacement,
        graphdef: Any,
        state: Tree,
        run_folder: Path | None = None,
    ) -> None:
        self._eval_fn = config.eval_fn
        self.held_out: HeldOutLoss | None = None
        if sets.samplers:
            self.held_out = HeldOutLoss(
                sets.samplers,
                config.mean_sets,
                placement,
                config.loss_fn,
                graphdef,
                state,
                run_folder,
            )
        self._unseen_metric: str | None = None
        self.result: Any = None
        self.eval_loss: float | None = None

    def __bool__(self) -> bool:
        """Return whether the run has an `eval_fn` or held-out data."""
        return self._eval_fn is not None or self.held_out is not None

    def check_best_metric(
        self, name: str | None, of_training: set[str] | None, *, is_recorded: bool
    ) -> list[str]:
        """Check that a run measures the metric that ranks its checkpoints.

        An unknown metric passes if there is an `eval_fn`, which may return the metric,
        or if checkpoints of the run recorded the metric (`is_recorded`). Nothing is
        checked while some names are unknown (None). The result has a warning if no new
        checkpoint can become the best.
        """
        of_held_out = set[str]() if self.held_out is None else self.held_out.names
        if of_training is None or of_held_out is None:
            return []
        known = {*of_training, *of_held_out, "loss_since_save"}
        if name is None or name in known:
            return []
        if self._eval_fn is not None:
            self._unseen_metric = name
            return []
        if is_recorded:
            return [_not_measured(name)]
        raise ValueError(
            f"best_metric={name!r} is not measured by this run; "
            f"name one of {', '.join(sorted(known))}"
        )

    def unmeasured(self, metrics: Collection[str]) -> str | None:
        """Return a warning if the first evaluation lacks the metric; else None.

        `metrics` has the names of the metrics after an evaluation.
        """
        name, self._unseen_metric = self._unseen_metric, None
        return None if name is None or name in metrics else _not_measured(name)

    def __call__(
        self,
        state: Tree,
        shown: Callable[[], ModelState],
        is_stopping: Callable[[], bool],
    ) -> dict[str, Any] | None:
        """Evaluate the newest state; return values by name, or None after a stop.

        `shown` returns the user's objects with this state.
        """
        values: dict[str, Any] = {}
        if self.held_out is not None:
            means = self.held_out.evaluate(state, is_stopping)
            if means is None:
                return None
            self.eval_loss = means.get(EVAL_LOSS)
            values |= means
        if self._eval_fn is not None:
            objects = shown()
            with doing("eval_fn"):
                self.result = self._eval_fn(objects)
            values |= _values(self.result, {*_FIXED_FIELDS, *values})
        return values


class HeldOutLoss:
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
        mean = {EVAL_LOSS} if self._in_mean else set[str]()
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
            means |= perplexity("perplexity", loss, means)
            for value, mean in means.items():
                values[_name(value, name)] = mean
        return values if not losses else {EVAL_LOSS: fmean(losses), **values}

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


def _pinned(
    config: TrainConfig, curriculum: Curriculum, state: Mapping[str, Any] | None
) -> Sampler:
    """Return the sampler of a set; raise StateMismatch if the set has changed."""
    sampler = curriculum.sampler(config.seed, state, config.fields, config.check)
    if state is None:
        return sampler
    if sampler.total_steps != state["step"]:
        raise StateMismatch(
            [f"it had {state['step']} steps and now has {sampler.total_steps}"]
        )
    added = [each for each in sampler.withdrawals if each.step >= state["step"]]
    if added:
        raise StateMismatch([f"other documents of {added[0].source!r} are withdrawn"])
    return sampler


def _mismatch(where: str, name: str, differences: Iterable[str]) -> RunMismatchError:
    what = f"the held-out set {name!r}" if name else "the held-out set"
    return RunMismatchError(
        f"{where}: {what} is not the one that the run has measured so far: "
        f"{'; '.join(differences)}; restore the set, or give the changed set a new "
        'name: eval_curriculum={"NEW": ...}, or [eval.NEW] in a config file'
    )


def _check_ranking(before: list[str], names: list[str], where: str) -> None:
    """Raise RunMismatchError if the mean that ranks checkpoints is over other sets."""
    if not before or not names or before == names:
        return
    named = next(filter(None, names), "NAME")
    raise RunMismatchError(
        f"{where}: ranks its checkpoints by {EVAL_LOSS!r}, the loss over "
        f"{_listed(before)}, and now has {_listed(names)}, so the best checkpoint "
        f"would be chosen across both; give best_metric='{EVAL_LOSS}/{named}' to "
        "rank by one set from now on, or the earlier sets"
    )


def _not_measured(metric: str) -> str:
    return (
        f"this run ranks its checkpoints by {metric!r} and measures no such number, so "
        "no new checkpoint can become the best; return the number from eval_fn, or "
        "give best_metric= to rank by another one"
    )


def _listed(names: list[str]) -> str:
    if names == [""]:
        return "one set without a name"
    return f"the set{'s' if names[1:] else ''} {', '.join(map(repr, names))}"


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
        return as_number(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise TypeError(
            f"eval_fn: {what} is {described(value)}; "
            "eval_fn must return text, a number, a dict of both, or None"
        ) from error
