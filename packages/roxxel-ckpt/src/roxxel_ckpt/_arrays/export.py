"""An export: a safetensors file of a step's arrays, for this and other programs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from roxxel_store import published

from roxxel_ckpt._arrays.orbax import read_as_numpy
from roxxel_ckpt._arrays.tensor_file import DTYPES, packed_header, read_header
from roxxel_ckpt.errors import CheckpointMismatchError

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

    from roxxel_ckpt._arrays.layout import LeafSpec

_MOST_NAMED = 5


def export_safetensors(
    directory: Path,
    leaves: Mapping[str, LeafSpec],
    names: Mapping[str, str],
    target: Path,
    carried: Mapping[str, str],
) -> int:
    """Write leaves as a safetensors file and return its size in bytes.

    `names` maps the leaves to write to their names in the file. `carried` holds texts
    for the header. The file appears at `target` only after it is complete and flushed
    to the disk.
    """
    arrays: dict[str, tuple[str, Sequence[int], int]] = {}
    chosen: list[str] = []
    for name, spec in leaves.items():
        # PRNG keys are not weights, and empty arrays have no bytes.
        if name not in names or spec.is_key or not spec.is_stored:
            continue
        dtype = _dtype_of(spec)
        if dtype is None:
            raise ValueError(
                f"{directory}: {name} is {spec}, which safetensors cannot hold; "
                "read it by `Checkpointer.load` instead"
            )
        if names[name] in arrays:
            raise ValueError(
                f"{directory}: {name} and another leaf would both be {names[name]} in "
                "the file; add --all for full names"
            )
        arrays[names[name]] = dtype, spec.shape, spec.num_bytes or 0
        chosen.append(name)
    header = packed_header(arrays, carried)
    with published(target) as file:
        file.write(header)
        for _, array in read_as_numpy(directory, chosen, leaves):
            file.write(np.ascontiguousarray(array).tobytes())
    return len(header) + sum(num_bytes for *_, num_bytes in arrays.values())


def import_safetensors(
    file: str | os.PathLike[str], model: Any, optimizer: Any = None
) -> dict[str, str]:
    """Read a file that `roxxel-ckpt export` wrote into a live model, bit for bit.

    The arrays keep the shardings of the live objects. PRNG keys are not in the file and
    keep their live values.

    Args:
        file: The file.
        model: Flax NNX object with the leaves of the exported model.
        optimizer: Flax NNX object; needs an export with `--all`. If None, the optimizer
            in the file is ignored.

    Returns:
        Texts in the file: `step` and `metrics`. A file from `roxxel ckpt export` also
        has `config`, the TOML of the run, and `tokenizer`, if they are known.

    Raises:
        FileNotFoundError: The file does not exist.
        CheckpointDamagedError: The file is not a complete safetensors file.
        CheckpointMismatchError: The leaves of file and live objects differ; the message
            names some. The live objects are unchanged.

    Example:
        >>> from flax import nnx
        >>> from roxxel_ckpt import Checkpointer, cli
        >>> model = nnx.Linear(2, 2, rngs=nnx.Rngs(0))
        >>> with Checkpointer("run/checkpoints", model) as checkpointer:
        ...     _ = checkpointer.save(10)
        >>> cli.main(["export", "run", "model.safetensors"])
        model.safetensors: 2 arrays, 208 B
        0
        >>> import_safetensors("model.safetensors", model)["step"]
        '10'
    """
    from roxxel_ckpt._arrays.leaves import LiveObjects, from_stored  # loads Flax NNX

    path = Path(file)
    header, start = read_header(path, "export again")
    metadata = header.pop("__metadata__", {})
    objects = LiveObjects(model, optimizer)
    live = objects.tree()
    is_whole = any(name.startswith("model/") for name in header)
    wanted = {
        name if is_whole else exported_name(name): name
        for name, spec in live.specs.items()
        if spec.is_stored and not spec.is_key
    }
    if optimizer is None:
        header = {n: e for n, e in header.items() if not n.startswith("optimizer/")}
    _check_same(path, header, {n: live.specs[name] for n, name in wanted.items()})
    content = np.memmap(path, np.uint8, "r")
    values: dict[str, Any] = {}
    for name, entry in header.items():
        first, stop = (start + offset for offset in entry["data_offsets"])
        spec = live.specs[wanted[name]]
        dtype, leaf = np.dtype(spec.stored_dtype), live.leaves[wanted[name]]
        array = content[first:stop].view(dtype).reshape(spec.shape)
        values[wanted[name]] = from_stored(wanted[name], np.array(array), leaf)
    objects.update(live.with_values(values))
    return metadata


def exported_name(name: str, inner: str = "model/") -> str:
    """Return a leaf's name in the file: `model/a/b` becomes `a.b`, others stay."""
    bare = name.removeprefix(inner)
    return name if bare == name else bare.replace("/", ".")


def _check_same(
    path: Path, header: dict[str, Any], wanted: dict[str, LeafSpec]
) -> None:
    """Raise CheckpointMismatchError unless names, shapes and dtypes are equal."""
    in_file = {name: f"{e['dtype']}{e['shape']}" for name, e in header.items()}
    in_model = {
        name: f"{_dtype_of(spec)}{list(spec.shape)}" for name, spec in wanted.items()
    }
    problems = [
        f"{name} is {in_file.get(name, 'absent')} in the file and "
        f"{in_model.get(name, 'absent')} in the model"
        for name in {**in_model, **in_file}
        if in_file.get(name) != in_model.get(name)
    ]
    if problems:
        more = len(problems) - _MOST_NAMED
        raise CheckpointMismatchError(
            f"{path}: does not fit the live objects: "
            f"{', '.join(problems[:_MOST_NAMED])}{f' and {more} more' * (more > 0)}",
            "make the model as the run did, and export with --all for an optimizer",
        )


def _dtype_of(spec: LeafSpec) -> str | None:
    """Return the dtype of a leaf in an export; None if the format has none.

    Integers of less than a byte become integers of one byte.
    """
    return None if spec.is_stored_as_bits else DTYPES.get(spec.stored_dtype)
