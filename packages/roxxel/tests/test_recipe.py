"""The keys of a recipe: the schedule by hand, each optimizer, the averaged weights.

The table of keys in `docs/guides/model.md` says what each does. These tests show it:

- `preset`: `test_llama.py::test_presets_have_the_stated_number_of_parameters`
- `seed`: `test_the_seed_decides_the_first_weights`
- `z_loss`: `test_llama.py::test_the_gradient_is_that_of_the_definition`
- `loss_chunk`: `test_llama.py::test_chunks_change_neither_loss_nor_gradients`
- `optimizer`: `test_each_optimizer_lowers_a_loss`
- `optimizer_args`: `test_an_argument_of_the_optimizer_reaches_it`
- `b1`, `b2`:
  `test_a_resumed_run_takes_changed_betas_from_the_recipe_and_not_the_checkpoint`
- `weight_decay`, `decays`: `test_the_weight_decay_shrinks_what_the_key_says`
- `clip`: `test_gradients_are_clipped_to_the_norm_of_the_key`
- `ema`: `test_the_averaged_weights_are_the_weighted_mean_of_all_updates`
- `schedule`, `peak_rate`, `final_share`:
  `test_cosine_falls_along_half_a_wave_after_the_warmup` and the four after it
- `warmup`, `decay`, `total_steps`:
  `test_shares_follow_the_end_of_the_run_and_steps_do_not`
- `decay_from`: `test_a_cooldown_begins_at_its_step_with_the_rate_of_the_trunk`
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from roxxel.models import RecipeOptimizer, llama, make_optimizer
from roxxel.recipe.learning_rate import LearningRate

TINY: dict[str, Any] = {
    "preset": "tiny",
    "width": 8,
    "hidden": 8,
    "num_layers": 1,
}


def rates(total: int, *steps: int, **options: Any) -> list[float]:
    rate = LearningRate(total, peak_rate=2.0, **options)
    found = [float(rate.at(step)) for step in steps]
    # The compiled update computes the same values.
    compiled = jax.jit(lambda step: rate.at(step, jnp))(jnp.asarray(steps))
    np.testing.assert_allclose(compiled, found, rtol=1e-5, atol=1e-7)
    return found


def test_cosine_falls_along_half_a_wave_after_the_warmup() -> None:
    found = rates(110, 0, 5, 10, 60, 85, 110, 200, warmup=10)

    quarter = 0.2 + 1.8 * (1 + math.cos(0.75 * math.pi)) / 2
    assert found == pytest.approx([0, 1, 2, 1.1, quarter, 0.2, 0.2])


def test_linear_falls_evenly_after_the_warmup() -> None:
    found = rates(110, 5, 10, 60, 110, schedule="linear", warmup=10, final_share=0)

    assert found == pytest.approx([1, 2, 1, 0])


def test_wsd_holds_the_peak_until_the_last_steps() -> None:
    found = rates(100, 5, 10, 80, 90, 100, schedule="wsd", warmup=0.1, decay=0.2)

    assert found == pytest.approx([1, 2, 2, 1.1, 0.2])


def test_constant_holds_the_peak_and_inverse_sqrt_follows_the_step() -> None:
    assert rates(100, 2, 4, 99, schedule="constant", warmup=4) == [1, 2, 2]
    found = rates(100, 2, 4, 16, 64, schedule="inverse_sqrt", warmup=4)
    assert found == pytest.approx([1, 2, 1, 0.5])
    # A final fall begins from the rate that the schedule has reached.
    found = rates(96, 64, 80, 96, schedule="inverse_sqrt", warmup=4, decay=32)
    assert found == pytest.approx([0.5, 0.35, 0.2])


def test_shares_follow_the_end_of_the_run_and_steps_do_not() -> None:
    of_share = LearningRate(1000, schedule="wsd", warmup=0.02, decay=0.3)
    of_steps = LearningRate(1000, schedule="wsd", warmup=20, decay=100)

    assert (of_share.warmup_steps, of_share.decay_start) == (20, 700)
    assert (of_steps.warmup_steps, of_steps.decay_start) == (20, 900)


def test_a_cooldown_begins_at_its_step_with_the_rate_of_the_trunk() -> None:
    trunk = {"schedule": "wsd", "warmup": 10}
    whole = rates(1000, 300, 500, **trunk)

    cooled = rates(500, 299, 300, 400, 500, **trunk, decay_from=300)

    assert whole == [2, 2]
    assert cooled == pytest.approx([2, 2, 1.1, 0.2])
    # The decay of a cosine begins where the cosine is.
    cosine = rates(400, 200, 300, 400, warmup=0, decay_from=200, final_share=0.0)
    assert cosine == pytest.approx([1, 0.5, 0])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"schedule": "cosin"},
            ["'cosin'", "wsd", "did you mean 'cosine'"],
        ),
        ({"decay": 0.2}, ["decay=0.2", "'cosine'", "wsd"]),
        ({"schedule": "wsd", "decay": 9, "decay_from": 2}, ["decay=9", "decay_from=2"]),
        ({"decay_from": 100}, ["decay_from=100", "step 100"]),
        ({"schedule": "wsd", "warmup": 0.5, "decay": 0.6}, ["50", "60", "100"]),
        ({"warmup": 1.5}, ["warmup", "1.5", "share"]),
        ({"warmup": 100}, ["warmup=100", "total_steps=100"]),
    ],
)
def test_a_wrong_schedule_is_one_sentence_with_the_choices(
    options: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(ValueError, match=words[0]) as caught:
        LearningRate(100, **options)

    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"optimizer": "adam_w"}, ["'adam_w'", "muon", "lion", "mean 'adamw'"]),
        ({"optimizer": "sgd", "b2": 0.9}, ["b2=0.9", "sgd", "leave b2 out"]),
        ({"optimizer": "novograd", "weight_decay": 0.1}, ['decays = "all"']),
        ({"optimizer_args": {"nestrov": True}}, ["'nestrov'", "mean 'nesterov'"]),
        ({"optimizer_args": {"b1": 0.8}}, ["'b1'", "b1 = 0.8"]),
        ({"decays": "matrix"}, ["'matrix'", "hidden", "mean 'matrices'"]),
        ({"optimizer": "schedule_free_adamw", "ema": 0.9}, ["ema=0.9"]),
        ({"ema": 1.0}, ["ema", "below 1"]),
        ({"clip": -1}, ["clip", "-1"]),
        ({"warm_up": 3}, ["'warm_up'", "z_loss", "head_width", "mean 'warmup'"]),
    ],
)
def test_a_wrong_key_of_a_recipe_is_one_sentence_with_the_choices(
    options: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(ValueError, match=words[0]) as caught:
        llama(total_steps=10, **TINY, **options)

    for word in words:
        assert word in str(caught.value)


def parameters() -> dict[str, Any]:
    matrix = jnp.full((2, 3), 2.0)
    return {"embed_tokens": matrix, "layer": matrix, "norm": jnp.full(2, 2.0)}


def first_update(tx: Any, grads: Any, params: Any) -> Any:
    return tx.update(grads, tx.init(params), params)[0]


def changed(**options: Any) -> dict[str, float]:
    """Return the change of each parameter by one update without gradients."""
    tx = make_optimizer(10, peak_rate=0.1, warmup=0, schedule="constant", **options)
    params = parameters()
    zeros = jax.tree.map(jnp.zeros_like, params)
    updates = first_update(tx, zeros, params)
    return {name: float(x.ravel()[0]) for name, x in updates.items()}


@pytest.mark.parametrize(
    ("optimizer", "decays", "shrunk"),
    [
        ("adamw", "matrices", {"embed_tokens", "layer"}),
        ("adamw", "hidden", {"layer"}),
        ("adamw", "all", {"embed_tokens", "layer", "norm"}),
        ("muon", "matrices", {"embed_tokens", "layer"}),
        ("muon", "hidden", {"layer"}),
        ("lion", "matrices", {"embed_tokens", "layer"}),
        ("schedule_free_adamw", "hidden", {"layer"}),
    ],
)
def test_the_weight_decay_shrinks_what_the_key_says(
    optimizer: str, decays: str, shrunk: set[str]
) -> None:
    found = changed(optimizer=optimizer, decays=decays, weight_decay=0.5)

    expected = dict.fromkeys(shrunk, -0.1 * 0.5 * 2.0)
    assert {n: x for n, x in found.items() if x} == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(
    "optimizer", ["adamw", "muon", "lion", "schedule_free_adamw", "sgd", "prodigy"]
)
def test_each_optimizer_lowers_a_loss(optimizer: str) -> None:
    rate = {"sgd": 0.1, "prodigy": 1.0}.get(optimizer, 0.01)
    tx = make_optimizer(
        9, optimizer=optimizer, peak_rate=rate, schedule="constant", warmup=0
    )

    def loss(params: Any) -> Any:
        return sum(jnp.square(x).sum() for x in jax.tree.leaves(params))

    @jax.jit
    def step(params: Any, state: Any) -> Any:
        updates, state = tx.update(jax.grad(loss)(params), state, params)
        return optax.apply_updates(params, updates), state

    params = parameters()
    state, before = tx.init(params), float(loss(params))
    for _ in range(3):
        params, state = step(params, state)

    assert float(loss(params)) < before


def test_an_argument_of_the_optimizer_reaches_it() -> None:
    made = {
        nesterov: make_optimizer(
            9,
            optimizer="sgd",
            optimizer_args={"momentum": 0.9, "nesterov": nesterov},
            peak_rate=0.1,
            schedule="constant",
            warmup=0,
            clip=0,
        )
        for nesterov in (False, True)
    }
    updates: dict[bool, float] = {}
    for nesterov, tx in made.items():
        found: Any = tx.update(jnp.ones(()), tx.init(jnp.ones(())), jnp.ones(()))[0]
        updates[nesterov] = float(found)

    assert updates == pytest.approx({False: -0.1, True: -0.1 * (1 + 0.9)})


def test_the_seed_decides_the_first_weights() -> None:
    def first(seed: int) -> Any:
        model, _, _ = llama(**TINY, seed=seed, total_steps=3)
        return model.model.embed_tokens.weight[...]

    assert jnp.array_equal(first(0), first(0))
    assert not jnp.array_equal(first(0), first(1))


def test_muon_makes_the_update_of_a_matrix_orthogonal_and_leaves_tables_to_adam() -> (
    None
):
    tx = make_optimizer(
        10, optimizer="muon", peak_rate=1.0, warmup=0, weight_decay=0.0, clip=0
    )
    params, random = parameters(), np.random.default_rng(0)
    grads = jax.tree.map(lambda x: jnp.asarray(random.normal(size=x.shape)), params)

    updates = first_update(tx, grads, params)

    singular = np.linalg.svd(updates["layer"], compute_uv=False)
    # All singular values are about 0.2 * sqrt(3): five iterations end near 1.
    np.testing.assert_allclose(singular / (0.2 * math.sqrt(3)), 1, atol=0.35)
    for name in ("embed_tokens", "norm"):
        np.testing.assert_allclose(updates[name], -np.sign(grads[name]), rtol=1e-4)


def test_gradients_are_clipped_to_the_norm_of_the_key() -> None:
    params = {"w": jnp.zeros(2)}
    grads = {"w": jnp.asarray([3.0, 4.0])}

    def update(clip: float) -> Any:
        tx = make_optimizer(
            10, optimizer="sgd", peak_rate=1.0, warmup=0, schedule="constant", clip=clip
        )
        return np.asarray(first_update(tx, grads, params)["w"]).tolist()

    assert update(1.0) == pytest.approx([-0.6, -0.8])
    assert update(0) == [-3, -4]


def test_the_averaged_weights_are_the_weighted_mean_of_all_updates() -> None:
    class Weight(nnx.Module):
        def __init__(self) -> None:
            self.w = nnx.Param(jnp.zeros(()))

    model = Weight()
    fixed: dict[str, Any] = {"peak_rate": 1.0, "warmup": 0, "schedule": "constant"}
    optimizer = RecipeOptimizer(model, 10, optimizer="sgd", ema=0.5, **fixed)
    for _ in range(3):
        grads = nnx.state(model, nnx.Param)
        optimizer.update(model, jax.tree.map(lambda x: jnp.full_like(x, -1.0), grads))

    # The weights were 1, 2 and 3, with the shares 1/7, 2/7 and 4/7.
    assert float(model.w[...]) == 3
    assert float(optimizer.averaged(model)["w"]) == pytest.approx(17 / 7)


def test_a_resumed_run_takes_changed_betas_from_the_recipe_and_not_the_checkpoint() -> (
    None
):
    params = {"w": jnp.ones((2, 2))}

    state = make_optimizer(10, b1=0.8, weight_decay=0.3).init(params)

    # Restored numbers would win over those of the recipe.
    injected = optax.tree.get(state, "hyperparams")
    assert list(injected) == ["learning_rate"]


def test_clipping_may_begin_and_end_in_a_resumed_run() -> None:
    params = {"w": jnp.ones((2, 2))}

    clipped, free = (make_optimizer(10, clip=clip).init(params) for clip in (1, 0))

    # A checkpoint names moments by their place in this tree.
    assert jax.tree.structure(clipped) == jax.tree.structure(free)
