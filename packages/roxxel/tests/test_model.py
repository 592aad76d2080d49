from __future__ import annotations

from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st
from roxxel.quickstart.corpus import SEPARATOR, VOCAB_SIZE
from roxxel.quickstart.model import (
    Decoder,
    DecoderConfig,
    count_parameters,
    decode,
    next_byte_loss,
    rotate,
    sample_text,
)

SMALL = DecoderConfig(width=16, num_layers=2, num_heads=2, hidden=24)
TOKENS = np.random.default_rng(0).integers(0, VOCAB_SIZE, (2, 24), np.int32)


@pytest.fixture(scope="module")
def model() -> Decoder:
    return Decoder(SMALL, rngs=nnx.Rngs(0))


def test_the_model_has_about_a_million_parameters() -> None:
    full = nnx.eval_shape(lambda: Decoder(rngs=nnx.Rngs(0)))

    assert 900_000 < count_parameters(full) < 1_100_000


@nnx.jit
def logits_of(model: Decoder, tokens: np.ndarray) -> jax.Array:
    return model(jnp.asarray(tokens))


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 23), st.integers(0, VOCAB_SIZE - 1))
def test_no_token_depends_on_a_later_one(
    model: Decoder, changed: int, token: int
) -> None:
    other = TOKENS.copy()
    other[:, changed:] = token

    one, two = logits_of(model, TOKENS), logits_of(model, other)

    np.testing.assert_allclose(one[:, :changed], two[:, :changed], atol=1e-6)


def test_every_token_depends_on_the_first(model: Decoder) -> None:
    other = TOKENS.copy()
    other[:, 0] = (other[:, 0] + 1) % VOCAB_SIZE

    one, two = logits_of(model, TOKENS), logits_of(model, other)

    assert bool(jnp.all(jnp.any(one != two, axis=-1)))


def test_rotated_products_depend_on_the_distance_alone() -> None:
    query, key = jax.random.normal(jax.random.key(0), (2, 1, 1, 2, 8))
    turned_query = rotate(jnp.repeat(query, 10, axis=1))
    turned_key = rotate(jnp.repeat(key, 10, axis=1))

    products = jnp.einsum("bqhc,bkhc->hqk", turned_query, turned_key)

    np.testing.assert_allclose(products[:, 3, 1], products[:, 9, 7], rtol=1e-4)


def test_an_untrained_model_holds_every_byte_for_as_likely(model: Decoder) -> None:
    loss = float(cast("Any", next_byte_loss(model, jnp.asarray(TOKENS))))

    assert loss == pytest.approx(np.log(VOCAB_SIZE), abs=0.1)


def test_a_sample_begins_with_the_prompt_and_follows_the_seed(model: Decoder) -> None:
    texts = [sample_text(model, "def ", num_bytes=12, seed=seed) for seed in (0, 0, 1)]

    assert texts[0].startswith("def ")
    assert texts[0] == texts[1] != texts[2]


def test_bytes_that_would_upset_a_terminal_are_replaced() -> None:
    tokens = np.frombuffer(b"a\n\tb\x1b[2J\xff\r\x00", np.uint8).astype(np.int32)

    assert decode(tokens) == "a\n\tb\ufffd[2J\ufffd\ufffd\ufffd"


def test_a_separator_ends_the_text() -> None:
    assert decode(np.array([97, SEPARATOR, 98])) == "a"


def test_the_loss_leaves_out_masked_tokens(model: Decoder) -> None:
    tokens = jnp.asarray(TOKENS)
    mask = jnp.ones_like(tokens).at[:, -3:].set(0)

    masked = cast("Any", next_byte_loss(model, {"tokens": tokens, "loss_mask": mask}))

    shorter = cast("Any", next_byte_loss(model, tokens[:, :-3]))
    assert float(masked["loss"]) == pytest.approx(float(shorter), rel=1e-5)
    assert int(masked["loss_weight"]) == int(mask[:, 1:].sum())
