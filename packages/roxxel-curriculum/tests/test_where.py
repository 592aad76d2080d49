"""The inverse of the order: `where` finds exactly the rows that hold some tokens."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from roxxel_curriculum import Curriculum, Occurrence, Phase, Policy, Sampler
from roxxel_curriculum.testing import PositionReader

from .helpers import Declared, curricula, declarations

if TYPE_CHECKING:
    from collections.abc import Iterator

SLOW = settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


def rows(sampler: Sampler) -> Iterator[tuple[str, Occurrence]]:
    """Yield the whole window of every row of a run, in training order."""
    for step in range(sampler.total_steps):
        windows = sampler.windows(step)
        phase = next(p for p in sampler.phases if p.start <= step < p.stop)
        first = phase.data_step(step - phase.start) * phase.batch_size
        for row in range(phase.batch_size):
            name = sampler.source_names[int(windows.source[row])]
            stream, before = phase.cursors[name]
            rank = before + phase.counts(first + row)[name]
            epoch = next(stream.rounds(rank, 1)).epoch
            start, stop = int(windows.start[row]), int(windows.stop[row])
            yield name, Occurrence(step, row, 0, start, stop, epoch)


def expected(
    all_rows: list[tuple[str, Occurrence]], source: str, start: int, stop: int
) -> list[Occurrence]:
    """Return the result of `where`, from a look at every row of the run."""
    return [
        Occurrence(
            row.step,
            row.row,
            max(start, row.start) - row.start,
            max(start, row.start),
            min(stop, row.stop),
            row.epoch,
        )
        for name, row in all_rows
        if name == source and max(start, row.start) < min(stop, row.stop)
    ]


def check_ranges(sampler: Sampler, data: st.DataObject) -> None:
    """Compare `where` with a look at every row, for ranges of tokens."""
    all_rows = list(rows(sampler))
    sizes = {source["name"]: source["tokens"] for source in sampler.state(0)["sources"]}
    for source in sampler.source_names:
        size = sizes[source]
        # With an overlap, the last token of a window is the first of another.
        edges = {0, size, *(row.start for name, row in all_rows if name == source)}
        start = data.draw(st.integers(0, size) | st.sampled_from(sorted(edges)))
        stop = data.draw(st.integers(start, min(size, start + 300)))
        for first, end in ((start, stop), (start, size), (0, size), (start, start)):
            found = list(sampler.where(source, first, end))
            assert found == expected(all_rows, source, first, end)
        until = data.draw(st.integers(0, sampler.total_steps))
        assert list(sampler.where(source, start, stop, until=until)) == [
            o for o in expected(all_rows, source, start, stop) if o.step < until
        ]


@SLOW
@given(curriculum=curricula(), seed=st.integers(0, 2**64), data=st.data())
def test_where_finds_exactly_the_rows_that_hold_a_token(
    curriculum: Curriculum, seed: int, data: st.DataObject
) -> None:
    check_ranges(curriculum.sampler(seed), data)


@SLOW
@given(curriculum=curricula(), seed=st.integers(0, 9))
def test_the_window_of_every_row_is_found_in_its_step_and_row(
    curriculum: Curriculum, seed: int
) -> None:
    sampler = curriculum.sampler(seed)

    for step in range(sampler.total_steps):
        for row in range(sampler.shape(step)[0]):
            here = sampler.locate(step, row)
            found = list(sampler.where(here.source, here.start, here.stop, step + 1))
            whole = [o for o in found if o.stop - o.start == here.stop - here.start]
            assert (step, row) in [(o.step, o.row) for o in whole]
            for o in found:
                there = sampler.locate(o.step, o.row)
                assert there.source == here.source
                assert there.start + o.column == o.start
                assert o.stop <= there.stop


@SLOW
@given(declared=declarations(), data=st.data())
def test_where_follows_an_edit_of_the_weights_inside_a_phase(
    declared: Declared, data: st.DataObject
) -> None:
    before = declared.curriculum().sampler(1)
    step = data.draw(st.integers(1, before.total_steps))
    state = json.loads(json.dumps(before.state(step)))
    current = len(state["phases"]) - 1
    assume(step < before.phases[current].stop)
    edited = [*declared.phases]
    only_self = {**dict.fromkeys(declared.readers, 0), "self": 1}
    edited[current] = replace(edited[current], weights=only_self)

    check_ranges(declared.curriculum(phases=edited).sampler(state=state), data)


def test_where_knows_where_a_source_stops_the_run() -> None:
    curriculum = Curriculum(
        PositionReader(500),
        [Phase(60, 4, 11, {"self": 1, "small": 1})],
        {"small": PositionReader(200, "small")},
        policies={"small": Policy(2, "stop")},
    )
    sampler = curriculum.sampler(3)

    assert sampler.total_steps < 60
    for source, size in (("self", 500), ("small", 200)):
        assert list(sampler.where(source, 0, size)) == expected(
            list(rows(sampler)), source, 0, size
        )


def test_a_token_that_no_window_holds_is_never_found() -> None:
    sampler = Curriculum(PositionReader(103), [Phase(40, 5, 10)]).sampler(0)

    held = {token for _, row in rows(sampler) for token in range(row.start, row.stop)}
    never = sorted(set(range(103)) - held)

    assert never
    assert all(not list(sampler.where("self", t, t + 1)) for t in never)


def test_a_distant_epoch_costs_no_more_than_the_first() -> None:
    curriculum = Curriculum(PositionReader(1000), [Phase(10**15, 4, 10)])

    found = curriculum.sampler(0).where("self", 500, 501)

    first = list(itertools.islice(found, 3))
    assert [o.epoch for o in first] == [0, 1, 2]
    # The last tokens of the source are in no window of any epoch.
    unread = Curriculum(PositionReader(1009), [Phase(10**15, 4, 10)]).sampler(0)
    assert list(unread.where("self", 1008, 1009)) == []


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (("web", 0, 1), KeyError, "'web' is not a source; there are 'self'"),
        (("self", 5, 1001), IndexError, "which has 1000 tokens; give 0 <= start"),
        (("self", 7, 6), IndexError, r"tokens \[7, 6\) are outside source 'self'"),
        (("self", 0, 1, 4), IndexError, r"step 4 is outside \[0, 3\]"),
    ],
)
def test_a_wrong_range_is_refused(
    arguments: tuple[str, int, int], error: type[Exception], message: str
) -> None:
    sampler = Curriculum(PositionReader(1000), [Phase(3, 4, 10)]).sampler(0)

    with pytest.raises(error, match=message):
        sampler.where(*arguments)
