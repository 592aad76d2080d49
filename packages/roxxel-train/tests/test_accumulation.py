from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import NamedSharding, PartitionSpec
from roxxel_curriculum import Phase
from roxxel_train._step.fed import Fed
from roxxel_train._step.loss import LOSS_WEIGHT
from roxxel_train._step.model_sharding import ModelLayout, put_on_mesh
from roxxel_train._step.step import descend, jit_update, take

from .helpers import VOCABULARY, Tiny, fed, loss_fn, mesh_of, trainer

if TYPE_CHECKING:
    from pathlib import Path

PADDING = 0
ROWS, COLUMNS = 8, 5


def masked_loss(model: Any, batch: jax.Array) -> Any:
    logits, targets = model(batch[:, :-1]), batch[:, 1:]
    mask = targets != PADDING
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, targets)
    hits = logits.argmax(axis=-1) == targets
    return {
        "loss": (losses * mask).sum() / mask.sum(),
        "accuracy": (hits * mask).sum() / mask.sum(),
        LOSS_WEIGHT: mask.sum(),
    }


def guarded_loss(model: Any, batch: jax.Array) -> Any:
    logits, targets = model(batch[:, :-1]), batch[:, 1:]
    mask = targets != PADDING
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, targets)
    return {
        "loss": (losses * mask).sum() / jnp.maximum(mask.sum(), 1),
        "constant": jnp.float32(3),
        LOSS_WEIGHT: mask.sum(),
    }


@cache
def updated(parts: int, function: Any = masked_loss) -> tuple[Any, Any]:
    """Return a state and the compiled update of it in so many parts."""
    model = Tiny(nnx.Rngs(0))
    model.dropout.rate = 0.0
    # With this optimizer the parameters change by the gradient itself.
    optimizer = nnx.Optimizer(model, optax.sgd(1.0), wrt=nnx.Param)
    graphdef = nnx.graphdef((model, optimizer))
    state = take(model, optimizer)
    update = jit_update(graphdef, descend(function, parts), state, ["self"])
    return state, lambda state, batch: update(
        jax.tree.map(jnp.copy, state), fed(batch, parts)
    )[:2]


batches = st.lists(
    st.one_of(
        st.just([PADDING] * COLUMNS),
        st.lists(st.integers(0, VOCABULARY - 1), min_size=COLUMNS, max_size=COLUMNS),
    ),
    min_size=ROWS - 1,
    max_size=ROWS - 1,
).map(lambda rows: np.asarray([*rows, range(1, COLUMNS + 1)], np.int32))


@given(batch=batches)
@settings(max_examples=40)
def test_weighted_parts_are_the_whole_batch(batch: Any) -> None:
    results: list[Any] = []
    for parts in (1, 4):
        state, update = updated(parts)
        after, scalars = update(state, batch)
        params = {name: after[0][name] for name in ("embed", "out")}
        results.append((params, scalars))

    whole, in_parts = results
    assert whole[1].keys() == in_parts[1].keys()
    for ours, expected in zip(
        jax.tree.leaves(in_parts), jax.tree.leaves(whole), strict=True
    ):
        np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-6)


def test_weight_is_reported_as_the_sum_over_the_parts() -> None:
    batch = np.ones((ROWS, COLUMNS), np.int32)
    batch[3] = PADDING
    state, update = updated(4)

    _, scalars = update(state, batch)

    assert float(scalars[LOSS_WEIGHT]) == (ROWS - 1) * (COLUMNS - 1)


def test_fully_masked_batch_has_no_loss() -> None:
    for parts in (1, 4):
        state, update = updated(parts)

        _, scalars = update(state, np.full((ROWS, COLUMNS), PADDING, np.int32))

        assert jnp.isnan(scalars["loss"])


def test_a_fully_masked_batch_may_have_a_finite_loss() -> None:
    """Parts agree with the whole batch: a loss without weight makes no NaN."""
    for parts in (1, 4):
        state, update = updated(parts, guarded_loss)

        after, scalars = update(state, np.full((ROWS, COLUMNS), PADDING, np.int32))

        assert float(scalars["loss"]) == 0
        assert float(scalars["constant"]) == 3
        assert float(scalars[LOSS_WEIGHT]) == 0
        for name in ("embed", "out"):
            for ours, old in zip(
                jax.tree.leaves(after[0][name]),
                jax.tree.leaves(state[0][name]),
                strict=True,
            ):
                np.testing.assert_array_equal(ours, old)


@cache
def compiled(parts: int) -> Any:
    """Return the compiled update of 64 rows on 8 devices."""
    mesh = mesh_of(8)
    model = Tiny(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.sgd(1.0), wrt=nnx.Param)
    put_on_mesh(model, optimizer, ModelLayout(mesh))
    state = take(model, optimizer)
    graphdef = nnx.graphdef((model, optimizer))
    update = jit_update(graphdef, descend(loss_fn, parts), state, ["self"])
    rows = NamedSharding(mesh, PartitionSpec("data"))
    batch = jax.ShapeDtypeStruct((64, COLUMNS), jnp.int32, sharding=rows)
    source = jax.ShapeDtypeStruct((64,), jnp.int32, sharding=rows)
    return update.lower(state, Fed(batch, source, source)).compile()


@pytest.mark.parametrize("parts", [2, 8])
def test_every_device_computes_its_own_rows_of_every_part(parts: int) -> None:
    def rows_of_products(program: Any) -> int:
        tokens = re.findall(rf"f32\[(\d+),{VOCABULARY}\]\S* dot\(", program.as_text())
        return max(map(int, tokens)) // (COLUMNS - 1)

    assert rows_of_products(compiled(1)) == 64 // 8
    assert rows_of_products(compiled(parts)) == 64 // 8 // parts
    for moved in ("all-gather", "all-to-all", "collective-permute"):
        assert moved not in compiled(parts).as_text()


def test_trainer_says_at_the_start_how_many_devices_idle(tmp_path: Path) -> None:
    options: dict[str, Any] = {"mesh": mesh_of(8), "grad_accum_steps": 4}
    phases = [Phase(1, 16, 9)]

    trainer(tmp_path, phases, **options).run()

    log = (tmp_path / "run" / "system.log").read_text()
    assert (
        "cuts batch_size=16 of phase 0 into parts of 4, so 4 of 8 devices idle" in log
    )
    with pytest.raises(ValueError, match="4 of 8 devices idle; use grad_accum_steps=1"):
        trainer(tmp_path / "strict", phases, strict_sharding=True, **options)
