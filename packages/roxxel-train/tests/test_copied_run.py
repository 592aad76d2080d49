"""A copied run folder becomes a run of its own, and a moved one stays the same run."""

from __future__ import annotations

import json
import shutil
from importlib import import_module
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from roxxel_curriculum import Phase
from roxxel_train import RunMismatchError, Trainer

from .helpers import trainer

if TYPE_CHECKING:
    from pathlib import Path


def run_in(folder: Path, name: str, updates: int) -> Trainer:
    """Return a trainer whose run is in `folder/name`."""
    return trainer(folder, [Phase(updates, 4, 9)], save_path=folder / name)


def record(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "run.json").read_text())


def bring(step: int, source: Path, target: Path) -> None:
    steps = "checkpoints"
    shutil.copytree(source / steps / f"{step}", target / steps / f"{step}")


@pytest.fixture
def both(tmp_path: Path) -> Path:
    """Return a folder with a run of 4 updates and a copy, both continued to 6."""
    run_in(tmp_path, "first", 4).run()
    shutil.copytree(tmp_path / "first", tmp_path / "copy")
    for name in ("first", "copy"):
        run_in(tmp_path, name, 6).run()
    return tmp_path


def test_a_copy_gets_an_id_of_its_own_and_says_so(both: Path) -> None:
    first, copy = record(both / "first"), record(both / "copy")

    assert first["id"] != copy["id"]
    assert copy["copied_from"][0]["id"] == first["id"]
    assert copy["copied_from"][0]["step"] == 4
    log = (both / "copy" / "system.log").read_text()
    assert f"is a copy of {both / 'first'}" in log
    assert "is a copy of" not in (both / "first" / "system.log").read_text()


def test_a_copy_is_a_run_of_its_own_in_wandb(
    both: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client: Any = import_module("wandb")
    ids: list[str] = []

    def init(**options: Any) -> Any:
        ids.append(options["id"])
        return SimpleNamespace(step=0, log=lambda *_, **__: None, finish=lambda: None)

    monkeypatch.setattr(client, "init", init)
    sinks: Any = import_module("roxxel_train.wandb")
    for name in ("first", "copy"):
        sink = sinks.WandB(both / name)
        sink({"kind": "train", "step": 1, "loss": 1.0})
        sink.close()

    assert ids == [record(both / name)["id"] for name in ("first", "copy")]


@pytest.mark.parametrize(("source", "target"), [("first", "copy"), ("copy", "first")])
def test_a_checkpoint_of_the_other_is_refused(
    both: Path, source: str, target: str
) -> None:
    run_in(both, source, 8).run()
    bring(8, both / source, both / target)

    with pytest.raises(RunMismatchError) as caught:
        run_in(both, target, 8)

    for words in (str(both / target), "step 8", "checkpoints/8", "run.json"):
        assert words in str(caught.value)
    shutil.rmtree(both / target / "checkpoints" / "8")
    assert run_in(both, target, 8).run().start_step == 6


def test_a_moved_folder_is_the_same_run(tmp_path: Path) -> None:
    run_in(tmp_path, "first", 4).run()
    before = record(tmp_path / "first")
    (tmp_path / "first").rename(tmp_path / "moved")

    run_in(tmp_path, "moved", 6).run()

    after = record(tmp_path / "moved")
    assert after == before | {"place": after["place"]}
    # A copy at the first place of the run is a copy nevertheless.
    shutil.copytree(tmp_path / "moved", tmp_path / "first")
    run_in(tmp_path, "first", 8).run()
    assert record(tmp_path / "first")["id"] != after["id"]
