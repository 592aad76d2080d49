"""Reads models of the Hugging Face class `LlamaForCausalLM`, and writes `config.json`.

Both sides have the same names and shapes, so no module renames or transposes weights.
To export a run, write the weights with `roxxel ckpt export STEP --safetensors
FOLDER/model.safetensors`, and the config with `write_config`. Reading weights needs the
extra `hf` of roxxel.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import jax
import jax.numpy as jnp
from flax import nnx
from roxxel_store import missing_extra, published
from roxxel_store.files import matches_in
from roxxel_store.records import parse_object

from roxxel.models._config import LlamaConfig, RopeScaling
from roxxel.models._llama import Llama

_FIELDS = {
    "vocab_size": "vocab_size",
    "hidden_size": "width",
    "intermediate_size": "hidden",
    "num_hidden_layers": "num_layers",
    "num_attention_heads": "num_heads",
    "num_key_value_heads": "num_kv_heads",
    "head_dim": "head_width",
    "max_position_embeddings": "context",
    "rope_theta": "rope_theta",
    "rms_norm_eps": "norm_epsilon",
    "tie_word_embeddings": "tied",
    "initializer_range": "init_std",
    "bos_token_id": "bos_token_id",
    "eos_token_id": "eos_token_id",
}
"""Keys of `config.json`, each with the equivalent field of `LlamaConfig`."""

_SIZES = {"vocab_size", "width", "hidden", "num_layers", "num_heads"}

_DEFAULTS: dict[str, Any] = {
    "tie_word_embeddings": False,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 2048,
}
"""Defaults of `LlamaForCausalLM` that differ from those of `LlamaConfig`."""


def write_config(config: LlamaConfig | Llama, folder: str | Path) -> Path:
    """Write `config.json` of a model into an existing folder; return the file's path.

    The file declares float32 weights, as `roxxel ckpt export` writes.

    Args:
        config: The config of the model, or the model itself.
        folder: Folder of the file.

    Raises:
        TypeError: `config` is neither a config nor a model.
        OSError: The folder does not exist, or cannot be written.
    """
    if isinstance(config, Llama):
        config = config.config
    if not isinstance(cast("Any", config), LlamaConfig):
        raise TypeError(
            f"config must be a LlamaConfig or a Llama, got {type(config).__name__}; "
            "only these models have a config.json"
        )
    values = {key: getattr(config, field) for key, field in _FIELDS.items()}
    values["head_dim"] = config.channels
    scaling = config.rope_scaling
    if scaling is not None:
        values["rope_scaling"] = {"rope_type": scaling.kind, "factor": scaling.factor}
    if scaling is not None and scaling.kind == "llama3":
        values["rope_scaling"] |= {
            "low_freq_factor": scaling.low_freq_factor,
            "high_freq_factor": scaling.high_freq_factor,
            "original_max_position_embeddings": scaling.original_context,
        }
    named = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "torch_dtype": "float32",
    }
    path = Path(folder) / "config.json"
    # In the folder of the hub's cache, files are links to what others use.
    with published(path) as file:
        file.write(f"{json.dumps({**named, **values}, indent=2)}\n".encode())
    return path


def read_config(folder: str | Path, **changes: Any) -> LlamaConfig:
    """Return the config that `config.json` in a folder declares.

    Args:
        folder: Folder with `config.json`.
        **changes: Fields of `LlamaConfig` that the file does not hold, such as `dtype`,
            or that replace its values.

    Raises:
        ValueError: The file declares a model that `Llama` cannot compute.
    """
    path = Path(folder) / "config.json"
    values = _parsed(path)
    for key, supported in (
        *(("model_type", "llama"), ("hidden_act", "silu")),
        *(("attention_bias", False), ("mlp_bias", False)),
    ):
        if values.get(key, supported) != supported:
            raise ValueError(
                f"{path}: {key} is {values[key]!r}, but roxxel.models supports only "
                f"{supported!r}; use a model with this value"
            )
    # Version 5 of transformers writes all keys of rotary positions into one table.
    rope: dict[str, Any] = {
        **(values.get("rope_scaling") or {}),
        **(values.get("rope_parameters") or {}),
    }
    values = {**_DEFAULTS, **values}
    values.setdefault("num_key_value_heads", values.get("num_attention_heads"))
    if "rope_theta" in rope:
        values["rope_theta"] = rope["rope_theta"]
    found: dict[str, Any] = {
        field: values[key]
        for key, field in _FIELDS.items()
        if values.get(key) is not None
    }
    if isinstance(found.get("eos_token_id"), list):
        found["eos_token_id"] = tuple(found["eos_token_id"])
    try:
        found["rope_scaling"] = _scaling(path, rope)
        return LlamaConfig(**found | changes)
    except KeyError as error:
        raise ValueError(
            f"{path}: the rotary scaling lacks {error}; complete the file"
        ) from error


def _parsed(path: Path) -> dict[str, Any]:
    """Return the content of `config.json`; raise ValueError if a size is missing."""
    remedy = "copy the file of the model again"
    values = parse_object(path.read_bytes(), str(path), remedy)
    sizes = [key for key, field in _FIELDS.items() if field in _SIZES]
    missing = [key for key in sizes if values.get(key) is None]
    if missing:
        raise ValueError(
            f"{path}: has no {' and no '.join(missing)}, so it does not describe a "
            "model; give the folder of a model of the class LlamaForCausalLM"
        )
    return values


def _scaling(path: Path, rope: dict[str, Any]) -> RopeScaling | None:
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "default":
        return None
    if kind == "linear":
        return RopeScaling("linear", rope["factor"])
    if kind == "llama3":
        return RopeScaling(
            "llama3",
            rope["factor"],
            rope["low_freq_factor"],
            rope["high_freq_factor"],
            rope["original_max_position_embeddings"],
        )
    raise ValueError(
        f"{path}: the rotary positions are scaled by the rule {kind!r}, but "
        "roxxel.models supports only linear and llama3; use a model with one of these"
    )


def load(folder: str | Path, **changes: Any) -> Llama:
    """Return the model in a folder of `config.json` and safetensors files.

    Args:
        folder: Folder with `config.json` and one or more files `*.safetensors`.
        **changes: As for `read_config`.

    Returns:
        A model with float32 parameters on the default device.

    Raises:
        ValueError: The files lack a weight, hold an unknown weight, or hold a weight of
            another shape.
        ModuleNotFoundError: The extra `hf` is not installed.
    """
    try:
        from safetensors import safe_open
    except ModuleNotFoundError as error:
        raise missing_extra("reading weights", "safetensors", "roxxel", "hf") from error
    folder, config = Path(folder), read_config(folder, **changes)
    model = nnx.eval_shape(lambda: Llama(config, rngs=nnx.Rngs(0)))
    graphdef, state = nnx.split(model)
    leaves, structure = jax.tree_util.tree_flatten_with_path(nnx.to_pure_dict(state))
    shapes = {
        ".".join(str(key.key) for key in path): leaf.shape for path, leaf in leaves
    }
    found: dict[str, jax.Array] = {}
    for file in sorted(matches_in(folder, "*.safetensors")):
        with safe_open(file, framework="flax") as tensors:
            for name in tensors.keys():  # noqa: SIM118 - the object is no mapping
                if name in shapes:
                    found[name] = tensors.get_tensor(name).astype(jnp.float32)
                elif not _is_redundant(name, config):
                    raise ValueError(
                        f"{file}: holds {name}, which the model of config.json lacks; "
                        "use the config that belongs to the weights"
                    )
    for name, shape in shapes.items():
        if name not in found:
            raise ValueError(
                f"{folder}: no safetensors file holds {name}; "
                "copy all files of the model to this folder"
            )
        if found[name].shape != shape:
            raise ValueError(
                f"{folder}: {name} has the shape {found[name].shape}, but config.json "
                f"declares {shape}; use the config that belongs to the weights"
            )
    arrays = [found[name] for name in shapes]
    return nnx.merge(graphdef, jax.tree_util.tree_unflatten(structure, arrays))


def _is_redundant(name: str, config: LlamaConfig) -> bool:
    """Return whether a weight repeats the token table, or values from the config."""
    is_copy = config.tied and name == "lm_head.weight"
    return is_copy or name.endswith(".rotary_emb.inv_freq")
