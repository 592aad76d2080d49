"""Which folder a quickstart may use, and what its start leaves when interrupted."""

from __future__ import annotations

import fcntl
from typing import TYPE_CHECKING

import pytest
from roxxel.quickstart.folder import (
    QuickstartError,
    QuickstartFolder,
    lengthened,
    new_config,
    steps_of,
)
from roxxel_train import RunFolder

if TYPE_CHECKING:
    from pathlib import Path

    from roxxel.config import RunConfig


def begin(folder: QuickstartFolder, steps: int = 20) -> RunConfig:
    """Begin a run of fake corpora in a folder."""
    config = new_config(folder.path, steps)
    folder.begin()
    (folder.path / "data").mkdir()
    (folder.path / "data" / "library.rox").write_text(f"{steps} steps")
    folder.write(config)
    return config


def test_a_config_comes_back_as_it_was_written(tmp_path: Path) -> None:
    config = begin(QuickstartFolder(tmp_path))

    assert QuickstartFolder(tmp_path).config() == config


def test_a_folder_that_does_not_exist_has_no_config(tmp_path: Path) -> None:
    assert QuickstartFolder(tmp_path / "new").config() is None
    assert not (tmp_path / "new").exists()


def test_a_folder_of_somebody_else_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")

    with pytest.raises(QuickstartError, match=r"holds thesis.txt and is not a quick"):
        QuickstartFolder(tmp_path)

    assert [p.name for p in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_new_run_replaces_the_old_one(tmp_path: Path) -> None:
    folder = QuickstartFolder(tmp_path)
    begin(folder)
    (tmp_path / "metrics.jsonl").write_text("{}")
    # A run on a GPU keeps the choices of its kernels in `autotune/`.
    for name in ("checkpoints", "profile", "autotune"):
        (tmp_path / name).mkdir()

    config = begin(folder, steps=40)

    assert folder.config() == config
    assert (tmp_path / "data" / "library.rox").read_text() == "40 steps"
    names = sorted(p.name for p in tmp_path.iterdir())
    assert names == [".quickstart", "config.toml", "data"]


def test_other_files_are_left_and_the_run_beside_them_too(tmp_path: Path) -> None:
    folder = QuickstartFolder(tmp_path)
    config = begin(folder)
    (tmp_path / "notes.txt").write_text("mine")
    before = sorted(tmp_path.rglob("*"))

    with pytest.raises(QuickstartError, match=r"holds notes.txt beside the run"):
        folder.begin()

    assert sorted(tmp_path.rglob("*")) == before
    assert folder.config() == config


def test_a_run_that_trains_is_not_removed(tmp_path: Path) -> None:
    folder = QuickstartFolder(tmp_path)
    config = begin(folder)
    with (tmp_path / "run.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(QuickstartError, match=r"its run is training, so --fresh"):
            folder.check_removable()

    assert folder.config() == config


def test_everything_that_a_trainer_makes_is_removed_with_the_run(
    tmp_path: Path,
) -> None:
    folder = QuickstartFolder(tmp_path)
    begin(folder)
    for name in RunFolder.NAMES:
        (tmp_path / name).touch()

    begin(folder)

    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == [".quickstart", "config.toml", "data"]


def test_a_start_that_was_interrupted_is_not_a_run(tmp_path: Path) -> None:
    folder = QuickstartFolder(tmp_path)
    begin(folder)
    (tmp_path / "config.toml").unlink()

    assert QuickstartFolder(tmp_path).config() is None
    assert begin(folder) == folder.config()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("roxxel.models", "mine"),
        ("steps = 14", "tokens = 28784"),
        ('library = "data/library.rox"', 'library = ["data/library.rox", "more.rox"]'),
        ('docstrings = "data/', 'prose = "data/'),
    ],
)
def test_a_config_that_is_not_a_quickstarts_is_refused(
    tmp_path: Path, old: str, new: str
) -> None:
    folder = QuickstartFolder(tmp_path)
    begin(folder)
    file = tmp_path / "config.toml"
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))

    with pytest.raises(QuickstartError, match="is no longer a quickstart's config"):
        folder.config()


def test_a_quickstart_that_does_not_name_its_primary_goes_on(tmp_path: Path) -> None:
    folder = QuickstartFolder(tmp_path)
    begin(folder)
    file = tmp_path / "config.toml"
    text = file.read_text().replace('primary = "library"\n', "")
    file.write_text(text.replace("library = ", "self = "))

    config = folder.config()
    assert config is not None
    assert config.schedule.primary == "self"
    assert [*config.sources] == ["self", "docstrings"]


@pytest.mark.parametrize("steps", [2, 3, 20, 500, 100_000])
def test_both_phases_have_steps_and_the_second_can_grow(
    tmp_path: Path, steps: int
) -> None:
    config = new_config(tmp_path, steps)
    longer = lengthened(config, steps + 7)

    first, last = config.schedule.phases
    assert (first.steps or 0) >= 1
    assert (last.steps or 0) >= 1
    assert (steps_of(config), steps_of(longer)) == (steps, steps + 7)
    assert longer.schedule.phases[0] == first
    assert longer.model_args == config.model_args
