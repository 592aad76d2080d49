from __future__ import annotations

import shutil
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from roxxel.quickstart.folder import (
    QuickstartError,
    QuickstartFolder,
    Record,
    check_seed,
    resolve_steps,
)
from roxxel.quickstart.settings import DEFAULT_STEPS, Schedule

if TYPE_CHECKING:
    from pathlib import Path

STARTED = Record(seed=3, python="3.11.7", steps=20, schedule=Schedule(14, 20))


def make_run(path: Path) -> QuickstartFolder:
    folder = QuickstartFolder(path)
    with folder.claimed():
        folder.write(STARTED)
    (folder.data).mkdir()
    (folder.data / "library.rox").write_bytes(b"x")
    (folder.path / "metrics.jsonl").write_text("{}\n")
    return QuickstartFolder(path)


def test_a_record_comes_back_as_it_was_written(tmp_path: Path) -> None:
    folder = QuickstartFolder(tmp_path)
    folder.write(STARTED)

    assert QuickstartFolder(tmp_path).read() == STARTED


def test_a_folder_that_does_not_exist_has_no_record(tmp_path: Path) -> None:
    folder = QuickstartFolder(tmp_path / "new")

    assert folder.read() is None
    assert not (tmp_path / "new").exists()


def test_a_folder_of_somebody_else_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")

    with pytest.raises(QuickstartError, match=r"holds thesis.txt, which is no quick"):
        QuickstartFolder(tmp_path)

    assert [p.name for p in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(QuickstartError, match="is a file, and a run needs a folder"):
        QuickstartFolder(tmp_path / "file")


def stage(folder: QuickstartFolder) -> None:
    folder.staged.mkdir()
    (folder.staged / "library.rox").write_bytes(b"new")


def test_a_new_run_takes_the_place_of_the_old_one(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    stage(folder)
    other = replace(STARTED, seed=4)

    with folder.claimed():
        folder.begin(other)

    assert folder.read() == other
    assert (folder.data / "library.rox").read_bytes() == b"new"
    assert sorted(p.name for p in folder.path.iterdir()) == [
        "data",
        "quickstart.json",
        "quickstart.lock",
    ]


def test_foreign_files_are_left_and_the_run_beside_them_too(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    stage(folder)
    (folder.path / "notes.txt").write_text("mine")
    before = sorted(folder.path.rglob("*"))

    with pytest.raises(QuickstartError, match=r"holds notes.txt beside the run"):
        folder.begin(STARTED)

    assert sorted(folder.path.rglob("*")) == before
    assert folder.read() == STARTED


def test_staged_data_without_a_run_is_no_run(tmp_path: Path) -> None:
    stage(QuickstartFolder(tmp_path))

    assert QuickstartFolder(tmp_path).read() is None


@pytest.mark.parametrize("done", range(4))
def test_a_start_that_was_cut_short_is_finished(tmp_path: Path, done: int) -> None:
    folder = make_run(tmp_path)
    stage(folder)
    cut_short = replace(STARTED, seed=7, is_begun=False)
    folder.write(cut_short)
    if done >= 1:
        shutil.rmtree(folder.path / "checkpoints", ignore_errors=True)
    if done >= 2:
        shutil.rmtree(folder.data)
    if done >= 3:
        folder.staged.rename(folder.data)

    record = folder.settle(cut_short)

    assert record == folder.read() == replace(STARTED, seed=7)
    assert (folder.data / "library.rox").read_bytes() == b"new"
    assert not folder.staged.exists()
    assert folder.settle(record) == record


def test_two_quickstarts_do_not_share_a_folder(tmp_path: Path) -> None:
    with (
        QuickstartFolder(tmp_path).claimed(),
        pytest.raises(QuickstartError, match="another quickstart is running"),
        QuickstartFolder(tmp_path).claimed(),
    ):
        pass


@pytest.mark.parametrize(
    "text", ["", "[]", '{"version": 1}', '{"version": 1, "seed": "x"}', "\x00"]
)
def test_a_damaged_record_is_one_sentence(tmp_path: Path, text: str) -> None:
    (tmp_path / "quickstart.json").write_text(text)

    with pytest.raises(QuickstartError, match="is not the record of a quickstart run"):
        QuickstartFolder(tmp_path).read()


def test_a_record_of_another_version_is_named(tmp_path: Path) -> None:
    (tmp_path / "quickstart.json").write_text('{"version": 9}')

    with pytest.raises(QuickstartError, match="has version 9, this roxxel reads 1"):
        QuickstartFolder(tmp_path).read()


@pytest.mark.parametrize(
    ("record", "asked", "steps"),
    [
        (None, None, DEFAULT_STEPS),
        (None, 20, 20),
        (STARTED, None, 20),
        (STARTED, 20, 20),
        (STARTED, 21, 21),
    ],
)
def test_steps_are_those_asked_for_or_those_before(
    tmp_path: Path, record: Record | None, asked: int | None, steps: int
) -> None:
    assert resolve_steps(record, asked, tmp_path) == steps


def test_fewer_steps_than_before_are_refused(tmp_path: Path) -> None:
    with pytest.raises(QuickstartError, match=r"started with --steps 20, and 19 is"):
        resolve_steps(STARTED, 19, tmp_path)


@pytest.mark.parametrize("steps", [1, 0, -5])
def test_a_phase_needs_a_step(tmp_path: Path, steps: int) -> None:
    with pytest.raises(QuickstartError, match=r"--steps must be 2 or more"):
        resolve_steps(None, steps, tmp_path)


def test_another_seed_is_refused(tmp_path: Path) -> None:
    check_seed(STARTED, None, tmp_path)
    check_seed(STARTED, 3, tmp_path)
    with pytest.raises(QuickstartError, match=r"started with --seed 3, not 4"):
        check_seed(STARTED, 4, tmp_path)


@pytest.mark.parametrize("steps", [2, 3, 20, 500, 100_000])
def test_both_phases_have_steps(steps: int) -> None:
    schedule = Schedule.of(steps)

    assert 1 <= schedule.boundary < steps
    assert schedule.warmup < schedule.horizon or steps == 2
    assert schedule.horizon == steps
