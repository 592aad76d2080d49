from __future__ import annotations

import jax
import numpy as np
import pytest
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec
from roxxel_train._placement import BatchPlacement, data_parallel_mesh


def on_mesh(shape: dict[str, int], *spec: str | None) -> NamedSharding:
    mesh = AbstractMesh(tuple(shape.values()), tuple(shape))
    return NamedSharding(mesh, PartitionSpec(*spec))


def test_batch_that_divides_keeps_its_sharding() -> None:
    sharding = on_mesh({"data": 8}, "data", None)
    placement = BatchPlacement(sharding)

    assert placement((16, 129)) is sharding
    assert placement.notes([(16, 129)]) == []


def test_batch_that_does_not_divide_is_replicated_over_that_axis() -> None:
    placement = BatchPlacement(on_mesh({"data": 4, "seq": 2}, "data", "seq"))

    assert placement((6, 128)).spec == PartitionSpec(None, "seq")
    assert placement((8, 129)).spec == PartitionSpec("data", None)


def test_note_names_the_batch_sizes_that_would_use_all_devices() -> None:
    placement = BatchPlacement(on_mesh({"data": 8}, "data", None))

    (note,) = placement.notes([(16, 129), (1, 1025), (1, 1025)])

    assert note == (
        "batch_size=1 does not divide over the 8 devices of mesh axis 'data' "
        "(a multiple of 8 would use them all); it is replicated over that axis"
    )


def test_strict_sharding_makes_it_an_error() -> None:
    placement = BatchPlacement(on_mesh({"data": 8}, "data"), strict=True)

    with pytest.raises(ValueError, match="batch_size=12 does not divide over the 8"):
        placement((12, 129))


def test_spec_of_too_many_dimensions_is_an_error() -> None:
    placement = BatchPlacement(on_mesh({"data": 1}, "data", None, None))

    with pytest.raises(ValueError, match="names 3 dimensions, but a batch has 2"):
        placement((12, 129))


def test_default_mesh_holds_all_devices() -> None:
    mesh = data_parallel_mesh()

    assert mesh.axis_names == ("data",)
    assert list(np.ravel(mesh.devices)) == jax.devices()
