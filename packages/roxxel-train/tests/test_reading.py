"""`RunFolder` reads what a run, a crash or a hand has left in a folder."""

from __future__ import annotations

import fcntl
import json
import os
import platform
from typing import TYPE_CHECKING

import pytest
from roxxel_curriculum import Phase
from roxxel_train import ModelState, RunFolder, RunFolderError, RunMismatchError

from .helpers import pair, trainer

if TYPE_CHECKING:
    from pathlib import Path


def test_a_torn_last_row_is_not_damaged_and_another_bad_line_is(tmp_path: Path) -> None:
    lines = [{"kind": "train", "step": 1}, {"kind": "train"}, {"step": 2}]
    text = "".join(f"{json.dumps(line)}\n" for line in lines)
    (tmp_path / "metrics.jsonl").write_text(text + '{"kind": "train", "step": 3')

    rows, num_damaged = RunFolder(tmp_path).rows()

    assert [row["step"] for row in rows] == [1]
    assert num_damaged == 2


@pytest.mark.parametrize("value", [b"[" * 100_000 + b"]" * 100_000, b'"\xe4"'])
def test_a_row_that_nests_too_deep_or_is_not_utf8_is_damaged(
    tmp_path: Path, value: bytes
) -> None:
    row = b'{"kind": "train", "step": 1, "x": %b}\n' % value
    (tmp_path / "metrics.jsonl").write_bytes(row)

    assert RunFolder(tmp_path).rows() == ([], 1)
    assert not RunFolder(tmp_path).newest_rows


def test_a_record_is_missing_damaged_or_read(tmp_path: Path) -> None:
    assert RunFolder(tmp_path).record == {}
    (tmp_path / "run.json").write_text("[]")
    assert RunFolder(tmp_path).record is None
    (tmp_path / "run.json").write_text('{"seed": 3}')
    assert RunFolder(tmp_path).record == {"seed": 3}


def test_a_folder_without_a_run_is_named(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nothing"):
        with pytest.raises(RunFolderError, match=f"{path}: .*; give the "):
            RunFolder(path).check()
        assert RunFolder(path).state() is None


def test_a_home_folder_is_found_by_its_tilde(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text('{"seed": 3}')

    folder = RunFolder("~/run")

    folder.check()
    assert folder.record == {"seed": 3}


def test_a_run_that_trains_is_seen(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    assert not folder.is_running
    with (tmp_path / "run.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert folder.is_running
    assert not folder.is_running


def test_a_run_that_trains_names_its_process_and_host(tmp_path: Path) -> None:
    def again(_: ModelState) -> None:
        with pytest.raises(RunMismatchError) as refused:
            trainer(tmp_path, [Phase(1, 4, 9)], pair=pair(seed=1)).run()
        said.append(str(refused.value))

    said: list[str] = []
    trainer(tmp_path, [Phase(1, 4, 9)], eval_fn=again, eval_every=1).run()

    assert f"(process {os.getpid()} on {platform.node()}) is running" in said[0]
    assert not (tmp_path / "run" / "run.lock").read_text()
