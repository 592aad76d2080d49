"""JAX's switches for debugging work in a trainer as in a loop written by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import pytest
from flax import nnx
from roxxel_curriculum import Phase

from .helpers import VOCABULARY, adam, loss_fn, rows, trainer

if TYPE_CHECKING:
    from pathlib import Path


def test_a_loss_may_look_at_values_without_jit(tmp_path: Path) -> None:
    seen: list[int] = []

    def looks(model: Any, batch: Any) -> Any:
        seen.append(int(batch[0, 0]))
        return loss_fn(model, batch)

    def small() -> tuple[nnx.Module, nnx.Optimizer[Any]]:
        # Without jit, a dropout takes JAX seconds.
        model = nnx.Embed(VOCABULARY, VOCABULARY, rngs=nnx.Rngs(0))
        return model, nnx.Optimizer(model, adam(1e-2), wrt=nnx.Param)

    phases, pair = [Phase(1, 4, 9)], small()
    with jax.disable_jit():
        one = trainer(
            tmp_path / "a", phases, pair=pair, loss_fn=looks, best_metric="loss"
        )
        assert one.run().complete

    assert seen == [int(one.sampler.batch(0)[0, 0])]
    trainer(tmp_path / "b", phases, pair=small()).run()
    of_a, of_b = ([row["loss"] for row in rows(tmp_path / x)] for x in "ab")
    assert of_a == pytest.approx(of_b, rel=1e-5)


def test_the_operation_that_computes_a_nan_is_named(tmp_path: Path) -> None:
    def invalid(model: Any, batch: Any) -> Any:
        return loss_fn(model, batch) + jnp.log(-1.0 - batch.sum())

    with jax.debug_nans(True):
        assert trainer(tmp_path / "a", [Phase(1, 4, 9)]).run().complete
        with pytest.raises(FloatingPointError, match="encountered in log"):
            trainer(tmp_path / "b", [Phase(1, 4, 9)], loss_fn=invalid).run()
