from __future__ import annotations

import errno
import json
import os
from typing import TYPE_CHECKING, Any

import pytest
from roxxel.cli import main
from roxxel.report import read_facts

from .pages import write_description
from .runs import said

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


def write_run(folder: Path, *rows: Mapping[str, object]) -> Path:
    folder.mkdir(parents=True)
    lines = "".join(f"{json.dumps(row)}\n" for row in rows)
    (folder / "metrics.jsonl").write_text(lines)
    return folder


def start(step: int, minute: int, total_steps: int = 4) -> dict[str, object]:
    row = {"kind": "start", "step": step, "time": at(minute)}
    return {**row, "total_steps": total_steps}


def end(step: int, minute: int, status: str, kept: float) -> dict[str, object]:
    row = {"kind": "end", "step": step, "time": at(minute)}
    return {**row, "status": status, "kept": kept}


def at(minute: int) -> str:
    return f"2026-01-01T00:{minute:02}:00.000+00:00"


def write_two(folder: Path) -> None:
    write_run(
        folder / "runs" / "done",
        start(0, 0),
        {"kind": "train", "step": 2, "loss": 3.0, "time": at(0)},
        {
            "kind": "eval",
            "step": 4,
            "eval_loss": 2.25,  # the mean of the sets, as in a run's last line
            "eval_loss/code": 2.0,
            "eval_loss/web": 2.5,
            "time": at(8),
        },
        {
            "kind": "train",
            "step": 4,
            "loss": 2.5,
            "tokens_per_s": 1e4,
            "step_s": 120.0,
            "time": at(9),
        },
        end(4, 9, "complete", 0.444),
        {**start(4, 10), "after": 1},
    )
    for step in (2, 4):
        write_description(folder / "runs" / "done", step)
    write_run(
        folder / "runs" / "old" / "failed",
        start(0, 0),
        {"kind": "train", "step": 1, "loss": "nan", "time": at(1)},
        end(1, 1, "ended with an error", 0.5),
    )


def test_step_counts_updates_that_are_saved_but_have_no_row_yet(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_run(tmp_path / "run", {"kind": "train", "step": 1, "time": at(1)})
    write_description(run, 7)  # with `log_every=100`, and stopped after update 7

    [listed] = json.loads(said(capsys, "ls", run, "--json"))

    assert listed["step"] == 7 == read_facts(run).step


def test_runs_are_listed_with_the_newest_last(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_two(tmp_path)
    monkeypatch.chdir(tmp_path)

    head, failed, done = said(capsys, "ls").splitlines()

    assert head.split()[:4] == ["run", "status", "step", "saved"]
    assert failed.split()[:5] == ["runs/old/failed", "ended", "with", "an", "error"]
    assert done.split()[:4] == ["runs/done", "complete", "4/4", "4"]
    assert done.split()[4:7] == ["2.5000", "2.2500", "10,000"]
    assert done.split()[7] == "44%"
    assert done.endswith(" d")


def test_runs_are_listed_as_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_two(tmp_path)

    failed, done = json.loads(said(capsys, "ls", tmp_path, "--json"))

    assert failed["loss"] is None
    assert failed["status"] == "ended with an error"
    assert (done["step"], done["total_steps"], done["eval_loss"]) == (4, 4, 2.25)
    assert (done["saved_step"], failed["saved_step"]) == (4, None)
    assert done["time"] == at(9)


def test_a_run_that_began_again_has_no_share_of_kept_steps_yet(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(
        tmp_path / "run",
        start(0, 0),
        {"kind": "train", "step": 2},
        end(2, 9, "stopped", 0.444),
        start(2, 10),
    )

    [row] = json.loads(said(capsys, "ls", tmp_path, "--json"))

    assert row["goodput"] is None


def test_one_run_is_listed_by_its_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_two(tmp_path)
    one, two = tmp_path / "runs" / "done", tmp_path / "runs" / "old"

    assert len(said(capsys, "ls", one).splitlines()) == 2
    assert len(said(capsys, "ls", one, two).splitlines()) == 3


def test_a_long_log_is_read_from_its_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row = {"kind": "train", "step": 1, "loss": 1.0, "text": "x" * 2**20}
    write_run(tmp_path / "run", row, {"kind": "train", "step": 2, "loss": 2.0})

    [one] = json.loads(said(capsys, "ls", tmp_path, "--json"))

    assert (one["step"], one["loss"]) == (2, 2.0)


@pytest.mark.parametrize("code", [errno.EACCES, errno.ENOENT, errno.ESTALE])
def test_a_folder_that_cannot_be_read_is_left_out(
    code: int,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write_two(tmp_path)
    closed = tmp_path / "closed"
    closed.mkdir()
    scan = os.scandir

    def refuse(path: Any = ".") -> Any:
        if str(path) == str(closed):
            raise OSError(code, os.strerror(code), str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", refuse)

    assert len(said(capsys, "ls", tmp_path).splitlines()) == 3
    assert main(["ls", str(closed)]) == 1
    said_of_it = f"{closed}: {os.strerror(code)}".casefold()
    assert said_of_it in capsys.readouterr().err.casefold()


@pytest.mark.parametrize("name", ["nowhere", "."])
def test_a_folder_without_runs_is_one_sentence(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "corpora").mkdir()

    assert main(["ls", str(tmp_path / name)]) == 1

    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert name in error or str(tmp_path) in error
