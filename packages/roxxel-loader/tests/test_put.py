from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding
from roxxel_loader.sharding import _put
from roxxel_loader.sharding._put import Put, put_for

from .helpers import GO_TOGETHER

if TYPE_CHECKING:
    from jax.sharding import Sharding

SHAPE = (4, 6)
USUAL_CALLS = 64
BEFORE_AND_AFTER = range(USUAL_CALLS + 6)


@pytest.fixture(autouse=True)
def few_usual_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_put, "_WORTH_COMPILING", USUAL_CALLS)


def one_device() -> Sharding:
    mesh = Mesh(np.asarray(jax.devices()[:1]), ("data",))
    return NamedSharding(mesh, PartitionSpec("data", None))


def usual(piece: Any, sharding: Sharding) -> jax.Array:
    return jax.make_array_from_callback(SHAPE, sharding, lambda _: piece)


def put_one(put: Put, piece: Any) -> jax.Array:
    [array] = put(piece)
    return array


def is_compiled(put: Put) -> bool:
    return bool(put._programs)  # pyright: ignore[reportPrivateUsage] - no user can tell


@pytest.mark.parametrize("dtype", [np.int32, np.uint16, np.int8, np.float32])
@pytest.mark.parametrize(
    "sharding", [one_device(), SingleDeviceSharding(jax.devices()[0])]
)
def test_arrays_are_those_of_the_usual_call_before_and_after_it_compiles(
    sharding: Sharding, dtype: Any
) -> None:
    put = Put(SHAPE, sharding)
    made = [put_one(put, np.full(SHAPE, n, dtype)) for n in BEFORE_AND_AFTER]

    for number, array in enumerate(made):
        expected = usual(np.full(SHAPE, number, dtype), sharding)
        assert array.aval == expected.aval
        assert array.sharding == expected.sharding
        assert array.committed == expected.committed
        np.testing.assert_array_equal(array, expected)
    assert is_compiled(put) == (GO_TOGETHER and np.issubdtype(dtype, np.integer))


@pytest.mark.parametrize("num_pieces", [1, 2, 3, 9])
def test_pieces_that_come_together_become_an_array_each(num_pieces: int) -> None:
    put = Put(SHAPE, one_device())

    for first in range(0, 2 * USUAL_CALLS + 20, num_pieces):
        numbers = range(first, first + num_pieces)
        arrays = put(*[np.full(SHAPE, number, np.int32) for number in numbers])
        assert [int(array.max()) for array in arrays] == [*numbers]
        assert [int(array.min()) for array in arrays] == [*numbers]
        assert {array.sharding for array in arrays} == {one_device()}
    assert is_compiled(put) == GO_TOGETHER


def test_more_or_fewer_pieces_than_a_program_takes_become_arrays_too() -> None:
    put = Put(SHAPE, one_device())
    for _ in range(USUAL_CALLS):
        put(*[np.full(SHAPE, number, np.int32) for number in range(3)])

    for num in range(1, 6):
        arrays = put(*[np.full(SHAPE, number, np.int32) for number in range(num)])
        assert [int(array.min()) for array in arrays] == [*range(num)]


def test_steps_that_are_running_hold_no_batch_up_and_change_none() -> None:
    put = put_for(SHAPE, one_device())
    step = jax.jit(lambda state, batch: state + batch.sum())
    state = jax.numpy.zeros((), np.int32)

    for number in BEFORE_AND_AFTER:
        state = step(state, put_one(put, np.full(SHAPE, number, np.int32)))

    assert state == sum(BEFORE_AND_AFTER) * 24
    assert put_for(SHAPE, one_device()) is put


def test_a_program_is_left_aside_where_jit_is_disabled() -> None:
    put = Put(SHAPE, one_device())
    for number in BEFORE_AND_AFTER:
        put(np.full(SHAPE, number, np.int32))

    with jax.disable_jit():
        array = put_one(put, np.full(SHAPE, 7, np.int32))

    assert isinstance(array, jax.Array)
    assert array.sharding == one_device()
    np.testing.assert_array_equal(array, np.full(SHAPE, 7))


def test_a_mesh_of_other_devices_that_is_set_stops_no_batch() -> None:
    put = Put(SHAPE, one_device())

    with jax.set_mesh(Mesh(np.asarray(jax.devices()[:2]), ("data",))):
        for number in BEFORE_AND_AFTER:
            array = put_one(put, np.full(SHAPE, number, np.int32))
            np.testing.assert_array_equal(array, np.full(SHAPE, number))


def test_where_jax_is_told_not_to_trace_the_usual_call_goes_on() -> None:
    put = Put(SHAPE, one_device())

    with jax.no_tracing():
        for number in BEFORE_AND_AFTER:
            array = put_one(put, np.full(SHAPE, number, np.int32))
            np.testing.assert_array_equal(array, np.full(SHAPE, number))

    assert not is_compiled(put)


def test_several_devices_and_large_arrays_go_the_usual_way() -> None:
    replicated = NamedSharding(
        Mesh(np.asarray(jax.devices()[:2]), ("data",)), PartitionSpec()
    )
    everywhere, large = Put(SHAPE, replicated), Put((4, 1 << 14), one_device())

    for number in BEFORE_AND_AFTER:
        array = put_one(everywhere, np.full(SHAPE, number, np.int32))
        assert len(array.devices()) == 2
        large(np.full((4, 1 << 14), number, np.int32))

    assert not is_compiled(everywhere)
    assert not is_compiled(large)


def test_arrays_just_below_the_bound_are_made_by_a_program() -> None:
    put = Put((4, 1 << 14), one_device())

    for number in BEFORE_AND_AFTER:
        array = put_one(put, np.full((4, 1 << 14), number % 9, np.uint16))
        assert int(array[0, 0]) == number % 9

    assert is_compiled(put) == GO_TOGETHER


def test_another_memory_than_the_usual_goes_the_usual_way() -> None:
    device = jax.devices()[0]
    usual = device.default_memory().kind
    kinds = {memory.kind for memory in device.addressable_memories()} - {usual}
    for kind in kinds:
        sharding = SingleDeviceSharding(device, memory_kind=kind)
        put = Put(SHAPE, sharding)
        for number in BEFORE_AND_AFTER:
            array = put_one(put, np.full(SHAPE, number, np.int32))
            assert array.sharding.memory_kind == kind
        assert not is_compiled(put)
    assert kinds
