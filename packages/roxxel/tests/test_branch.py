"""Runs that branch from a checkpoint of another run, by a config."""

from __future__ import annotations

import shlex
from shutil import rmtree
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from roxxel import open_run
from roxxel.cli import main
from roxxel.config import load_config, open_sampler
from roxxel.report import comparison, page, read_facts
from roxxel_train import RunFolder

from .runs import CONFIG, kept_configs, write_project

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Return a config whose run is complete, with checkpoints of steps 2, 4 and 6."""
    path = write_project(tmp_path / "project")
    assert main(["train", str(path)]) == 0
    return path


def rows(run: Path) -> list[dict[str, Any]]:
    return RunFolder(run).rows()[0]


def test_a_branch_changes_the_steps_to_come(
    config: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(config.parent)
    changes = ["--set", "save_path=b", "--set", "phases.1.batch_size=2"]
    command = ["first.toml", *changes, "--branch", "run@4"]
    capsys.readouterr()

    assert main(["plan", *command]) == 0
    assert "b: 4 steps of this run are done." in capsys.readouterr().out
    assert main(["train", *command]) == 0
    assert "done: 6 of 6 steps" in capsys.readouterr().out
    assert main(["train", *command]) == 0
    shown = capsys.readouterr().out
    assert "already complete: 6 steps" in shown
    assert shown.endswith(f"roxxel {shlex.join(['train', 'first.toml', *changes])}\n")

    folder = config.parent / "b"
    assert kept_configs(folder) == [4]
    kept = load_config(folder / "config.toml")
    assert kept.trainer.branch_from == str(config.parent / "run@4")
    train = [row["step"] for row in rows(folder) if row["kind"] == "train"]
    assert train == [5, 6]
    branch, parent = open_run(folder), open_run(config.parent / "run")
    for step in range(4):
        ours, theirs = branch.sampler().batch(step), parent.sampler().batch(step)
        np.testing.assert_array_equal(ours, theirs)
    assert branch.sampler().batch(5).shape == (2, 16)
    assert branch.trained_steps == 6
    assert branch.parent is not None
    assert branch.parent.path == str(config.parent / "run")
    assert (branch.parent.step, branch.parent.is_branch) == (4, True)
    assert branch.parent.tokens == 4 * 2 * 8
    assert parent.parent is None


def test_a_config_names_its_parent_relative_to_the_file(config: Path) -> None:
    text = CONFIG.replace('save_path = "run"', 'save_path = "b"')
    text = text.replace("[trainer]", '[trainer]\nbranch_from = "run/checkpoints/4"')
    path = config.with_name("second.toml")
    path.write_text(text)

    sampler = open_sampler(load_config(path))
    assert sampler.total_steps == 6
    assert main(["train", str(path)]) == 0

    parent = open_run(config.parent / "b").parent
    assert parent is not None
    assert str(parent) == f"step 4 of {config.parent / 'run'}"


def test_an_error_of_a_branch_is_one_sentence(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, b = config.parent / "run", ["--set", "save_path=b"]

    def error(*arguments: str, command: str = "train") -> str:
        capsys.readouterr()
        assert main([command, str(config), *arguments]) == 1
        return capsys.readouterr().err

    assert "has no step 3; it holds steps 2, 4, 6" in error(*b, "--branch", f"{run}@3")
    for command in ("train", "plan"):
        found = error(*b, "--branch", f"{run}@3", command=command)
        assert "has no step 3; it holds steps 2, 4, 6" in found
    assert "give another save_path to begin" in error("--branch", f"{run}@4")
    shape = ["--set", "phases.0.batch_size=4"]
    assert "does not fit this curriculum" in error(*b, *shape, "--branch", f"{run}@4")
    found = error("--set", "trainer.branch_from=other@2", "--set", "save_path=run")
    assert "began at step 0; leave branch_from out to continue that run, or" in found
    found = error(*b, "--set", "trainer.branch_from=run", command="drill")
    assert "drill the config without branch_from" in found
    width = ["--set", "model_args.width=3"]
    assert "model/embedding" in error(*b, *width, "--branch", f"{run}@4")
    assert not (config.parent / "b" / "run.json").exists()


def test_a_plan_of_a_branch_from_a_run_without_a_checkpoint_is_refused(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = config.parent / "run"
    rmtree(run / "checkpoints")
    capsys.readouterr()

    assert main(["plan", str(config), "--set", "save_path=b", f"--branch={run}"]) == 1

    assert capsys.readouterr().err == (
        f"roxxel: {run}: holds no checkpoint; give the folder of a "
        "run that has saved a checkpoint\n"
    )


def test_the_report_shows_the_parent(config: Path) -> None:
    changes = ["--set", "save_path=b", "--branch", str(config.parent / "run@4")]
    assert main(["train", str(config), *changes]) == 0
    weights = ["--set", "save_path=c", "--set", "trainer.init_from=run@2"]
    assert main(["train", str(config), *weights]) == 0

    runs = [read_facts(config.parent / name) for name in ("run", "b", "c")]

    assert f"<dt>Branch of</dt><dd>step 4 of {config.parent / 'run'}" in page(runs[1])
    assert f"<dt>Weights of</dt><dd>step 2 of {config.parent / 'run'}" in page(runs[2])
    assert "Branch of" not in page(runs[0])
    html = comparison(runs, [None, None, None])
    assert "branch of" in html
    assert "weights of" in html
    assert runs[1].rate == pytest.approx(2 * 16 / runs[1].seconds)
    assert runs[1].shares["self"].steps == [5, 6]
