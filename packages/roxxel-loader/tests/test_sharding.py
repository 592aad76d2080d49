from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from roxxel_loader import Dataloader, SimpleDataset
from roxxel_loader.sharding import (
    ShardingConfig,
    describe_rows,
    global_to_host_array,
    host_to_global_device_array,
    make_custom_sharding_config,
    make_data_parallel_sharding_config,
    make_fsdp_sharding_config,
    make_hybrid_sharding_config,
)
from roxxel_loader.sharding.presets import column_ways

from .helpers import sharded


def test_fsdp_uses_all_devices_for_the_batch() -> None:
    config = make_fsdp_sharding_config(
        axis_names=("data", "model"), batch_axis_name="data"
    )

    mesh = config.create_device_mesh()

    assert dict(mesh.shape) == {"data": 8, "model": 1}
    array = jax.device_put(np.zeros((8, 2)), config.batch_sharding(mesh))
    assert {shard.data.shape for shard in array.addressable_shards} == {(1, 2)}


def test_presets_make_the_meshes_they_name() -> None:
    parallel = make_data_parallel_sharding_config().create_device_mesh()
    custom = make_custom_sharding_config((2, -1), ("x", "y"), "y").create_device_mesh()
    tensor = make_fsdp_sharding_config(mesh_shape=(-1, 2)).create_device_mesh()

    assert dict(parallel.shape) == {"data": 8}
    assert dict(custom.shape) == {"x": 2, "y": 4}
    assert dict(tensor.shape) == {"data": 4, "model": 2}


def test_a_mesh_may_be_of_some_devices() -> None:
    config = make_data_parallel_sharding_config()

    assert dict(config.create_device_mesh(jax.devices()[:3]).shape) == {"data": 3}


def test_hybrid_splits_batches_over_groups_and_inside_them() -> None:
    config = make_hybrid_sharding_config(1)

    mesh = config.create_device_mesh()

    assert dict(mesh.shape) == {"replica": 1, "data": 8, "model": 1}
    assert config.batch_sharding(mesh).spec[0] == ("replica", "data")


def test_groups_in_one_process_say_what_to_do() -> None:
    config = make_hybrid_sharding_config(2)

    with pytest.raises(ValueError, match="2 groups need a multiple of 2") as caught:
        config.create_device_mesh()

    assert str(caught.value) == (
        "2 groups need a multiple of 2 processes, but the devices belong to 1; start "
        "more processes, or use a preset without groups such as "
        "make_fsdp_sharding_config()"
    )


class Pair(NamedTuple):
    first: Any
    second: Any


@dataclass(frozen=True)
class Device:
    """A device of another process."""

    id: int
    process_index: int
    slice_index: int | None = None
    platform: str = "gpu"
    device_kind: str = "test"


def test_a_group_is_consecutive_processes() -> None:
    devices = [Device(i, process_index=i // 2) for i in range(8)]

    mesh = make_hybrid_sharding_config(2).create_device_mesh(devices)

    assert dict(mesh.shape) == {"replica": 2, "data": 4, "model": 1}
    processes = [[d.process_index for d in group.flat] for group in mesh.devices]
    assert processes == [[0, 0, 1, 1], [2, 2, 3, 3]]


def test_a_group_is_a_slice_where_there_are_as_many() -> None:
    devices = [Device(i, process_index=i, slice_index=i % 2) for i in range(4)]

    mesh = make_hybrid_sharding_config(2).create_device_mesh(devices)

    assert [[d.id for d in group.flat] for group in mesh.devices] == [[0, 2], [1, 3]]


def test_groups_of_different_sizes_are_refused() -> None:
    devices = [Device(i, process_index=min(i, 1)) for i in range(4)]

    with pytest.raises(ValueError, match=r"groups would have \[1, 3\] devices; pass"):
        make_hybrid_sharding_config(2).create_device_mesh(devices)


@pytest.mark.parametrize(
    ("shape", "names", "batch", "words"),
    [
        ((8,), ("a", "b"), "a", "differ in length"),
        ((8, 1), ("a", "a"), "a", "give unique names"),
        ((8,), ("a",), "c", "batch axis 'c' is not an axis"),
        ((-1, -1), ("a", "b"), "a", "-1 at most once"),
        ((0,), ("a",), "a", "is invalid"),
    ],
)
def test_impossible_meshes_are_named(
    shape: Any, names: Any, batch: str, words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        make_custom_sharding_config(shape, names, batch)


@pytest.mark.parametrize("groups", [(0, 1), (2,)])
def test_impossible_groups_are_named(groups: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="one positive number per axis"):
        ShardingConfig(("a", "b"), (8, 1), ("a",), groups)


def test_devices_that_do_not_fill_the_mesh_are_an_error() -> None:
    with pytest.raises(ValueError, match="8 devices do not fill"):
        make_custom_sharding_config((3, -1), ("a", "b"), "a").create_device_mesh()


def test_a_local_batch_goes_where_the_sharding_says() -> None:
    batch = {"x": np.arange(16, dtype=np.int32).reshape(8, 2), "y": np.arange(8.0)}
    sharding = sharded((8,), "a")

    placed = host_to_global_device_array(batch, sharding)

    assert placed["x"].sharding == sharding
    assert np.array_equal(np.asarray(placed["x"]), batch["x"])
    assert placed["y"].dtype == np.float32
    back = global_to_host_array(placed)
    assert isinstance(back["x"], np.ndarray)
    assert np.array_equal(back["x"], batch["x"])


def test_a_local_batch_keeps_the_type_of_its_tree() -> None:
    batch = Pair(np.arange(8.0), OrderedDict(ids=np.arange(8)))

    placed = host_to_global_device_array(batch, sharded((8,), "a"))

    assert isinstance(placed, Pair)
    assert isinstance(placed.second, OrderedDict)
    assert np.array_equal(np.asarray(placed.second["ids"]), np.arange(8))


def test_a_mesh_may_hold_some_of_the_devices() -> None:
    mesh = Mesh(np.array(jax.devices()[1:7]), ("data",))
    loader = Dataloader(SimpleDataset(range(24)), 12)

    with jax.set_mesh(mesh):
        placed = [host_to_global_device_array(batch) for batch in loader]

    assert [each.sharding for each in placed] == [NamedSharding(mesh, P("data"))] * 2
    assert {shard.data.shape for shard in placed[0].addressable_shards} == {(2,)}
    back = [global_to_host_array(each).tolist() for each in placed]
    assert back == [list(range(12)), list(range(12, 24))]


@pytest.mark.parametrize(
    ("batch", "name"),
    [
        (np.arange(3), "batch is of type ndarray"),
        ({"a": [1]}, r"batch\['a'\]\[0\] is of type int"),
    ],
)
def test_a_batch_that_is_not_global_is_named(batch: Any, name: str) -> None:
    with pytest.raises(TypeError, match=name + ", not a jax.Array; pass a global"):
        global_to_host_array(batch)


def test_the_mesh_of_set_mesh_is_found() -> None:
    mesh = make_fsdp_sharding_config().create_device_mesh()

    with jax.set_mesh(mesh):
        placed = host_to_global_device_array(np.arange(8))

    assert placed.sharding == NamedSharding(mesh, P("data"))
    assert {shard.data.shape for shard in placed.addressable_shards} == {(1,)}


@pytest.mark.filterwarnings(
    "ignore:.*context manager has been deprecated:DeprecationWarning"
)
def test_the_mesh_of_with_mesh_is_found() -> None:
    mesh = make_custom_sharding_config((4, 2), ("x", "y"), "x").create_device_mesh()

    with mesh:
        placed = host_to_global_device_array(np.arange(8))

    assert placed.sharding == NamedSharding(mesh, P("x"))
    assert {shard.data.shape for shard in placed.addressable_shards} == {(2,)}


def test_without_a_mesh_the_remedy_is_named() -> None:
    with pytest.raises(ValueError, match=r"pass sharding=.*jax\.set_mesh"):
        host_to_global_device_array(np.arange(8))


def test_rows_are_described_in_words() -> None:
    assert describe_rows(sharded((2,), "a"), (8, 5)) == (
        "process 0: rows 0-3 of 8 on device 0; rows 4-7 of 8 on device 1"
    )
    assert describe_rows(sharded((2, 2), "a", "b"), (4, 6)).endswith(
        "rows 2-3 of 4, columns 3-5 of 6 on device 3"
    )
    assert describe_rows(sharded((2,)), (4,)) == (
        "process 0: rows 0-3 of 4 on devices 0 1"
    )


def test_one_row_whose_columns_do_not_divide_is_one_row() -> None:
    with pytest.raises(ValueError, match=r"batch of 1 row does.* 511 .* 505 or 513$"):
        column_ways({"data": 1, "context": 8}, 1, 511)
