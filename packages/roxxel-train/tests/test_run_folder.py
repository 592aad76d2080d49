from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import jax
import pytest
from roxxel_ckpt import Checkpointer, CheckpointWriteError
from roxxel_ckpt.cli import main
from roxxel_curriculum import Phase
from roxxel_train import (
    Logger,
    ModelState,
    RunFolder,
    RunMismatchError,
    Trainer,
    data_state,
)

from .helpers import pair, rows, trainer

if TYPE_CHECKING:
    from pathlib import Path

PHASES = [Phase(2, 4, 9)]


@pytest.fixture
def begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of a run that began and has no checkpoint."""

    def fail(*_: object, **__: object) -> int:
        raise RuntimeError("stopped here")

    with monkeypatch.context() as patch:
        patch.setattr(Checkpointer, "restore", fail)
        with pytest.raises(RuntimeError, match="stopped here"):
            trainer(tmp_path, PHASES).run()
    return tmp_path / "run"


def make(begun: Path, **options: object) -> Trainer:
    return trainer(begun.parent, PHASES, **options)


def test_record_names_the_data_and_stays(begun: Path) -> None:
    before = (begun / "run.json").read_text()
    make(begun).run()

    record = json.loads(before)
    assert (begun / "run.json").read_text() == before
    assert (record["version"], record["data"]["seed"]) == (1, 0)


def test_a_run_whose_last_checkpoint_is_not_there_is_not_complete(begun: Path) -> None:
    """A kill may come after the row of the last step and before its checkpoint."""
    one = make(begun, checkpoint_every=1, max_to_keep=2)
    one.run()
    assert RunFolder(begun).status == "complete"

    shutil.rmtree(begun / "checkpoints" / str(one.sampler.total_steps))

    killed = RunFolder(begun)
    assert (killed.status, killed.step) == ("stopped", one.sampler.total_steps)


def test_a_start_names_settings_versions_command_and_devices(begun: Path) -> None:
    make(begun).run()
    started = RunFolder(begun).newest_start

    settings = started["settings"]
    assert settings["save_path"] == str(begun)
    assert (settings["seed"], settings["fields"]) == (0, ["tokens"])
    assert not {"model", "curriculum", "loss_fn", "mesh"} & settings.keys()
    assert {"grad_accum_steps", "timeout", "best_metric"} <= settings.keys()
    assert {"jax", "flax", "optax", "orbax-checkpoint", "numpy"} <= set(
        started["versions"]
    )
    assert started["command"] == sys.argv
    assert started["devices"] == {jax.devices()[0].device_kind: 1}
    assert started["processes"] == 1


def test_a_run_with_a_log_elsewhere_has_its_starts_in_its_folder(
    tmp_path: Path,
) -> None:
    elsewhere = Logger(tmp_path / "log", terminal=False)
    trainer(tmp_path, PHASES, logger=elsewhere).run()

    run = RunFolder(tmp_path / "run")
    assert run.data().state["step"] == 2
    assert run.ending["status"] == "complete"
    assert not run.rows()[0]
    assert [row["step"] for row in RunFolder(tmp_path / "log").rows()[0]] == [1, 2]


def test_a_run_whose_log_goes_elsewhere_keeps_the_rows_it_had(tmp_path: Path) -> None:
    trainer(tmp_path, PHASES, log_every=1).run()
    for steps in (3, 4):
        elsewhere = Logger(tmp_path / "log", terminal=False)
        trainer(tmp_path, [Phase(steps, 4, 9)], logger=elsewhere, log_every=1).run()

    assert [row["step"] for row in RunFolder(tmp_path / "run").rows()[0]] == [1, 2]
    assert [row["step"] for row in RunFolder(tmp_path / "log").rows()[0]] == [3, 4]


def test_paths_mean_what_they_meant_when_they_were_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    one = trainer(tmp_path, PHASES, save_path="runs/a")
    other = trainer(tmp_path, PHASES, save_path="~/b")
    monkeypatch.chdir("elsewhere")

    summaries = [each.run() for each in (one, other)]

    folders = [tmp_path / "runs" / "a", tmp_path / "home" / "b"]
    assert [summary.save_path for summary in summaries] == folders
    for folder in folders:
        names = {path.name for path in folder.iterdir()}
        assert {"run.json", "metrics.jsonl", "checkpoints"} <= names
    assert data_state("~/b")["step"] == 2
    assert not [*(tmp_path / "elsewhere").iterdir()]
    begun = trainer(tmp_path, PHASES, save_path="~/c", init_from="~/b@2")
    assert begun.run().complete


def test_folder_that_is_renamed_while_it_trains_ends_the_run(tmp_path: Path) -> None:
    old, new = tmp_path / "run", tmp_path / "renamed"

    def rename(state: ModelState) -> None:
        if int(state.step[...]) == 6:
            one.checkpointer.wait()  # pyright: ignore[reportOptionalMemberAccess]
            old.rename(new)

    one = trainer(tmp_path, eval_fn=rename, eval_every=3, log_every=1)
    with pytest.raises(CheckpointWriteError, match=f"{old}.*is gone.*new name"):
        one.run()

    assert not (old / "checkpoints").exists()
    assert Checkpointer(new / "checkpoints", one.model).steps() == [4]
    assert trainer(tmp_path, save_path=new, log_every=1).run().start_step == 4
    assert [row["step"] for row in RunFolder(new).rows()[0]] == [*range(1, 11)]


def test_damaged_newest_checkpoint_is_kept_and_the_run_goes_on(tmp_path: Path) -> None:
    options: dict[str, Any] = {"log_every": 1, "max_to_keep": 9}
    trainer(tmp_path, **options).run()
    checkpoints = tmp_path / "run" / "checkpoints"
    before = rows(tmp_path)
    newest = checkpoints / "10" / "checkpoint.json"
    newest.write_bytes(newest.read_bytes()[:-9])

    summary = trainer(tmp_path, **options).run()

    assert summary.start_step == 8
    assert rows(tmp_path) == before
    assert {each.name for each in checkpoints.iterdir() if each.is_dir()} == {
        *("4", "8", "10", "10.damaged")
    }
    assert "10.damaged" in (tmp_path / "run" / "system.log").read_text()


def test_run_goes_on_from_an_earlier_step_once_the_later_is_deleted(
    tmp_path: Path,
) -> None:
    options: dict[str, Any] = {"log_every": 1, "max_to_keep": 9}
    trainer(tmp_path, **options).run()
    before = rows(tmp_path)

    assert main(["delete", f"{tmp_path / 'run'}@10"]) == 0

    assert trainer(tmp_path, **options).run().start_step == 8
    assert rows(tmp_path) == before


def test_record_of_a_later_version_is_refused(begun: Path) -> None:
    (begun / "run.json").write_text('{"version": 2}')

    with pytest.raises(RunMismatchError, match=r"run\.json: .* version 2\b.*; resume"):
        make(begun)


def test_run_that_another_program_began_meanwhile_is_kept(tmp_path: Path) -> None:
    late = trainer(tmp_path, PHASES, pair=pair(seed=3))
    trainer(tmp_path, PHASES).run()
    record = (tmp_path / "run" / "run.json").read_text()

    assert late.run().start_step == 2
    assert (tmp_path / "run" / "run.json").read_text() == record


def test_a_run_goes_on_though_rows_are_lost(tmp_path: Path) -> None:
    trainer(tmp_path, [Phase(3, 4, 9)], log_every=1).run()
    metrics, kept = tmp_path / "run" / "metrics.jsonl", 2
    lines = metrics.read_text().splitlines(keepends=True)
    metrics.write_text("".join(lines[:kept]))

    trainer(tmp_path, [Phase(5, 4, 9)], log_every=1).run()

    steps = [row["step"] for row in RunFolder(tmp_path / "run").rows()[0]]
    assert steps == [1, 4, 5]


def test_a_log_is_never_cut(tmp_path: Path) -> None:
    trainer(tmp_path, [Phase(8, 4, 9)], checkpoint_every=4, log_every=1).run()
    metrics = tmp_path / "run" / "metrics.jsonl"
    before, rows_before = metrics.read_bytes(), rows(tmp_path)
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "8")

    trainer(tmp_path, [Phase(8, 4, 9)], checkpoint_every=4, log_every=1).run()

    assert metrics.read_bytes().startswith(before)
    assert rows(tmp_path) == rows_before


def test_making_a_trainer_creates_nothing(tmp_path: Path) -> None:
    trainer(tmp_path, PHASES)

    assert not (tmp_path / "run").exists()


def test_model_of_another_shape_is_refused(begun: Path) -> None:
    record = json.loads((begun / "run.json").read_text())
    (begun / "run.json").write_text(json.dumps(record | {"model": "another"}))

    with pytest.raises(RunMismatchError, match="other shapes"):
        make(begun)


@pytest.mark.parametrize("name", ["metrics.jsonl", "checkpoints"])
def test_foreign_folder_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "run" / name).mkdir(parents=True)

    with pytest.raises(RunMismatchError, match=f"holds {name} but no run.json") as done:
        trainer(tmp_path, PHASES)
    assert ("init_from=" in str(done.value)) == (name == "checkpoints")


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"version": 1, "data": {}}'])
def test_damaged_record_is_refused(begun: Path, content: str) -> None:
    (begun / "run.json").write_text(content)

    with pytest.raises(RunMismatchError, match=r"run\.json: .*; re(store|sume)"):
        make(begun)


def test_file_in_the_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("")

    with pytest.raises(NotADirectoryError, match="is a file; give a folder"):
        trainer(tmp_path, PHASES)


def test_two_programs_cannot_run_in_one_folder(begun: Path) -> None:
    program = (
        "import fcntl, sys\n"
        "lock = open(sys.argv[1], 'a')\n"
        "fcntl.flock(lock, fcntl.LOCK_EX)\n"
        "print('locked', flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(begun / "run.lock")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "locked\n"
        with pytest.raises(RunMismatchError, match="another process is running in"):
            make(begun).run()
        other.communicate("")


def test_the_log_is_read_in_every_locale(tmp_path: Path) -> None:
    text = "r\N{LATIN SMALL LETTER E WITH ACUTE}sum\N{LATIN SMALL LETTER E WITH ACUTE}"
    with Logger(tmp_path, terminal=False) as log:
        log.info(text)
    program = (
        "import sys; from roxxel_train import RunFolder; "
        "print(ascii(RunFolder(sys.argv[1]).log()[0].text))"
    )
    settings = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}

    said = subprocess.check_output(
        [sys.executable, "-c", program, tmp_path], env=os.environ | settings, text=True
    )

    assert said.strip() == ascii(text)
