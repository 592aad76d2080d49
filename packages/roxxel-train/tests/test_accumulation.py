from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st
from roxxel_train._loss import LOSS_WEIGHT
from roxxel_train._model_state import take
from roxxel_train._step import descend, make_update

from .helpers import VOCABULARY, Tiny

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


@cache
def updated(parts: int) -> tuple[Any, Any]:
    """Return a state and the compiled update of it in so many parts."""
    model = Tiny(nnx.Rngs(0))
    model.dropout.rate = 0.0
    # With this optimizer the parameters change by the gradient itself.
    optimizer = nnx.Optimizer(model, optax.sgd(1.0), wrt=nnx.Param)
    graphdef = nnx.graphdef((model, optimizer))
    update = make_update(graphdef, descend(masked_loss, parts))
    return take(model, optimizer), jax.jit(update)


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


def test_batch_in_which_nothing_counts_has_no_loss() -> None:
    for parts in (1, 4):
        state, update = updated(parts)

        _, scalars = update(state, np.full((ROWS, COLUMNS), PADDING, np.int32))

        assert jnp.isnan(scalars["loss"])
