from __future__ import annotations

import threading
import traceback
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec, Sharding
from roxxel_loader import RowSource, device_stream

from .helpers import (
    CountingSource,
    join_threads,
    make_mesh,
    sharded,
    threads,
)

SHARDINGS: list[Sharding | None] = [
    None,
    sharded((1,), "a"),
    sharded((8,), "a"),
    sharded((4, 2), "a", "b"),
    sharded((2, 4), None, "b"),
    sharded((8,)),
]


@pytest.mark.parametrize("workers", [0, 1, 3])
@pytest.mark.parametrize("sharding", SHARDINGS)
def test_batches_are_the_steps_in_order(
    sharding: Sharding | None, workers: int
) -> None:
    source = CountingSource()

    with device_stream(source, 3, 9, sharding, workers=workers) as stream:
        batches = list(stream)

    assert len(batches) == 6
    for step, batch in enumerate(batches, 3):
        assert isinstance(batch, jax.Array)
        assert batch.dtype == np.int32
        assert (np.asarray(batch) == source.whole(step)).all()
        if sharding is not None:
            assert batch.sharding == sharding
    assert threads() == []


@pytest.mark.parametrize(
    ("num_bytes", "ahead"), [(4, 16), (1 << 19, 8), (1 << 20, 4), (1 << 23, 2)]
)
def test_small_batches_are_made_further_ahead(num_bytes: int, ahead: int) -> None:
    begun: list[int] = []
    returned = threading.Semaphore(0)

    def batch_of(step: int) -> np.ndarray[Any, Any]:
        begun.append(step)
        returned.release()
        return np.zeros(num_bytes, np.uint8)

    with device_stream(batch_of, 0, 100) as stream:
        next(stream)
        next(stream)
        for _ in range(2 + ahead):
            assert returned.acquire(timeout=600)
        assert not returned.acquire(timeout=0.05)

    assert begun == [*range(2 + ahead)]


@pytest.mark.parametrize("prefetch", [None, 0, 1, 2, 7])
def test_prefetch_changes_no_batch(prefetch: int | None) -> None:
    source = CountingSource()

    batches = list(device_stream(source, 0, 5, None, prefetch))

    for step, batch in enumerate(batches):
        assert (np.asarray(batch) == source.whole(step)).all()


def test_a_stream_from_step_k_is_the_tail() -> None:
    source = CountingSource()
    whole = [np.asarray(batch) for batch in device_stream(source, 0, 8)]

    for start in range(9):
        tail = list(device_stream(source, start, 8))
        assert len(tail) == 8 - start
        for batch, expected in zip(tail, whole[start:], strict=True):
            assert (np.asarray(batch) == expected).all()


def test_every_row_and_column_is_read_once() -> None:
    source = CountingSource((16, 24))

    list(device_stream(source, 0, 4, sharded((2, 4), "a", "b")))

    assert source.num_items == 4 * 16 * 24


def test_whole_rows_are_asked_for_without_columns() -> None:
    source = CountingSource()

    list(device_stream(source, 0, 1, sharded((2,), "a")))

    assert source.reads == [(0, slice(0, 8), None), (0, slice(8, 16), None)]


def test_dict_batches_keep_their_names_and_dtypes() -> None:
    class Fields(CountingSource):
        def rows(self, step: int, rows: slice, columns: slice | None = None) -> Any:
            tokens = super().rows(step, rows, columns)
            return {
                "tokens": tokens,
                "segment_ids": (tokens % 3).astype(np.uint8),
                "length": tokens[:, 0].copy(),
                "embedding": np.repeat(tokens[..., None], 2, -1).astype(np.float32),
            }

    source = Fields()
    batch = next(device_stream(source, 2, 3, sharded((8,), "a")))

    expected = source.whole(2)
    assert (np.asarray(batch["tokens"]) == expected).all()
    assert batch["segment_ids"].dtype == np.uint8
    assert (np.asarray(batch["segment_ids"]) == expected % 3).all()
    assert (np.asarray(batch["length"]) == expected[:, 0]).all()
    assert batch["embedding"].shape == (16, 24, 2)
    assert (np.asarray(batch["embedding"])[..., 1] == expected).all()


def test_a_leaf_of_rows_is_joined_from_the_reads_of_all_columns() -> None:
    class Fields(CountingSource):
        def rows(self, step: int, rows: slice, columns: slice | None = None) -> Any:
            row = np.arange(rows.start, rows.stop, dtype=np.int32)
            return {"tokens": super().rows(step, rows, columns), "row": row}

    split, whole = sharded((4, 2), "a", "b"), sharded((4, 2))
    stream = device_stream(
        Fields(), 2, 3, lambda shape: split if len(shape) == 2 else whole
    )

    assert np.asarray(next(stream)["row"]).tolist() == list(range(16))


def test_a_function_gives_whole_batches_of_any_pytree() -> None:
    def batch_of(step: int) -> Any:
        return {"x": np.full((8, 3), step, np.float32), "y": [np.arange(8) + step]}

    batches = list(device_stream(batch_of, 0, 4, sharded((8,), "a")))

    for step, batch in enumerate(batches):
        assert (np.asarray(batch["x"]) == step).all()
        assert (np.asarray(batch["y"][0]) == np.arange(8) + step).all()


@pytest.mark.parametrize("size", [64, 4096])
@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float16", "bool", "i1"])
def test_batches_of_every_dtype_reach_the_device(name: str, size: int) -> None:
    dtype = np.dtype(getattr(ml_dtypes, name, name))

    batches = list(device_stream(lambda _: np.ones((64, size), dtype), 0, 2))

    assert [batch.dtype for batch in batches] == [dtype] * 2
    assert all((np.asarray(batch) == np.ones((), dtype)).all() for batch in batches)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_source_may_reuse_its_memory(workers: int) -> None:
    buffer = np.zeros((8, 4096), np.int32)

    def batch_of(step: int) -> np.ndarray:
        buffer[...] = step
        return buffer

    batches = list(device_stream(batch_of, 0, 6, workers=workers, prefetch=4))

    assert [int(np.asarray(batch).max()) for batch in batches] == list(range(6))
    assert [int(np.asarray(batch).min()) for batch in batches] == list(range(6))


def test_shapes_and_shardings_may_change_on_the_way() -> None:
    mesh = make_mesh((8,), ("data",))

    class Phases(CountingSource):
        def shape(self, step: int) -> tuple[int, int]:
            return (16, 9) if step < 3 else (1, 33)

        def whole(self, step: int) -> np.ndarray:
            rows, columns = self.shape(step)
            return np.arange(rows * columns, dtype=np.int32).reshape(rows, columns)

    def sharding_of(shape: tuple[int, ...]) -> Sharding:
        axis = "data" if shape[0] % 8 == 0 else None
        return NamedSharding(mesh, PartitionSpec(axis))

    source = Phases()
    batches = list(device_stream(source, 0, 6, sharding_of))

    assert [batch.shape for batch in batches] == [(16, 9)] * 3 + [(1, 33)] * 3
    assert batches[5].is_fully_replicated
    assert (np.asarray(batches[5]) == source.whole(5)).all()


def test_pages_are_asked_for_ahead_of_reading_and_once() -> None:
    source = CountingSource()

    list(device_stream(source, 10, 200))

    steps = [step + n for step, num in source.hints for n in range(num)]
    assert steps == list(range(10, 200))


def test_a_hint_that_takes_rows_is_given_them() -> None:
    class Hinted(CountingSource):
        asked: list[tuple[int, int, slice]] = []  # noqa: RUF012 - one test, one list

        def will_need(self, step: int, n: int, rows: slice | None = None) -> None:
            assert rows is not None
            self.asked.append((step, n, rows))

    list(device_stream(Hinted(), 0, 4, sharded((8,), "a")))

    assert Hinted.asked == [(0, 4, slice(0, 16))]


@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_names_the_step_and_keeps_its_traceback(workers: int) -> None:
    class Broken(CountingSource):
        def rows(self, step: int, rows: slice, columns: slice | None = None) -> Any:
            if step == 5:
                raise OSError("disk on fire")
            return super().rows(step, rows, columns)

    stream = device_stream(Broken(), 0, 9, workers=workers)
    for _ in range(5):
        next(stream)

    with pytest.raises(OSError, match="disk on fire") as caught:
        next(stream)
    assert caught.value.__notes__ == ["while making the batch of step 5"]
    assert "rows" in [
        frame.name for frame in traceback.extract_tb(caught.value.__traceback__)
    ]
    assert list(stream) == []
    join_threads()


class Changing(CountingSource):
    """Gives int32, then float32, then a dict, then rows that JAX must narrow."""

    def shape(self, step: int) -> tuple[int, int]:
        return (16, 24) if step % 4 < 2 else (8, 48)

    def rows(self, step: int, rows: slice, columns: slice | None = None) -> Any:
        self.reads.append((step, rows, columns))
        whole = np.full(self.shape(step), step, np.int32)[rows]
        return (
            whole,
            whole.astype(np.float32),
            {"tokens": whole, "mask": whole > 0},
            whole.astype(np.int64),
        )[step // 5 % 4]


@pytest.mark.parametrize("prefetch", [0, 2, 3, 30])
@pytest.mark.parametrize("sharding", [None, sharded((8,), "a")])
def test_batches_may_differ_and_are_read_once(
    sharding: Sharding | None, prefetch: int
) -> None:
    source = Changing()

    batches = list(device_stream(source, 0, 40, sharding, prefetch, workers=0))

    for step, batch in enumerate(batches):
        expected = source.rows(step, slice(None))
        assert jax.tree.structure(batch) == jax.tree.structure(expected)
        for leaf, values in zip(
            jax.tree.leaves(batch), jax.tree.leaves(expected), strict=True
        ):
            assert leaf.shape == values.shape
            assert leaf.dtype == jax.dtypes.canonicalize_dtype(values.dtype)
            assert (np.asarray(leaf) == values).all()
    assert [*dict.fromkeys(step for step, *_ in source.reads)] == [*range(40)]


@pytest.mark.parametrize("given", ["nothing", "another shape", "a dict of it"])
@pytest.mark.parametrize("broken", range(9))
def test_batches_before_one_that_cannot_be_made_are_delivered(
    broken: int, given: str
) -> None:
    class Broken(CountingSource):
        def rows(self, step: int, rows: slice, columns: slice | None = None) -> Any:
            whole = super().rows(step, rows, columns)
            if step != broken:
                return whole
            if given == "nothing":
                raise OSError("disk on fire")
            return {"tokens": whole[1:]} if "dict" in given else whole[1:]

    source = Broken()
    stream = device_stream(source, 0, 9, prefetch=3, workers=0)

    for step in range(broken):
        assert (np.asarray(next(stream)) == source.whole(step)).all()
    with pytest.raises((OSError, ValueError), match=r"on fire|begins with") as caught:
        next(stream)
    assert caught.value.__notes__ == [f"while making the batch of step {broken}"]


def check_interrupted_after_five(source: CountingSource) -> None:
    """Check that one interrupt after five batches loses and repeats no step."""
    stream = device_stream(source, 0, 12, prefetch=3, workers=0)
    batches = [np.asarray(next(stream)) for _ in range(5)]
    with pytest.raises(KeyboardInterrupt):
        next(stream)
    batches += [np.asarray(batch) for batch in stream]

    assert len(batches) == 12
    for step, batch in enumerate(batches):
        assert (batch == source.whole(step)).all()


def test_an_interrupt_of_reading_loses_no_step() -> None:
    interrupts = [5]

    class Interrupted(CountingSource):
        def rows(self, step: int, rows: slice, columns: slice | None = None) -> Any:
            if step in interrupts:
                interrupts.remove(step)
                raise KeyboardInterrupt
            return super().rows(step, rows, columns)

    check_interrupted_after_five(Interrupted())


def test_a_source_that_gives_another_shape_is_an_error() -> None:
    class Short(CountingSource):
        def rows(self, step: int, rows: slice, columns: slice | None = None) -> Any:
            return super().rows(step, rows, columns)[:-1]

    with pytest.raises(ValueError, match=r"shape \(15, 24\) for rows .* \(16, 24\)"):
        next(device_stream(Short(), 0, 1))


@pytest.mark.parametrize("change", [np.float64, np.atleast_3d])
def test_a_source_whose_parts_differ_is_an_error(change: Any) -> None:
    class Mixed(CountingSource):
        def rows(self, step: int, rows: slice, columns: slice | None = None) -> Any:
            part = super().rows(step, rows, columns)
            return change(part) if rows.start else part

    with pytest.raises(ValueError, match=r"step 0: .* rows slice\(\d+, .* one dtype"):
        next(device_stream(Mixed(), 0, 1, sharded((8,), "a")))


def test_a_batch_that_does_not_divide_is_found_at_construction() -> None:
    with pytest.raises(ValueError, match="choose sizes that divide"):
        device_stream(CountingSource((12, 4)), 0, 5, sharded((8,), "a"))


@pytest.mark.parametrize(("start", "stop"), [(-1, 3), (4, 3)])
def test_steps_must_be_a_range(start: int, stop: int) -> None:
    with pytest.raises(ValueError, match="is not a range of steps"):
        device_stream(CountingSource(), start, stop)


def test_counts_must_not_be_negative() -> None:
    with pytest.raises(ValueError, match=r"prefetch must be at least .*got -1"):
        device_stream(CountingSource(), 0, 1, prefetch=-1)
    with pytest.raises(ValueError, match=r"workers must be at least .*got -2"):
        device_stream(CountingSource(), 0, 1, workers=-2)


def test_a_source_must_have_rows_or_be_a_function() -> None:
    source: Any = [1, 2]
    with pytest.raises(TypeError, match=r"source is \[1, 2\], which cannot be called"):
        device_stream(source, 0, 1)


def test_an_empty_range_gives_nothing() -> None:
    assert list(device_stream(CountingSource(), 4, 4)) == []


@pytest.mark.parametrize("workers", [0, 1])
def test_stats_never_decrease(workers: int) -> None:
    with device_stream(CountingSource(), 0, 30, workers=workers) as stream:
        snapshots = [stream.stats for _ in stream]

    assert [stats.steps for stats in snapshots] == list(range(1, 31))
    for name in ("waited_s", "read_s", "assemble_s", "transfer_s"):
        values = [getattr(stats, name) for stats in snapshots]
        assert values == sorted(values)
    assert snapshots[0].read_s > 0
    assert snapshots[0].transfer_s > 0


def test_on_the_consumers_thread_making_is_part_of_the_wait() -> None:
    with device_stream(CountingSource(), 0, 30, workers=0) as stream:
        for _ in stream:
            stats = stream.stats
            made_s = stats.read_s + stats.assemble_s + stats.transfer_s
            assert 0 < made_s <= stats.waited_s * 1.01


def test_64_bits_become_32_as_in_jax() -> None:
    batch = next(device_stream(lambda step: np.full((2, 3), step, np.int64), 7, 8))

    assert batch.dtype == np.int32
    assert int(batch[0, 0]) == 7


@pytest.mark.parametrize("workers", [0, 1])
def test_64_bits_stay_where_the_consumers_thread_has_them(workers: int) -> None:
    large = np.full((2, 3), 2**40, np.int64)

    with jax.enable_x64(True):
        batch = next(device_stream(lambda _: large, 0, 1, workers=workers))

    assert np.array_equal(batch, large)


@pytest.mark.parametrize("sharding", [None, sharded((2,), "a")])
@pytest.mark.parametrize("dtype", [">i4", ">u2", ">f4", ">i8", ">f8", ">c8"])
def test_values_are_placed_in_the_machines_byte_order(
    dtype: str, sharding: Sharding | None
) -> None:
    values = np.arange(8).reshape(4, 2).astype(dtype)

    batch = next(device_stream(lambda _: values.copy(), 0, 1, sharding))

    assert batch.dtype.kind == values.dtype.kind
    assert (np.asarray(batch) == values).all()


@pytest.mark.parametrize("dtype", ["O", "U3", "S3", "M8[s]", "V8", "longdouble"])
def test_a_dtype_that_no_device_holds_is_named(dtype: str) -> None:
    values = np.zeros((4, 2), dtype)

    with pytest.raises(TypeError, match=r"step 0\['x'\] has dtype .* do not support"):
        next(device_stream(lambda _: {"x": values}, 0, 1))


def test_a_sampler_like_object_is_a_row_source() -> None:
    assert isinstance(CountingSource(), RowSource)
    assert not isinstance(lambda step: step, RowSource)
