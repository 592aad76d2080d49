"""The batches of a run are those of its folder, whatever the schedule says now."""

from __future__ import annotations

import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from roxxel_ckpt import CheckpointError
from roxxel_curriculum import Curriculum, Phase
from roxxel_train import RunMismatchError, data_state

from .helpers import corpus, loss_fn, rows, trainer

if TYPE_CHECKING:
    from pathlib import Path

FIRST, LONGER = Phase(6, 4, 9), Phase(4, 2, 33)


def fed(model: Any, batch: jax.Array) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Return the loss, and a number that tells batches apart, for the log."""
    weights = jnp.arange(batch.size).reshape(batch.shape) % 7 + 1
    return loss_fn(model, batch), {"fed": (batch * weights).sum()}


def told_apart(batch: Any) -> int:
    weights = np.arange(batch.size).reshape(batch.shape) % 7 + 1
    return int((batch * weights).sum())


def trained(folder: Path) -> list[int]:
    """Return the number of each batch that the run was fed, from its log."""
    return [int(row["fed"]) for row in rows(folder) if row["kind"] == "train"]


def run(folder: Path, *phases: Phase, **options: Any) -> Any:
    curriculum = Curriculum(corpus(folder), phases)
    one = trainer(folder, curriculum=curriculum, loss_fn=fed, log_every=1, **options)
    one.run()
    return one


def test_the_state_of_a_run_gives_what_it_trained_when_a_longer_phase_was_added(
    tmp_path: Path,
) -> None:
    run(tmp_path, FIRST, seed=3)
    edited = run(tmp_path, FIRST, LONGER, seed=3)
    curriculum = Curriculum(corpus(tmp_path), [FIRST, LONGER])

    sampler = curriculum.sampler(state=data_state(tmp_path / "run"))

    steps = range(10)
    was_fed = trained(tmp_path)
    assert [told_apart(sampler.batch(step)) for step in steps] == was_fed
    assert [told_apart(edited.sampler.batch(step)) for step in steps] == was_fed
    for step in steps:
        assert sampler.locate(step, 1) == edited.sampler.locate(step, 1)
    # What a new run of the same phases would read is something else.
    new = curriculum.sampler(3)
    assert [told_apart(new.batch(step)) for step in steps] != was_fed
    assert (sampler.longest, new.longest) == (9, 33)


def test_the_state_is_that_of_the_newest_checkpoint(tmp_path: Path) -> None:
    one = run(tmp_path, FIRST, LONGER, seed=3)

    assert data_state(tmp_path / "run") == one.sampler.state(10)
    assert data_state(str(tmp_path / "run" / "checkpoints")) == one.sampler.state(10)


def test_before_the_first_checkpoint_the_state_is_that_of_the_start(
    tmp_path: Path,
) -> None:
    one = run(tmp_path, FIRST, seed=3)
    shutil.rmtree(tmp_path / "run" / "checkpoints")

    assert data_state(tmp_path / "run") == one.sampler.state(0)
    with pytest.raises(FileNotFoundError, match=r"run: holds no checkpoint; give the"):
        data_state(tmp_path / "run", needs_checkpoint=True)


def test_a_damaged_checkpoint_leaves_the_state_of_the_one_before(
    tmp_path: Path,
) -> None:
    one = run(tmp_path, FIRST, seed=3)
    checkpoints = tmp_path / "run" / "checkpoints"
    (checkpoints / "6" / "checkpoint.json").write_text("{")

    assert data_state(tmp_path / "run") == one.sampler.state(4)

    (checkpoints / "4" / "checkpoint.json").write_text("{")
    with pytest.raises(CheckpointError, match=f"{checkpoints / '6'}"):
        data_state(tmp_path / "run")


def test_a_damaged_record_is_named(tmp_path: Path) -> None:
    run(tmp_path, FIRST)
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    (tmp_path / "run" / "run.json").write_text("{}")

    with pytest.raises(RunMismatchError, match=r"run\.json: "):
        data_state(tmp_path / "run")


@pytest.mark.parametrize("name", ["none", "empty", "file"])
def test_a_folder_without_a_run_is_an_error_and_not_a_new_run(
    tmp_path: Path, name: str
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()

    with pytest.raises(FileNotFoundError) as info:
        data_state(tmp_path / name)

    assert str(info.value) == (
        f"{tmp_path / name}: holds no run (neither run.json nor a checkpoint); give "
        "the save_path of a run"
    )


def test_a_run_says_at_its_start_that_a_phase_is_longer_than_its_longest(
    tmp_path: Path,
) -> None:
    run(tmp_path, FIRST)
    log = tmp_path / "run" / "system.log"
    assert "longest" not in log.read_text()

    one = run(tmp_path, FIRST, LONGER)

    [note] = one.plan().notes_on_longest
    assert note.startswith("phase 1 has sequences of 33 tokens, longer than longest=9")
    assert note in log.read_text()


def test_the_state_is_read_without_jax(tmp_path: Path) -> None:
    run(tmp_path, FIRST, seed=3)
    program = (
        "import sys\n"
        "from roxxel_train import data_state\n"
        f"print(data_state({str(tmp_path / 'run')!r})['seed'])\n"
        "assert not {'jax', 'flax', 'optax', 'orbax'} & sys.modules.keys()\n"
    )

    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode, done.stdout, done.stderr) == (0, "3\n", "")
