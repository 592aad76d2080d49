from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from roxxel_train import RunMismatchError
from roxxel_train._run_folder import RunFolder

if TYPE_CHECKING:
    from pathlib import Path


def begun(path: Path) -> RunFolder:
    folder = RunFolder(path)
    with folder.claimed():
        folder.begin(seed=1, data={"seed": 1}, model="abc")
    return folder


def test_record_is_written_once(tmp_path: Path) -> None:
    begun(tmp_path / "run")
    again = RunFolder(tmp_path / "run")
    again.begin(seed=2, data={"seed": 2}, model="other")

    assert again.record is not None
    assert again.record["seed"] == 1
    written = json.loads((tmp_path / "run" / "run.json").read_text())
    assert written == again.record
    assert "jax" in written["versions"]


def test_record_of_a_later_version_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text('{"version": 2}')

    with pytest.raises(RunMismatchError, match="has version 2, this trainer reads 1"):
        RunFolder(tmp_path)


def test_run_that_began_meanwhile_is_kept(tmp_path: Path) -> None:
    looked = RunFolder(tmp_path)
    begun(tmp_path)

    looked.begin(seed=2, data={"seed": 2}, model="abc")

    assert looked.record is not None
    assert looked.record["seed"] == 1


def test_looking_at_a_folder_makes_nothing(tmp_path: Path) -> None:
    RunFolder(tmp_path / "run")

    assert list(tmp_path.iterdir()) == []


def test_model_of_another_shape_is_refused(tmp_path: Path) -> None:
    folder = begun(tmp_path)

    folder.check_model("abc")
    with pytest.raises(RunMismatchError, match="other shapes"):
        folder.check_model("def")


@pytest.mark.parametrize("name", ["metrics.jsonl", "checkpoints"])
def test_foreign_folder_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()

    with pytest.raises(RunMismatchError, match=f"holds {name} but no run.json"):
        RunFolder(tmp_path)


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"version": 1, "data": {}}'])
def test_damaged_record_is_refused(tmp_path: Path, content: str) -> None:
    begun(tmp_path)
    (tmp_path / "run.json").write_text(content)

    with pytest.raises(RunMismatchError, match="not the record of a run"):
        RunFolder(tmp_path)


def test_file_in_the_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(NotADirectoryError, match="is a file; give a folder"):
        RunFolder(tmp_path / "file")


def test_two_processes_cannot_run_in_one_folder(tmp_path: Path) -> None:
    folder = begun(tmp_path)
    program = (
        "import sys\n"
        "from roxxel_train._run_folder import RunFolder\n"
        "with RunFolder(sys.argv[1]).claimed(): pass\n"
    )
    with folder.claimed():
        process = subprocess.run(
            [sys.executable, "-c", program, str(tmp_path)],
            capture_output=True,
            text=True,
            check=False,
        )

    assert process.returncode == 1
    assert "another process is running in this folder" in process.stderr


def test_link_to_nothing_is_refused(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")

    with pytest.raises(FileNotFoundError, match="is a link to nothing"):
        RunFolder(tmp_path / "link")
