"""Read arrays of a checkpoint as numpy, a bounded number of bytes at a time.

The safetensors format: eight bytes with the length of a header, the header (JSON: name,
dtype, shape and byte offsets of every array), then the little-endian arrays without
gaps. https://github.com/huggingface/safetensors
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import numpy as np

from roxxel_ckpt._folder import STATE
from roxxel_ckpt._orbax import read_arrays

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from roxxel_ckpt._description import LeafSpec

_BYTES_AT_ONCE = 1 << 28
_SAFETENSORS_DTYPES = {
    "bool": "BOOL",
    "uint8": "U8",
    "int8": "I8",
    "uint16": "U16",
    "int16": "I16",
    "uint32": "U32",
    "int32": "I32",
    "uint64": "U64",
    "int64": "I64",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "bfloat16": "BF16",
    "float16": "F16",
    "float32": "F32",
    "float64": "F64",
}


def read_as_numpy(
    directory: Path, names: Sequence[str], leaves: Mapping[str, LeafSpec]
) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
    """Yield leaves in order, as numpy; typed PRNG keys as their 32-bit words.

    Args:
        directory: Directory of the step.
        names: Leaves to read.
        leaves: All leaves of the step.
    """
    group: list[str] = []
    num_bytes = 0
    for name in [*names, None]:
        size = 0 if name is None else leaves[name].num_bytes or 0
        if group and (name is None or num_bytes + size > _BYTES_AT_ONCE):
            found = read_arrays(
                directory / STATE,
                {member: None for member in group if leaves[member].is_stored},
            )
            for member in group:
                spec = leaves[member]
                yield member, found.get(member, np.zeros(spec.shape, bool))
            group, num_bytes = [], 0
        if name is not None:
            group.append(name)
            num_bytes += size


def export_safetensors(
    directory: Path,
    leaves: Mapping[str, LeafSpec],
    names: Mapping[str, str],
    target: Path,
) -> int:
    """Write leaves of a checkpoint as a safetensors file.

    Args:
        directory: Directory of the step.
        leaves: All leaves of the step.
        names: Name in the file by name of the leaf, for the leaves to write.
        target: File to write; it appears only when it is complete.

    Returns:
        Bytes written.

    Raises:
        ValueError: A dtype has no counterpart in the format.
    """
    header: dict[str, Any] = {}
    offset = 0
    for name, spec in leaves.items():
        if name in names and (spec.is_key or not spec.is_stored):
            continue  # PRNG keys are not weights, and empty arrays have no bytes
        if name in names:
            stored = {"int": "int64", "float": "float64"}.get(spec.dtype, spec.dtype)
            if stored not in _SAFETENSORS_DTYPES:
                raise ValueError(
                    f"{directory}: {name} is {spec}, which safetensors cannot hold; "
                    "export without it by reading the checkpoint with Orbax"
                )
            stop = offset + (spec.num_bytes or 0)
            header[names[name]] = {
                "dtype": _SAFETENSORS_DTYPES[stored],
                "shape": list(spec.shape),
                "data_offsets": [offset, stop],
            }
            offset = stop
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    partial = target.with_name(target.name + ".part")
    chosen = [name for name in leaves if names.get(name) in header]
    with partial.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, array in read_as_numpy(directory, chosen, leaves):
            file.write(np.ascontiguousarray(array).tobytes())
        file.flush()
        os.fsync(file.fileno())
    partial.rename(target)
    return 8 + len(text) + offset
