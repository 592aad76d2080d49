"""A run that continues from a checkpoint of another run, in a folder of its own."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import optax
import pytest
from flax import nnx
from roxxel_ckpt import (
    CheckpointDamagedError,
    Checkpointer,
    CheckpointMismatchError,
    CheckpointNotFoundError,
    CheckpointUnreadableError,
)
from roxxel_curriculum import Curriculum, Phase
from roxxel_train import RunMismatchError, Trainer, data_state

from .helpers import corpus, pair, rows, trainer, values

if TYPE_CHECKING:
    from collections.abc import Mapping

PHASES = [Phase(6, 4, 9), Phase(4, 2, 17)]


@pytest.fixture(scope="module")
def parent(tmp_path_factory: pytest.TempPathFactory) -> Trainer:
    """Return a complete run with checkpoints of steps 4, 8 and 10."""
    one = trainer(tmp_path_factory.mktemp("parent"))
    one.run()
    return one


@pytest.fixture
def runs(parent: Trainer, tmp_path: Path) -> Path:
    """Return a folder with the corpus and a copy of the parent's run."""
    folder = path_of(parent)
    shutil.copytree(folder.parent, tmp_path / "runs")
    return tmp_path / "runs"


def path_of(one: Trainer) -> Path:
    assert one.checkpointer is not None
    return Path(one.checkpointer.checkpoint_path).parent


def branch(runs: Path, name: str = "run@4", **options: Any) -> Trainer:
    """Return a trainer in `runs/b/run` that branches from a run beside it."""
    phases: list[Phase] = options.pop("phases", PHASES)
    curriculum = Curriculum(corpus(runs), phases)
    options = {"branch_from": f"{runs}/{name}", "pair": pair(seed=9)} | options
    return trainer(runs / "b", phases, curriculum=curriculum, **options)


def content(folder: Path) -> Mapping[str, tuple[int, bytes]]:
    """Return time and bytes of every file below a folder."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(f): (f.stat().st_mtime_ns, f.read_bytes()) for f in files}


def log_of(runs: Path) -> str:
    return (runs / "b" / "run" / "system.log").read_text()


@pytest.mark.parametrize("name", ["run@4", "run/checkpoints@4", "run/checkpoints/4/"])
def test_a_branch_without_an_edit_ends_as_its_parent(
    parent: Trainer, runs: Path, name: str
) -> None:
    before = content(runs / "run")

    one = branch(runs, name)
    summary = one.run()

    assert (summary.start_step, summary.step) == (4, 10)
    assert values(one) == values(parent)
    later = [row for row in rows(runs) if row["step"] > 4]
    assert rows(runs / "b") == later
    assert content(runs / "run") == before
    assert "begins as a branch of step 4 of " in log_of(runs)
    assert "starts: 10 steps in 2 phases" in log_of(runs)


def test_the_newest_checkpoint_is_the_default(runs: Path) -> None:
    longer = [Phase(6, 4, 9), Phase(6, 2, 17)]

    summary = branch(runs, "run", phases=longer).run()

    assert (summary.start_step, summary.step) == (10, 12)


def test_a_branch_measures_what_its_parent_would_if_it_went_on(runs: Path) -> None:
    """Step 10 was saved as the last one, not as one of every 5."""
    longer = [Phase(6, 4, 9), Phase(6, 2, 17)]
    found: list[Mapping[str, float]] = []
    curriculum = Curriculum(corpus(runs), longer)
    for one in (
        branch(runs, "run@10", phases=longer, checkpoint_every=5),
        trainer(runs, longer, curriculum=curriculum, checkpoint_every=5),
    ):
        one.run()
        assert one.checkpointer is not None
        found.append(one.checkpointer.metrics(12))

    assert "loss_since_save" in found[0]
    assert found[0] == found[1]


def test_a_branch_may_change_the_steps_to_come(runs: Path) -> None:
    edited = [Phase(4, 4, 9), Phase(3, 2, 9)]

    one = branch(runs, phases=edited)
    one.run()

    past = Curriculum(corpus(runs), PHASES).sampler(0)
    for step in range(4):
        np.testing.assert_array_equal(one.sampler.batch(step), past.batch(step))
    assert one.sampler.batch(5).shape == (2, 9)


def test_a_branch_may_not_change_steps_that_its_parent_has_trained(runs: Path) -> None:
    with pytest.raises(RunMismatchError, match=r"branch_from='.*run@4': the run there"):
        branch(runs, phases=[Phase(10, 3, 9)])
    assert not (runs / "b" / "run").exists()


def test_a_branch_records_its_parent_and_continues_without_it(runs: Path) -> None:
    branch(runs, phases=[Phase(6, 4, 9)]).run()
    shutil.move(runs / "run", runs / "gone")

    again = branch(runs, pair=pair(seed=8))
    assert again.run().start_step == 6

    record = json.loads((runs / "b" / "run" / "run.json").read_text())
    of_parent = json.loads((runs / "gone" / "run.json").read_text())
    assert len(record["id"]) == 16
    assert record["id"] != of_parent["id"]
    found = record["branch_from"]
    assert found["path"] == str(runs / "run")
    assert (found["run_id"], found["step"]) == (of_parent["id"], 4)
    assert len(found["digest"]) == 16
    assert record["data"]["step"] == 4
    assert found["tokens_by_source"] == again.sampler.delivered_tokens(4)


def test_another_checkpoint_than_that_of_a_branch_is_refused(
    parent: Trainer, runs: Path
) -> None:
    branch(runs, phases=[Phase(6, 4, 9)]).run()
    shutil.copytree(runs / "run", runs / "other")
    record = runs / "other" / "run.json"
    record.write_text(record.read_text().replace('"id": "', '"id": "f'))

    for name in ("run@8", "other@4", "other"):
        with pytest.raises(RunMismatchError, match=r"is a branch of step 4 of .*run;"):
            branch(runs, name)
    shutil.move(runs / "run", runs / "moved")
    for name in ("moved@4", "run@4", "run"):
        assert branch(runs, name).run().step == 10

    with pytest.raises(RunMismatchError, match=r"run in .*moved began at step 0"):
        branch(runs, branch_from=path_of(parent), save_path=runs / "moved")


def test_a_branch_saves_its_first_state_before_the_first_update(runs: Path) -> None:
    one = branch(runs, max_to_keep=None, eval_fn=lambda _: 1.0, eval_every=5)
    one.run()

    assert one.checkpointer is not None
    assert one.checkpointer.steps() == [4, 8, 10]
    assert data_state(runs / "b" / "run@4") == data_state(runs / "run@4")


def test_a_branch_that_has_no_checkpoint_yet_begins_again(
    runs: Path, parent: Trainer
) -> None:
    branch(runs).run()
    shutil.rmtree(runs / "b" / "run" / "checkpoints")
    (runs / "b" / "run" / "metrics.jsonl").unlink()

    again = branch(runs, "run")  # The recorded step counts, and not the newest.
    assert data_state(runs / "b" / "run")["step"] == 4
    assert again.run().start_step == 4
    assert values(again) == values(parent)

    shutil.rmtree(runs / "b" / "run" / "checkpoints")
    shutil.rmtree(runs / "run" / "checkpoints" / "4")
    shutil.copytree(runs / "run" / "checkpoints" / "8", runs / "run/checkpoints/4")
    with pytest.raises((RunMismatchError, CheckpointUnreadableError)):
        branch(runs)


def test_a_trainer_runs_a_branch_twice_and_without_a_folder(
    runs: Path, parent: Trainer
) -> None:
    one = branch(runs, save_path=None)
    assert one.state.step[...] == 4
    assert one.run().start_step == 4
    assert one.run().start_step == 10
    assert values(one) == values(parent)


def test_a_damaged_step_is_an_error_and_a_damaged_newest_step_a_warning(
    runs: Path,
) -> None:
    damaged = runs / "run" / "checkpoints" / "10" / "checkpoint.json"
    damaged.write_bytes(damaged.read_bytes()[:-9])

    with pytest.raises(CheckpointDamagedError, match="checkpoints/10"):
        branch(runs, "run@10")
    summary = branch(runs, "run").run()

    assert summary.start_step == 8
    assert "starts from step 8, because step 10 is damaged" in log_of(runs)


def test_a_step_that_does_not_exist_is_named(runs: Path) -> None:
    with pytest.raises(CheckpointNotFoundError, match="no step 7; it holds steps 4, 8"):
        branch(runs, "run@7")
    with pytest.raises(CheckpointNotFoundError, match="no step 7; it holds steps 4, 8"):
        data_state(f"{runs}/run@7")
    with pytest.raises(FileNotFoundError, match=r"elsewhere': holds no checkpoint"):
        branch(runs, "elsewhere")


def test_an_optimizer_of_another_structure_is_refused(runs: Path) -> None:
    model, _ = pair()
    optimizer = nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)

    with pytest.raises(CheckpointMismatchError) as caught:
        branch(runs, pair=(model, optimizer))

    assert str(caught.value).startswith(f"branch_from='{runs}/run@4': ")
    assert ": only in the checkpoint" in str(caught.value)
    assert str(caught.value).endswith("start with the weights that match")


def test_a_folder_cannot_branch_from_itself(runs: Path) -> None:
    phases = [Phase(6, 4, 9), Phase(6, 2, 17)]
    for name in ("run@8", "run", "run/checkpoints/8", "b/../run@8"):
        with pytest.raises(ValueError, match="began at step 0; leave branch_from out"):
            branch(runs, name, phases=phases, save_path=runs / "run")


def test_own_checkpoints_of_a_program_cannot_be_branched_from(runs: Path) -> None:
    """They would be resumed at the newest step, and not at the step that is given."""
    model, optimizer = pair()
    kept = Checkpointer(runs / "run" / "checkpoints", model, optimizer)
    options: dict[str, Any] = {"checkpointer": kept, "pair": (model, optimizer)}

    with pytest.raises(ValueError, match=r"run@4': holds the checkpoints of this run"):
        branch(runs, save_path=None, **options)


def test_weights_alone_and_the_whole_state_exclude_each_other(runs: Path) -> None:
    with pytest.raises(ValueError, match="init_from and branch_from are both given"):
        branch(runs, init_from=runs / "run")
