"""Which rows of a log are the result of a run that was killed and went back."""

from __future__ import annotations

import json
import tempfile
import zlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from roxxel_train import Logger, RunFolder

MOMENT = "2026-01-01T00:00:{:02}.000+00:00"


def line(kind: str, step: int, **more: Any) -> bytes:
    return json.dumps({"kind": kind, "step": step, **more}).encode() + b"\n"


def write(folder: Path, *lines: bytes) -> RunFolder:
    folder.mkdir(exist_ok=True)
    (folder / "metrics.jsonl").write_bytes(b"".join(lines))
    return RunFolder(folder)


# A start goes on from one of the checkpoints so far, trains some steps, saves after
# some of them, and may be torn within its last row or end in peace.
starts = st.lists(
    st.tuples(
        st.integers(0, 9),
        st.integers(0, 5),
        st.integers(1, 3),
        st.sampled_from(["killed", "torn", "ended"]),
    ),
    min_size=1,
    max_size=8,
)


@given(starts)
def test_the_result_is_that_of_an_unbroken_run(
    made: list[tuple[int, int, int, str]],
) -> None:
    """A checkpoint remembers the rows of its run; the log finds them by one number."""
    lines: list[bytes] = []
    checkpoints: list[tuple[int, int, list[tuple[int, int]]]] = [(0, 0, [])]
    expected: list[tuple[int, int]] = []
    for number, (chosen, steps, every, how) in enumerate(made):
        first, after, held = checkpoints[chosen % len(checkpoints)]
        expected = [*held]
        lines.append(line("start", first, after=after, number=number))
        for step in range(first + 1, first + steps + 1):
            lines.append(line("train", step, number=number))
            expected.append((step, number))
            if step % every == 0:
                checkpoints.append((step, zlib.crc32(lines[-1]), [*expected]))
        if how == "torn":
            lines.append(b'{"kind": "tr\n')
        elif how == "ended":
            lines.append(line("end", first + steps))
    with tempfile.TemporaryDirectory() as folder:
        run = write(Path(folder), *lines)
        rows, num_damaged = run.rows()
        newest = run.newest_rows

    assert [(row["step"], row["number"]) for row in rows] == expected
    assert num_damaged == (made[-1][-1] == "torn")
    assert [(x["step"], x["number"]) for x in newest.values()] == expected[-1:]
    assert len(run.starts()) == len(made)


def test_a_row_without_a_start_before_it_counts(tmp_path: Path) -> None:
    assert len(write(tmp_path, line("train", 1), line("train", 2)).rows()[0]) == 2


def test_a_start_goes_on_after_its_own_of_two_equal_rows(tmp_path: Path) -> None:
    """A row of the user's may have nothing that tells it from another one."""
    note = {"kind": "note", "step": 1, "text": "the disk is slow"}
    with Logger(tmp_path, terminal=False) as log:
        log.start({"step": 0}, None)
        log.metrics(note)
        log.flush()
        saved = log.position()
        log.metrics({**note, "text": "given up"})
        log.metrics(note)
    with Logger(tmp_path, terminal=False) as log:
        log.start({"step": 0}, saved)
        log.metrics({**note, "text": "made again"})

    rows, _ = RunFolder(tmp_path).rows()

    assert [row["text"] for row in rows] == ["the disk is slow", "made again"]


def test_a_start_whose_row_is_gone_goes_on_after_its_step(tmp_path: Path) -> None:
    run = write(
        tmp_path,
        line("start", 0),
        *(line("train", step) for step in range(1, 7)),
        line("start", 4, after=77),
        line("train", 5, again=True),
    )

    rows, _ = run.rows()

    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5]
    assert rows[-1]["again"]


def test_a_start_does_not_go_on_after_a_row_that_was_changed(tmp_path: Path) -> None:
    """It goes on after the last row of its step, as without the changed row."""
    saved, changed = (line("train", 1, loss=loss) for loss in (2.5, 1.5))
    rows = line("start", 0), changed, line("eval", 1), line("train", 2)
    place = len(rows[0] + changed)
    start = line("start", 1, after=zlib.crc32(saved), at=place)

    run = write(tmp_path, *rows, start, line("train", 2, again=True))

    found = [(row["kind"], row["step"]) for row in run.rows()[0]]
    assert found == [("train", 1), ("eval", 1), ("train", 2)]


@pytest.mark.parametrize(
    "start",
    [
        b'{"kind": "start"\n',
        b'{"kind": "start"}\n',
        b'{"kind": "start", "step": "x", "after": -1, "time": [], "seconds": {}}\n',
        b'{"kind": "start", "step": 1e999, "after": 99999999999999, "time": "9"}\n',
        b'{"kind": "end", "time": 3, "kept": "x", "status": []}\n',
    ],
)
def test_a_damaged_start_is_no_error(tmp_path: Path, start: bytes) -> None:
    run = write(tmp_path, line("train", 1), start, line("train", 2))

    assert [row["step"] for row in run.rows()[0]][-1] == 2
    assert run.goodput().seconds >= 0
    assert all(each.kept is None for each in run.starts())


def test_an_ending_belongs_to_the_start_before_it(tmp_path: Path) -> None:
    """A start that fails while it restores writes no row of its own but an ending."""
    run = write(
        tmp_path,
        line("start", 0, total_steps=8, time=MOMENT.format(5), seconds=2.0),
        line("train", 8, time=MOMENT.format(8)),
        line("end", 8, status="complete", kept=0.5, time=MOMENT.format(9)),
        line("end", 0, status="ended with an error", time=MOMENT.format(59)),
    )

    [start] = run.starts()

    assert (start.kept, start.ended - start.began) == (0.5, 6.0)
    assert not start.is_idle
    assert run.ending["status"] == "ended with an error"


@pytest.mark.parametrize("num_endings", [0, 1, 2])
def test_only_rows_are_given_up(tmp_path: Path, num_endings: int) -> None:
    """Endings that follow the last row, such as that of a failed start, are no rows."""
    trained = line("train", 4, time=MOMENT.format(8))
    run = write(
        tmp_path,
        line("start", 0, time=MOMENT.format(5), seconds=2.0),
        trained,
        *num_endings * [line("end", 4, time=MOMENT.format(9))],
        line("start", 4, after=zlib.crc32(trained), time=MOMENT.format(20)),
    )

    assert [start.given_up_until for start in run.starts()] == [0.0, 0.0]
    assert run.goodput().lost == 0.0


def test_a_start_of_a_complete_run_is_idle_and_its_settings_do_not_count(
    tmp_path: Path,
) -> None:
    trained = line("train", 8)
    run = write(
        tmp_path,
        line("start", 0, total_steps=8, settings={"log_every": 1}),
        trained,
        line("start", 8, total_steps=8, after=zlib.crc32(trained), settings={}),
    )

    assert [start.is_idle for start in run.starts()] == [False, True]
    assert run.settings == {"log_every": 1}
