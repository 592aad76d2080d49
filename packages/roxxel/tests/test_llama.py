"""The decoder, its masks and its loss obey the laws that training relies on."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from roxxel.models import PRESETS, Llama, LlamaConfig, llama, next_token_loss, rotate
from roxxel.models._attention import Columns
from roxxel.models._loss import Chunks, log_sum_exp

if TYPE_CHECKING:
    from collections.abc import Callable

SMALL = LlamaConfig(
    vocab_size=61,
    width=16,
    hidden=24,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    context=32,
    dtype="float32",
    # Large initial weights, so that every path changes the logits visibly.
    init_std=0.3,
)
TOKENS = np.random.default_rng(0).integers(0, 61, (2, 25), np.int32)
SEGMENTS = np.repeat([[1, 2, 3], [1, 2, 0]], [9, 8, 8], axis=1).astype(np.int32)
BATCH = {"tokens": jnp.asarray(TOKENS), "segment_ids": jnp.asarray(SEGMENTS)}


def made(**changes: Any) -> Llama:
    return Llama(replace(SMALL, **changes), rngs=nnx.Rngs(0))


@pytest.fixture(scope="module")
def model() -> Llama:
    return made()


@nnx.jit
def logits(
    model: Llama, tokens: Any, segment_ids: Any = None, positions: Any = None
) -> jax.Array:
    return model(tokens, segment_ids, positions)


@nnx.jit
def losses(model: Llama, batch: Any) -> tuple[jax.Array, dict[str, jax.Array]]:
    return next_token_loss(model, batch, z_loss=1e-2)


@cache
def gradients(
    chunk: int | None = None,
    *,
    tied: bool = True,
    remat: str = "none",
    dtype: str = "float32",
) -> tuple[float, list[np.ndarray[Any, Any]]]:
    """Return the loss of the batch, and its gradients, of a model of one layer."""
    model = made(num_layers=1, tied=tied, remat=remat, dtype=dtype)
    return derived(lambda model: losses_in_parts(model, chunk), model)


def losses_in_parts(model: Llama, chunk: int | None) -> jax.Array:
    return next_token_loss(model, BATCH, z_loss=1e-2, loss_chunk=chunk)[0]


def derived(
    loss: Callable[[Llama], jax.Array], model: Llama
) -> tuple[float, list[np.ndarray[Any, Any]]]:
    value, grads = nnx.jit(nnx.value_and_grad(loss))(model)
    return float(value), [np.asarray(x) for x in jax.tree.leaves(grads)]


def check_same(
    one: tuple[float, list[np.ndarray[Any, Any]]],
    two: tuple[float, list[np.ndarray[Any, Any]]],
) -> None:
    assert one[0] == pytest.approx(two[0], rel=1e-5)
    for a, b in zip(one[1], two[1], strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


@pytest.mark.parametrize(
    ("preset", "number"),
    [
        ("tiny", 989_600),
        ("small", 123_587_328),
        ("medium", 359_842_816),
        ("large", 1_235_585_024),
        ("llama_3_2_1b", 1_235_814_400),
        ("qwen_3_0_6b", 596_049_920),
        ("olmo_2_1b", 1_484_916_736),
    ],
)
def test_presets_have_the_stated_number_of_parameters(preset: str, number: int) -> None:
    config = PRESETS[preset]()
    shapes = nnx.eval_shape(lambda: Llama(config, rngs=nnx.Rngs(0)))

    leaves = jax.tree.leaves(nnx.state(shapes, nnx.Param))
    assert sum(leaf.size for leaf in leaves) == config.num_parameters == number


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(
    ("head_width", "qk_norm"), [(None, "none"), (6, "head"), (6, "whole")]
)
def test_the_number_of_parameters_follows_the_config(
    tied: bool, head_width: int | None, qk_norm: str
) -> None:
    model = made(tied=tied, head_width=head_width, qk_norm=qk_norm)

    leaves = jax.tree.leaves(nnx.state(model, nnx.Param))
    assert sum(leaf.size for leaf in leaves) == model.config.num_parameters


@settings(max_examples=10)
@given(st.integers(1, 24), st.integers(0, 60))
def test_no_token_depends_on_a_later_one(
    model: Llama, changed: int, token: int
) -> None:
    other = TOKENS.copy()
    other[:, changed:] = token

    one, two = logits(model, TOKENS), logits(model, other)

    np.testing.assert_allclose(one[:, :changed], two[:, :changed], atol=1e-5)


def test_every_token_depends_on_the_first(model: Llama) -> None:
    other = TOKENS.copy()
    other[:, 0] = (other[:, 0] + 1) % 61

    one, two = logits(model, TOKENS), logits(model, other)

    assert bool(jnp.all(jnp.any(one != two, axis=-1)))


@pytest.mark.parametrize("with_positions", [False, True])
def test_a_document_has_the_logits_that_it_has_alone(
    model: Llama, with_positions: bool
) -> None:
    counts = np.concatenate([np.arange(9), np.arange(8), np.arange(8)])
    positions = np.tile(counts, (2, 1)) if with_positions else None

    together = logits(model, TOKENS, SEGMENTS, positions)

    for start, stop in ((0, 9), (9, 17), (17, 25)):
        alone = logits(model, TOKENS[:, start:stop])
        np.testing.assert_allclose(together[:, start:stop], alone, atol=1e-4)


def test_without_segments_a_row_is_one_document(model: Llama) -> None:
    one = jnp.ones_like(jnp.asarray(SEGMENTS))

    np.testing.assert_allclose(
        logits(model, TOKENS), logits(model, TOKENS, one), atol=1e-5
    )


@pytest.mark.skipif(jax.default_backend() != "gpu", reason="cuDNN needs a GPU")
@pytest.mark.parametrize("masked", [False, True])
def test_cudnn_gives_the_logits_of_xla(masked: bool) -> None:
    segments = SEGMENTS if masked else None
    sizes = {"width": 128, "init_std": 0.1, "dtype": "bfloat16"}

    one = logits(made(**sizes), TOKENS, segments)
    two = logits(made(**sizes, attention="cudnn"), TOKENS, segments)

    np.testing.assert_allclose(one, two, atol=0.1)


def test_rotated_products_depend_on_the_distance_alone() -> None:
    query, key = jax.random.normal(jax.random.key(0), (2, 1, 1, 2, 8))
    angles = jnp.arange(10.0)[None, :, None] * jnp.asarray([1.0, 0.1, 0.01, 0.001])
    turned_query = rotate(jnp.repeat(query, 10, axis=1), angles)
    turned_key = rotate(jnp.repeat(key, 10, axis=1), angles)

    products = jnp.einsum("bqhc,bkhc->hqk", turned_query, turned_key)

    np.testing.assert_allclose(products[:, 3, 1], products[:, 9, 7], rtol=1e-4)


def test_activations_are_bfloat16_and_parameters_and_logits_float32() -> None:
    model = made(dtype="bfloat16", init_std=0.02)

    tokens = jnp.asarray(TOKENS)
    hidden = nnx.eval_shape(lambda model: model.hidden(tokens), model)
    output = nnx.eval_shape(lambda model: model(tokens), model)
    grads = nnx.eval_shape(
        nnx.grad(lambda model: next_token_loss(model, BATCH)[0]), model
    )

    assert hidden.dtype == jnp.bfloat16
    assert output.dtype == jnp.float32
    for tree in (nnx.state(model, nnx.Param), grads):
        assert {x.dtype for x in jax.tree.leaves(tree)} == {jnp.dtype("float32")}


@pytest.mark.parametrize("remat", ["dots", "full"])
def test_computing_again_changes_neither_loss_nor_gradients(
    remat: str,
) -> None:
    check_same(gradients(remat=remat), gradients())


def num_products(remat: Any) -> int:
    """Count the matrix products of a gradient."""
    graphdef, state = nnx.split(made(num_layers=1, remat=remat))

    def loss(state: Any, tokens: jax.Array) -> jax.Array:
        return next_token_loss(nnx.merge(graphdef, state), tokens)[0]

    program = jax.jit(jax.grad(loss)).lower(state, jnp.asarray(TOKENS)).as_text()
    return program.count("dot_general")


def test_a_backward_pass_computes_again_what_remat_says() -> None:
    # "dots" keeps products with weights, so it repeats those of attention alone.
    assert num_products("none") < num_products("dots") < num_products("full")


@pytest.mark.parametrize(
    ("chunk", "tied", "dtype"),
    [
        *((7, True, "float32"), (7, True, "bfloat16")),
        *((8, False, "bfloat16"), (100, True, "float32")),
    ],
)
def test_chunks_change_neither_loss_nor_gradients(
    chunk: int, tied: bool, dtype: str
) -> None:
    parts = gradients(chunk, tied=tied, dtype=dtype)

    check_same(parts, gradients(tied=tied, dtype=dtype))


def numbers(count: int) -> st.SearchStrategy[list[float]]:
    each = st.floats(-1e4, 1e4, width=32)
    return st.lists(each, min_size=count, max_size=count)


@given(  # each shape is compiled
    st.sampled_from([1, 2, 70]).flatmap(numbers),
    st.sampled_from([None, np.nan, np.inf]),
)
def test_one_pass_finds_the_sum_of_exponentials(
    values: list[float], spoilt: float | None
) -> None:
    logits = np.array(values, np.float32)
    wide = logits.astype(np.float64)
    expected = wide.max() + np.log(np.exp(wide - wide.max()).sum())
    if spoilt is not None:
        logits[len(values) // 2] = spoilt

    found = float(log_sum_exp(jnp.asarray(logits)))

    if spoilt is None:
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-5)
    else:
        assert not np.isfinite(found)


@given(
    st.integers(1, 3),
    st.sampled_from([1, 2, 4]),
    st.integers(1, 12),
    st.one_of(st.none(), st.integers(1, 60)),
)
@settings(max_examples=15)  # each shape is compiled
def test_chunks_give_back_what_they_cut(
    rows: int, parts: int, own: int, size: int | None
) -> None:
    columns = Columns(parts, None, 1, False, None, 1, 1, own_rows=rows << 11)
    length = parts * own
    chunks = Chunks.of(size, columns, length)
    x = np.arange(rows * length).reshape(rows, length, 1) + 1
    [cut] = chunks.cut((jnp.asarray(x),))

    number, num_rows, width, _ = cut.shape
    assert (number, num_rows) == (chunks.number, rows)
    # At most so many columns, no chunk without one, and the same for every device.
    assert width <= parts * max(1, -(-(size or 8 // rows * parts) // parts))
    assert np.count_nonzero(cut.sum(axis=(1, 2, 3))) == number
    assert width % parts == 0
    [joined] = chunks.joined((cut,), length)
    np.testing.assert_array_equal(joined, x)


def test_no_product_with_logits_is_computed_twice() -> None:
    model = made(num_layers=1)
    graphdef, state = nnx.split(model)

    def loss(state: Any) -> jax.Array:
        return losses_in_parts(nnx.merge(graphdef, state), 7)

    program = jax.jit(jax.value_and_grad(loss)).lower(state).as_text()

    products = [line for line in program.splitlines() if "dot_general" in line]
    of_chunks = [line for line in products if "2x6x61x" in line]
    assert len(of_chunks) == 3, "logits, and what both of their factors change by"


@pytest.mark.parametrize("chunk", [None, 7])
def test_losses_of_rows_can_be_derived_too(chunk: int | None) -> None:
    def of_rows(model: Llama) -> jax.Array:
        logged = next_token_loss(model, BATCH, loss_chunk=chunk)[1]
        return (logged["row_loss"] * logged["row_weight"]).sum() / logged["loss_weight"]

    def of_all(model: Llama) -> jax.Array:
        return next_token_loss(model, BATCH)[0]

    model = made(num_layers=1)
    check_same(derived(of_rows, model), derived(of_all, model))


def test_no_product_of_a_bfloat16_model_takes_float32_logits() -> None:
    model = made(num_layers=1, dtype="bfloat16")
    graphdef, state = nnx.split(model)

    def loss(state: Any, tokens: jax.Array) -> jax.Array:
        return next_token_loss(nnx.merge(graphdef, state), tokens)[0]

    program = jax.jit(jax.grad(loss)).lower(state, jnp.asarray(TOKENS)).as_text()

    products = [line for line in program.splitlines() if "dot_general" in line]
    of_logits = [line for line in products if "x61x" in line or "<61x" in line]
    assert len(of_logits) >= 3
    for line in of_logits:
        operands = line.split(" : ")[1].split("->")[0]
        assert "f32" not in operands.replace("bf16", "")


def test_the_gradient_is_that_of_the_definition() -> None:
    tokens = jnp.asarray(TOKENS)
    follows = (SEGMENTS[:, 1:] == SEGMENTS[:, :-1]) & (SEGMENTS[:, 1:] > 0)

    def by_definition(model: Llama) -> jax.Array:
        values = model(tokens[:, :-1], BATCH["segment_ids"][:, :-1])
        log_sum = jax.nn.logsumexp(values, axis=-1)
        chosen = jnp.take_along_axis(values, tokens[:, 1:, None], axis=-1)[..., 0]
        return (log_sum - chosen + 1e-2 * log_sum**2).mean(where=follows)

    check_same(gradients(), derived(by_definition, made(num_layers=1)))


def temporary_bytes(chunk: int | None) -> int:
    config = replace(SMALL, vocab_size=1 << 16, context=128, num_layers=1)
    graphdef, shapes = nnx.split(
        nnx.eval_shape(lambda: Llama(config, rngs=nnx.Rngs(0)))
    )

    def loss(state: Any, tokens: jax.Array) -> jax.Array:
        return next_token_loss(nnx.merge(graphdef, state), tokens, loss_chunk=chunk)[0]

    tokens = jax.ShapeDtypeStruct((2, 129), jnp.int32)
    compiled: Any = jax.jit(jax.grad(loss)).lower(shapes, tokens).compile()
    return int(compiled.memory_analysis().temp_size_in_bytes)


def test_chunks_bound_the_memory_of_the_logits() -> None:
    whole = 4 * 2 * 128 * (1 << 16)

    assert temporary_bytes(None) > whole
    assert temporary_bytes(8) < whole / 2


@pytest.mark.parametrize(
    ("rows", "chunk", "held"),
    [(64, None, "64x256"), (8, None, "8x1024"), (64, 512, "64x512")],
)
def test_a_gpu_holds_the_logits_of_a_chunk(
    rows: int, chunk: int | None, held: str
) -> None:
    config = replace(SMALL, vocab_size=50304, context=1024, num_layers=1)
    graphdef, shapes = nnx.split(
        nnx.eval_shape(lambda: Llama(config, rngs=nnx.Rngs(0)))
    )

    def loss(state: Any, tokens: jax.Array) -> jax.Array:
        return next_token_loss(nnx.merge(graphdef, state), tokens, loss_chunk=chunk)[0]

    tokens = jax.ShapeDtypeStruct((rows, 1025), jnp.int32)
    exported = jax.export.export(jax.jit(jax.grad(loss)), platforms=["cuda"])
    program = exported(shapes, tokens).mlir_module()

    logits = set(re.findall(r"tensor<(\d+x\d+)x50304x(?:f32|bf16)>", program))
    assert logits == {held}


def by_hand(model: Llama, mask: np.ndarray[Any, Any]) -> tuple[float, float, float]:
    """Return the sums of targets, cross-entropy and squared log-denominators."""
    values = np.asarray(logits(model, TOKENS, SEGMENTS), np.float64)
    count = loss = squares = 0.0
    for row, column in np.ndindex(2, 24):
        segment = SEGMENTS[row, column + 1]
        if segment != SEGMENTS[row, column] or segment == 0:
            continue
        log_sum = float(np.log(np.exp(values[row, column]).sum()))
        weight = float(mask[row, column + 1])
        count += weight
        chosen = float(values[row, column, TOKENS[row, column + 1]])
        loss += weight * (log_sum - chosen)
        squares += weight * log_sum**2
    return count, loss, squares


@pytest.mark.parametrize("weight", [1, 0.003])
def test_the_loss_counts_the_targets_inside_documents(
    model: Llama, weight: float
) -> None:
    mask = weight * np.random.default_rng(1).integers(0, 2, TOKENS.shape)
    batch = {**BATCH, "loss_mask": jnp.asarray(mask), "source": jnp.zeros((2, 25))}

    loss, scalars = losses(model, batch)

    count, total, squares = by_hand(model, mask)
    assert float(scalars["loss_weight"]) == pytest.approx(count, rel=1e-5) != 0
    assert float(scalars["cross_entropy"]) == pytest.approx(total / count, rel=1e-5)
    assert float(scalars["row_weight"].sum()) == pytest.approx(count, rel=1e-5)
    by_row = scalars["row_loss"] * scalars["row_weight"]
    assert float(by_row.sum()) == pytest.approx(total, rel=1e-5)
    _, alone = losses(model, {name: x[:1] for name, x in batch.items()})
    assert float(alone["row_loss"][0]) == pytest.approx(float(scalars["row_loss"][0]))
    expected = (total + 1e-2 * squares) / count
    assert float(loss) == pytest.approx(expected, rel=1e-5)


def test_a_batch_without_targets_has_the_loss_zero(model: Llama) -> None:
    loss, scalars = losses(
        model, {**BATCH, "segment_ids": jnp.zeros_like(BATCH["segment_ids"])}
    )

    assert (float(loss), float(scalars["loss_weight"])) == (0.0, 0.0)


def test_an_untrained_model_predicts_all_tokens_about_equally() -> None:
    model = made(num_layers=1, init_std=0.02)

    loss, scalars = nnx.jit(next_token_loss)(model, jnp.asarray(TOKENS))

    assert float(loss) == pytest.approx(np.log(61), abs=0.1)
    assert float(scalars["loss_weight"]) == TOKENS[:, 1:].size


def test_a_sequence_beyond_the_context_is_an_error(model: Llama) -> None:
    with pytest.raises(ValueError, match="40 columns, but the model's context is 32;"):
        model(jnp.zeros((1, 40), jnp.int32))


def test_a_sequence_without_a_next_token_is_an_error(model: Llama) -> None:
    with pytest.raises(ValueError, match="tokens have 1 columns, so no token has a"):
        next_token_loss(model, jnp.zeros((2, 1), jnp.int32))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_kv_heads": 3}, "num_heads=4 is not a multiple of num_kv_heads=3"),
        ({"width": 18}, "width=18 is not a multiple of num_heads=4"),
        ({"width": 12}, "a head has 3 channels"),
        ({"attention": "cudnn"}, 'attention="cudnn" needs dtype="bfloat16"'),
        ({"remat": "ful"}, "remat must be .*, got 'ful'; did you mean 'full'"),
        ({"context": 32.0}, "context must be an integer of 1 or more, got 32.0"),
        ({"init_std": float("nan")}, "init_std must be a finite number .*, got nan"),
        ({"rope_scaling": "linear"}, "rope_scaling must be a table or None"),
        ({"rope_scaling": {"type": "linear"}}, "rope_scaling. has no key 'type'"),
        ({"rope_scaling": {"kind": "linear"}}, "rope_scaling. has no factor; write"),
        ({"eos_token_id": (5, 50256)}, "eos_token_id=50256 is no token .*vocab_size="),
        ({"eos_token_id": []}, "eos_token_id must be"),
        ({"bos_token_id": SMALL.vocab_size}, "bos_token_id=.* is no token of a model"),
    ],
)
def test_a_config_that_cannot_be_built_is_an_error(
    changes: dict[str, Any], message: str
) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        replace(SMALL, **changes)


def test_several_tokens_that_end_a_text_are_a_tuple() -> None:
    config = replace(SMALL, eos_token_id=[5, 6])

    assert config == replace(SMALL, eos_token_id=(5, 6))
    assert hash(config) == hash(replace(SMALL, eos_token_id=(5, 6)))


def test_a_preset_with_another_vocabulary_keeps_no_token_of_its_own() -> None:
    config = LlamaConfig.llama_3_2_1b(vocab_size=4096)

    assert (config.bos_token_id, config.eos_token_id) == (None, None)
    assert LlamaConfig.llama_3_2_1b().eos_token_id == 128_001


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"preset": "huge"}, 'preset must be .*"small" or "tiny", got \'huge\''),
        (
            {"preset": "tiny", "widht": 8},
            "'widht' is unknown; choose one of .*peak_rate.*did you mean 'width'",
        ),
        ({"preset": "tiny", "warmup": 10}, "warmup=10 must be"),
        ({"preset": ["tiny"]}, 'preset must be .*"small" or "tiny", got '),
        ({"seed": 1.5}, "seed must be an integer of 0 or more .*, got 1.5"),
        ({"seed": 2**63}, "seed must be .* that fits 64 bits, got 9"),
        ({"preset": "tiny", "peak_rate": -1e-3}, "peak_rate must be .* 0 or more, got"),
        ({"preset": "tiny", "weight_decay": "0.1"}, "weight_decay must be a finite n"),
        ({"preset": "tiny", "final_share": 2}, "a share from 0 to 1, got 2"),
        ({"loss_chunk": 2.5}, "loss_chunk must be an integer of 1 .*, got 2.5"),
        ({"tensor_axis": "model"}, "not an axis of the mesh, which is not set; give"),
    ],
)
def test_wrong_arguments_of_the_recipe_are_errors(
    arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        llama(total_steps=10, **arguments)


@pytest.mark.parametrize("queries", [1, 5, 24])
def test_a_long_row_is_attended_to_as_a_short_one_is(
    queries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = made()
    whole, _ = losses(model, BATCH)
    monkeypatch.setattr("roxxel.models._attention._LONG", 8)
    monkeypatch.setattr("roxxel.models._attention._MOST_SCORES", 2 * 2 * 24 * queries)

    blocks, _ = next_token_loss(model, BATCH, z_loss=1e-2)

    np.testing.assert_allclose(blocks, whole, rtol=1e-5)


@pytest.mark.parametrize("attention", ["xla", "cudnn"])
def test_no_kernel_attends_to_a_long_row_without_its_documents(
    attention: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []

    def attend(query: Any, *_: Any, mask: Any, **__: Any) -> Any:
        seen.append(mask.shape)
        return query

    monkeypatch.setattr("jax.nn.dot_product_attention", attend)
    model = made(context=9000, attention=attention, dtype="bfloat16", num_layers=1)
    tokens = jax.ShapeDtypeStruct((1, 8960), jnp.int32)
    jax.eval_shape(model, tokens, tokens)

    # Blocks read the documents themselves.
    assert seen == ([] if attention == "xla" else [(1, 1, 8960, 8960)])


def test_axes_of_the_config_annotate_every_matrix() -> None:
    mesh = Mesh(np.asarray(jax.devices()[:1]).reshape(1, 1), ("data", "tensor"))
    with jax.set_mesh(mesh):
        model = made(num_layers=1, tied=False, tensor_axis="tensor", fsdp_axis="data")

    def spec(matrix: Any) -> Any:
        return nnx.get_partition_spec(matrix.weight).get_value()

    layer = model.model.layers[0]
    attention, feed = layer.self_attn, layer.mlp
    out_of_width = [attention.q_proj, attention.k_proj, attention.v_proj, model.lm_head]
    out_of_width += [feed.gate_proj, feed.up_proj, model.model.embed_tokens]
    assert {spec(matrix) for matrix in out_of_width} == {P("tensor", "data")}
    assert {spec(x) for x in (attention.o_proj, feed.down_proj)} == {
        P("data", "tensor")
    }


def test_the_recipe_decays_matrices_alone() -> None:
    model, optimizer, _ = llama(
        total_steps=10, preset="tiny", width=8, hidden=8, num_layers=1, warmup=0
    )
    grads = jax.tree.map(jnp.zeros_like, nnx.state(model, nnx.Param))
    before = model.model.embed_tokens.weight[...]

    nnx.jit(lambda optimizer, model, grads: optimizer.update(model, grads))(
        optimizer, model, grads
    )

    assert bool(jnp.all(model.model.norm.weight[...] == 1))
    after = model.model.embed_tokens.weight[...]
    np.testing.assert_allclose(after, before * (1 - 6e-4 * 0.1), rtol=1e-6)
