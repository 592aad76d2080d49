from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from hypothesis import given
from hypothesis import strategies as st
from roxxel_train._step.loss import LOSS_WEIGHT, unpack_loss
from roxxel_train._step.step import choose_step, jit_update, put, take

from .helpers import fed


class Tiny(nnx.Module):
    def __init__(self, rngs: nnx.Rngs, dropout: float = 0.0) -> None:
        self.embed = nnx.Embed(11, 4, rngs=rngs)
        self.dropout = nnx.Dropout(dropout, rngs=rngs)
        self.out = nnx.Linear(4, 11, rngs=rngs)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        return self.out(self.dropout(self.embed(tokens)))


def loss_fn(model: Any, batch: jax.Array) -> jax.Array:
    return optax.softmax_cross_entropy_with_integer_labels(
        model(batch[:, :-1]), batch[:, 1:]
    ).mean()


def tiny(tx: Any = None, dropout: float = 0.0) -> tuple[Tiny, nnx.Optimizer[Any]]:
    model = Tiny(nnx.Rngs(0), dropout)
    return model, nnx.Optimizer(model, tx or optax.adam(1e-2), wrt=nnx.Param)


def updater(
    model: Any,
    optimizer: Any,
    loss_fn: Any = None,
    parts: int = 1,
    train_step: Any = None,
) -> Any:
    step = choose_step(loss_fn, train_step, parts)
    graphdef = nnx.graphdef((model, optimizer))
    update = jit_update(graphdef, step, take(model, optimizer), ["self"])
    return lambda state, batch: update(state, fed(batch, parts))[:2]


BATCH = np.arange(24, dtype=np.int32).reshape(4, 6) % 11


@pytest.mark.parametrize("parts", [1, 2, 4])
def test_update_equals_the_one_a_person_writes_with_nnx(parts: int) -> None:
    expected_model, expected_optimizer = tiny(optax.sgd(0.1))
    loss, grads = nnx.value_and_grad(loss_fn)(expected_model, BATCH)
    expected_optimizer.update(expected_model, grads)
    model, optimizer = tiny(optax.sgd(0.1))
    update = updater(model, optimizer, loss_fn, parts)

    state, scalars = update(take(model, optimizer), BATCH)

    put(model, optimizer, state)
    np.testing.assert_allclose(scalars["loss"], loss, rtol=1e-6)
    np.testing.assert_allclose(
        model.embed.embedding[...], expected_model.embed.embedding[...], rtol=1e-5
    )
    assert int(optimizer.step[...]) == 1


def test_accumulation_draws_new_dropout_for_every_part() -> None:
    model, optimizer = tiny(dropout=0.5)
    update = updater(model, optimizer, loss_fn, 2)
    before = int(model.dropout.rngs.count[...])  # pyright: ignore[reportOptionalMemberAccess]

    state, _ = update(take(model, optimizer), BATCH)

    put(model, optimizer, state)
    assert int(model.dropout.rngs.count[...]) == before + 2  # pyright: ignore[reportOptionalMemberAccess]


def test_learning_rate_is_reported_where_optax_keeps_it() -> None:
    schedule = optax.linear_schedule(0.5, 0.0, 10)
    tx = optax.chain(
        optax.clip_by_global_norm(1.0),
        optax.inject_hyperparams(optax.sgd)(learning_rate=schedule),
    )
    model, optimizer = tiny(tx)
    update = updater(model, optimizer, loss_fn)

    state, first = update(take(model, optimizer), BATCH)
    _, second = update(state, BATCH)

    assert float(first["learning_rate"]) == 0.5
    assert float(second["learning_rate"]) == pytest.approx(0.45)


def test_a_plateau_gets_the_loss() -> None:
    plateau = optax.contrib.reduce_on_plateau(patience=1, cooldown=1)
    model, optimizer = tiny(optax.chain(optax.sgd(0.0), plateau))
    update = updater(model, optimizer, loss_fn)
    state = take(model, optimizer)
    scalars: dict[str, Any] = {}

    for _ in range(3):
        state, scalars = update(state, BATCH)

    plateau_state = state[1]["opt_state"][1]
    assert float(plateau_state["best_value"]) == pytest.approx(float(scalars["loss"]))
    assert float(plateau_state["scale"]) < 1


def test_own_train_step_updates_both_objects() -> None:
    def train_step(model: Any, optimizer: Any, batch: jax.Array) -> Any:
        loss, grads = nnx.value_and_grad(loss_fn)(model, batch)
        optimizer.update(model, grads)
        return {"loss": loss, "twice": 2 * loss}

    model, optimizer = tiny()
    update = updater(model, optimizer, train_step=train_step)

    state, scalars = update(take(model, optimizer), BATCH)

    assert set(scalars) == {"loss", "twice"}
    put(model, optimizer, state)
    assert int(optimizer.step[...]) == 1


class Named(NamedTuple):
    loss: jax.Array
    accuracy: jax.Array


class LossLast(NamedTuple):
    accuracy: jax.Array
    loss: jax.Array


LOSS, HALF = jnp.float32(2.0), jnp.float32(0.5)


@pytest.mark.parametrize(
    ("result", "names"),
    [
        (LOSS, set()),
        (2.0, set()),
        (jnp.full(1, 2.0), set()),
        ((LOSS,), set()),
        ((LOSS, {"accuracy": HALF}), {"accuracy"}),
        ([LOSS, {"accuracy": jnp.full(1, 0.5)}], {"accuracy"}),
        ((LOSS, {"loss": LOSS, "accuracy": HALF}), {"accuracy"}),
        ((LOSS, HALF, {"loss": LOSS}), {"aux/1"}),
        ((LOSS, None, jnp.zeros(3)), set()),
        ((LOSS, HALF, (HALF, HALF)), {"aux/1", "aux/2/0", "aux/2/1"}),
        ((LOSS, {"grad": {"x": HALF}}), {"grad/x"}),
        (Named(LOSS, HALF), {"accuracy"}),
        (LossLast(HALF, LOSS), {"accuracy"}),
        ({"loss": LOSS, "accuracy": HALF}, {"accuracy"}),
        ({"loss": LOSS, "aux": {"grad": {"x": HALF}, "y": None}}, {"aux/grad/x"}),
        ({"loss": LOSS, "logits": jnp.zeros((2, 3)), 3: HALF}, {"3"}),
        ({"train": {"loss": LOSS, "accuracy": HALF}}, {"train/accuracy"}),
        ({"nll": LOSS, "logits": jnp.zeros(3), "cache": None}, set()),
        ({"nll": LOSS, LOSS_WEIGHT: HALF}, {LOSS_WEIGHT}),
        ({"loss": LOSS, "aux": {"loss": jnp.zeros(3)}}, set()),
        ({"loss": {"nll": LOSS, "row_loss": jnp.zeros(3)}}, set()),
        ((LOSS, {"key": jax.random.key(0), "z": jnp.complex64(1)}), set()),
    ],
)
def test_loss_is_found_in_every_form(result: Any, names: set[str]) -> None:
    loss, aux, rows = unpack_loss(result)

    assert (loss.shape, float(loss)) == ((), 2.0)
    assert not rows
    assert {name: (x.shape, float(x)) for name, x in aux.items()} == dict.fromkeys(
        names, ((), 0.5)
    )


@pytest.mark.parametrize("value", [2**40, np.int64(2**40), np.full(1, 2**40)])
def test_a_number_of_the_host_keeps_its_value(value: Any) -> None:
    """An int32, as JAX makes of it, would hold 0."""
    _, aux, _ = unpack_loss((LOSS, {"flops": value}))

    assert aux["flops"] == 2.0**40


@pytest.mark.parametrize("value", [2**24 + 1, np.int64(2**24 + 1), np.full(1, 7)])
def test_a_count_of_the_host_is_not_rounded(value: Any) -> None:
    _, aux, _ = unpack_loss((LOSS, {"rows": value}))

    assert (aux["rows"].dtype, aux["rows"]) == (jnp.int32, np.ravel(value)[0])


def test_a_variable_is_a_number_inside_a_compiled_step() -> None:
    @jax.jit
    def unpacked(loss: jax.Array) -> Any:
        found = unpack_loss((nnx.Variable(loss), {"router": nnx.Variable(loss / 4)}))
        return found.loss, found.scalars

    assert unpacked(LOSS) == (2.0, {"router": 0.5})


trees = st.recursive(
    st.none() | st.just(HALF) | st.just(jnp.zeros(2)),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from("abc"), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(aux=st.dictionaries(st.sampled_from("abc"), trees))
def test_scalars_are_named_by_their_path(aux: dict[str, Any]) -> None:
    paths = {
        jax.tree_util.keystr(path, simple=True, separator="/")
        for path, leaf in jax.tree_util.tree_flatten_with_path(aux)[0]
        if leaf.shape == ()
    }

    for result in ((LOSS, aux), {"loss": LOSS, **aux}):
        assert set(unpack_loss(result)[1]) == paths


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (
            {"accuracy": HALF, "aux": {"nll": LOSS}},
            'loss_fn returned the scalars accuracy and aux/nll but no "loss"',
        ),
        (
            {"a": {"loss": LOSS}, "b": {"loss": LOSS}},
            'loss_fn returned the scalars a/loss and b/loss but no "loss"',
        ),
        (
            {"total": LOSS, "parts": {"loss": HALF}},
            'loss_fn returned the scalars total and parts/loss but no "loss"',
        ),
        ({"logits": jnp.zeros(3)}, "loss_fn returned a dict without a scalar"),
        (
            {"loss": jnp.zeros((4, 5)), "accuracy": HALF},
            r"loss_fn returned 'loss' as an array of shape \(4, 5\) and dtype float32",
        ),
        (
            {"train": {"loss": jnp.zeros(4)}, "accuracy": HALF},
            r"loss_fn returned 'train/loss' as an array of shape \(4,\)",
        ),
        (
            {"a": {"loss": LOSS}, "b": {"loss": jnp.zeros(4)}},
            r"loss_fn returned 'b/loss' as an array of shape \(4,\)",
        ),
        (
            {"loss": {"nll": jnp.zeros(4)}, "accuracy": HALF},
            r"loss_fn returned 'loss/nll' as an array of shape \(4,\)",
        ),
        ({"loss": None, "accuracy": HALF}, "loss_fn returned 'loss' as a NoneType; "),
        (
            {"loss": jnp.zeros(4), LOSS_WEIGHT: HALF},
            r"loss_fn returned 'loss' as an array of shape \(4,\)",
        ),
        (
            {"loss": jnp.complex64(1), "accuracy": HALF},
            r"'loss' as an array of shape \(\) and dtype complex64; return a real",
        ),
        (
            LossLast(HALF, jnp.zeros(4)),
            r"loss_fn returned 'loss' as an array of shape \(4,\)",
        ),
        ({"loss": jnp.int32(3), "nll": LOSS}, "loss_fn returned a loss of dtype int32"),
        ((), "loss_fn returned an empty tuple"),
        (jnp.zeros(3), r"loss as an array of shape \(3,\) and dtype float32"),
        (({"loss": LOSS}, HALF), "loss_fn returned the loss as a dict"),
        (jnp.int32(1), "dtype int32"),
        (None, "loss_fn returned the loss as a NoneType"),
        ((LOSS, {"name": "x"}), "loss_fn returned 'name' as a str"),
        ((LOSS, {"flops": -(10**400)}), "'flops' as an int too large for a float"),
        (10**400, "the loss as an int too large for a float"),
        ((LOSS, {"tokens": HALF}), "metric named 'tokens'"),
        ((LOSS, {"loss": HALF}), "metric named 'loss' beside the loss"),
        ((LOSS, {"a": HALF}, {"a": HALF}), "two metrics named 'a'"),
    ],
)
def test_wrong_loss_is_named(result: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        unpack_loss(result)


@pytest.mark.parametrize("parts", [1, 2])
def test_wrong_loss_is_named_without_the_words_of_a_compiler(parts: int) -> None:
    def two_scalars(model: Any, batch: jax.Array) -> Any:
        return {"nll": loss_fn(model, batch), "accuracy": loss_fn(model, batch)}

    model, optimizer = tiny()
    update = updater(model, optimizer, two_scalars, parts)

    with pytest.raises(TypeError) as caught:
        jax.eval_shape(update, take(model, optimizer), BATCH)

    assert str(caught.value) == (
        'loss_fn returned the scalars nll and accuracy but no "loss"; '
        'rename the scalar to minimise to "loss"'
    )


def test_accumulated_metrics_keep_their_meaning() -> None:
    def with_metrics(model: Any, batch: jax.Array) -> Any:
        flag, count = jnp.asarray(True), jnp.int32(batch.shape[0])
        return loss_fn(model, batch), {"flag": flag, "count": count, "one": 1}

    model, optimizer = tiny()
    update = updater(model, optimizer, with_metrics, 2)

    _, scalars = update(take(model, optimizer), BATCH)

    assert [float(scalars[name]) for name in ("flag", "count", "one")] == [
        1.0,
        2.0,
        1.0,
    ]


def test_accumulated_gradients_of_low_precision_keep_its_dtype() -> None:
    model, _ = tiny()
    model.embed = nnx.Embed(11, 4, param_dtype=jnp.bfloat16, rngs=nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)
    update = updater(model, optimizer, loss_fn, 4)

    state, _ = update(take(model, optimizer), BATCH)

    assert state[0]["embed"]["embedding"].dtype == jnp.bfloat16


@pytest.mark.parametrize("parts", [1, 2])
def test_variable_made_in_the_loss_is_named(parts: int) -> None:
    def remembers(model: Any, batch: jax.Array) -> jax.Array:
        model.seen = nnx.BatchStat(jnp.zeros(2))
        return loss_fn(model, batch)

    model, optimizer = tiny()
    update = updater(model, optimizer, remembers, parts)

    with pytest.raises(TypeError, match=r"model/seen from nothing to float32\[2\]"):
        jax.eval_shape(update, take(model, optimizer), BATCH)
