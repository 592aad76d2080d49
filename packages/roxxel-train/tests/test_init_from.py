from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
from flax import nnx
from roxxel_ckpt import (
    CheckpointDamagedError,
    Checkpointer,
    CheckpointMismatchError,
    CheckpointNotFoundError,
)
from roxxel_curriculum import Phase
from roxxel_train import RunMismatchError

from .helpers import VOCABULARY, Tiny, pair, trainer, values

if TYPE_CHECKING:
    from roxxel_train import Trainer

PHASES = [Phase(6, 4, 9)]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Trainer:
    one = trainer(tmp_path_factory.mktemp("source"), PHASES)
    one.run()
    return one


def folder_of(one: Trainer) -> Path:
    folder = one.run().save_path
    assert isinstance(folder, Path)
    return folder


def weights(model: Any) -> list[Any]:
    return [np.asarray(x) for x in jax.tree.leaves(nnx.state(model, nnx.Param))]


def test_new_run_begins_with_the_weights_alone(source: Trainer, tmp_path: Path) -> None:
    fresh, _ = pair(seed=7)

    one = trainer(tmp_path, PHASES, pair=pair(seed=7), init_from=folder_of(source))

    for ours, expected in zip(weights(one.model), weights(source.model), strict=True):
        np.testing.assert_array_equal(ours, expected)
    moments = jax.tree.leaves(nnx.to_pure_dict(nnx.state(one.optimizer)))
    assert all(not np.any(x) for x in moments)
    for ours, expected in zip(
        jax.tree.leaves(nnx.state(one.model, nnx.RngState)),
        jax.tree.leaves(nnx.state(fresh, nnx.RngState)),
        strict=True,
    ):
        if jnp.issubdtype(ours.dtype, jax.dtypes.prng_key):
            ours, expected = map(jax.random.key_data, (ours, expected))  # noqa: PLW2901 - as numbers
        np.testing.assert_array_equal(ours, expected)


def test_a_checkpoint_of_another_program_gives_its_weights_once_it_is_saved_here(
    tmp_path: Path,
) -> None:
    old = tmp_path / "old"
    model, optimizer = pair(seed=3)
    options = ocp.CheckpointManagerOptions(best_fn=lambda metrics: metrics["loss"])
    with ocp.CheckpointManager(old / "checkpoints", options=options) as manager:
        _, state = nnx.split((model, optimizer))
        manager.save(4, args=ocp.args.StandardSave(state), metrics={"loss": 0.5})

    with pytest.raises(CheckpointDamagedError, match="save it here"):
        trainer(tmp_path, PHASES, pair=pair(seed=7), init_from=old)
    new = tmp_path / "new"
    with Checkpointer(new / "checkpoints", model, optimizer) as saving:
        saving.save(4, {"loss": 0.5})

    one = trainer(tmp_path, PHASES, pair=pair(seed=7), init_from=new)
    for ours, expected in zip(weights(one.model), weights(model), strict=True):
        np.testing.assert_array_equal(ours, expected)
    assert one.run().start_step == 0

    with pytest.raises(RunMismatchError, match=f"save_path, and init_from='{new}' to "):
        trainer(tmp_path, PHASES, save_path=new)
    again = pair(seed=7)
    saving = Checkpointer(new / "checkpoints", *again)
    with pytest.raises(RunMismatchError, match="step 4 has no data state, so"):
        trainer(tmp_path / "third", PHASES, pair=again, checkpointer=saving)


def test_run_that_has_a_checkpoint_of_its_own_does_not_look_there_again(
    source: Trainer, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    shutil.copytree(folder_of(source) / "checkpoints", other)
    first = trainer(tmp_path, PHASES, pair=pair(seed=7), init_from=other)

    assert first.run().start_step == 0
    shutil.rmtree(other)
    again = trainer(tmp_path, PHASES, pair=pair(seed=8), init_from=other)

    assert again.run().start_step == 6
    assert values(again) == values(first)
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert record["init_from"]["path"] == str(other)
    assert record["init_from"]["step"] == 6
    assert record["init_from"]["run_id"] is None
    assert record["branch_from"] is None
    log = (tmp_path / "run" / "system.log").read_text()
    assert log.count(f"begins with the weights of step 6 of {other}") == 1


@pytest.fixture
def lost(source: Trainer, tmp_path: Path) -> Path:
    """Return a folder with a parent, and a run that was lost before its checkpoint."""
    parent = tmp_path / "parent"
    shutil.copytree(folder_of(source), parent)
    shutil.rmtree(parent / "checkpoints" / "6")
    trainer(tmp_path, PHASES, pair=pair(seed=7), init_from=parent).run()
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    shutil.copytree(
        folder_of(source) / "checkpoints" / "6", parent / "checkpoints" / "6"
    )
    return tmp_path


@pytest.mark.parametrize("given", ["parent@4", "moved", None])
def test_a_run_that_was_lost_begins_with_the_same_step_again(
    source: Trainer, lost: Path, given: str | None
) -> None:
    if given == "moved":
        (lost / "parent").rename(lost / "moved")
    init_from = None if given is None else f"{lost}/{given}"

    one = trainer(lost, PHASES, pair=pair(seed=7), init_from=init_from)

    first = pair(seed=7)
    Checkpointer(folder_of(source) / "checkpoints", *first).restore(4)
    for ours, expected in zip(weights(one.model), weights(first[0]), strict=True):
        np.testing.assert_array_equal(ours, expected)


def test_a_run_that_was_lost_refuses_other_weights(source: Trainer, lost: Path) -> None:
    for given in (f"{lost}/parent@6", folder_of(source) / "checkpoints" / "6"):
        with pytest.raises(
            RunMismatchError, match=r"with the weights of step 4 of .*pa"
        ):
            trainer(lost, PHASES, pair=pair(seed=7), init_from=given)

    shutil.rmtree(lost / "parent" / "checkpoints" / "4")
    with pytest.raises(
        RunMismatchError, match=r"step 4 of .* gone .*another save_path"
    ):
        trainer(lost, PHASES, pair=pair(seed=7), init_from=lost / "parent")


def test_a_run_that_began_with_its_own_weights_takes_no_others(
    source: Trainer, tmp_path: Path
) -> None:
    trainer(tmp_path, PHASES).run()
    shutil.rmtree(tmp_path / "run" / "checkpoints")

    with pytest.raises(RunMismatchError, match="the weights of its own model; leave "):
        trainer(tmp_path, PHASES, init_from=folder_of(source))


class Constant:
    """Weights from outside: every parameter is the same number."""

    def __init__(self, value: float) -> None:
        self.value = value

    def __str__(self) -> str:
        return f"constant:{self.value}"

    def load(self, model: Any) -> None:
        params = nnx.state(model, nnx.Param)
        nnx.update(model, jax.tree.map(lambda x: jnp.full_like(x, self.value), params))


def test_a_run_begins_with_weights_from_outside_and_only_with_the_same_again(
    tmp_path: Path,
) -> None:
    one = trainer(tmp_path, PHASES, init_from=Constant(0.5), pair=free())
    folder = folder_of(one)

    record = json.loads((folder / "run.json").read_text())
    assert record["init_from"]["path"] == "constant:0.5"
    assert (
        "begins with the weights of constant:0.5" in (folder / "system.log").read_text()
    )
    shutil.rmtree(folder / "checkpoints")
    again = trainer(tmp_path, PHASES, init_from=Constant(0.5), pair=free())
    # A state that begins as a copy of the weights follows the new ones.
    state: Any = nnx.as_pure(again.optimizer.opt_state)
    for tree in (nnx.as_pure(nnx.state(again.model, nnx.Param)), state.z):
        assert all(bool((x == 0.5).all()) for x in jax.tree.leaves(tree))
    for other in (Constant(0.25), None):
        with pytest.raises(RunMismatchError, match=r"began with constant:0\.5.*give"):
            trainer(tmp_path, PHASES, init_from=other, pair=free())


def free() -> tuple[Tiny, nnx.Optimizer[Any]]:
    model = Tiny(nnx.Rngs(0))
    tx = optax.contrib.schedule_free_sgd(0.1)
    return model, nnx.Optimizer(model, tx, wrt=nnx.Param)


@pytest.mark.parametrize("made", [False, True])
def test_folder_without_a_checkpoint_is_named(tmp_path: Path, made: bool) -> None:
    empty = tmp_path / "empty"
    if made:
        empty.mkdir()

    with pytest.raises(FileNotFoundError, match="empty': holds no checkpoint; give"):
        trainer(tmp_path, init_from=empty)

    assert empty.exists() is made
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["@4", "/checkpoints/4"])
def test_a_step_of_the_run_gives_its_weights(
    source: Trainer, tmp_path: Path, name: str
) -> None:
    folder = folder_of(source)
    with Checkpointer(folder / "checkpoints", pair(seed=3)[0]) as expected:
        expected.restore(4)

    one = trainer(tmp_path, PHASES, pair=pair(seed=7), init_from=f"{folder}{name}")

    for ours, theirs in zip(weights(one.model), weights(expected.model), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_a_step_that_does_not_exist_is_named(source: Trainer, tmp_path: Path) -> None:
    with pytest.raises(
        CheckpointNotFoundError, match="has no step 5; it holds steps 4, 6"
    ):
        trainer(tmp_path, init_from=f"{folder_of(source)}@5")
    with pytest.raises(ValueError, match=r"names a step twice; give .*checkpoints@5"):
        trainer(tmp_path, init_from=folder_of(source) / "checkpoints" / "4@5")


class Other(Tiny):
    """Has one array by a name that is no longer the same shape."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        super().__init__(rngs)
        self.embed = nnx.Embed(VOCABULARY + 1, 4, rngs=rngs)


def test_model_of_other_shapes_is_named(source: Trainer, tmp_path: Path) -> None:
    model = Other(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)

    with pytest.raises(CheckpointMismatchError, match="embed/embedding"):
        trainer(tmp_path, pair=(model, optimizer), init_from=folder_of(source))


class Larger(Tiny):
    """Has one layer more."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        super().__init__(rngs)
        self.more = nnx.Linear(4, 4, rngs=rngs)


def test_how_the_model_differs_is_kept_with_the_run(
    source: Trainer, tmp_path: Path
) -> None:
    model = Larger(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)

    trainer(
        tmp_path, PHASES, pair=(model, optimizer), init_from=folder_of(source)
    ).run()

    log = (tmp_path / "run" / "system.log").read_text()
    assert f"WARNING {folder_of(source) / 'checkpoints'}: step 6: " in log
    assert "model/more/kernel: not in the checkpoint" in log


class Unlike(nnx.Module):
    def __init__(self) -> None:
        self.table = nnx.Param(jnp.zeros((VOCABULARY, VOCABULARY)))

    def __call__(self, tokens: jax.Array) -> jax.Array:
        return self.table[...][tokens]


def test_model_without_a_name_in_common_is_refused(
    source: Trainer, tmp_path: Path
) -> None:
    model = Unlike()
    optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)

    with pytest.raises(CheckpointMismatchError, match="no leaf of the checkpoint fits"):
        trainer(tmp_path, pair=(model, optimizer), init_from=folder_of(source))
