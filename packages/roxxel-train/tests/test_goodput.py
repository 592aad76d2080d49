from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from roxxel_train import RunFolder
from roxxel_train._run import events
from roxxel_train.goodput import Goodput

if TYPE_CHECKING:
    from pathlib import Path


def at(seconds: float) -> str:
    moment = datetime.fromtimestamp(1_700_000_000 + seconds, UTC)
    return moment.isoformat(timespec="milliseconds")


def write(folder: Path, log: list[tuple[float, str]], rows: list[Any]) -> RunFolder:
    """Write both logs; a row has its time, its step, and its other fields."""
    folder.mkdir()
    (folder / "system.log").write_text(
        "".join(f"{at(t).replace('+00:00', 'Z')} INFO {text}\n" for t, text in log)
    )
    (folder / "metrics.jsonl").write_text(
        "".join(
            json.dumps({"kind": "train", "step": step, "time": at(t), **more}) + "\n"
            for t, step, more in rows
        )
    )
    return RunFolder(folder)


def test_wall_time_of_three_starts_is_that_of_a_hand_computation(
    tmp_path: Path,
) -> None:
    run = write(
        tmp_path / "run",
        [
            (0, "starts: 50 steps in 1 phase"),
            # Killed at 28 s, 7 steps after the checkpoint of step 20.
            (100, "resumed from step 20 of 50 in 4.00 s"),
            (100, events.rewritten_rows(7, 20, at(27))),
            # Stopped after step 43, three steps after the last row.
            (130, "SIGTERM ended the run after step 43; start the run again"),
            (140, "resumed from step 43 of 50 in 1.00 s"),
            (150, "complete: 50 of 50 steps are done; step 50 is saved"),
        ],
        [
            (10, 10, {"step_s": 0.8, "wait_s": 1.0, "compile_s": 2.0}),
            (20, 20, {"step_s": 0.9, "wait_s": 0.0, "save_s": 1.0}),
            (112, 30, {"step_s": 1.0, "wait_s": 0.5, "compile_s": 2.0, "loss": "nan"}),
            (115, 30, {"kind": "eval", "eval_loss": 2.0}),
            (125, 40, {"step_s": 1.0, "wait_s": 0.0, "eval_s": 3.0}),
            (147, 50, {"step_s": 1.0, "wait_s": 0.0}),
            (149, 50, {"kind": "eval", "eval_loss": 2.0}),
        ],
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
    run = write(
        tmp_path / "run",
        [
            (0, "starts: 50 steps in 1 phase"),
            (30, "resumed from step 12 of 50 in 0.00 s"),
            (30, events.kept_rows(1, 12, at(20))),
            (31, events.rewritten_rows(1, 12, at(21))),
        ],
        [(10, 10, {"step_s": 1.0}), (32, 14, {"step_s": 1.0})],
    )

    found = run.goodput(until=1_700_000_040)

    assert found.steps == pytest.approx(10 + 2 + 2)
    assert found.lost == pytest.approx(11 - 2)
    assert found.idle == pytest.approx(30 - 21)
    assert found.saving == pytest.approx(40 - 32)


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_warning_of_a_later_restore_is_no_sign_of_the_start_before(
    tmp_path: Path, is_killed: bool
) -> None:
    end = [
        (12, events.spent(Goodput(steps=10, saving=2))),
        (12, "complete: 10 of 10 steps are done; step 10 is saved"),
        (500, "checkpoints: step 10: 68 restored, 6 new"),
        (500, "already complete: 10 of 10 steps are done"),
    ]
    run = write(
        tmp_path / "run",
        [
            (0, "starts: 10 steps in 1 phase"),
            *([] if is_killed else end),
            (998, "checkpoints/10: cannot be used because a file is damaged"),
            (1000, "resumed from step 10 of 20 in 4.00 s"),
            (1012, "complete: 20 of 20 steps are done; step 20 is saved"),
        ],
        [(10, 10, {"step_s": 1.0}), (1010, 20, {"step_s": 1.0})],
    )

    found = run.goodput()

    saved = 2 if is_killed else 4
    assert (found.steps, found.saving, found.restoring) == pytest.approx((20, saved, 4))
    assert found.idle == pytest.approx(1012 - 20 - saved - 4)


def test_a_start_that_kept_nothing_is_lost_from_its_first_step(tmp_path: Path) -> None:
    run = write(
        tmp_path / "run",
        [
            (0, "starts: 50 steps in 1 phase"),
            (20, "starts: 50 steps in 1 phase"),
            (20, events.rewritten_rows(3, 0, at(15))),
        ],
        [(26, 4, {"step_s": 1.5})],
    )

    found = run.goodput()

    assert (found.lost, found.idle) == pytest.approx((15, 5))
    assert found.steps == pytest.approx(6)


def test_the_steps_of_a_parent_do_not_count(tmp_path: Path) -> None:
    run = write(
        tmp_path / "run",
        [(0, "starts: 50 steps in 1 phase"), (0, "begins as a branch of step 40 of a")],
        [(20, 50, {"step_s": 2.0})],
    )

    assert run.goodput().steps == pytest.approx(20)


def test_a_folder_without_a_start_has_no_wall_time(tmp_path: Path) -> None:
    run = write(tmp_path / "run", [], [(1, 1, {})])

    assert run.goodput() == Goodput()
    assert run.goodput().share == 0
