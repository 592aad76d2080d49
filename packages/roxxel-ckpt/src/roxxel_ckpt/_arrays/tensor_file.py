"""The safetensors format, in which weights are exported and small leaves share a file.

Eight bytes with the length of a header, the header (JSON: name, dtype, shape and byte
offsets of every array), then the little-endian arrays without gaps.
https://github.com/huggingface/safetensors
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from roxxel_store.files import open_file
from roxxel_store.records import parse_object

from roxxel_ckpt.errors import CheckpointDamagedError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

DTYPES = {
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
"""The name of a dtype in the format, by its name in numpy."""

_MAX_HEADER_BYTES = 100_000_000


def packed_header(
    arrays: Mapping[str, tuple[str, Sequence[int], int]], texts: Mapping[str, str]
) -> bytes:
    """Return the beginning of a file, up to its first array.

    Args:
        arrays: Dtype in the format, shape and number of bytes of every array, by its
            name, in the order of the file.
        texts: Texts in the header, by name.
    """
    header: dict[str, Any] = {"__metadata__": dict(texts)}
    offset = 0
    for name, (dtype, shape, num_bytes) in arrays.items():
        offsets = [offset, offset := offset + num_bytes]
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": offsets}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def read_header(path: Path, remedy: str) -> tuple[dict[str, Any], int]:
    """Return the header of a file, and the offset of its first array.

    Raises:
        CheckpointDamagedError: The file is not a complete safetensors file.
    """
    with os.fdopen(open_file(path, CheckpointDamagedError), "rb") as file:
        size = int.from_bytes(file.read(8), "little")
        try:
            if size > _MAX_HEADER_BYTES:
                raise ValueError(f"its header would have {size} bytes")  # noqa: TRY301 - as an error of parsing
            header = parse_object(file.read(size), "its header", remedy)
            stops = [
                entry["data_offsets"][1]
                for name, entry in header.items()
                if name != "__metadata__"
            ]
            declared = 8 + size + max(stops, default=0)
            if (found := path.stat().st_size) != declared:
                raise ValueError(f"it has {found} bytes and declares {declared}")  # noqa: TRY301 - as above
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise CheckpointDamagedError(
                f"{path}: is not a complete safetensors file "
                f"({error.__cause__ or error}); {remedy}"
            ) from error
    return header, 8 + size
