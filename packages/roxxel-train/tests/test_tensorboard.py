from __future__ import annotations

import doctest
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

from roxxel_train import Logger, tensorboard
from roxxel_train.tensorboard import TensorBoard
from tensorboardX.proto import event_pb2

EVENTS: Any = event_pb2

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def events(folder: Path) -> list[list[Any]]:
    """Return the events of every file in TFRecord framing, in TensorBoard's order."""
    files: list[list[Any]] = []
    for path in sorted(folder.iterdir()):
        content, found, at = path.read_bytes(), [], 0
        while at < len(content):
            size = int.from_bytes(content[at : at + 8], "little")
            event = EVENTS.Event()
            event.ParseFromString(content[at + 12 : at + 12 + size])
            found.append(event)
            at += 12 + size + 4
        files.append(found)
    return files


def scalars(event: Any) -> dict[str, float]:
    return {value.tag: value.simple_value for value in event.summary.value}


def test_rows_are_scalars_at_their_steps(tmp_path: Path) -> None:
    with Logger(tmp_path, [TensorBoard(tmp_path / "tb")], terminal=False) as log:
        log.metrics(
            {
                "kind": "train",
                "step": 3,
                "time": "2026-01-02T03:04:05.500+00:00",
                "loss": 2.5,
                "loss/code": 2.25,
                "digest": "00000000000000ff",
                "nan": float("nan"),
                "tokens_by_source": {"self": 40, "code": 2},
                "list": [1, 2],
            }
        )
        log.metrics({"kind": "eval", "step": 4, "text": "Once"})

    ((version, train, evaluation),) = events(tmp_path / "tb")
    assert version.file_version == "brain.Event:2"
    assert (train.step, train.wall_time) == (3, 1767323045.5)
    found = scalars(train)
    assert found.pop("train/nan") != 0
    assert found == {
        "train/loss": 2.5,
        "train/loss/code": 2.25,
        "train/tokens_by_source/self": 40,
        "train/tokens_by_source/code": 2,
    }
    (value,) = evaluation.summary.value
    assert evaluation.step == 4
    assert value.tag.startswith("eval/text")
    assert value.tensor.string_val == [b"Once"]


def test_run_that_goes_on_purges_what_comes_again(tmp_path: Path) -> None:
    board = TensorBoard(tmp_path / "tb")
    for first, stop in ((0, 5), (2, 6)):
        with Logger(tmp_path, [board], terminal=False) as log:
            log.start({"step": first}, None)
            for step in range(first + 1, stop):
                log.metrics({"step": step, "loss": 1.0})

    first, second = events(tmp_path / "tb")
    assert [event.step for event in first[2:]] == [1, 2, 3, 4]
    assert (second[1].step, second[1].session_log.status) == (
        3,
        EVENTS.SessionLog.START,
    )
    assert [event.step for event in second[2:]] == [3, 4, 5]


def test_every_row_is_in_the_file_when_the_call_returns(tmp_path: Path) -> None:
    board = TensorBoard(tmp_path)
    for step in range(1, 101):
        board({"step": step, "loss": 1.0})

        assert events(tmp_path)[0][-1].step == step
    board.close()


def test_files_of_one_second_are_kept_apart_and_in_order(tmp_path: Path) -> None:
    board = TensorBoard(tmp_path)
    for step in range(12):
        board({"kind": "start", "step": step})
        board({"step": step})

    assert [file[-1].step for file in events(tmp_path)] == list(range(12))
    board.close()


def test_without_a_row_there_is_no_file(tmp_path: Path) -> None:
    board = TensorBoard(tmp_path / "tb")
    board({"kind": "start", "step": 3})
    board({"kind": "end", "step": 3})
    board.close()

    assert not (tmp_path / "tb").exists()


def test_missing_tensorboardx_names_the_extra() -> None:
    program = (
        "import sys; sys.modules['tensorboardX'] = None\n"
        "import roxxel_train.tensorboard"
    )

    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )

    assert "needs tensorboardX; install it: " in done.stderr


def test_the_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    done = doctest.testmod(tensorboard)

    assert done.attempted
    assert done.failed == 0


def test_two_sinks_of_one_second_write_two_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "time", lambda: 1_800_000_000.0)
    for step in (1, 2):
        board = TensorBoard(tmp_path / "tb")
        board({"step": step, "loss": 1.0})
        board.close()

    assert [event.step for file in events(tmp_path / "tb") for event in file[1:]] == [
        1,
        2,
    ]
