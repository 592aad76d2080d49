"""A damaged run folder causes an error, or the loss of few steps, never of the run."""

from __future__ import annotations

import json
import os
import shutil
import signal
from typing import TYPE_CHECKING

import numpy as np
import pytest
from roxxel import Roxxel
from roxxel.cli import main
from roxxel_train import RunFolder

from .runs import MODEL

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

CONFIG = """\
model = "model_of_hostile_runs:make"
save_path = "run"

[sources]
self = "web.rox"

[[phases]]
steps = {steps}
batch_size = 2
seq_len = 8

[trainer]
checkpoint_every = 4
log_every = 1
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a corpus, a config and a run of 8 steps."""
    folder = tmp_path_factory.mktemp("trained")
    Roxxel(folder / "web.rox").write(
        (np.arange(40) + i for i in range(8)), vocab_size=50
    )
    (folder / "model_of_hostile_runs.py").write_text(MODEL)
    (folder / "run.toml").write_text(CONFIG.format(steps=8))
    assert main(["train", str(folder / "run.toml")]) == 0
    return folder


@pytest.fixture
def folder(trained: Path, tmp_path: Path) -> Path:
    """Return a copy whose config has 4 steps more."""
    copy = tmp_path / "copy"
    shutil.copytree(trained, copy)
    (copy / "run.toml").write_text(CONFIG.format(steps=12))
    return copy


def train(folder: Path) -> int:
    return main(["train", str(folder / "run.toml")])


def steps(folder: Path) -> list[int]:
    rows, _ = RunFolder(folder / "run").rows()
    return [row["step"] for row in rows if row["kind"] == "train"]


def cut_largest(checkpoint: Path) -> None:
    files = [path for path in checkpoint.rglob("*") if path.is_file()]
    largest = max(files, key=lambda path: path.stat().st_size)
    largest.write_bytes(largest.read_bytes()[:-1])


def empty_all(checkpoint: Path) -> None:
    for path in checkpoint.rglob("*"):
        if path.is_file():
            path.write_bytes(b"")


def become_a_file(checkpoint: Path) -> None:
    shutil.rmtree(checkpoint)
    checkpoint.write_bytes(b"PK")


@pytest.mark.parametrize("spoil", [cut_largest, empty_all, become_a_file])
def test_run_goes_on_from_the_checkpoint_before_a_damaged_one(
    folder: Path, spoil: Callable[[Path], None], capfd: pytest.CaptureFixture[str]
) -> None:
    spoil(folder / "run" / "checkpoints" / "8")

    assert train(folder) == 0

    assert "resumed from step 4 of 12" in capfd.readouterr().err
    assert steps(folder) == list(range(1, 13))


def test_run_without_a_sound_checkpoint_is_one_sentence_and_stays(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    checkpoints = folder / "run" / "checkpoints"
    for step in (4, 8):
        cut_largest(checkpoints / str(step))
    before = sorted(path for path in (folder / "run").rglob("*"))

    assert train(folder) == 1

    last = capfd.readouterr().err.splitlines()[-1]
    assert f"{checkpoints}: none of its 2 steps can be used, the newest because" in last
    assert set(before) <= set((folder / "run").rglob("*"))
    assert steps(folder) == list(range(1, 9))


@pytest.mark.parametrize(
    "content", [b"\x00\xff\n", b"[1, 2]\n", b'{"kind": 3, "step": "x"}\n', b'{"st']
)
def test_foreign_lines_in_the_metrics_stop_neither_run_nor_report(
    folder: Path, content: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    metrics = folder / "run" / "metrics.jsonl"
    with metrics.open("ab") as file:
        file.write(content)

    assert main(["report", str(folder / "run")]) == 0
    assert train(folder) == 0

    assert "8 of 8 steps" in capfd.readouterr().out
    mark = b'"kind": "train"'
    rows = [line for line in metrics.read_bytes().splitlines() if mark in line]
    assert [json.loads(row)["step"] for row in rows] == list(range(1, 13))


@pytest.mark.parametrize("content", [b"", b"\x00\xff", b"[]", b'{"version": 99}'])
def test_damaged_record_of_a_run_is_one_sentence_and_drawn(
    folder: Path, content: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    record = folder / "run" / "run.json"
    record.write_bytes(content)

    assert train(folder) == 1

    [_, said] = capfd.readouterr().err.splitlines()  # below what it is doing
    assert str(record) in said
    assert main(["report", str(folder / "run")]) == 0


def become_a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.fixture
def alarm() -> Iterator[None]:
    """End a test that waits for the writer of a pipe."""

    def end(*_: object) -> None:
        raise AssertionError("the command waited for the writer of a pipe")

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(600)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.usefixtures("alarm")
@pytest.mark.parametrize("name", ["checkpoint.json", "digests/0.json"])
def test_run_goes_on_from_the_checkpoint_before_one_with_a_pipe(
    folder: Path, name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    become_a_pipe(folder / "run" / "checkpoints" / "8" / name)

    assert train(folder) == 0

    assert "resumed from step 4 of 12" in capfd.readouterr().err
    assert steps(folder) == list(range(1, 13))
