"""One file for the small leaves of a state, if it has many.

With a folder of its own, a leaf costs two milliseconds of CPU in a save and one in a
restore: for 5 000 leaves of 1 KiB, a save took 10.4 s and a restore 5.0 s. In one file
both take 0.4 s (`tests-integration/benchmarks/ckpt_small.py`). So many leaves of at
most 64 KiB, such as adapters, experts and their moments, share one safetensors file,
under their own names. Process 0 writes it, so a leaf whose values lie on several
processes still has a folder. Every process reads the leaves that it needs, into any
sharding.

A state with few small leaves stays a plain Orbax checkpoint.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from roxxel_store.files import mode_of

from roxxel_ckpt._arrays.layout import SMALL_FILE, STATE, leaf_path
from roxxel_ckpt._arrays.tensor_file import DTYPES, packed_header, read_header

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    import numpy.typing as npt

_MOST_BYTES = 1 << 16
_FEWEST = 256

_NUMPY = {found: name for name, found in DTYPES.items()}


def small_leaves(arrays: Mapping[str, Any]) -> list[str]:
    """Return the leaves that share a file; the same on every process."""
    names = [name for name, array in arrays.items() if _is_small(array)]
    return names if len(names) >= _FEWEST else []


def _is_small(array: Any) -> bool:
    if array.nbytes > _MOST_BYTES or array.dtype.name not in DTYPES:
        return False
    if not isinstance(array, jax.Array) or jax.process_count() == 1:
        return True
    owners = {device.process_index for device in array.sharding.device_set}
    return array.is_fully_replicated and 0 in owners


def packed(arrays: Mapping[str, Any]) -> list[bytes]:
    """Return the content of the file in pieces: the header, and copies of the values.

    Joining them would need the memory twice.
    """
    values = jax.device_get(dict(arrays))  # all copies from a device begin at once
    described = {
        name: (DTYPES[value.dtype.name], value.shape, value.nbytes)
        for name, value in values.items()
    }
    header = packed_header(described, {"format": "np"})
    return [header, *(value.tobytes() for value in values.values())]


def read_small(directory: Path, names: Iterable[str]) -> dict[str, npt.NDArray[Any]]:
    """Return the leaves that are in the file, as numpy arrays."""
    path = directory / SMALL_FILE
    if mode_of(path) is None:
        return {}
    # Most calls of a restore read large leaves alone: parse the header for no others.
    names = [n for n in names if mode_of(directory / STATE / leaf_path(n)) is None]
    if not names:
        return {}
    header, first = read_header(path, "restore another step")
    found: dict[str, npt.NDArray[Any]] = {}
    with path.open("rb") as file:
        for name in names:
            if name in header:
                entry = header[name]
                start, stop = entry["data_offsets"]
                file.seek(first + start)
                values = np.frombuffer(file.read(stop - start), _NUMPY[entry["dtype"]])
                found[name] = values.reshape(entry["shape"])
    return found
