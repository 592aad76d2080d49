"""Models leave and enter by the names of Hugging Face, and keep their logits."""

from __future__ import annotations

import functools
import importlib
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st
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
    assert main(["ckpt", "export", str(step), str(file)]) == 0
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


def reference(config: dict[str, Any], stored: dict[str, Array], tokens: Array) -> Array:
    """Return logits by the published equations, from the files alone, in float64.

    Those of Qwen-3 are in its technical report (Yang et al., 2025) and those of OLMo-2
    in 2 OLMo 2 Furious (2024): both normalise queries and keys, and the latter
    normalises what a layer adds instead of what it reads.
    """
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

    values = json.loads((tmp_path / "hf" / "config.json").read_text())
    arrays = safetensors.load_file(tmp_path / "hf" / "model.safetensors")
    expected = reference(values, arrays, TOKENS)
    np.testing.assert_allclose(own, expected, atol=1e-4, rtol=1e-4)
    assert np.std(expected) > 0.1
    loaded = load(tmp_path / "hf", dtype="float32")
    np.testing.assert_array_equal(own, logits(loaded, TOKENS))
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


def test_a_url_is_no_folder_of_a_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    model = Llama(PLAIN, rngs=nnx.Rngs(0))

    for url in ("s3://bucket/hf", "gs:/bucket/hf"):
        with pytest.raises(ValueError, match=f"{url}: write to a folder on a disk"):
            export_model(model, url)
    assert not [*tmp_path.iterdir()]


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


EMBED, HEAD, NORM = "model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"
FILE = "model.safetensors"
FIELDS = {
    "vocab_size": "vocab_size",
    "hidden_size": "width",
    "intermediate_size": "hidden",
    "num_hidden_layers": "num_layers",
    "num_attention_heads": "num_heads",
    "num_key_value_heads": "num_kv_heads",
    "head_dim": "head_width",
    "rope_theta": "rope_theta",
    "rope_scaling": "rope_scaling",
    "rms_norm_eps": "norm_epsilon",
    "tie_word_embeddings": "tied",
    "model_type": "qk_norm",
}
"""Settings that decide what is computed, by the names of both sides."""
ABSENT: Any = object()
DEFAULTS = {"tie_word_embeddings": False, "rope_theta": 10_000.0}
"""What transformers computes with if a setting is absent."""
CHANGES: dict[str, list[Any]] = {
    "vocab_size": [52, 54, 1],
    "hidden_size": [8, 24],
    "intermediate_size": [12, 24],
    "num_hidden_layers": [1, 3, 0],
    "num_attention_heads": [2, 8, 3],
    "num_key_value_heads": [1, 4, ABSENT],
    "head_dim": [4, 12, 5],
    "rope_theta": [1e4, 9.0, ABSENT],
    "rope_scaling": [
        {"rope_type": "linear", "factor": 3.0},
        {"rope_type": "yarn", "factor": 3.0},
        {"rope_type": "linear"},
    ],
    "rms_norm_eps": [1e-2],
    "tie_word_embeddings": [True, False, ABSENT],
    "model_type": ["llama", "qwen3", "olmo2", "mamba"],
    "hidden_act": ["gelu", "silu"],
    "attention_bias": [True, False],
    "mlp_bias": [True],
    "use_sliding_window": [True],
    "max_position_embeddings": [99],
    "eos_token_id": [3, [3, 4]],
    "torch_dtype": ["bfloat16"],
    "transformers_version": ["5.0"],
}
UNSUPPORTED = {
    "rope_scaling": CHANGES["rope_scaling"][1:],
    "model_type": ["mamba"],
    "hidden_act": ["gelu"],
    **{key: [True] for key in ("attention_bias", "mlp_bias", "use_sliding_window")},
}
NORMS = {
    "llama": ("input_layernorm", "post_attention_layernorm"),
    "olmo2": ("post_attention_layernorm", "post_feedforward_layernorm"),
}
DTYPES = {
    np.dtype("f4"): "F32",
    np.dtype("f2"): "F16",
    np.dtype(jnp.bfloat16): "BF16",
    np.dtype("f8"): "F64",
    np.dtype("i1"): "I8",
}


@dataclass
class Altered:
    """A folder of transformers: its settings and its files of arrays."""

    settings: dict[str, Any]
    files: dict[str, dict[str, Array]]

    @property
    def known(self) -> dict[str, Any]:
        """The settings with what transformers takes for absent ones."""
        known = {**DEFAULTS, **self.settings}
        known.setdefault("num_key_value_heads", known["num_attention_heads"])
        return known

    @property
    def places(self) -> list[tuple[str, str]]:
        """Each array with its file."""
        return [(name, file) for file in self.files for name in self.files[file]]

    def needed(self) -> dict[str, tuple[int, ...]]:
        """Return the arrays of the model that the settings declare, with shapes."""
        s = self.known
        width, size, hidden = s["hidden_size"], s["head_dim"], s["intermediate_size"]
        heads = s["num_attention_heads"] * size
        groups = s["num_key_value_heads"] * size
        kind = s["model_type"]
        shapes = {EMBED: (s["vocab_size"], width), NORM: (width,)}
        if not s["tie_word_embeddings"]:
            shapes[HEAD] = shapes[EMBED]
        of_layer = {
            "self_attn.q_proj": (heads, width),
            "self_attn.k_proj": (groups, width),
            "self_attn.v_proj": (groups, width),
            "self_attn.o_proj": (width, heads),
            "mlp.gate_proj": (hidden, width),
            "mlp.up_proj": (hidden, width),
            "mlp.down_proj": (width, hidden),
            **dict.fromkeys(NORMS.get(kind, NORMS["llama"]), (width,)),
        }
        if kind != "llama":
            whole = kind == "olmo2"
            of_layer["self_attn.q_norm"] = (heads if whole else size,)
            of_layer["self_attn.k_norm"] = (groups if whole else size,)
        for layer in range(s["num_hidden_layers"]):
            for name, shape in of_layer.items():
                shapes[f"model.layers.{layer}.{name}.weight"] = shape
        return shapes

    def wrong_settings(self) -> set[str]:
        """Return settings with which no model of ours computes."""
        s = self.known
        wrong = {name for name, bad in UNSUPPORTED.items() if s.get(name) in bad}
        if s["num_hidden_layers"] < 1:
            wrong.add("num_hidden_layers")
        if s["num_attention_heads"] % s["num_key_value_heads"]:
            wrong |= {"num_key_value_heads", "num_attention_heads"}
        return wrong | {"head_dim"} if s["head_dim"] % 2 else wrong

    def wrong_arrays(self) -> set[str]:
        """Return arrays that are neither used once nor repeat what is used."""
        needed, places = self.needed(), self.places
        held = {name: self.files[file][name] for name, file in places}
        names = [name for name, _ in places]
        wrong = {name for name in names if names.count(name) > 1}
        wrong |= needed.keys() - held.keys()
        wrong |= {n for n in held if DTYPES[held[n].dtype] in ("F64", "I8")}
        wrong |= {n for n in held if n in needed and held[n].shape != needed[n]}
        wrong |= {n for n in held if n not in needed and not self.repeats(n, held)}
        return wrong

    def repeats(self, name: str, held: dict[str, Array]) -> bool:
        """Return whether an array that is not needed repeats what is used."""
        s = self.known
        if name == HEAD:
            return EMBED in held and np.array_equal(held[HEAD], held[EMBED])
        layers = [f"layers.{at}.self_attn." for at in range(s["num_hidden_layers"])]
        if name not in {f"model.{each}rotary_emb.inv_freq" for each in ("", *layers)}:
            return False
        right, found = speeds_of({**s, "rope_scaling": None}), held[name]
        return right.shape == found.shape and np.allclose(found, right, rtol=0.01)

    def write(self, folder: Path) -> None:
        (folder / "config.json").write_text(json.dumps(self.settings))
        for file, arrays in self.files.items():
            write_arrays(folder / file, arrays)


def write_arrays(path: Path, arrays: dict[str, Array]) -> None:
    """Write a safetensors file; the library for NumPy writes no bfloat16."""
    header: dict[str, Any] = {}
    data = b""
    for name, array in arrays.items():
        span = [len(data), len(data) + array.nbytes]
        kind = DTYPES[array.dtype]
        header[name] = {"dtype": kind, "shape": array.shape, "data_offsets": span}
        data += array.tobytes()
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


@functools.cache
def built(config: str) -> Llama:
    return Llama(CONFIGS[config], rngs=nnx.Rngs(0))


Draw = Callable[[st.SearchStrategy[Any]], Any]
EXTRA = (
    *("model.layers.1.self_attn.q_proj.bias", "model.layers.1.mlp.up_proj.bias"),
    *("model.norm.bias", "model.layers.1.self_attn.q_norm.weight", "score.weight"),
    *("model.layers.2.input_layernorm.weight", "lm_head_2.weight", HEAD, "norm.weight"),
    *("model.layers.1.mlp.up_proj.weight_scale", "q_proj.lora_A.weight"),
    *("x.rotary_emb.inv_freq", "model.layers.7.self_attn.rotary_emb.inv_freq"),
)


def one_of(folder: Altered, draw: Draw) -> tuple[dict[str, Array], str]:
    """Return the arrays of a file, and one name among them."""
    name, file = draw(st.sampled_from(folder.places))
    return folder.files[file], name


def drop(folder: Altered, draw: Draw) -> None:
    arrays, name = one_of(folder, draw)
    del arrays[name]


def add(folder: Altered, draw: Draw) -> None:
    arrays, name = one_of(folder, draw)
    arrays[draw(st.sampled_from(EXTRA))] = arrays[name][:1]


def rename(folder: Altered, draw: Draw) -> None:
    arrays, name = one_of(folder, draw)
    new = st.sampled_from((f"base.{name}", name.removeprefix("model."), *EXTRA))
    arrays[draw(new)] = arrays.pop(name)


def swap(folder: Altered, draw: Draw) -> None:
    arrays, name = one_of(folder, draw)
    other = draw(st.sampled_from([*arrays]))
    arrays[name], arrays[other] = arrays[other], arrays[name]


def transpose(folder: Altered, draw: Draw) -> None:
    arrays, name = one_of(folder, draw)
    arrays[name] = np.ascontiguousarray(arrays[name].T)


def reshape(folder: Altered, draw: Draw) -> None:
    arrays, name = one_of(folder, draw)
    array = arrays[name]
    shapes = (array[:-1], np.concatenate([array, array]), array[None], array.ravel())
    arrays[name] = draw(st.sampled_from(shapes))


def cast_to(folder: Altered, draw: Draw) -> None:
    arrays, name = one_of(folder, draw)
    arrays[name] = arrays[name].astype(draw(st.sampled_from([*DTYPES])))


def move(folder: Altered, draw: Draw) -> None:
    """Change some values."""
    arrays, name = one_of(folder, draw)
    arrays[name] = arrays[name] + np.ones((), arrays[name].dtype)


def repeat_table(folder: Altered, draw: Draw) -> None:
    """Add what repeats the table, or nearly does."""
    arrays, _ = one_of(folder, draw)
    if EMBED in arrays:
        arrays[HEAD] = arrays[EMBED] + draw(st.sampled_from((0, 1)))


def repeat_speeds(folder: Altered, draw: Draw) -> None:
    """Add what repeats the settings, or nearly does."""
    arrays, _ = one_of(folder, draw)
    layer = draw(st.sampled_from(("", "layers.0.self_attn.", "layers.7.self_attn.")))
    speeds = speeds_of({**folder.settings, "rope_theta": 500.0, "rope_scaling": None})
    speeds *= draw(st.sampled_from((1, 2)))
    arrays[f"model.{layer}rotary_emb.inv_freq"] = speeds.astype(np.float32)


def split(folder: Altered, draw: Draw) -> None:
    arrays, _ = one_of(folder, draw)
    moved = draw(st.lists(st.sampled_from([*arrays]), unique=True))
    target = folder.files.setdefault("model-2.safetensors", {})
    target.update((name, arrays.pop(name)) for name in moved)


def double(folder: Altered, draw: Draw) -> None:
    arrays, name = one_of(folder, draw)
    folder.files.setdefault("consolidated.safetensors", {})[name] = arrays[name]


def setting(key: str) -> Callable[[Altered, Draw], None]:
    def change(folder: Altered, draw: Draw) -> None:
        value = draw(st.sampled_from(CHANGES[key]))
        folder.settings[key] = value
        if value is ABSENT:
            del folder.settings[key]

    return change


ALTERATIONS: dict[str, Callable[[Altered, Draw], None]] = {
    each.__name__: each
    for each in (
        *(drop, add, rename, swap, transpose, reshape, cast_to, move),
        *(repeat_table, repeat_speeds, split, double),
    )
}
SETTINGS = {key: setting(key) for key in CHANGES}


@pytest.mark.parametrize("first", [*ALTERATIONS, *SETTINGS])
@settings(max_examples=3)
@given(data=st.data())
def test_every_array_of_a_folder_is_used_or_repeated_or_named(
    first: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    check_altered(first, data, tmp_path_factory.mktemp("hf"))


def check_altered(kind: str, data: st.DataObject, path: Path) -> None:
    """Load an altered folder, and begin with it; see that nothing is lost."""
    all_kinds = ALTERATIONS | SETTINGS
    name = data.draw(st.sampled_from([*CONFIGS]))
    folder = Altered(json.loads(write_config(CONFIGS[name], path).read_text()), {})
    before, random = folder.known, np.random.default_rng(0)
    folder.files[FILE] = {
        name: random.normal(len(shape) == 1, 0.3, shape).astype(np.float32)
        for name, shape in folder.needed().items()
    }
    others = st.lists(st.sampled_from([*all_kinds]), max_size=1)
    for each in (kind, *data.draw(others)):
        if folder.places:
            all_kinds[each](folder, data.draw)
    folder.write(path)
    known, begun = folder.known, nnx.clone(built(name))
    wrong = folder.wrong_settings() or folder.wrong_arrays()
    computed = {key for key in FIELDS if known.get(key) != before.get(key)}
    named = wrong | computed
    named |= {FIELDS[key] for key in named & FIELDS.keys()}

    loaded, refused = None, ""
    try:
        loaded = load(path, dtype="float32")
    except ValueError as error:
        refused = str(error)
    not_begun = ""
    try:
        FolderWeights(path).load(begun)
    except ValueError as error:
        not_begun = str(error)

    assert bool(refused) == bool(wrong), (refused, wrong)
    assert not refused or any(each in refused for each in named)
    assert bool(not_begun) == bool(wrong | computed), (not_begun, wrong, computed)
    assert not not_begun or any(each in not_begun for each in named)
    if loaded is not None:
        held = {name: folder.files[file][name] for name, file in folder.places}
        expected = reference(known, held, TOKENS[:, :8])
        found = loaded(jnp.asarray(TOKENS[:, :8]))
        np.testing.assert_allclose(found, expected, atol=1e-3, rtol=1e-3)
        params = (nnx.state(each, nnx.Param) for each in (begun, loaded))
        assert bool(not_begun) or jax.tree.all(jax.tree.map(np.array_equal, *params))


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
