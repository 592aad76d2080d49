"""Laws of the whole order: pure, whole windows, exactly once, a partition of rows."""

from __future__ import annotations

import math
import random
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from roxxel_curriculum import (
    ARITHMETIC_VERSION,
    Curriculum,
    Phase,
    Sampler,
    make_key,
)
from roxxel_curriculum.share import Share
from roxxel_curriculum.testing import PositionReader

from .helpers import coverage, curricula, delivered, digest
from .plain_bijection import mix_plainly, permute_plainly

if TYPE_CHECKING:
    from collections.abc import Iterator

    from roxxel_curriculum import ResolvedPhase

SLOW = settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


@SLOW
@given(curriculum=curricula(), seed=st.integers(0, 2**64), shuffle=st.randoms())
def test_a_batch_is_the_same_in_any_order_of_asking(
    curriculum: Curriculum, seed: int, shuffle: random.Random
) -> None:
    steps = list(range(curriculum.total_steps))
    in_order = curriculum.sampler(seed)
    expected = [digest(in_order, step) for step in steps]
    shuffle.shuffle(steps)
    other = curriculum.sampler(seed)

    for step in steps:
        assert digest(other, step) == expected[step]
    for step in steps[:3]:
        assert digest(curriculum.sampler(seed), step) == expected[step]


@SLOW
@given(curriculum=curricula(), seed=st.integers())
def test_every_row_is_its_sources_tokens_from_start_to_stop(
    curriculum: Curriculum, seed: int
) -> None:
    sampler = curriculum.sampler(seed)

    for step in range(sampler.total_steps):
        batch, windows = sampler.batch(step), sampler.windows(step)
        assert batch.shape == sampler.shape(step)
        assert batch.dtype == np.int32
        expected = windows.start[:, None] + np.arange(sampler.shape(step)[1])
        assert np.array_equal(batch, expected)
        assert np.array_equal(windows.stop, windows.start + batch.shape[1])


@SLOW
@given(curriculum=curricula(), seed=st.integers(0, 9))
def test_no_token_comes_twice_in_an_epoch(curriculum: Curriculum, seed: int) -> None:
    sampler = curriculum.sampler(seed)
    plan = curriculum.plan(seed)
    overlap = plan.overlap
    sizes = {source.name: source.num_tokens for source in plan.sources}
    by_epoch: dict[tuple[str, int], list[tuple[int, int, int]]] = {}
    for phase in sampler.phases:
        for step in range(phase.start, phase.stop):
            windows = sampler.windows(step)
            size = phase.batch_size
            first = phase.data_step(step - phase.start) * size
            for row in range(size):
                name = sampler.source_names[int(windows.source[row])]
                stream, given = phase.cursors[name]
                rank = given + phase.counts(first + row)[name]
                epoch = next(stream.rounds(rank, 1)).epoch
                start, stop = int(windows.start[row]), int(windows.stop[row])
                by_epoch.setdefault((name, epoch), []).append(
                    (step, start, stop - overlap)
                )

    for (name, _), windows in by_epoch.items():
        assert coverage(windows, sizes[name]).max() == 1


@SLOW
@given(curriculum=curricula(), data=st.data())
def test_rows_of_any_partition_concatenate_to_the_batch(
    curriculum: Curriculum, data: st.DataObject
) -> None:
    sampler = curriculum.sampler(3)
    step = data.draw(st.integers(0, sampler.total_steps - 1))
    batch = sampler.batch(step)
    rows, columns = batch.shape
    cuts = sorted(data.draw(st.lists(st.integers(0, rows), max_size=5)))
    middle = data.draw(st.integers(0, columns))
    chosen = data.draw(st.lists(st.integers(0, rows - 1), max_size=rows))

    parts = [
        sampler.rows(step, slice(start, stop))
        for start, stop in pairwise([0, *cuts, rows])
    ]
    sides = [
        sampler.rows(step, slice(None), slice(None, middle)),
        sampler.rows(step, slice(None), slice(middle, None)),
    ]

    assert np.array_equal(np.concatenate(parts), batch)
    assert np.array_equal(np.concatenate(sides, axis=1), batch)
    assert np.array_equal(sampler.rows(step, chosen), batch[chosen])
    assert {part.dtype for part in parts} == {batch.dtype}

    processes = math.gcd(*(phase.batch_size for phase in sampler.phases))
    shares = [Share(sampler, index, processes) for index in range(processes)]
    shared = [share.batch(step) for share in shares]
    assert np.array_equal(np.concatenate(shared), batch)


@pytest.mark.parametrize("overlap", [0, 1])
def test_no_window_goes_beyond_its_source(overlap: int) -> None:
    # Among so many sizes, spans hold a whole number of windows, or one token more.
    for size in range(100, 300):
        phases = [Phase(epochs=1, batch_size=1, seq_len=9)]
        curriculum = Curriculum(PositionReader(size), phases, overlap=overlap)
        sampler = curriculum.sampler(0)
        stops = [sampler.windows(step).stop for step in range(sampler.total_steps)]
        assert max(stops) <= size


def test_an_epoch_gives_each_span_from_left_to_right_and_nearly_everything() -> None:
    reader = PositionReader(100_000)
    curriculum = Curriculum(reader, [Phase(epochs=1, batch_size=1, seq_len=129)])
    sampler = curriculum.sampler(5)

    windows = delivered(sampler)["self"]

    seen = coverage(windows, 100_000)
    assert seen.max() == 1
    plan = curriculum.plan(5)
    assert seen.sum() + plan.sources[0].waste_tokens == 100_000


def test_shorter_windows_begin_at_the_ends_of_spans_that_longer_ones_left() -> None:
    phases = [Phase(epochs=1, batch_size=1, seq_len=30), Phase(40, 1, 7)]
    sampler = Curriculum(PositionReader(10_000), phases, longest=100).sampler(5)
    spans = sampler.phases[0].cursors["self"].stream.spans
    left = spans.windows_left(30, 0)
    assert left % spans.windows_per_round(30), "the last round is whole"
    ends = np.arange(spans.num_spans) * spans.span_tokens + 30 * left

    steps = range(sampler.phases[1].start, sampler.total_steps)
    starts = [int(sampler.windows(step).start[0]) for step in steps]

    assert sorted(starts) == sorted([*ends, *(ends + 7)])


def steps_in_threads(sampler: Sampler, steps: list[int]) -> list[bytes]:
    def read(step: int) -> bytes:
        return digest(sampler, step)

    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(read, steps))


def test_many_threads_get_the_same_batches() -> None:
    curriculum = Curriculum(
        PositionReader(10**6),
        [Phase(200, 8, 65, {"self": 3, "code": 1}), Phase(100, 4, 257)],
        {"code": PositionReader(10**6)},
    )
    expected = [digest(curriculum.sampler(1), step) for step in range(300)]
    shared = curriculum.sampler(1)
    steps = list(range(300)) * 4
    random.Random(0).shuffle(steps)

    assert steps_in_threads(shared, steps) == [expected[step] for step in steps]
    assert steps_in_threads(shared, list(range(300))) == expected


def plain_starts(sampler: Sampler, phase: ResolvedPhase, step: int) -> Iterator[int]:
    """Yield the first token of every row of a step, by the law and one at a time."""
    first_sample = phase.data_step(step - phase.start) * phase.batch_size
    for row, source in enumerate(sampler.windows(step).source):
        name = sampler.source_names[int(source)]
        stream, given = phase.cursors[name]
        rank = given + phase.counts(first_sample + row)[name]
        epoch, depth, per_span, first, _ = next(stream.rounds(rank, 1))
        key = make_key(ARITHMETIC_VERSION, sampler.seed, name)
        key = mix_plainly(key, epoch, depth, phase.seq_len)
        size = stream.spans.num_spans * per_span
        span, in_span = divmod(permute_plainly([first], size, key)[0], per_span)
        stride = stream.spans.stride(phase.seq_len)
        yield span * stream.spans.span_tokens + depth + in_span * stride


@SLOW
@given(curriculum=curricula(), seed=st.integers())
def test_windows_computed_together_are_those_of_the_law(
    curriculum: Curriculum, seed: int
) -> None:
    sampler = curriculum.sampler(seed)

    for phase in sampler.phases:
        for step in range(phase.start, phase.stop):
            together = sampler.windows(step).start
            assert together.dtype == np.int64
            assert together.tolist() == [*plain_starts(sampler, phase, step)]


@given(
    sizes=st.tuples(*[st.integers(10**4, 10**13)] * 2),
    lengths=st.lists(st.integers(2, 4000), min_size=1, max_size=3),
    overlap=st.sampled_from([0, 1]),
    data=st.data(),
)
def test_windows_of_corpora_of_any_size_are_those_of_the_law(
    sizes: tuple[int, int], lengths: list[int], overlap: int, data: st.DataObject
) -> None:
    blend = {"self": 2, "code": 1}
    phases = [Phase(10**5, 3, length, blend) for length in lengths]
    curriculum = Curriculum(
        PositionReader(sizes[0]),
        phases,
        {"code": PositionReader(sizes[1])},
        overlap=overlap,
        policies={"code": "repeat"},
    )
    sampler = curriculum.sampler(3)
    phase = data.draw(st.sampled_from(sampler.phases))
    step = data.draw(st.integers(phase.start, phase.stop - 1))

    starts = sampler.windows(step).start

    assert starts.tolist() == [*plain_starts(sampler, phase, step)]
