from __future__ import annotations

import re
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec
from roxxel_train._run.preflight import REMEDY, Fitting
from roxxel_train._step.compiled import CompiledShape
from roxxel_train._step.placement import BatchPlacement, accumulation_notes

from .helpers import Tiny, trainer

if TYPE_CHECKING:
    from pathlib import Path


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


@pytest.mark.parametrize(
    ("rows", "spec"),
    [(8, ("data", "context")), (6, ("data",)), (3, None)],
)
def test_devices_of_the_axis_context_get_the_same_rows_if_only_it_does_not_divide(
    rows: int, spec: Any
) -> None:
    axes: Any = ("data", "context")
    placement = BatchPlacement(on_mesh({"data": 2, "context": 4}, axes))

    assert placement((rows, 129)).spec == PartitionSpec(spec)
    assert placement.splits_columns((rows, 129)) == (rows != 8)
    notes = placement.notes([(rows, 129)])
    assert [("the model splits their columns" in note) for note in notes] == (
        [] if rows == 8 else [True] if rows == 6 else [True, False]
    )


@given(
    axes=st.sampled_from([(8, 1), (4, 2), (2, 4), (1, 8), (3, 2)]),
    rows=st.integers(1, 24),
    columns=st.integers(2, 65),
)
def test_the_model_splits_the_rows_that_the_placement_splits(
    axes: tuple[int, int], rows: int, columns: int
) -> None:
    mesh = AbstractMesh(axes, ("data", "context"))
    rows_and_columns: Any = ("data", "context")
    placement = BatchPlacement(NamedSharding(mesh, PartitionSpec(rows_and_columns)))
    held = placement.held((rows, columns))

    assert placement.splits_columns((rows, columns)) == (rows % (axes[0] * axes[1]) > 0)
    divides = rows % axes[0] == 0
    if rows % (axes[0] * axes[1]) == 0:
        assert held == (rows // axes[0] // axes[1], columns)
    else:
        assert held[0] == (rows // axes[0] if divides else rows)
        assert 0 <= held[1] * axes[1] - (columns - 1) < axes[1]
    assert placement.held((rows, columns), is_whole=True)[1] == columns


def test_columns_that_the_model_does_not_split_are_a_note() -> None:
    axes: Any = ("data", "context")
    placement = BatchPlacement(on_mesh({"data": 2, "context": 4}, axes))

    (note,) = placement.notes([(2, 129), (8, 129)], whole=[(2, 129), (8, 129)])

    assert "batches of 2 x 129" in note
    assert "does not split their columns, so all do the same work" in note
    assert "use a multiple of 8 rows" in note


def test_parts_with_fewer_rows_than_devices_have_their_columns_split() -> None:
    axes: Any = ("data", "context")
    placement = BatchPlacement(on_mesh({"data": 2, "context": 4}, axes))

    (note,) = placement.notes([(8, 129), (16, 65)], parts=2)

    assert note.startswith("batches of 8 x 129 in 2 parts have too few rows")
    assert placement.held((8, 129), parts=4) == (1, 32)
    (idle,) = accumulation_notes(phases(8), 8, placement)
    assert "parts of 1, so 4 of 8 devices idle" in idle
    assert "use grad_accum_steps=1 or 2 or 4, or" in idle


def test_rows_for_a_model_that_splits_columns_are_no_replication() -> None:
    axes: Any = ("data", "context")
    sharding = on_mesh({"data": 2, "context": 4}, axes)
    strict = BatchPlacement(sharding, strict=True)
    phases: Any = [SimpleNamespace(index=0, batch_size=8, seq_len=129)]

    assert strict((2, 129)).spec == PartitionSpec("data")
    assert accumulation_notes(phases, 4, strict) == []
    with pytest.raises(ValueError, match="batch_size=3 does not divide over the 2"):
        strict((3, 129))


@given(
    devices=st.sampled_from([1, 2, 4, 8]),
    batch_size=st.integers(1, 16),
    columns=st.sampled_from([8, 12, 24]),
    limit=st.integers(101, 1200),
)
def test_what_is_proposed_for_memory_divides_and_fits(
    devices: int, batch_size: int, columns: int, limit: int
) -> None:
    placement = BatchPlacement(on_mesh({"data": devices}, "data"))
    run = [
        SimpleNamespace(index=0, batch_size=16, seq_len=9),
        SimpleNamespace(index=1, batch_size=batch_size, seq_len=columns + 1),
    ]
    fitting = Fitting(placement, cast("Any", run), 1, ())
    shape = batch_size, columns + 1
    needs = CompiledShape(shape, 0, 1200, activation_bytes=1100)

    said = fitting.remedy(needs, limit)

    if said == REMEDY:
        return
    ways, parts = (
        re.search(pattern, said)
        for pattern in (r"'context' of (\d+)", r"grad_accum_steps=(\d+)")
    )
    ways, parts = (1 if each is None else int(each[1]) for each in (ways, parts))
    axes: Any = ("data", "context")
    changed = BatchPlacement(
        on_mesh({"data": devices // ways, "context": ways}, axes), strict=True
    )
    assert accumulation_notes(cast("Any", run), parts, changed) == []
    before, after = fitting.held(shape), changed.held(shape, parts)
    # The last token of a row that is split is only a target.
    share = after[0] * after[1] / (before[0] * before[1])
    assert 100 + 1100 * share <= limit + 1
    assert devices % ways == 0
    assert ways == 1 or columns % ways == 0


def test_a_model_that_is_too_large_alone_is_to_be_sharded() -> None:
    fitting = Fitting(BatchPlacement(on_mesh({"data": 8}, "data")), phases(8), 1, ())
    needs = CompiledShape((8, 9), 0, 1200, activation_bytes=100)

    assert "alone take 1.1 kB, so shard the model" in fitting.remedy(needs, 1100)


def test_a_sharding_that_leaves_the_axis_context_out_is_refused(
    tmp_path: Path,
) -> None:
    mesh = Mesh(np.array(jax.devices()[:1]).reshape(1, 1), ("data", "context"))
    rows = NamedSharding(mesh, PartitionSpec("data"))

    with pytest.raises(ValueError, match=r"such as PartitionSpec\(\('data', 'context'"):
        trainer(tmp_path, mesh=None, data_sharding=rows)


def test_note_names_the_batch_sizes_that_would_use_all_devices() -> None:
    placement = BatchPlacement(on_mesh({"data": 8}, "data", None))

    (note,) = placement.notes([(16, 129), (1, 1025), (1, 1025)])

    assert note == (
        "batch_size=1 does not divide over the 8 devices of mesh axis 'data' "
        "(a multiple of 8 would use them all); the batch is replicated over that axis"
    )


def test_strict_sharding_makes_it_an_error() -> None:
    placement = BatchPlacement(on_mesh({"data": 8}, "data"), strict=True)

    with pytest.raises(ValueError, match="batch_size=12 does not divide over the 8"):
        placement((12, 129))


def test_spec_of_too_many_dimensions_is_an_error() -> None:
    placement = BatchPlacement(on_mesh({"data": 1}, "data", None, None))

    with pytest.raises(ValueError, match="names 3 dimensions, but a batch has 2"):
        placement((12, 129))


def test_default_mesh_holds_all_devices_in_the_order_of_the_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_mesh = jax.make_mesh

    def along_a_ring(*args: Any) -> Any:
        return make_mesh(*args, devices=jax.devices()[::-1])

    monkeypatch.setattr(jax, "make_mesh", along_a_ring)
    one = trainer(tmp_path, mesh=None)

    assert isinstance(one.model, Tiny)
    sharding = one.model.embed.embedding[...].sharding
    assert isinstance(sharding, NamedSharding)
    assert isinstance(sharding.mesh, Mesh)
    assert sharding.mesh.axis_names == ("data",)
    assert list(np.ravel(sharding.mesh.devices)) == jax.devices()[::-1]


def phases(*batch_sizes: int) -> Any:
    return [
        SimpleNamespace(index=index, batch_size=size, seq_len=8)
        for index, size in enumerate(batch_sizes)
    ]


@given(
    batch_sizes=st.lists(st.integers(1, 64), min_size=1, max_size=3),
    num_devices=st.sampled_from([1, 2, 3, 8]),
    parts=st.integers(1, 16),
)
def test_parts_keep_all_devices_of_their_batch_busy_or_the_remedy_does(
    batch_sizes: list[int], num_devices: int, parts: int
) -> None:
    placement = BatchPlacement(on_mesh({"data": num_devices}, "data"))

    def serves(parts: int) -> bool:
        return all(
            size % parts == 0
            and (size % num_devices != 0 or size // parts % num_devices == 0)
            for size in batch_sizes
        )

    try:
        notes = accumulation_notes(phases(*batch_sizes), parts, placement)
    except ValueError as error:
        notes = [str(error)]

    assert bool(notes) == (not serves(parts))
    for note in notes:
        (choices,) = re.findall(r"use grad_accum_steps=([\d or]+),", note)
        remedies = {int(choice) for choice in choices.split(" or ")}
        serving = sorted(filter(serves, range(1, 65)), key=lambda n: abs(n - parts))
        assert remedies == set(serving[:4])


@pytest.mark.parametrize(
    ("batch_size", "parts", "choices"),
    [
        (5040, 11, "8 or 9 or 10 or 12"),
        (4, 10**6, "1 or 2 or 4"),
        (2**34, 3, "1 or 2 or 4 or 8"),
        (2**61 - 1, 2, "1 or 2305843009213693951"),
    ],
)
def test_remedy_names_the_nearest_numbers_of_parts(
    batch_size: int, parts: int, choices: str
) -> None:
    placement = BatchPlacement(on_mesh({"data": 1}, "data"))

    with pytest.raises(ValueError, match=f"use grad_accum_steps={choices}, or another"):
        accumulation_notes(phases(batch_size), parts, placement)
    assert accumulation_notes(phases(batch_size), 1, placement) == []


def test_part_that_leaves_devices_idle_is_named_and_refused_if_strict() -> None:
    sharding = on_mesh({"data": 8}, "data")
    message = (
        "grad_accum_steps=4 cuts batch_size=16 of phase 1 into parts of 4, so 4 of 8 "
        "devices idle; use grad_accum_steps=1 or 2, or another batch_size"
    )

    notes = accumulation_notes(phases(32, 16), 4, BatchPlacement(sharding))

    assert notes == [message]
    with pytest.raises(ValueError, match="phase 1") as caught:
        accumulation_notes(phases(32, 16), 4, BatchPlacement(sharding, strict=True))
    assert str(caught.value) == message
