from __future__ import annotations

import json
import zlib
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from roxxel_train import RunFolder
from roxxel_train.goodput import Goodput

if TYPE_CHECKING:
    from pathlib import Path


def at(seconds: float) -> str:
    moment = datetime.fromtimestamp(1_700_000_000 + seconds, UTC)
    return moment.isoformat(timespec="milliseconds")


def start(t: float, step: int = 0, seconds: float = 0.0) -> dict[str, Any]:
    row = {"kind": "start", "step": step, "time": at(t), "total_steps": 50}
    return {**row, "seconds": seconds}


def end(t: float) -> dict[str, Any]:
    return {"kind": "end", "step": 0, "time": at(t)}


def row(t: float, step: int, **more: Any) -> dict[str, Any]:
    return {"kind": "train", "step": step, "time": at(t), **more}


def write(folder: Path, *rows: dict[str, Any], after: int = 0) -> RunFolder:
    """Write a log; a start after the first goes on after the row of its step."""
    folder.mkdir()
    lines: list[bytes] = []
    crcs: dict[int, int] = {}
    for each in rows:
        if each["kind"] == "start":
            after = crcs.get(each["step"], 0)
            lines.append(json.dumps({**each, "after": after}).encode() + b"\n")
            crcs.setdefault(each["step"], zlib.crc32(lines[-1]))
            continue
        lines.append(json.dumps(each).encode() + b"\n")
        if each["kind"] != "end":
            crcs[each["step"]] = zlib.crc32(lines[-1])
    (folder / "metrics.jsonl").write_bytes(b"".join(lines))
    return RunFolder(folder)


def test_an_evaluation_that_a_later_start_made_up_for_is_no_time_of_the_run(
    tmp_path: Path,
) -> None:
    trained = [start(0), row(40, 50, step_s=0.8), end(41)]
    day = 86_400
    owed = [start(day, 50), {**row(day + 5, 50), "kind": "eval"}]

    whole = write(tmp_path / "whole", *trained, *owed)

    assert whole.goodput() == write(tmp_path / "trained", *trained).goodput()
    assert whole.goodput(until=1_700_000_000 + day + 9).seconds == pytest.approx(41)


def test_wall_time_of_three_starts_is_that_of_a_hand_computation(
    tmp_path: Path,
) -> None:
    run = write(
        tmp_path / "run",
        start(0),
        row(10, 10, step_s=0.8, wait_s=1.0, compile_s=2.0),
        row(20, 20, step_s=0.9, wait_s=0.0, save_s=1.0),
        # Killed at 28 s, 7 steps after the checkpoint of step 20.
        row(27, 27, step_s=1.0),
        start(100, 20, 4.0),
        row(112, 30, step_s=1.0, wait_s=0.5, compile_s=2.0, loss="nan"),
        {**row(115, 30, eval_loss=2.0), "kind": "eval"},
        row(125, 40, step_s=1.0, wait_s=0.0, eval_s=3.0),
        # Stopped after step 43, three steps after the last row.
        row(128, 43, step_s=1.0, wait_s=0.0),
        end(130),
        start(140, 43, 1.0),
        row(147, 50, step_s=1.0, wait_s=0.0),
        {**row(149, 50, eval_loss=2.0), "kind": "eval"},
        end(150),
    )

    found = run.goodput()

    expected = Goodput(
        steps=7 + 9 + 9.5 + 10 + 3 + 7,
        waiting=1.5,
        compiling=4,
        saving=1 + 2 + 1,
        restoring=5,
        evaluating=3 + 2,
        lost=7,
        idle=69 + 9,
        other=0,
    )
    for name, seconds in vars(expected).items():
        assert getattr(found, name) == pytest.approx(seconds, abs=2e-3), name
    assert found.seconds == pytest.approx(150)
    assert "30.3 % of 2.5 min in steps kept" in str(found)
    assert "idle between starts 52.0 %" in str(found)
    assert "lost to restarts 4.7 %" in str(found)


def test_steps_up_to_a_checkpoint_between_two_rows_are_not_lost(tmp_path: Path) -> None:
    begin = [start(0), row(10, 10, step_s=1.0)]
    crc = zlib.crc32(json.dumps(begin[1]).encode() + b"\n")
    run = write(tmp_path / "run", *begin, row(21, 21))
    resumed = {**start(30, 12), "after": crc}
    with (tmp_path / "run" / "metrics.jsonl").open("a") as file:
        for each in (resumed, row(32, 14, step_s=1.0)):
            file.write(json.dumps(each) + "\n")

    found = run.goodput(until=1_700_000_040)

    assert found.steps == pytest.approx(10 + 2 + 2)
    assert found.lost == pytest.approx(11 - 2)
    assert found.idle == pytest.approx(30 - 21)
    assert found.saving == pytest.approx(40 - 32)


@pytest.mark.parametrize("is_killed", [False, True])
def test_an_idle_start_is_no_sign_of_the_start_before(
    tmp_path: Path, is_killed: bool
) -> None:
    idle = {**start(500, 10), "total_steps": 10}
    run = write(
        tmp_path / "run",
        start(0),
        row(10, 10, step_s=1.0),
        *([] if is_killed else [end(12), idle]),
        start(1000, 10, 4.0),
        row(1010, 20, step_s=1.0),
        end(1012),
    )

    found = run.goodput()

    saved = 2 if is_killed else 4
    assert (found.steps, found.saving, found.restoring) == pytest.approx((20, saved, 4))
    assert found.idle == pytest.approx(1012 - 20 - saved - 4)


def test_a_start_that_kept_nothing_is_lost_from_its_first_step(tmp_path: Path) -> None:
    run = write(
        tmp_path / "run",
        start(0),
        row(5, 1),
        row(15, 3),
        {**start(20), "after": None},
        row(26, 4, step_s=1.5),
    )

    found = run.goodput()

    assert (found.lost, found.idle) == pytest.approx((15, 5))
    assert found.steps == pytest.approx(6)


def test_the_steps_of_a_parent_do_not_count(tmp_path: Path) -> None:
    run = write(tmp_path / "run", start(0, 40), row(20, 50, step_s=2.0))

    assert run.goodput().steps == pytest.approx(20)


def test_a_folder_without_a_start_has_no_wall_time(tmp_path: Path) -> None:
    run = write(tmp_path / "run", row(1, 1))

    assert run.goodput() == Goodput()
    assert run.goodput().share == 0
