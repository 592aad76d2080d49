"""What the document about checkpoints claims.

| claim | test |
| --- | --- |
| The program starts at step 0 and saves every hundredth step | `test_program_resumes` |
| Run again, the program resumes from its newest step | `test_program_resumes` |
| A step is the name of its directory | `test_program_resumes` |
| A save returns while a thread still writes | `packages/roxxel-ckpt/tests/test_background.py::test_save_returns_before_the_checkpoint_is_there` |
| Training goes on, and may donate its arrays, once a save returns | `packages/roxxel-ckpt/tests/test_round_trip.py::test_arrays_may_be_donated_as_soon_as_save_returns` |
| A program that ends right after a save loses nothing in silence | `packages/roxxel-ckpt/tests/test_programs.py::test_program_without_close_loses_nothing_in_silence` |
| Only arrays are saved, so attributes of the model may change | `test_attributes_and_layers_may_change` |
| A model with added layers restores older weights | `test_attributes_and_layers_may_change`, `packages/roxxel-ckpt/tests/test_changed_model.py::test_new_leaves_stay_fresh_and_are_listed` |
| A checkpoint of any devices fits any other devices | `packages/roxxel-ckpt/tests/test_topology.py::test_a_checkpoint_of_eight_devices_fits_any_mesh`, `packages/roxxel-ckpt/tests/test_topology.py::test_a_checkpoint_of_a_mesh_fits_one_device` |
| The checkpoint with the lowest loss is never deleted | `test_lowest_loss_is_kept_beside_the_newest` |
| The newest `max_to_keep` checkpoints are kept | `test_lowest_loss_is_kept_beside_the_newest` |
| The arguments of the constructor have these names, order and defaults | `test_arguments_and_defaults` |
| `save` takes `step` and `metrics_dict`, and `restore` takes nothing | `test_arguments_and_defaults` |
| `checkpoint_path` may be a cloud storage path | differs: `a-bucket-is-written-without-orbax` |
| A background operation that takes longer than `timeout` is an error | `packages/roxxel-ckpt/tests/test_background.py::test_a_wait_is_bounded_and_may_be_tried_again` |
| A model and its optimizer come back bit for bit | `packages/roxxel-ckpt/tests/test_round_trip.py::test_a_trained_state_comes_back_bit_for_bit` |
| `save` takes whatever `int` makes a step of | `test_step_may_be_an_integer_of_any_library` |
| `int` rounds a step that is not whole | differs: `steps-are-whole-numbers` |
| A loss may be a number of Python, numpy or JAX | `test_loss_may_be_a_number_of_any_library` |
| `save` accepts metrics without a loss | `test_step_without_a_loss_is_saved_and_never_the_best` |
| A step without a loss has the loss 999 | differs: `a-missing-loss-is-not-invented` |
| A step that exists already is not saved again | `packages/roxxel-ckpt/tests/test_steps.py::test_a_step_that_exists_is_not_saved_again` |
| `restore` returns the step as an int, and 0 without a checkpoint | `test_restore_returns_the_step` |
| `restore` puts the newest step into the live model and optimizer | `test_restore_returns_the_step` |
| On several processes the files are written once, and safely | `packages/roxxel-ckpt/tests/test_processes.py::test_two_processes_save_restore_and_fail_together` |
| `.checkpoint_path`, `.model` and `.optimizer` are attributes | `test_attributes` |
| `.mngr` and `.graphdef` are attributes | differs: `no-orbax-manager` |
"""  # noqa: E501 - a row of a table is one line

from __future__ import annotations

import inspect
import os
import sys
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from roxxel.checkpoint import Checkpointer

if TYPE_CHECKING:
    from pathlib import Path

    from .conftest import RunProgram

INTEGERS = [7, np.int64(7), np.uint8(7), jnp.array(7)]
NUMBERS = [0.5, np.float32(0.5), np.array(0.5), jnp.array(0.5), jnp.bfloat16(0.5)]


class Model(nnx.Module):
    """A model whose layers and attributes may change."""

    def __init__(self, seed: int = 0, layers: int = 1, **attributes: Any) -> None:
        rngs = nnx.Rngs(seed)
        self.attributes = nnx.static(attributes)
        self.layers = nnx.List([nnx.Linear(3, 3, rngs=rngs) for _ in range(layers)])


def make(seed: int = 0, layers: int = 1) -> tuple[Model, nnx.Optimizer[Any]]:
    model = Model(seed, layers)
    return model, nnx.Optimizer(model, optax.adam(1e-3), wrt=nnx.Param)


def first_kernel(model: Model) -> list[list[float]]:
    return np.asarray(model.layers[0].kernel[...]).tolist()


@pytest.mark.parametrize("devices", [1, 8])
def test_program_resumes(run_program: RunProgram, tmp_path: Path, devices: int) -> None:
    first = run_program("checkpointing.py", devices=devices)
    assert first.returncode == 0, first.stderr
    steps = sorted(path.name for path in (tmp_path / "checkpoints").glob("[0-9]*"))
    again = run_program("checkpointing.py", devices=devices)
    assert again.returncode == 0, again.stderr

    assert first.stdout == "Resumed from step: 0\n"
    assert again.stdout == f"Resumed from step: {steps[-1]}\n"
    if "was not saved" not in first.stderr:  # from Python 3.12 on, the last may be lost
        assert first.stderr == again.stderr == ""
        assert steps == ["700", "800", "900"]
    else:
        assert sys.version_info >= (3, 12)


def test_attributes_and_layers_may_change(tmp_path: Path) -> None:
    old, optimizer = make()
    with Checkpointer(str(tmp_path), old, optimizer) as saving:
        saving.save(1, {"loss": 0.5})
    changed = Model(seed=1, layers=2, rate=0.3, name="changed")
    other = nnx.Optimizer(changed, optax.adam(1e-3), wrt=nnx.Param)

    assert Checkpointer(str(tmp_path), changed, other).restore() == 1

    assert first_kernel(changed) == first_kernel(old)


def test_lowest_loss_is_kept_beside_the_newest(tmp_path: Path) -> None:
    with Checkpointer(str(tmp_path), *make()) as saving:
        for step, loss in enumerate([0.9, 0.1, 0.8, 0.7, 0.6, 0.5]):
            saving.save(step, {"loss": loss})

    assert sorted(path.name for path in tmp_path.glob("[0-9]*")) == ["1", "3", "4", "5"]
    assert saving.best_step == 1


def test_arguments_and_defaults() -> None:
    arguments = list(inspect.signature(Checkpointer).parameters.values())[:5]
    assert [argument.name for argument in arguments] == [
        *("checkpoint_path", "model", "optimizer", "max_to_keep", "timeout")
    ]
    assert [argument.default for argument in arguments[3:]] == [3, 1000]

    saved = list(inspect.signature(Checkpointer.save).parameters)
    restored = inspect.signature(Checkpointer.restore).parameters.values()
    assert saved[1:3] == ["step", "metrics_dict"]
    assert all(p.default is not p.empty for p in restored if p.name != "self")


@pytest.mark.parametrize("step", INTEGERS, ids=lambda step: type(step).__name__)
def test_step_may_be_an_integer_of_any_library(tmp_path: Path, step: Any) -> None:
    with Checkpointer(str(tmp_path), *make()) as saving:
        assert saving.save(step, {"loss": 0.5})

    assert [path.name for path in tmp_path.glob("[0-9]*")] == ["7"]
    assert saving.restore(step) == 7
    assert saving.peek(step) == (7, None)
    assert saving.metrics(step) == {"loss": 0.5}


@pytest.mark.parametrize("step", [7.0, "7", np.float32(7), jnp.array(7.0), None])
def test_step_that_is_not_an_integer_is_one_sentence(tmp_path: Path, step: Any) -> None:
    saving = Checkpointer(str(tmp_path), *make())
    with pytest.raises(TypeError, match=r"^step must be an integer, the number of "):
        saving.save(step, {"loss": 0.5})
    with pytest.raises(ValueError, match=r"^step must be at least 0, got -1$"):
        saving.save(-1, {"loss": 0.5})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("loss", NUMBERS)
def test_loss_may_be_a_number_of_any_library(tmp_path: Path, loss: Any) -> None:
    with Checkpointer(str(tmp_path), *make()) as saving:
        saving.save(step=1, metrics_dict={"loss": loss})

    assert saving.metrics(1) == {"loss": 0.5}
    assert saving.best_step == 1


def test_step_without_a_loss_is_saved_and_never_the_best(tmp_path: Path) -> None:
    with Checkpointer(str(tmp_path), *make()) as saving:
        saving.save(1, {"loss": 5000.0})
        saving.save(2, {"accuracy": 0.5})
        saving.save(3, {})

    assert saving.steps() == [1, 2, 3]
    assert saving.best_step == 1
    assert saving.metrics(2) == {"accuracy": 0.5}


def test_restore_returns_the_step(tmp_path: Path) -> None:
    model, optimizer = make()
    checkpointer = Checkpointer(str(tmp_path), model, optimizer)
    none = checkpointer.restore()
    assert (type(none), none) == (int, 0)
    with checkpointer:
        checkpointer.save(100, {"loss": 2.0})
        model.layers[0].kernel[...] += 1
        optimizer.step[...] = jnp.array(200, jnp.uint32)
        checkpointer.save(200, {"loss": 3.0})

    other, of_other = make(seed=1)
    newest = Checkpointer(str(tmp_path), other, of_other).restore()
    assert (type(newest), newest) == (int, 200)
    assert first_kernel(other) == first_kernel(model)
    assert int(of_other.step[...]) == 200


def test_attributes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    model, optimizer = make()
    checkpointer = Checkpointer("checkpoints", model, optimizer)

    assert checkpointer.checkpoint_path == os.path.abspath("checkpoints")  # noqa: PTH100 - as the document does
    assert checkpointer.model is model
    assert checkpointer.optimizer is optimizer
