"""A loop that is not ours writes the log of its run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from roxxel_curriculum import Curriculum, Phase, StateMismatch
from roxxel_curriculum.digest import add_step, batch_digest, digest_text, sum_digests
from roxxel_curriculum.run_log import METRICS, RunLog, recorded_state
from roxxel_curriculum.testing import PositionReader

if TYPE_CHECKING:
    from pathlib import Path

PHASES = [Phase(3, 4, 9, {"self": 0.5, "code": 0.5}), Phase(2, 2, 17)]


def declared(name: str = "code") -> Curriculum:
    return Curriculum(
        PositionReader(4000), PHASES, {"code": PositionReader(2000, name)}
    )


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / METRICS).read_text().splitlines()]


def test_digest_of_every_row_is_that_of_the_sampler(tmp_path: Path) -> None:
    curriculum = declared()
    sampler = curriculum.sampler(seed=3)

    with RunLog(tmp_path, sampler) as log:
        for step in range(sampler.total_steps):
            log.record(step, sampler.batch(step), loss=1.0 / (step + 1))

    start, *trained, end = rows_of(tmp_path)
    digest = 0
    for step, row in enumerate(trained):
        digest = add_step(digest, step, batch_digest(sampler.batch(step)))
        assert (row["kind"], row["step"]) == ("train", step + 1)
        assert row["digest"] == digest_text(digest)
        assert row["loss"] == 1.0 / (step + 1)
        assert row["tokens_by_source"] == sampler.delivered_tokens(step + 1)
        assert row["phase"] == sampler.phase(step)
    assert (start["kind"], start["total_steps"]) == ("start", 5)
    assert (end["kind"], end["status"]) == ("end", "complete")


def test_a_state_is_given_when_its_rows_are_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sampler = declared().sampler(seed=3)
    flushed: list[int] = []

    def note(descriptor: int) -> None:
        flushed.append(os.fstat(descriptor).st_size)

    with RunLog(tmp_path, sampler) as log:
        log.record(0, sampler.batch(0))
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", note)

            assert log.state() == sampler.state(1)

        assert flushed == [(tmp_path / METRICS).stat().st_size]


def test_ranks_that_hold_some_rows_each_give_the_same_log(tmp_path: Path) -> None:
    curriculum = declared()
    sampler = curriculum.sampler(seed=3)

    with (
        RunLog(tmp_path / "whole", sampler) as whole,
        RunLog(tmp_path / "parts", sampler) as parts,
    ):
        for step in range(sampler.total_steps):
            whole.record(step, sampler.batch(step))
            half = sampler.shape(step)[0] // 2
            shares = range(half), range(half, 2 * half)
            digests = [
                batch_digest(sampler.rows(step, list(rows)), first_row=rows.start)
                for rows in shares
            ]
            parts.record(step, digest=sum_digests(digests))

    found = [
        [row.get("digest") for row in rows_of(tmp_path / name)]
        for name in ("whole", "parts")
    ]
    assert found[0] == found[1]


def test_resumed_log_goes_on_from_a_state_and_its_digest(tmp_path: Path) -> None:
    curriculum = declared()
    sampler = curriculum.sampler(seed=3)
    with RunLog(tmp_path, sampler) as log:
        for step in range(2):
            log.record(step, sampler.batch(step))
        state = json.loads(json.dumps(log.state()))
        log.record(2, sampler.batch(2))  # after the checkpoint, so made again
    assert state == sampler.state(2)

    with RunLog(tmp_path, sampler, state=state) as resumed:
        assert resumed.step == 2
        for step in range(2, sampler.total_steps):
            resumed.record(step, sampler.batch(step))

    rows = rows_of(tmp_path)
    [_, restart] = [row for row in rows if row["kind"] == "start"]
    lines = (tmp_path / METRICS).read_bytes().splitlines(keepends=True)
    assert (restart["step"], restart["at"]) == (2, sum(map(len, lines[:3])))
    assert restart["after"] == zlib.crc32(lines[2])
    digest = 0
    for step in range(sampler.total_steps):
        digest = add_step(digest, step, batch_digest(sampler.batch(step)))
    assert rows[-2]["digest"] == digest_text(digest)


def test_log_is_refused_where_it_would_say_something_wrong(tmp_path: Path) -> None:
    curriculum = declared()
    sampler = curriculum.sampler(seed=3)
    with RunLog(tmp_path, sampler) as log:
        with pytest.raises(ValueError, match=r"\(2, 9\).*\(4, 9\)"):
            log.record(0, sampler.batch(0)[:2])
        with pytest.raises(ValueError, match="next step, which is 0"):
            log.record(1, sampler.batch(1))
        with pytest.raises(ValueError, match="either tokens or digest"):
            log.record(0, loss=1.0)
        with pytest.raises(BlockingIOError, match=METRICS):
            RunLog(tmp_path, sampler, state=log.state())
        log.record(0, sampler.batch(0))
        state = log.state()

    with pytest.raises(FileExistsError, match="state="):
        RunLog(tmp_path, sampler)
    with pytest.raises(ValueError, match="no row of step 2"):
        RunLog(tmp_path, sampler, state=sampler.state(2))
    for other in (declared("other").sampler(3), curriculum.sampler(4)):
        with pytest.raises(StateMismatch):
            RunLog(tmp_path, other, state=state)


def test_log_of_another_past_is_not_gone_on_with(tmp_path: Path) -> None:
    curriculum = declared()
    sampler = curriculum.sampler(seed=3)
    with RunLog(tmp_path, sampler) as log:
        for step in range(3):
            log.record(step, sampler.batch(step))
    assert [recorded_state(tmp_path, step) for step in (1, 3)] == [
        sampler.state(step) for step in (1, 3)
    ]
    longer = Curriculum(
        PositionReader(4000),
        [*PHASES, Phase(1, 2, 17)],
        {"code": PositionReader(2000, "code")},
    )

    for other, seed in ((declared("other"), 3), (curriculum, 4)):
        changed = other.sampler(seed)
        with pytest.raises(StateMismatch):
            RunLog(tmp_path, changed, state=changed.state(3))
    with RunLog(tmp_path, longer.sampler(3), state=sampler.state(3)) as log:
        log.record(3, sampler.batch(3))


def test_a_run_that_begins_anew_gives_up_no_rows_of_another(tmp_path: Path) -> None:
    curriculum = declared()
    sampler = curriculum.sampler(seed=3)
    saves = "saves/first"

    def start(checkpoints: str, seed: int = 3) -> RunLog:
        of_seed = curriculum.sampler(seed)
        state = of_seed.state(0)
        return RunLog(tmp_path, of_seed, state=state, checkpoints=checkpoints)

    start("saves/failed").close()  # before its first step, so it has no rows
    with start(saves) as log:
        log.record(0, sampler.batch(0))
    before = (tmp_path / METRICS).read_bytes()

    with pytest.raises(FileExistsError, match=r"saves/first.*saves/second"):
        start("saves/second")
    with pytest.raises(StateMismatch, match="seed"):
        start(saves, seed=4)
    assert (tmp_path / METRICS).read_bytes() == before
    # As a run that was killed before its first checkpoint.
    with start(saves) as log:
        log.record(0, sampler.batch(0))
    assert [row["kind"] for row in rows_of(tmp_path)[-3:]] == ["start", "train", "end"]


def test_recording_imports_no_framework() -> None:
    program = (
        "import sys, roxxel_curriculum.run_log\n"
        "assert not {'jax', 'torch', 'roxxel_train'} & sys.modules.keys()\n"
    )

    subprocess.run([sys.executable, "-c", program], check=True)


def test_error_of_the_loop_is_how_the_run_ended(tmp_path: Path) -> None:
    curriculum = declared()
    with (
        pytest.raises(OSError, match="gone"),
        RunLog(tmp_path, curriculum.sampler(3)),
    ):
        raise OSError("the disk is gone")

    assert rows_of(tmp_path)[-1]["status"] == "ended with an error"
    assert np.isfinite(rows_of(tmp_path)[0]["seconds"])
