from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING

import forked
import pytest
from roxxel.cli import main
from roxxel_train import RunFolder

from .runs import CONFIG, MODEL, write_project

if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.first


@pytest.fixture(autouse=True)
def starts_are_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a drill start its runs as forks."""
    monkeypatch.setattr(sys, "executable", str(forked.commands() / "python"))


def content(folder: Path) -> dict[Path, bytes]:
    """Return the bytes of every file below a folder, caches of Python excluded."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {
        path: path.read_bytes() for path in files if "__pycache__" not in path.parts
    }


def test_killed_run_ends_as_the_unbroken_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = CONFIG.replace("tiny:make", "tiny:scheduled")
    text = text.replace("hang_after_s = 600", 'log_to.tensorboard.log_dir = "tb"')
    text = text.replace("seed = 3", "seed = 3\nskips = [[1, 2], [5, 1]]")
    config = write_project(tmp_path, text)
    scheduled = """

def scheduled(width, total_steps):
    assert total_steps == 6  # and not the steps of the drill
    return make(width)
"""
    (tmp_path / "tiny.py").write_text(MODEL + scheduled)
    # Rows of the run itself, which has the same folder of events.
    (tmp_path / "tb").mkdir()
    (tmp_path / "tb" / "events").write_text("of the run")
    before = content(tmp_path)
    scratch = tmp_path / "scratch"

    command = ["drill", str(config), "--steps", "5", "--kills", "1", "--seed", "1"]
    assert main([*command, "--scratch", str(scratch)]) == 0

    shown = capsys.readouterr().out
    assert shown.startswith(
        f"{config}: the first 5 steps, 1 kill, seed 1, in {scratch}"
    )
    assert "kill 1: after step" in shown
    assert shown.count("s from the start to the first step") == 1
    assert "log: 10 rows are equal" in shown
    assert "checkpoint: 2 leaves equal, 0 differences" in shown
    assert RunFolder(scratch / "killed").data().state["skips"] == [[1, 2]]
    shutil.rmtree(scratch)
    assert content(tmp_path) == before


def test_model_that_is_not_reproducible_is_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write_project(tmp_path)
    # Each start of the program draws other weights.
    seeded = MODEL.replace("nnx.Rngs(seed)", "nnx.Rngs(os.getpid())")
    (tmp_path / "tiny.py").write_text("import os\n" + seeded)
    scratch = tmp_path / "scratch"

    command = ["drill", str(config), "--kills", "1", "--steps", "4"]
    assert main([*command, "--scratch", str(scratch)]) == 3

    shown, told = capsys.readouterr()
    assert "step 0: loss: " in shown
    assert "step 3: model/embedding of checkpoint 4: " in shown
    assert f"{scratch}: the killed run differs from the unbroken run" in told
    assert scratch.is_dir()


def test_start_that_fails_shows_its_last_lines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write_project(tmp_path, CONFIG.replace("tiny:make", "tiny:two_things"))

    scratch = tmp_path / "scratch"
    assert main(["drill", str(config), "--scratch", str(scratch)]) == 1

    told = capsys.readouterr().err
    assert "a start of the run ended with code 1: roxxel: " in told
    assert "which tiny:two_things does not accept; the function" in told


def test_scratch_folder_must_be_new(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write_project(tmp_path)

    assert main(["drill", str(config), "--scratch", str(tmp_path)]) == 1

    assert "exists; give --scratch a new folder" in capsys.readouterr().err
