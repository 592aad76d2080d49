"""One of several processes in `test_loader_processes.py`; it writes a JSON report.

Arguments: process index, number of processes, port of the coordinator, the report's
file (on stdout JAX's Gloo writes between the lines).
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from roxxel_loader import (
    Dataloader,
    SimpleDataset,
    describe_rows,
    device_stream,
    global_to_host_array,
    host_to_global_device_array,
)

SHAPE = (8, 12)


class Source:
    """Rows that remember how many bytes of them were read."""

    num_bytes = 0
    hinted: slice | None = None

    def shape(self, step: int) -> tuple[int, int]:
        del step
        return SHAPE

    def whole(self, step: int) -> np.ndarray:
        return np.arange(8 * 12, dtype=np.int32).reshape(SHAPE) + 1000 * step

    def rows(self, step: int, rows: slice, columns: slice | None = None) -> Any:
        part = self.whole(step)[rows, columns or slice(None)]
        self.num_bytes += part.nbytes
        return part

    def will_need(self, step: int, n: int, rows: slice | None = None) -> None:
        del step, n
        self.hinted = rows


class Items:
    """A dataset that remembers which items were loaded."""

    def __init__(self, num_items: int) -> None:
        self._num_items = num_items
        self.loaded: list[int] = []

    def __len__(self) -> int:
        return self._num_items

    def __getitem__(self, index: int) -> np.ndarray:
        self.loaded.append(index)
        return np.arange(12, dtype=np.int32) + 100 * index


def digest(arrays: list[jax.Array]) -> str:
    """Return a digest of global arrays, gathered on every process."""
    total = hashlib.sha256()
    for array in arrays:
        mesh = array.sharding.mesh  # pyright: ignore[reportAttributeAccessIssue]
        everywhere = NamedSharding(mesh, PartitionSpec())
        gathered = jax.jit(lambda x: x, out_shardings=everywhere)(array)
        total.update(np.asarray(gathered.addressable_data(0)).tobytes())
        total.update(str(array.shape).encode())
    return total.hexdigest()[:16]


def held(sharding: NamedSharding, shape: tuple[int, ...]) -> int:
    """Return how many distinct elements the devices of this process hold."""
    seen = np.zeros(shape, bool)
    for index in sharding.addressable_devices_indices_map(shape).values():
        seen[index] = True
    return int(seen.sum())


def main() -> None:
    index, count, port = map(int, sys.argv[1:4])
    jax.distributed.initialize(f"127.0.0.1:{port}", count, index)
    devices = np.array(jax.devices())
    assert jax.process_count() == count
    assert len(devices) == 4
    report: dict[str, Any] = {}
    square = Mesh(devices.reshape(2, 2), ("a", "b"))
    line = Mesh(devices, ("data",))
    shardings = {
        "rows": NamedSharding(line, PartitionSpec("data")),
        "columns": NamedSharding(line, PartitionSpec(None, "data")),
        "both": NamedSharding(square, PartitionSpec("a", "b")),
        "both reversed": NamedSharding(square, PartitionSpec("b", "a")),
        "everywhere": NamedSharding(line, PartitionSpec()),
    }

    for name, sharding in shardings.items():
        source = Source()
        with device_stream(source, 5, 8, sharding) as stream:
            report[f"stream {name}"] = digest(list(stream))
        share = 3 * held(sharding, SHAPE) * np.dtype(np.int32).itemsize
        assert source.num_bytes == share, (name, source.num_bytes, share)
        report[f"bytes {name}"] = source.num_bytes
        assert source.hinted is not None
        for workers in (0, 2):
            items = Items(20)
            loader = Dataloader(
                items, 8, sharding=sharding, workers=workers, shuffle=True, seed=3
            )
            report[f"loader {name} {workers}"] = digest(list(loader))
            rows = held(
                NamedSharding(sharding.mesh, PartitionSpec(*sharding.spec[:1])), (8,)
            )
            short = held(
                NamedSharding(sharding.mesh, PartitionSpec(*sharding.spec[:1])), (4,)
            )
            assert len(items.loaded) == 2 * rows + short, (name, items.loaded)

    def of_shape(shape: tuple[int, ...]) -> NamedSharding:
        axis = "data" if shape[0] % 4 == 0 else None
        return NamedSharding(line, PartitionSpec(axis))

    uneven = Dataloader(Items(19), 8, sharding=of_shape)
    report["loader short batch everywhere"] = digest(list(uneven))

    local = list(Dataloader(SimpleDataset(list(range(20))), 8, workers=2))
    report["local lengths"] = [len(batch) for batch in local]
    try:
        with jax.set_mesh(line):
            placed = [host_to_global_device_array(batch) for batch in local]
        report["placed"] = digest(placed)
        for rows, batch in zip(placed, local, strict=True):
            assert np.array_equal(global_to_host_array(rows), batch)
    except ValueError as error:
        report["placed"] = str(error)
    try:
        host_to_global_device_array(np.zeros((8, 12)), shardings["columns"])
        report["shared rows"] = "placed"
    except ValueError as error:
        report["shared rows"] = str(error)
    zeros = np.zeros(SHAPE)
    split = jax.make_array_from_callback(
        SHAPE, shardings["columns"], lambda index: zeros[index]
    )
    try:
        global_to_host_array(split)
    except ValueError as error:
        report["part of rows"] = str(error)
    report["description"] = describe_rows(shardings["rows"], SHAPE)
    Path(sys.argv[4]).write_text(json.dumps(report))
    jax.distributed.shutdown()


if __name__ == "__main__":
    main()
