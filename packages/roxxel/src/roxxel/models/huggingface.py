"""Read and write model folders of the library transformers.

`Llama` has the names and shapes of three of its classes, so nothing is renamed or
transposed. `roxxel export RUN FOLDER` writes a run, and `init_from = "hf:FOLDER"` in a
config begins with such a folder. Weights need the extra `hf` of roxxel.
"""

from __future__ import annotations

import importlib
import json
import os
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from roxxel_store import missing_extra, published
from roxxel_store.errors import reason_of
from roxxel_store.files import MAX_BYTES, matches_in, open_file, read_file
from roxxel_store.records import find_object, parse_object
from roxxel_store.urls import check_on_disk

from roxxel.models._llama import Llama, frequencies
from roxxel.recipe.llama_config import (
    LlamaConfig,
    NormPlacement,
    QkNorm,
    RopeScaling,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

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
"""Defaults of transformers that differ from those of `LlamaConfig`."""


class _Architecture(NamedTuple):
    """What a `model_type` of transformers means for `LlamaConfig`."""

    class_name: str
    qk_norm: QkNorm
    norm_placement: NormPlacement
    defaults: dict[str, Any]


_ARCHITECTURES = {
    "llama": _Architecture("LlamaForCausalLM", "none", "pre", _DEFAULTS),
    "qwen3": _Architecture(
        *("Qwen3ForCausalLM", "head", "pre"),
        {**_DEFAULTS, "max_position_embeddings": 32_768, "head_dim": 128},
    ),
    "olmo2": _Architecture(
        *("Olmo2ForCausalLM", "whole", "post"), {**_DEFAULTS, "rms_norm_eps": 1e-5}
    ),
}
"""The models that `Llama` computes, by their `model_type`."""

_SUPPORTED: dict[str, Any] = {
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "use_sliding_window": False,
}
"""The only supported values of some keys in `config.json`; a missing key has this
value.
"""

_COMPUTED = (
    *("vocab_size", "width", "hidden", "num_layers", "num_heads", "num_kv_heads"),
    *("channels", "rope_theta", "rope_scaling", "qk_norm", "norm_placement"),
    *("norm_epsilon", "tied"),
)
"""Fields of a `LlamaConfig` that decide what the weights compute."""

_KEYS = {"channels": "head_width"}
"""Keys that set a field of another name."""

_GENERATION = "generation_config.json"

_DTYPES = ("F32", "F16", "BF16")
"""Types of arrays in safetensors files whose values all fit float32."""

_SHARD_BYTES = 5_000_000_000


def export_model(
    model: Llama,
    folder: str | Path,
    *,
    dtype: Literal["float32", "bfloat16"] = "float32",
    tokenizer: Mapping[str, str] | None = None,
) -> None:
    """Write all files from which transformers loads a model.

    `AutoModelForCausalLM.from_pretrained(folder)` then gives the same logits. Weights
    of more than 5 GB become several files. `config.json` comes last, so a folder with
    this file is whole.

    Args:
        model: The model.
        folder: A folder that is new or empty.
        dtype: Type of the weights in the files. Use bfloat16 for half the size.
        tokenizer: Texts of the tokenizer's files by name, if any.

    Raises:
        FileExistsError: The folder holds files.
        ValueError: `folder` is a URL, or no class of transformers computes this model.
        ModuleNotFoundError: The extra `hf` is not installed.
    """
    check_on_disk(os.fspath(folder), "write to a folder on a disk, and copy that")
    safetensors = _library("writing weights", "safetensors.flax")
    config, folder = model.config, Path(folder)
    _ = _architecture_of(config)
    if folder.exists() and any(folder.iterdir()):
        raise FileExistsError(f"{folder}: holds files; name a new folder")
    folder.mkdir(parents=True, exist_ok=True)
    arrays = {name: array.astype(dtype) for name, array in _named_arrays(model)}
    shards = _shards(arrays)
    for file, names in shards.items():
        with published(folder / file) as target:
            part = {name: arrays[name] for name in names}
            target.write(safetensors.save(part, {"format": "pt"}))
    texts = dict(tokenizer or {})
    if len(shards) > 1:
        total = sum(array.nbytes for array in arrays.values())
        where = {name: file for file, names in shards.items() for name in names}
        index = {"metadata": {"total_size": total}, "weight_map": where}
        texts["model.safetensors.index.json"] = _json(index)
    ends = {"bos_token_id": config.bos_token_id, "eos_token_id": config.eos_token_id}
    known = {name: x for name, x in ends.items() if x is not None}
    # What the tokenizer's own files say counts first.
    generation = find_object(texts.get(_GENERATION, "").encode())
    generation = {"_from_model_config": True} if generation is None else generation
    texts[_GENERATION] = _json({**known, **generation})
    for name, text in texts.items():
        with published(folder / name) as target:
            target.write(text.encode())
    write_config(config, folder, dtype=dtype)


def write_config(
    config: LlamaConfig | Llama,
    folder: str | Path,
    *,
    dtype: Literal["float32", "bfloat16"] = "float32",
) -> Path:
    """Write `config.json` of a model into an existing folder; return the file's path.

    Args:
        config: The config of the model, or the model itself.
        folder: Folder of the file.
        dtype: Type of the weights beside the file; `roxxel ckpt export` writes float32.

    Raises:
        ValueError: No class of transformers computes this model.
        OSError: The folder does not exist, or cannot be written.
    """
    if isinstance(config, Llama):
        config = config.config
    model_type = _architecture_of(config)
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
        "architectures": [_ARCHITECTURES[model_type].class_name],
        "model_type": model_type,
        **_SUPPORTED,
        "torch_dtype": dtype,
    }
    path = Path(folder) / "config.json"
    # In the folder of the hub's cache, files are links to what others use.
    with published(path) as file:
        file.write(_json({**named, **values}).encode())
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
    model_type = values.get("model_type", "llama")
    if model_type not in _ARCHITECTURES:
        raise ValueError(
            f"{path}: model_type is {model_type!r}, but roxxel.models supports only "
            f"{', '.join(_ARCHITECTURES)}; use a model of one of these types"
        )
    for key, supported in _SUPPORTED.items():
        if values.get(key, supported) != supported:
            raise ValueError(
                f"{path}: {key} is {values[key]!r}, but roxxel.models supports only "
                f"{supported!r}; use a model with this value"
            )
    architecture = _ARCHITECTURES[model_type]
    # Version 5 of transformers writes all keys of rotary positions into one table.
    rope: dict[str, Any] = {
        **(values.get("rope_scaling") or {}),
        **(values.get("rope_parameters") or {}),
    }
    values = {**architecture.defaults, **values}
    values.setdefault("num_key_value_heads", values.get("num_attention_heads"))
    if "rope_theta" in rope:
        values["rope_theta"] = rope["rope_theta"]
    found: dict[str, Any] = {
        field: values[key]
        for key, field in _FIELDS.items()
        if values.get(key) is not None
    }
    found["qk_norm"] = architecture.qk_norm
    found["norm_placement"] = architecture.norm_placement
    try:
        found["rope_scaling"] = _scaling(path, rope)
        return LlamaConfig(**found | changes)
    except KeyError as error:
        raise ValueError(
            f"{path}: rope_scaling lacks {error}; complete the file"
        ) from error


def _parsed(path: Path) -> dict[str, Any]:
    """Return the content of `config.json`; raise ValueError if a size is missing."""
    if not path.exists():
        raise FileNotFoundError(
            f"{path}: there is no such file; give the folder of a model that "
            "transformers or `roxxel export` saved"
        )
    remedy = "copy the file of the model again"
    data = read_file(path, MAX_BYTES, remedy=remedy)
    values = parse_object(data, str(path), remedy)
    sizes = [key for key, field in _FIELDS.items() if field in _SIZES]
    missing = [key for key in sizes if values.get(key) is None]
    if missing:
        raise ValueError(
            f"{path}: has no {' and no '.join(missing)}, so it does not describe a "
            "model; give the folder of a model that transformers saved"
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
        f"{path}: rope_scaling has the rule {kind!r}, but roxxel.models supports only "
        "linear and llama3; use a model with one of these"
    )


def load(folder: str | Path, **changes: Any) -> Llama:
    """Return the model in a folder of `config.json` and safetensors files.

    Args:
        folder: Folder with `config.json` and one or more files `*.safetensors`.
        **changes: As for `read_config`.

    Returns:
        A model with float32 parameters on the default device.

    Raises:
        ValueError: A weight is missing in the files, unknown to the model, or has
            another shape or type.
        ModuleNotFoundError: The extra `hf` is not installed.
    """
    _library("reading weights", "safetensors")
    config = read_config(folder, **changes)
    model = nnx.eval_shape(lambda: Llama(config, rngs=nnx.Rngs(0)))
    _put(model, map(jnp.asarray, read_weights(model, folder).values()))
    return model


def _put(model: Llama, arrays: Iterable[jax.Array]) -> None:
    structure = jax.tree.structure(nnx.to_pure_dict(nnx.state(model, nnx.Param)))
    nnx.update(model, jax.tree.unflatten(structure, arrays))


class FolderWeights:
    """The weights of a folder, for `init_from` of a trainer that trains a `Llama`.

    >>> str(FolderWeights("olmo"))
    'hf:olmo'
    """

    def __init__(self, folder: str | Path) -> None:
        self._folder = Path(folder)

    def __str__(self) -> str:
        """Return the folder in the form of a config."""
        return f"hf:{self._folder}"

    def load(self, model: nnx.Module) -> None:
        """Put the weights into a model, each with the sharding that its array has.

        Raises:
            TypeError: The model is no `Llama`.
            ValueError: The folder's model computes something else, or its weights do
                not fit.
        """
        if not isinstance(model, Llama):
            raise TypeError(
                f"{self}: has the weights of a Llama, but the run trains a "
                f"{type(model).__name__}; load the weights in the model's own function"
            )
        declared = read_config(self._folder)
        differing = [
            f"{_KEYS.get(name, name)} = {_toml(getattr(declared, name))}"
            for name in _COMPUTED
            if getattr(declared, name) != getattr(model.config, name)
        ]
        if differing:
            raise ValueError(
                f"{self}: config.json declares another model; write under "
                f"[model_args]: {', '.join(differing)}"
            )
        found = read_weights(model, self._folder)
        placed = (
            jax.make_array_from_callback(old.shape, old.sharding, found[n].__getitem__)
            for n, old in _named_arrays(model)
        )
        _put(model, placed)


def read_weights(
    model: Llama, folder: str | Path
) -> dict[str, np.ndarray[Any, np.dtype[np.float32]]]:
    """Return the weights in a folder as float32, in the order of a model's arrays.

    Args:
        model: The model that shall get the weights; its arrays are not read.
        folder: As for `load`.

    Raises:
        ValueError, ModuleNotFoundError: As for `load`.
    """
    folder, config = Path(folder), model.config
    shapes = {name: array.shape for name, array in _named_arrays(model)}
    files = _files_of_arrays(folder)
    for name in shapes:
        if name not in files:
            raise ValueError(
                f"{folder}: no safetensors file holds {name}; "
                "copy all files of the model to this folder"
            )
    found: dict[str, np.ndarray[Any, np.dtype[np.float32]]] = {}
    for name, tensor in _tensors(files):
        if name in shapes and tensor.shape != shapes[name]:
            raise ValueError(
                f"{files[name]}: {name} has the shape {tensor.shape}, but config.json "
                f"declares {shapes[name]}; use the config that belongs to the weights"
            )
        found[name] = tensor
    for name in files:
        if name not in shapes and not _is_redundant(name, found, config):
            raise ValueError(
                f"{files[name]}: holds {name}, which the model of config.json lacks or "
                "has with other values; use the config that belongs to the weights"
            )
    return {name: found[name] for name in shapes}


def _files_of_arrays(folder: Path) -> dict[str, Path]:
    """Return the file of each array in a folder, by the array's name.

    Raises:
        ValueError: A file cannot be read, or two hold the same array.
    """
    safetensors = _library("reading weights", "safetensors")
    files: dict[str, Path] = {}
    for path in map(Path, sorted(matches_in(folder, "*.safetensors"))):
        os.close(open_file(path))  # Its error names a pointer of Git LFS.
        try:
            with safetensors.safe_open(path, framework="numpy") as tensors:
                names: list[str] = list(tensors.keys())
        except Exception as error:  # of the library, whose errors have no common class
            raise ValueError(
                f"{path}: cannot be read as safetensors ({reason_of(error)}); copy the "
                "file of the model again"
            ) from error
        for name in names:
            if name in files:
                raise ValueError(
                    f"{path}: holds {name}, which {files[name].name} holds too; leave "
                    "the files of one model in the folder"
                )
            files[name] = path
    return files


def _tensors(
    files: Mapping[str, Path],
) -> Iterator[tuple[str, np.ndarray[Any, np.dtype[np.float32]]]]:
    """Yield all arrays of some files as float32, with their names.

    Raises:
        ValueError: An array does not hold floats that fit float32.
    """
    safetensors = _library("reading weights", "safetensors")
    for path in dict.fromkeys(files.values()):
        with safetensors.safe_open(path, framework="numpy") as tensors:
            for name in (each for each, file in files.items() if file == path):
                dtype = tensors.get_slice(name).get_dtype()
                if dtype not in _DTYPES:
                    raise ValueError(
                        f"{path}: {name} has the type {dtype}, but roxxel.models reads "
                        f"only {', '.join(_DTYPES)}; convert the weights to one of "
                        "these"
                    )
                yield name, tensors.get_tensor(name).astype(np.float32)


def _named_arrays(model: Llama) -> list[tuple[str, Any]]:
    state = nnx.to_pure_dict(nnx.state(model, nnx.Param))
    leaves = jax.tree_util.tree_flatten_with_path(state)[0]
    return [(".".join(str(key.key) for key in path), leaf) for path, leaf in leaves]


def _architecture_of(config: LlamaConfig) -> str:
    for name, each in _ARCHITECTURES.items():
        known = (each.qk_norm, each.norm_placement)
        if known == (config.qk_norm, config.norm_placement):
            return name
    raise ValueError(
        f"a model with qk_norm={config.qk_norm!r} and norm_placement="
        f"{config.norm_placement!r} has no class in transformers; only the "
        f"combinations of {', '.join(_ARCHITECTURES)} have one"
    )


def _shards(arrays: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the files for some weights, each with the names of its weights."""
    shards: list[list[str]] = [[]]
    size = 0
    for name, array in arrays.items():
        if shards[-1] and size + array.nbytes > _SHARD_BYTES:
            shards.append([])
            size = 0
        shards[-1].append(name)
        size += array.nbytes
    if len(shards) == 1:
        return {"model.safetensors": shards[0]}
    total = len(shards)
    return {
        f"model-{number:05}-of-{total:05}.safetensors": names
        for number, names in enumerate(shards, 1)
    }


def _library(what: str, name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise missing_extra(what, "safetensors", "roxxel", "hf") from error


def _toml(value: Any) -> str:
    if isinstance(value, RopeScaling):
        pairs = (f"{key} = {_toml(x)}" for key, x in asdict(value).items())
        return f"{{ {', '.join(pairs)} }}"
    return json.dumps(value)


def _json(values: Mapping[str, Any]) -> str:
    return f"{json.dumps(values, indent=2)}\n"


def _is_redundant(
    name: str,
    found: Mapping[str, np.ndarray[Any, np.dtype[np.float32]]],
    config: LlamaConfig,
) -> bool:
    """Return whether an array only repeats the token table, or values of the config."""
    values = found[name]
    if config.tied and name == "lm_head.weight":
        return np.array_equal(values, found["model.embed_tokens.weight"])
    layers = (f"model.layers.{number}.self_attn" for number in range(config.num_layers))
    if name not in {f"{place}.rotary_emb.inv_freq" for place in ("model", *layers)}:
        return False
    # Files from before 2024 hold the frequencies, without the model's scaling.
    expected = frequencies(replace(config, rope_scaling=None))
    return values.shape == expected.shape and np.allclose(values, expected, rtol=0.01)
