"""Checkpoints that the documented class wrote, with an Orbax `CheckpointManager`."""

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
from jax.sharding import NamedSharding, PartitionSpec
from roxxel_ckpt import (
    CheckpointDamagedError,
    Checkpointer,
    CheckpointMismatchError,
    read_description,
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


def test_newest_step_comes_back_bit_for_bit_and_says_who_wrote_it(
    folder: Path, trained: tuple[Any, Any], caplog: pytest.LogCaptureFixture
) -> None:
    model, optimizer = make(seed=5)
    reading = Checkpointer(folder, model, optimizer)

    assert reading.restore() == 300

    assert content(model, optimizer) == content(*trained)
    assert reading.report is not None
    assert reading.report.is_exact
    (message,) = caplog.messages
    assert message == (
        f"{folder}: step 300 was written by an Orbax manager and has no digests, "
        "so a changed value in its files would not be detected"
    )


def test_description_names_steps_and_losses(folder: Path) -> None:
    reading = Checkpointer(folder, *make())

    assert reading.steps() == [100, 200, 300]
    assert reading.best_step == 100
    assert reading.metrics(200) == {"loss": 0.3}
    assert reading.peek(200) == (200, None)
    assert not read_description(folder / "100").has_digests


def test_run_goes_on_and_the_rules_hold_for_old_and_new_steps(folder: Path) -> None:
    model, optimizer = make(seed=5)
    with Checkpointer(folder, model, optimizer, max_to_keep=2) as saving:
        assert saving.restore() == 300
        assert saving.save(300, {"loss": 0.0}) is False
        save_all(saving, 400, metrics_dict={"loss": 0.4})
        assert saving.steps() == [100, 300, 400]
        save_all(saving, 500, metrics_dict={"loss": 0.05})

        assert saving.steps() == [400, 500]
        assert saving.best_step == 500
        assert saving.restore() == 500


def test_newer_steps_are_moved_and_not_deleted(folder: Path) -> None:
    with Checkpointer(folder, *make()) as saving:
        assert saving.restore(100) == 100
        save_all(saving, 150, metrics_dict={"loss": 0.4})

        assert saving.steps() == [100, 150]
    assert sorted(p.name for p in (folder / "abandoned").iterdir()) == ["200", "300"]


def test_steps_that_orbax_did_not_finish_are_not_used(folder: Path) -> None:
    shutil.copytree(folder / "300", folder / "400.orbax-checkpoint-tmp")
    metadata = folder / "300" / "_CHECKPOINT_METADATA"
    edit_json(metadata, lambda body: {**body, "commit_timestamp_nsecs": None})
    reading = Checkpointer(folder, *make())

    assert reading.restore() == 200
    with pytest.raises(
        CheckpointDamagedError, match="Orbax did not commit this step; rest"
    ):
        reading.restore(300)


def test_any_mesh_takes_what_another_saved(tmp_path: Path) -> None:
    def on(devices: int, seed: int) -> nnx.Dict[Any]:
        mesh = jax.make_mesh((devices,), ("x",), devices=jax.devices()[:devices])
        sharding = NamedSharding(mesh, PartitionSpec("x"))
        numbers = np.random.default_rng(seed).normal(size=(16, 3))
        return nnx.Dict(weights=nnx.Param(jax.device_put(numbers, sharding)))

    saved = on(8, seed=1)
    write_with_orbax(tmp_path, saved, None, {1: 0.5})
    for devices in (1, 2, 4):
        live = on(devices, seed=2)
        sharding = live.weights[...].sharding
        for release in (False, True):
            assert Checkpointer(tmp_path, live).restore(release=release) == 1
        assert live.weights[...].sharding == sharding
        assert content(live) == content(saved)


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

    write_with_orbax(tmp_path, state(1), None, {1: 0.5})
    live = state(2)
    reading = Checkpointer(tmp_path, live)
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

    write_with_orbax(tmp_path, state(1), None, {1: 0.5})
    live = state(2)
    reading = Checkpointer(tmp_path, live)

    assert reading.restore(strict=True) == 1
    assert content(live) == content(state(1))


def test_part_of_a_variable_that_holds_a_tuple_can_be_renamed(tmp_path: Path) -> None:
    def pair(number: int) -> tuple[jax.Array, jax.Array]:
        return jnp.full(2, number), jnp.full(3, number)

    write_with_orbax(tmp_path, nnx.Dict(a=nnx.Variable(pair(1))), None, {1: 0.5})
    live = nnx.Dict(b=nnx.Variable(pair(2)[1]))

    assert Checkpointer(tmp_path, live).restore(rename={"a/1": "b"}) == 1
    assert live.b[...].tolist() == [1, 1, 1]


def test_sharded_keys_come_back_sharded(tmp_path: Path) -> None:
    mesh = jax.make_mesh((4,), ("x",), devices=jax.devices()[:4])
    sharding = NamedSharding(mesh, PartitionSpec("x"))

    def keys(seed: int) -> nnx.Dict[Any]:
        split = jax.random.split(jax.random.key(seed), 8)
        return nnx.Dict(keys=nnx.Variable(jax.device_put(split, sharding)))

    write_with_orbax(tmp_path, keys(1), None, {1: 0.5})
    live = keys(2)

    assert Checkpointer(tmp_path, live).restore() == 1
    assert content(live) == content(keys(1))
    assert live["keys"][...].sharding == sharding


def test_changed_model_takes_what_fits_and_names_the_rest(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model, optimizer = make(seed=1, depth=3)
    reading = Checkpointer(folder, model, optimizer)

    assert reading.restore() == 300
    assert reading.report is not None
    assert "model/blocks/2/kernel" in reading.report.new
    assert "model/blocks/1/kernel" in reading.report.restored
    assert "  new      model/blocks/2/kernel" in caplog.messages[-1]

    wider = Checkpointer(folder, *make(width=9))
    with pytest.raises(CheckpointMismatchError, match=r"model/.*: float32\[8, 8\] in"):
        wider.restore()


def test_damaged_step_falls_back_to_the_one_before(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cut(folder / "300")
    reading = Checkpointer(folder, *make())

    assert reading.restore() == 200
    assert caplog.messages[0].startswith(
        f"{folder / '300'}: cannot be used because model/blocks/0/bias cannot be read ("
    )
    assert caplog.messages[0].endswith("; trying an older checkpoint")
    with pytest.raises(
        CheckpointDamagedError, match="300: cannot be used because model"
    ):
        reading.restore(300)


@pytest.mark.parametrize(
    "name", ["default/_METADATA", "metrics/metrics", "_CHECKPOINT_METADATA"]
)
@pytest.mark.parametrize("text", [None, "", "{", "[]", '{"tree_metadata": 3}'])
def test_damaged_description_falls_back_too(
    folder: Path, name: str, text: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    file = folder / "300" / name
    file.unlink() if text is None else file.write_text(text)

    step = Checkpointer(folder, *make()).restore()

    if text is None:
        with pytest.raises(CheckpointDamagedError, match=f"300: .*{name} is missing"):
            Checkpointer(folder, *make()).restore(300)
    are_metrics = name == "metrics/metrics" and text in {"[]", '{"tree_metadata": 3}'}
    assert step == (300 if are_metrics else 200)
    for command in (["ls", "--json"], ["show"], ["verify"]):
        assert main([*command, str(folder)]) in {0, 1}
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize(
    "name", ["default/_METADATA", "metrics/metrics", "_CHECKPOINT_METADATA", "array"]
)
def test_run_saves_a_damaged_step_of_orbax_again(folder: Path, name: str) -> None:
    if name == "array":
        cut(folder / "300")
    else:
        (folder / "300" / name).unlink()
    with Checkpointer(folder, *make()) as saving:
        assert saving.restore() == 200
        save_all(saving, 300, metrics_dict={"loss": 0.4})

        assert saving.restore() == 300
    assert (folder / "abandoned" / "300" / "default").is_dir()


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


@pytest.mark.parametrize("release", [False, True])
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
def test_damaged_list_of_leaves_is_found_before_anything_is_read(
    folder: Path,
    damage: Callable[[Any], None],
    release: bool,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def damaged(body: Any) -> Any:
        damage(body)
        return body

    edit_json(folder / "300" / "default" / "_METADATA", damaged)
    reading = Checkpointer(folder, *make())

    assert reading.peek() == (200, None)
    assert reading.restore(release=release) == 200
    path = str(folder / "300")
    for command in (
        ["show", path],
        ["verify", path],
        ["diff", "--values", path, str(folder / "200")],
    ):
        assert main(command) == 1
        out, err = capsys.readouterr()
        assert f"{path}: " in out + err
        assert "default/_METADATA" in out + err


def test_two_leaves_that_orbax_stored_under_one_name_are_damage(tmp_path: Path) -> None:
    def dotted(number: int) -> nnx.Dict[Any]:
        inner = nnx.Dict(b=nnx.Param(jnp.full(2, -number)))
        return nnx.Dict(**{"a.b": nnx.Param(jnp.full(2, number)), "a": inner})

    write_with_orbax(tmp_path, dotted(1), None, {1: 0.5})

    with pytest.raises(
        CheckpointDamagedError, match=r"model/a/b and model/a\.b under one"
    ):
        Checkpointer(tmp_path, dotted(2)).restore(1)


def test_state_of_something_else_is_one_sentence(tmp_path: Path) -> None:
    options = ocp.CheckpointManagerOptions(best_fn=lambda metrics: metrics["loss"])
    manager = ocp.CheckpointManager(tmp_path, options=options)
    state = {"params": {"a": jnp.ones(3)}}
    manager.save(1, args=ocp.args.StandardSave(state), metrics={"loss": 0.5})
    manager.close()

    with pytest.raises(CheckpointDamagedError) as caught:
        Checkpointer(tmp_path, *make()).restore(1)
    wanted = "wrote 'params' here, which is not part of the state of (model, opti"
    assert wanted in str(caught.value)


def test_commands_say_what_wrote_the_steps(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*words: str) -> tuple[int, str]:
        code = main(list(words))
        printed = capsys.readouterr()
        return code, printed.out + printed.err

    code, text = run("ls", str(folder))
    marks = ["best, no digests", "no digests", "newest, no digests"]
    assert code == 0
    lines = text.splitlines()[1:]
    assert all(mark in line for mark, line in zip(marks, lines, strict=True))
    code, text = run("show", str(folder))
    assert code == 0
    assert "written with an Orbax manager; its files have no digests" in text
    assert "model/blocks/0/kernel" in text
    assert run("verify", str(folder / "100")) == (
        0,
        f"{folder / '100'}: can be read, but Orbax wrote it without digests\n",
    )
    assert run("diff", "--values", str(folder / "100"), str(folder / "200"))[0] == 1
    file = tmp_path / "weights.safetensors"
    assert run("export", str(folder), "--safetensors", str(file))[0] == 0
    assert file.stat().st_size > 0

    cut(folder / "100")
    code, text = run("verify", str(folder / "100"))
    assert (code, "DAMAGED, model/blocks/0/bias cannot be read" in text) == (1, True)
    code, text = run("export", str(folder / "100"), "--safetensors", str(file))
    assert code == 1
    assert "cannot be exported because model/blocks/0/bias cannot be read" in text
