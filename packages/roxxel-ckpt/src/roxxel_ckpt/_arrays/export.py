"""Export arrays of a checkpoint to a safetensors file."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from roxxel_store import published

from roxxel_ckpt._arrays.orbax import read_as_numpy
from roxxel_ckpt._arrays.tensor_file import DTYPES, packed_header

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from roxxel_ckpt._arrays.layout import LeafSpec


def exported_name(name: str, inner: str = "model/") -> str:
    """Return a leaf's name in the file: `model/a/b` becomes `a.b`, others stay."""
    bare = name.removeprefix(inner)
    return name if bare == name else bare.replace("/", ".")


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
        dtype = safetensors_dtype(spec)
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


def safetensors_dtype(spec: LeafSpec) -> str | None:
    """Return the dtype of a leaf in an export; None if the format has none.

    Integers of less than a byte become integers of one byte.
    """
    return None if spec.is_stored_as_bits else DTYPES.get(spec.stored_dtype)
