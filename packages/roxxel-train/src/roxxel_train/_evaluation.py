"""What is found out between updates: by the user's function, and on held-out data."""

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
    from collections.abc import Callable, Collection, Iterable, Iterator
    from concurrent.futures import Executor
    from pathlib import Path

    from roxxel_curriculum import Sampler

    from roxxel_train._keeper import Keeper
    from roxxel_train._loss import Scalars
    from roxxel_train._model_state import Tree
    from roxxel_train._placement import BatchPlacement
    from roxxel_train._step import LossFunction

FIXED_FIELDS = ("kind", "step", "time")
PREFIX = "eval_"
_IN_FLIGHT = 2


class Evaluator:
    """Evaluates in the ways that were asked for, and remembers what came out last.

    Args:
        eval_fn: The user's function of a `ModelState`, or None.
        held_out: Held-out data, or None.

    Attributes:
        result: What `eval_fn` returned last.
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
        """Names of what is known to come out; the user's function may add others."""
        return set() if self._held_out is None else self._held_out.names

    def compile_ahead(self, compiler: Executor) -> None:
        """Begin to compile in the background."""
        if self._held_out is not None:
            self._held_out.compile_ahead(compiler)

    def close(self) -> None:
        """Give up what has not begun to compile."""
        if self._held_out is not None:
            self._held_out.close()

    def __call__(
        self, kept: Keeper, give_up: Callable[[], bool]
    ) -> dict[str, Any] | None:
        """Return all that is found out about the newest state, by name.

        Args:
            kept: The state.
            give_up: Asked between batches; once it is true the answer is None.

        Raises:
            TypeError: `eval_fn` returns something that cannot be logged.
        """
        values: dict[str, Any] = {}
        if self._held_out is not None:
            means = self._held_out.evaluate(kept.tree, give_up)
            if means is None:
                return None
            self.eval_loss = means[PREFIX + "loss"]
            values |= means
        if self._eval_fn is not None:
            kept.show()
            step = nnx.Variable(jnp.asarray(kept.step))
            self.result = self._eval_fn(ModelState(kept.model, kept.optimizer, step))
            values |= evaluation_values(self.result, taken=values)
        return values


class HeldOut:
    """The loss over every batch of a held-out curriculum.

    The model is put into its mode for evaluation inside the compiled program, so the
    live one never leaves that for training; what the loss function does to it, drawing
    random numbers say, is forgotten.

    Args:
        sampler: The held-out batches.
        placement: Where they go.
        loss_fn: As for training.
        graphdef: Structure of `(model, optimizer)`.
        state: The live state; its shardings are kept.
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
            raise ValueError("eval_curriculum needs loss_fn; give it too")

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
        return {PREFIX + name for name in self._programs.names}

    def compile_ahead(self, compiler: Executor) -> None:
        """Begin to compile in the background."""
        self._programs.begin(compiler, self._batches)

    def close(self) -> None:
        """Give up what has not begun to compile."""
        self._programs.close()

    def evaluate(
        self, state: Tree, give_up: Callable[[], bool]
    ) -> dict[str, float] | None:
        """Return the means over all tokens by name, each with `eval_` before it.

        A batch counts as many tokens as it has, or as its `"loss_weight"` says.

        Args:
            state: The live state; it stays as it is.
            give_up: Asked at every batch; once it is true the answer is None.

        Raises:
            ValueError: No batch has a token that counts.
        """
        sums: dict[str, float] = {}
        total = 0.0
        with device_stream(
            self._sampler, 0, self._sampler.total_steps, self._placement
        ) as batches:
            for weight, means in self._results(state, batches, give_up):
                if weight > 0:
                    total += weight
                    for name, mean in means.items():
                        sums[name] = sums.get(name, 0.0) + weight * mean
        if give_up():
            return None
        if not total:
            raise ValueError(
                f"{LOSS_WEIGHT!r} is 0 in every batch of eval_curriculum, so there is "
                "no mean; look at the mask in loss_fn, or at that data"
            )
        return {PREFIX + name: value / total for name, value in sums.items()}

    def _results(
        self, state: Tree, batches: Iterator[Any], give_up: Callable[[], bool]
    ) -> Iterator[tuple[float, dict[str, float]]]:
        """Yield weight and means of each batch, a few batches late."""
        waiting: deque[tuple[jax.Array, Scalars]] = deque()
        for batch in batches:
            program = self._programs.program(batch, give_up)
            if program is None or give_up():
                return
            waiting.append(program(state, batch))
            if len(waiting) > _IN_FLIGHT:
                yield _fetched(waiting.popleft())
        yield from map(_fetched, waiting)


def _fetched(result: tuple[jax.Array, Scalars]) -> tuple[float, dict[str, float]]:
    weight, means = jax.device_get(result)
    return float(weight), {name: float(mean) for name, mean in means.items()}


def evaluation_values(result: Any, taken: Iterable[str] = ()) -> dict[str, Any]:
    """Return what `eval_fn` returned as the fields of a row.

    Args:
        result: What it returned.
        taken: Names that the row has already.

    Raises:
        TypeError: It is neither text, a number, a dict of these, nor None.
    """
    if result is None:
        return {}
    if isinstance(result, str):
        return {"text": result}
    if isinstance(result, Mapping):
        return dict(_items(result, {*FIXED_FIELDS, *taken}))
    return {"value": _number("what eval_fn returned", result)}


def _items(
    result: Mapping[Any, Any], taken: Collection[str]
) -> Iterator[tuple[str, Any]]:
    for name, value in result.items():
        if name in taken:
            raise TypeError(
                f"eval_fn returned a value named {name!r}, which every row has "
                "already; give it another name"
            )
        text = isinstance(value, str)
        yield str(name), value if text else _number(f"{name!r} of eval_fn", value)


def _number(what: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"{what} is a {type(value).__name__}; "
            "eval_fn must return text, a number, a dict of these, or None"
        ) from error
