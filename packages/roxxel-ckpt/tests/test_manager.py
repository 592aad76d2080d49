"""`roxxel.ckpt import` copies what the documented class wrote with Orbax's manager."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from flax import nnx
from roxxel_ckpt import (
    CheckpointDamagedError,
    Checkpointer,
)
from roxxel_ckpt.cli import main

from .helpers import content, edit_json, make, save_all, train

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

LOSSES = {100: 0.1, 200: 0.3, 300: 0.2}


def write_with_orbax(
    folder: Path, model: Any, optimizer: Any, losses: Mapping[int, float]
) -> None:
    """Save steps as the documented class does: a manager that ranks by the loss."""
    options = ocp.CheckpointManagerOptions(
        max_to_keep=3, best_fn=lambda metrics: metrics["loss"], best_mode="min"
    )
    with ocp.CheckpointManager(folder.absolute(), options=options) as manager:
        for step, loss in losses.items():
            _, state = nnx.split((model, optimizer))
            save = ocp.args.StandardSave(state)
            manager.save(step, args=save, metrics={"loss": loss})


@pytest.fixture(scope="module")
def trained() -> tuple[Any, Any]:
    model, optimizer = make(seed=0)
    train(model, optimizer, range(3))
    return model, optimizer


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory, trained: tuple[Any, Any]) -> Path:
    folder = tmp_path_factory.mktemp("orbax")
    write_with_orbax(folder, *trained, LOSSES)
    return folder


@pytest.fixture
def folder(tmp_path: Path, written: Path) -> Path:
    return shutil.copytree(written, tmp_path / "checkpoints")


def cut(directory: Path) -> None:
    """Cut the file that holds the arrays in half."""
    (file,) = (directory / "default" / "d").iterdir()
    os.truncate(file, file.stat().st_size // 2)


def imported(source: Path) -> Path:
    """Import all steps of a manager's folder; return the folder with the copies."""
    target = source.parent / f"{source.name}-imported"
    assert main(["import", str(source), str(target)]) == 0
    return target


def test_every_step_comes_back_bit_for_bit(
    folder: Path, trained: tuple[Any, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    target = imported(folder)

    lines = capsys.readouterr().out.splitlines()
    assert lines == [f"{folder / step}: imported" for step in ("100", "200", "300")]
    model, optimizer = make(seed=5)
    with Checkpointer(target, model, optimizer, max_to_keep=2) as reading:
        assert reading.steps() == [100, 200, 300]
        assert reading.best_step == 100
        assert reading.metrics(200) == {"loss": 0.3}
        assert reading.restore(strict=True) == 300
        assert content(model, optimizer) == content(*trained)
        save_all(reading, 400, metrics_dict={"loss": 0.4})
        assert reading.steps() == [100, 300, 400]
    assert main(["verify", str(target)]) == 0


def test_what_was_imported_is_not_imported_again(folder: Path) -> None:
    before = (imported(folder) / "300" / "checkpoint.json").read_bytes()

    assert (imported(folder) / "300" / "checkpoint.json").read_bytes() == before


def test_a_folder_of_a_manager_is_not_restored(folder: Path) -> None:
    with pytest.raises(CheckpointDamagedError, match=r"300: .*`roxxel.ckpt import`"):
        Checkpointer(folder, *make()).restore(300)
    assert main(["ls", str(folder)]) == 1


def test_a_folder_without_steps_of_a_manager_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["import", str(tmp_path), str(tmp_path / "target")]) == 1
    assert f"{tmp_path}: holds no step of an Orbax" in capsys.readouterr().err


def test_every_kind_of_variable_comes_back(tmp_path: Path) -> None:
    def state(number: int) -> nnx.Dict[Any]:
        key = jax.random.key(number, impl="rbg")
        return nnx.Dict(
            **{"slash/and%": nnx.Variable(jnp.full(2, number))},
            whole=nnx.Variable(number),
            real=nnx.Variable(number + 0.5),
            truth=nnx.Variable(number == 1),
            wide=nnx.Variable(np.int64(number)),
            host=nnx.Variable(np.full(3, number)),
            half=nnx.Param(jnp.full(2, number, jnp.bfloat16)),
            keys=nnx.Variable(jax.random.split(key, 3)),
        )

    write_with_orbax(tmp_path / "orbax", state(1), None, {1: 0.5})
    live = state(2)
    reading = Checkpointer(imported(tmp_path / "orbax"), live)
    reading.restore()

    assert reading.report is not None
    assert reading.report.is_exact
    assert content(live) == content(state(1))


def test_variables_that_hold_a_tree_come_back(tmp_path: Path) -> None:
    def state(number: int) -> nnx.Dict[Any]:
        def array(size: int) -> jax.Array:
            return jnp.full(size, number)

        plain = nnx.Dict(number=nnx.data(array(2)), inner=nnx.Param(array(3)))
        return nnx.Dict(
            tree=nnx.Variable({"q": array(2), "r": (array(1), [array(2), array(3)])}),
            pair=nnx.Variable((array(1), {}, array(4))),
            # `value` is also the key under which NNX stores the value of a Variable.
            value=nnx.Dict(value=nnx.Variable({"value": array(1), "q": array(2)})),
            attention=nnx.Dict(value=plain, key=nnx.Param(array(1))),
            deep=nnx.Variable({"b": {"value": array(5), "c": array(6)}}),
        )

    write_with_orbax(tmp_path / "orbax", state(1), None, {1: 0.5})
    live = state(2)
    reading = Checkpointer(imported(tmp_path / "orbax"), live)

    assert reading.restore(strict=True) == 1
    assert content(live) == content(state(1))


@pytest.mark.parametrize(
    "name", ["default/_METADATA", "metrics/metrics", "_CHECKPOINT_METADATA", "arrays"]
)
@pytest.mark.parametrize("text", [None, "", "{", '{"tree_metadata": 3}'])
def test_a_damaged_step_is_named_and_the_others_are_copied(
    folder: Path, name: str, text: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    if name == "arrays":
        cut(folder / "300")
    elif text is None:
        (folder / "300" / name).unlink()
    else:
        (folder / "300" / name).write_text(text)
    target = folder.parent / "target"

    code = main(["import", str(folder), str(target)])

    out, err = capsys.readouterr()
    assert "Traceback" not in out + err
    is_damaged = not (name == "metrics/metrics" and text == '{"tree_metadata": 3}')
    assert code == 3 * is_damaged
    assert Checkpointer(target).steps() == [100, 200] + [300] * (not is_damaged)
    assert (f"{folder / '300'}: NOT, " in out) == is_damaged


def entry_of(body: Any, index: int = 0) -> Any:
    """Return one entry of Orbax's list of leaves."""
    return list(body["tree_metadata"].values())[index]


def damage_key_type_name(body: Any) -> None:
    key = entry_of(body)["key_metadata"][0]
    key["key_typu"] = key.pop("key_type")


def damage_key_type(body: Any) -> None:
    entry_of(body)["key_metadata"][0]["key_type"] = 7


def damage_key(body: Any) -> None:
    entry_of(body)["key_metadata"][0]["key"] = 0


def damage_value_type(body: Any) -> None:
    entry_of(body)["value_metadata"]["value_type"] = "jax.Crray"


def damage_empty_flag(body: Any) -> None:
    entry_of(body)["value_metadata"]["skip_deserialize"] = "fals%"


def remove_keys(body: Any) -> None:
    entry_of(body)["key_metadata"] = []


def keep_only_the_root(body: Any) -> None:
    del entry_of(body)["key_metadata"][1:]


def repeat_a_leaf(body: Any) -> None:
    first, second = entry_of(body), entry_of(body, 1)
    second["key_metadata"] = first["key_metadata"]


@pytest.mark.parametrize(
    "damage",
    [
        damage_key_type_name,
        damage_key_type,
        damage_key,
        damage_value_type,
        damage_empty_flag,
        remove_keys,
        keep_only_the_root,
        repeat_a_leaf,
    ],
)
def test_a_damaged_list_of_leaves_is_named(
    folder: Path, damage: Callable[[Any], None], capsys: pytest.CaptureFixture[str]
) -> None:
    def damaged(body: Any) -> Any:
        damage(body)
        return body

    for step in ("100", "200"):
        shutil.rmtree(folder / step)
    edit_json(folder / "300" / "default" / "_METADATA", damaged)

    assert main(["import", str(folder), str(folder.parent / "target")]) == 3
    assert f"{folder / '300'}: NOT, default/_METADATA" in capsys.readouterr().out


def test_two_leaves_that_orbax_stored_under_one_name_are_damage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    inner = nnx.Dict(b=nnx.Param(jnp.full(2, -1)))
    dotted = nnx.Dict(**{"a.b": nnx.Param(jnp.full(2, 1)), "a": inner})
    write_with_orbax(tmp_path / "orbax", dotted, None, {1: 0.5})

    assert main(["import", str(tmp_path / "orbax"), str(tmp_path / "target")]) == 3
    assert "model/a/b and model/a.b under one" in capsys.readouterr().out


def test_state_of_something_else_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ocp.CheckpointManagerOptions(best_fn=lambda metrics: metrics["loss"])
    manager = ocp.CheckpointManager(tmp_path / "orbax", options=options)
    state = {"params": {"a": jnp.ones(3)}}
    manager.save(1, args=ocp.args.StandardSave(state), metrics={"loss": 0.5})
    manager.close()

    assert main(["import", str(tmp_path / "orbax"), str(tmp_path / "target")]) == 3
    wanted = "wrote 'params' here, which is not part of the state of (model, opti"
    assert wanted in capsys.readouterr().out
