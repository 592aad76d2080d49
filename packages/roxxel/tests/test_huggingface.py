"""Models leave and enter by the names of Hugging Face, and keep their logits."""

from __future__ import annotations

import importlib
import json
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from roxxel.cli import main
from roxxel.models import Llama, LlamaConfig, RopeScaling
from roxxel.models.huggingface import (
    FolderWeights,
    export_model,
    load,
    read_config,
    write_config,
)
from roxxel_ckpt import Checkpointer

if TYPE_CHECKING:
    from pathlib import Path

safetensors: Any = importlib.import_module("safetensors.numpy")

Array = np.ndarray[Any, Any]

PLAIN = LlamaConfig(
    vocab_size=53,
    width=12,
    hidden=20,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_width=6,
    context=64,
    rope_theta=500.0,
    dtype="float32",
    init_std=0.4,
    eos_token_id=7,
)
STRETCHED = RopeScaling("llama3", 8.0, 1.0, 4.0, original_context=16)
CONFIGS = {
    "tied": PLAIN,
    "untied": replace(PLAIN, tied=False),
    "linear": replace(PLAIN, rope_scaling=RopeScaling("linear", 4.0)),
    "llama3": replace(PLAIN, rope_scaling=STRETCHED, tied=False),
    "qwen3": replace(PLAIN, qk_norm="head"),
    "olmo2": replace(PLAIN, qk_norm="whole", norm_placement="post", tied=False),
}
CLASSES = {"qwen3": "Qwen3ForCausalLM", "olmo2": "Olmo2ForCausalLM"}
TOKENS = np.random.default_rng(0).integers(0, 53, (2, 40), np.int32)


def export(config: LlamaConfig, folder: Path) -> Llama:
    """Save a model as a run does, and export its checkpoint by the command."""
    model = Llama(config, rngs=nnx.Rngs(3))
    random = np.random.default_rng(0)
    for _, scale in nnx.iter_graph(model):
        if isinstance(scale, nnx.Param) and scale[...].ndim == 1:
            scale[...] = jnp.asarray(1 + 0.3 * random.normal(size=scale.shape), "f4")
    optimizer = nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)
    with Checkpointer(folder / "checkpoints", model, optimizer) as checkpointer:
        checkpointer.save(1)
    (folder / "hf").mkdir()
    step, file = folder / "checkpoints" / "1", folder / "hf" / "model.safetensors"
    assert main(["ckpt", "export", str(step), "--safetensors", str(file)]) == 0
    write_config(config, folder / "hf")
    return model


def speeds_of(config: dict[str, Any]) -> Array:
    """Return the radians per position of each pair of channels."""
    size = config["head_dim"]
    speeds = config["rope_theta"] ** (-np.arange(0, size, 2) / size)
    scaling = config.get("rope_scaling")
    if scaling and scaling["rope_type"] == "linear":
        speeds = speeds / scaling["factor"]
    elif scaling:
        old = scaling["original_max_position_embeddings"]
        low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
        for index, speed in enumerate(speeds.copy()):
            wavelength = 2 * np.pi / speed
            if wavelength > old / low:
                speeds[index] = speed / scaling["factor"]
            elif wavelength >= old / high:
                smooth = (old / wavelength - low) / (high - low)
                slow = speed / scaling["factor"]
                speeds[index] = (1 - smooth) * slow + smooth * speed
    return speeds


def reference(folder: Path, tokens: Array) -> Array:
    """Return logits by the published equations, from the files alone, in float64.

    Those of Qwen-3 are in its technical report (Yang et al., 2025) and those of OLMo-2
    in 2 OLMo 2 Furious (2024): both normalise queries and keys, and the latter
    normalises what a layer adds instead of what it reads.
    """
    config = json.loads((folder / "config.json").read_text())
    stored = safetensors.load_file(folder / "model.safetensors")
    w = {name: array.astype(np.float64) for name, array in stored.items()}
    size, batch_size, length = config["head_dim"], *tokens.shape

    def norm(x: Array, name: str) -> Array:
        mean = (x**2).mean(-1, keepdims=True)
        return x / np.sqrt(mean + config["rms_norm_eps"]) * w[f"{name}.weight"]

    turned = np.exp(1j * np.arange(length)[:, None] * speeds_of(config))[:, None]

    def heads(x: Array, name: str) -> Array:
        return (x @ w[name].T).reshape(batch_size, length, -1, size)

    def rotated(x: Array) -> Array:
        product = (x[..., : size // 2] + 1j * x[..., size // 2 :]) * turned
        return np.concatenate([product.real, product.imag], -1)

    x = w["model.embed_tokens.weight"][tokens]
    is_olmo = config["model_type"] == "olmo2"
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}"
        h = x if is_olmo else norm(x, f"{at}.input_layernorm")
        query = heads(h, f"{at}.self_attn.q_proj.weight")
        key = heads(h, f"{at}.self_attn.k_proj.weight")
        if config["model_type"] == "qwen3":
            query = norm(query, f"{at}.self_attn.q_norm")
            key = norm(key, f"{at}.self_attn.k_norm")
        if is_olmo:
            flat = query.reshape(batch_size, length, -1)
            query = norm(flat, f"{at}.self_attn.q_norm").reshape(query.shape)
            flat = key.reshape(batch_size, length, -1)
            key = norm(flat, f"{at}.self_attn.k_norm").reshape(key.shape)
        query, key = rotated(query), rotated(key)
        value = heads(h, f"{at}.self_attn.v_proj.weight")
        groups = config["num_attention_heads"] // config["num_key_value_heads"]
        key, value = (np.repeat(a, groups, axis=2) for a in (key, value))
        scores = np.einsum("bqhc,bkhc->bhqk", query, key) / np.sqrt(size)
        scores = np.where(np.tri(length, dtype=bool), scores, -np.inf)
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        scores /= scores.sum(-1, keepdims=True)
        mixed = np.einsum("bhqk,bkhc->bqhc", scores, value)
        mixed = mixed.reshape(batch_size, length, -1)
        mixed = mixed @ w[f"{at}.self_attn.o_proj.weight"].T
        if is_olmo:
            mixed = norm(mixed, f"{at}.post_attention_layernorm")
        x = x + mixed
        h = x if is_olmo else norm(x, f"{at}.post_attention_layernorm")
        gate = h @ w[f"{at}.mlp.gate_proj.weight"].T
        gate = gate / (1 + np.exp(-gate)) * (h @ w[f"{at}.mlp.up_proj.weight"].T)
        gate = gate @ w[f"{at}.mlp.down_proj.weight"].T
        x = x + (norm(gate, f"{at}.post_feedforward_layernorm") if is_olmo else gate)
    is_tied = config["tie_word_embeddings"]
    head = "model.embed_tokens.weight" if is_tied else "lm_head.weight"
    return norm(x, "model.norm") @ w[head].T


@nnx.jit
def logits(model: Llama, tokens: Any) -> jax.Array:
    return model(tokens)


@pytest.mark.parametrize("name", CONFIGS)
def test_an_exported_model_has_its_logits_by_the_published_equations(
    name: str, tmp_path: Path
) -> None:
    model = export(CONFIGS[name], tmp_path)

    own = np.asarray(logits(model, TOKENS))

    expected = reference(tmp_path / "hf", TOKENS)
    np.testing.assert_allclose(own, expected, atol=1e-4, rtol=1e-4)
    assert np.std(expected) > 0.1
    loaded = load(tmp_path / "hf", dtype="float32")
    np.testing.assert_array_equal(own, logits(loaded, TOKENS))
    values = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert values["architectures"] == [CLASSES.get(name, "LlamaForCausalLM")]


# torch is too large for every session: install both libraries to compare with them.
if find_spec("transformers") is not None and find_spec("torch") is not None:

    @pytest.mark.parametrize("name", CONFIGS)
    def test_an_exported_model_has_its_logits_in_transformers(
        name: str, tmp_path: Path
    ) -> None:
        torch: Any = importlib.import_module("torch")
        transformers: Any = importlib.import_module("transformers")
        model = export(CONFIGS[name], tmp_path)

        theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "hf")
        with torch.no_grad():
            found = theirs(torch.tensor(TOKENS.tolist())).logits.numpy()

        np.testing.assert_allclose(logits(model, TOKENS), found, atol=1e-4)


def test_a_shape_without_a_class_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"qk_norm='head' and .*'post'.* llama, qwen3"):
        write_config(replace(PLAIN, qk_norm="head", norm_placement="post"), tmp_path)


def test_a_large_model_is_written_as_several_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("roxxel.models.huggingface._SHARD_BYTES", 3000)
    model = Llama(PLAIN, rngs=nnx.Rngs(0))

    export_model(model, tmp_path / "hf", tokenizer={"tokenizer.json": "{}"})

    files = sorted(path.name for path in (tmp_path / "hf").glob("*.safetensors"))
    index = json.loads((tmp_path / "hf" / "model.safetensors.index.json").read_text())
    assert files[0] == f"model-00001-of-{len(files):05}.safetensors"
    assert sorted(set(index["weight_map"].values())) == files
    loaded = load(tmp_path / "hf", dtype="float32")
    table = loaded.model.embed_tokens.weight[...]
    np.testing.assert_array_equal(table, model.model.embed_tokens.weight[...])
    with pytest.raises(FileExistsError, match="holds files; name a new folder"):
        export_model(model, tmp_path / "hf")


def test_weights_of_another_model_are_refused_with_the_keys_to_write(
    tmp_path: Path,
) -> None:
    export_model(Llama(PLAIN, rngs=nnx.Rngs(0)), tmp_path / "hf")
    other = Llama(replace(PLAIN, rope_theta=9.0, head_width=4), rngs=nnx.Rngs(0))

    with pytest.raises(ValueError, match=r"head_width = 6, rope_theta = 500\.0"):
        FolderWeights(tmp_path / "hf").load(other)


def test_a_config_is_written_from_the_model_itself(tmp_path: Path) -> None:
    text = write_config(PLAIN, tmp_path).read_text()

    path = write_config(Llama(PLAIN, rngs=nnx.Rngs(0)), tmp_path)

    assert path.read_text() == text
    other: Any = nnx.Embed(3, 4, rngs=nnx.Rngs(0))
    with pytest.raises(
        TypeError, match="must be a LlamaConfig or a Llama, got Embed; only these"
    ):
        write_config(other, tmp_path)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_config_is_read_as_written(name: str, tmp_path: Path) -> None:
    write_config(CONFIGS[name], tmp_path)

    assert read_config(tmp_path, dtype="float32") == CONFIGS[name]


def test_the_file_declares_what_generation_needs(tmp_path: Path) -> None:
    values = json.loads(write_config(PLAIN, tmp_path).read_text())

    assert values["architectures"] == ["LlamaForCausalLM"]
    assert values["max_position_embeddings"] == 64
    assert (values["rope_theta"], values["eos_token_id"]) == (500.0, 7)


def test_a_config_of_version_5_of_transformers_is_read(tmp_path: Path) -> None:
    path = write_config(CONFIGS["llama3"], tmp_path)
    values = json.loads(path.read_text())
    rope = values.pop("rope_scaling") | {"rope_theta": values.pop("rope_theta")}
    path.write_text(json.dumps({**values, "rope_parameters": rope}))

    assert read_config(tmp_path, dtype="float32") == CONFIGS["llama3"]


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("model_type", "mamba", "model_type is 'mamba', .* only llama, qwen3, olmo2"),
        ("use_sliding_window", True, "use_sliding_window is True"),
        ("attention_bias", True, "attention_bias is True"),
        ("rope_scaling", {"rope_type": "yarn"}, "scaled by the rule 'yarn'"),
    ],
)
def test_a_model_that_cannot_be_computed_is_an_error(
    key: str, value: Any, message: str, tmp_path: Path
) -> None:
    path = write_config(PLAIN, tmp_path)
    path.write_text(json.dumps({**json.loads(path.read_text()), key: value}))

    with pytest.raises(ValueError, match=message):
        read_config(tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", r"config\.json: is not JSON \(.*; copy the file of the model again"),
        ('{"model_type": "llama"}', r"config\.json: has no vocab_size and no hidden_s"),
    ],
)
def test_a_file_that_describes_no_model_is_an_error(
    text: str, message: str, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(text)

    with pytest.raises(ValueError, match=message):
        read_config(tmp_path)


def test_a_rule_without_its_values_is_an_error(tmp_path: Path) -> None:
    values = json.loads(write_config(PLAIN, tmp_path).read_text())
    values["rope_scaling"] = {"rope_type": "linear"}
    (tmp_path / "config.json").write_text(json.dumps(values))

    with pytest.raises(ValueError, match="the rotary scaling lacks 'factor'; complete"):
        read_config(tmp_path)


Folder = dict[str, Any]
"""The arrays of a folder by name, and under the other keys what else is changed."""

EMBED, HEAD, NORM = "model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"
LAYER = "model.layers.1"
SPEEDS = f"{LAYER}.self_attn.rotary_emb.inv_freq"
SPEEDS_OF_PLAIN = (500.0 ** (-np.arange(0, 6, 2) / 6)).astype(np.float32)


def stored(array: Any) -> Array:
    return np.asarray(array, np.float32)


def with_array(name: str, array: Any = None) -> Any:
    """Add an array, or replace one."""
    return lambda arrays, _: arrays | {name: stored([1.0] if array is None else array)}


def without(name: str) -> Any:
    return lambda arrays, _: {key: x for key, x in arrays.items() if key != name}


def renamed(old: str, new: str) -> Any:
    return lambda arrays, _: {new if k == old else k: x for k, x in arrays.items()}


def as_type(name: str, dtype: str) -> Any:
    return lambda arrays, _: arrays | {name: arrays[name].astype(dtype)}


def declaring(**values: Any) -> Any:
    """Change config.json."""

    def change(arrays: Folder, folder: Path) -> Folder:
        path = folder / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **values}))
        return arrays

    return change


def both(*changes: Any) -> Any:
    def change(arrays: Folder, folder: Path) -> Folder:
        for each in changes:
            arrays = each(arrays, folder)
        return arrays

    return change


def beside(name: str, array: str) -> Any:
    """Put another file of weights beside the model."""

    def change(arrays: Folder, folder: Path) -> Folder:
        safetensors.save_file({array: stored([1.0])}, folder / name)
        return arrays

    return change


def indexed(change: Any) -> Any:
    """Write an index whose map of arrays to files is changed."""

    def write(arrays: Folder, folder: Path) -> Folder:
        where: dict[str, str] = dict.fromkeys(arrays, "model.safetensors")
        text = json.dumps({"weight_map": change(where)})
        (folder / "model.safetensors.index.json").write_text(text)
        return arrays

    return write


USED: dict[str, tuple[str, Any]] = {
    "nothing": ("tied", both()),
    "nothing, untied": ("untied", both()),
    "an equal head of a tied model": ("tied", lambda a, _: a | {HEAD: a[EMBED]}),
    "speeds of the config": ("tied", with_array(SPEEDS, SPEEDS_OF_PLAIN)),
    "speeds before they were stretched": (
        "llama3",
        with_array(SPEEDS, SPEEDS_OF_PLAIN),
    ),
    "half precision": ("tied", as_type(NORM, "float16")),
    "a whole index": ("tied", indexed(dict)),
}
"""Folders whose arrays are all used, or repeat what is."""

NAMED: dict[str, tuple[str, Any, str]] = {
    "another head of a tied model": (
        "tied",
        lambda a, _: a | {HEAD: a[EMBED] + 1},
        HEAD,
    ),
    "a head of another shape": ("tied", with_array(HEAD), HEAD),
    "an untied model that is declared tied": (
        "untied",
        declaring(tie_word_embeddings=True),
        HEAD,
    ),
    "a tied model that is declared untied": (
        "tied",
        declaring(tie_word_embeddings=False),
        HEAD,
    ),
    "fewer layers": ("tied", declaring(num_hidden_layers=1), LAYER),
    "more layers": ("tied", declaring(num_hidden_layers=3), "model.layers.2"),
    "no layer": ("tied", declaring(num_hidden_layers=0), "num_layers|num_hidden"),
    "more tokens": ("tied", declaring(vocab_size=54), EMBED),
    "a wider model": ("tied", declaring(hidden_size=24), "weight"),
    "wider layers": ("tied", declaring(intermediate_size=24), "mlp"),
    "more heads of keys": (
        "tied",
        declaring(num_key_value_heads=4),
        "k_proj",
    ),
    "wider heads": ("tied", declaring(head_dim=4), "self_attn"),
    "a bias of attention": (
        "tied",
        with_array(f"{LAYER}.self_attn.q_proj.bias"),
        "q_proj.bias",
    ),
    "a declared bias": ("tied", declaring(attention_bias=True), "attention_bias"),
    "a bias of the layers": (
        "tied",
        with_array(f"{LAYER}.mlp.up_proj.bias"),
        "up_proj.bias",
    ),
    "a bias of a norm": ("tied", with_array("model.norm.bias"), "model.norm.bias"),
    "norms of heads": (
        "tied",
        with_array(f"{LAYER}.self_attn.q_norm.weight"),
        "q_norm",
    ),
    "another family": ("qwen3", declaring(model_type="llama"), "_norm"),
    "a second head": ("untied", with_array("lm_head_2.weight"), "lm_head_2"),
    "a head of a score": ("tied", with_array("score.weight"), "score.weight"),
    "a further layer": (
        "tied",
        with_array("model.layers.2.input_layernorm.weight"),
        "model.layers.2",
    ),
    "other speeds": ("tied", with_array(SPEEDS, SPEEDS_OF_PLAIN * 2), "inv_freq"),
    "speeds of no layer": (
        "tied",
        with_array(SPEEDS.replace(".1.", ".7."), SPEEDS_OF_PLAIN),
        "layers.7",
    ),
    "speeds elsewhere": (
        "tied",
        with_array("x.rotary_emb.inv_freq", SPEEDS_OF_PLAIN),
        "x.rotary_emb",
    ),
    "a scale of a quantized matrix": (
        "tied",
        with_array(f"{LAYER}.mlp.up_proj.weight_scale"),
        "weight_scale",
    ),
    "integers": ("tied", as_type(NORM, "int8"), NORM),
    "double precision": ("tied", as_type(NORM, "float64"), NORM),
    "no norm": ("tied", without(NORM), NORM),
    "no matrix": (
        "tied",
        without(f"{LAYER}.mlp.up_proj.weight"),
        f"{LAYER}.mlp.up_proj.weight",
    ),
    "no head": ("untied", without(HEAD), HEAD),
    "a renamed norm": ("tied", renamed(NORM, "norm.weight"), "norm.weight"),
    "a prefix": ("tied", renamed(EMBED, f"base.{EMBED}"), EMBED),
    "an adapter": (
        "tied",
        beside("adapter_model.safetensors", "q_proj.lora_A.weight"),
        "lora_A",
    ),
    "the same array twice": ("tied", beside("model-2.safetensors", NORM), NORM),
    "an index that lists another array": (
        "tied",
        indexed(lambda where: where | {"x.weight": "model.safetensors"}),
        "x.weight",
    ),
    "an index that lists too few": (
        "tied",
        indexed(lambda where: {k: x for k, x in where.items() if k != NORM}),
        NORM,
    ),
    "an index that names another file": (
        "tied",
        indexed(lambda where: where | {NORM: "model-2.safetensors"}),
        "model-2.safetensors",
    ),
    "a file that the index does not list": (
        "tied",
        both(indexed(dict), beside("consolidated.safetensors", "tok_embeddings")),
        "tok_embeddings",
    ),
}
"""Folders of which an array or a setting is refused, and what the error names."""


def altered(folder: Path, config: str, change: Any) -> Llama:
    """Write the folder of a model, and change it; return the model."""
    model = Llama(CONFIGS[config], rngs=nnx.Rngs(0))
    export_model(model, folder)
    file = folder / "model.safetensors"
    arrays = change(safetensors.load_file(file), folder)
    safetensors.save_file(arrays, file)
    return model


@pytest.mark.parametrize("name", USED)
def test_arrays_that_repeat_what_is_used_change_nothing(
    name: str, tmp_path: Path
) -> None:
    model = altered(tmp_path / "hf", *USED[name])
    begun = Llama(model.config, rngs=nnx.Rngs(1))

    FolderWeights(tmp_path / "hf").load(begun)

    loaded = load(tmp_path / "hf", dtype="float32")
    for one in (begun, loaded):
        for expected, found in zip(
            jax.tree.leaves(nnx.state(model, nnx.Param)),
            jax.tree.leaves(nnx.state(one, nnx.Param)),
            strict=True,
        ):
            np.testing.assert_allclose(found, expected, rtol=1e-3)


@pytest.mark.parametrize("name", NAMED)
def test_every_array_of_a_folder_is_used_or_named(name: str, tmp_path: Path) -> None:
    config, change, named = NAMED[name]
    model = altered(tmp_path / "hf", config, change)

    with pytest.raises(ValueError, match=named):
        load(tmp_path / "hf")
    with pytest.raises(ValueError, match=r"\w+"):
        FolderWeights(tmp_path / "hf").load(model)


def test_weights_that_are_no_weights_are_one_sentence(tmp_path: Path) -> None:
    export_model(Llama(PLAIN, rngs=nnx.Rngs(0)), tmp_path / "hf")
    file = tmp_path / "hf" / "model.safetensors"
    file.write_text("no weights")

    with pytest.raises(ValueError, match=r"model\.safetensors: cannot be read"):
        load(tmp_path / "hf")


def test_a_folder_without_a_model_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="give the folder of a model that"):
        read_config(tmp_path / "nope")


def test_a_model_may_have_several_end_tokens(tmp_path: Path) -> None:
    several = replace(PLAIN, eos_token_id=(7, 9))
    path = write_config(several, tmp_path)

    assert json.loads(path.read_text())["eos_token_id"] == [7, 9]
    assert read_config(tmp_path, dtype="float32") == several


def test_weights_in_several_files_of_bfloat16_are_loaded(tmp_path: Path) -> None:
    model = export(PLAIN, tmp_path)
    file = tmp_path / "hf" / "model.safetensors"
    halves: Any = [{}, {}]
    for index, (name, array) in enumerate(safetensors.load_file(file).items()):
        halves[index % 2][name] = jnp.asarray(array, jnp.bfloat16)
    file.unlink()
    writer: Any = importlib.import_module("safetensors.flax")
    for index, half in enumerate(halves):
        writer.save_file(half, tmp_path / "hf" / f"model-{index}.safetensors")

    table = load(tmp_path / "hf").model.embed_tokens.weight[...]

    expected = model.model.embed_tokens.weight[...].astype(jnp.bfloat16)
    assert table.dtype == jnp.float32
    np.testing.assert_array_equal(table, expected.astype(jnp.float32))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_layers": 3}, r"no safetensors file holds model\.layers\.2\."),
        ({"num_layers": 1}, r"holds model\.layers\.1\..*, which the model of config"),
        ({"hidden": 24}, r"has the shape \(\d+, \d+\), but config.json declares"),
    ],
)
def test_weights_of_another_model_are_an_error(
    changes: dict[str, int], message: str, tmp_path: Path
) -> None:
    export(PLAIN, tmp_path)
    write_config(replace(PLAIN, **changes), tmp_path / "hf")

    with pytest.raises(ValueError, match=message):
        load(tmp_path / "hf")


def test_weights_that_are_a_pointer_of_git_lfs_are_named(tmp_path: Path) -> None:
    write_config(PLAIN, tmp_path)
    path = tmp_path / "model.safetensors"
    path.write_text(
        f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0a' * 32}\nsize 7\n",
        encoding="utf-8",
    )

    with pytest.raises(ValueError, match=f"{path}: .*git lfs pull"):
        load(tmp_path)


def test_weights_without_the_extra_are_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(importlib.import_module("sys").modules, "safetensors", None)

    with pytest.raises(ModuleNotFoundError, match=r"needs safetensors; .*hf"):
        load(tmp_path)
