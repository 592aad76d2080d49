"""Many small leaves share a file, which is verified and restored like any other."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from roxxel_ckpt import CheckpointDamagedError, Checkpointer, cli

from .helpers import flip
from .test_layouts import seal
from .trees import bits, trees

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

FILE = "small.safetensors"
NUM_LEAVES = 300


def many(seed: int = 0) -> dict[str, jax.Array]:
    """Return as many leaves as an adapter of a model has."""
    values = np.random.default_rng(seed).random((NUM_LEAVES, 4), np.float32)
    return {f"Leaf {number}": jnp.asarray(each) for number, each in enumerate(values)}


def saved(folder: Path, *states: Any) -> Path:
    """Save states as steps 1, 2 and so on; return the directory of the last."""
    with Checkpointer(folder) as saving:
        for step, state in enumerate(states, 1):
            saving.save(step, state=state)
    return folder / str(len(states))


@pytest.fixture
def step(tmp_path: Path) -> Path:
    """Return the directory of a step with many small leaves and a large one."""
    return saved(tmp_path / "run", {"many": many(), "large": jnp.ones((1 << 15,))})


def test_many_small_leaves_are_one_file_and_a_large_one_has_a_folder(
    step: Path,
) -> None:
    folders = [path.name for path in (step / "state" / "state").iterdir()]

    assert folders == ["large"]
    assert len([path for path in step.rglob("*") if path.is_file()]) < 10


def test_a_small_model_is_a_plain_checkpoint_of_orbax(tmp_path: Path) -> None:
    step = saved(tmp_path / "run", dict([*many().items()][:100]))

    assert not (step / FILE).exists()
    assert len([*(step / "state" / "state").iterdir()]) == 100


def test_any_reader_of_the_format_finds_the_leaves_by_name(step: Path) -> None:
    data = (step / FILE).read_bytes()
    size = int.from_bytes(data[:8], "little")
    entry = json.loads(data[8 : 8 + size])["state/many/Leaf 7"]

    start, stop = entry["data_offsets"]
    values = np.frombuffer(data[8 + size + start : 8 + size + stop], "<f4")

    assert (entry["dtype"], entry["shape"]) == ("F32", [4])
    assert (values == np.asarray(many()["Leaf 7"])).all()


@settings(
    max_examples=8,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(tree=trees(8))
def test_every_kind_of_leaf_comes_back_bit_for_bit(
    tree: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("run")
    state = {"tree": tree, "many": many()}
    saved(folder, state)

    found = Checkpointer(folder).load(like=jax.tree.map(lambda leaf: leaf, state))

    assert bits(found) == bits(state)
    assert (folder / "1" / FILE).exists()
    assert cli.main(["verify", str(folder)]) == 0


@pytest.mark.parametrize("num_devices", [1, 2, 8])
def test_small_leaves_fit_any_mesh(tmp_path: Path, num_devices: int) -> None:
    def placed(tree: dict[str, Any], num: int) -> dict[str, Any]:
        mesh = Mesh(np.array(jax.devices()[:num]), ("data",))
        spread = NamedSharding(mesh, PartitionSpec("data"))
        return {name: jax.device_put(leaf, spread) for name, leaf in tree.items()}

    rows = {name: jnp.tile(leaf, 2) for name, leaf in many().items()}
    saved(tmp_path, placed(rows, 4))
    like = placed(jax.tree.map(jnp.zeros_like, rows), num_devices)

    found = Checkpointer(tmp_path).load(like=like)

    assert all((found[name] == rows[name]).all() for name in rows)
    assert all(found[name].sharding == like[name].sharding for name in rows)


def test_a_changed_state_gets_the_leaves_that_fit(tmp_path: Path) -> None:
    saved(tmp_path, many())
    like = {"Leaf 3": jnp.zeros(4), "new": jnp.ones(2)}

    found = Checkpointer(tmp_path).load(like=like, strict=False)

    assert (found["Leaf 3"] == many()["Leaf 3"]).all()
    assert (found["new"] == 1).all()


def test_values_may_be_donated_as_soon_as_save_returns(tmp_path: Path) -> None:
    state = many()
    expected = {name: np.array(leaf) for name, leaf in state.items()}
    donating = jax.jit(
        lambda tree: jax.tree.map(lambda leaf: leaf + 1, tree), donate_argnums=0
    )

    with Checkpointer(tmp_path) as saving:
        saving.save(1, state=state)
        jax.block_until_ready(donating(state))

    found = Checkpointer(tmp_path).load(like=expected)
    assert all((found[name] == expected[name]).all() for name in expected)


@settings(
    max_examples=6,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_every_flipped_bit_is_found_and_the_step_before_is_used(
    place: float, bit: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("run")
    path = saved(folder, many(1), many(2)) / FILE
    flip(path, int(place * path.stat().st_size), bit)

    with pytest.raises(CheckpointDamagedError, match=FILE):
        Checkpointer(folder).load(2, like=many())
    assert Checkpointer(folder).load(like=many()) is not None
    assert cli.main(["verify", str(folder / "2")]) == 3


@pytest.mark.parametrize(
    "damage",
    [lambda path: path.unlink(), lambda path: path.write_bytes(b"")],
    ids=["gone", "cut"],
)
def test_a_file_that_is_gone_or_cut_is_damage(
    step: Path, damage: Callable[[Path], None]
) -> None:
    damage(step / FILE)

    with pytest.raises(CheckpointDamagedError, match=FILE):
        Checkpointer(step.parent).load(1, like={"many": many()}, strict=False)


@pytest.mark.parametrize(
    "change",
    [
        lambda entry: entry.update(shape=[10**12]),
        lambda entry: entry.update(shape=[2, 2]),
        lambda entry: entry.update(shape=["4"]),
        lambda entry: entry.update(dtype="F64"),
        lambda entry: entry.update(dtype=None),
        lambda entry: entry.pop("shape"),
    ],
    ids=range(6),
)
def test_an_entry_that_differs_from_its_description_is_damage(
    step: Path,
    change: Callable[[dict[str, Any]], Any],
    capsys: pytest.CaptureFixture[str],
) -> None:
    data = (step / FILE).read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    change(header["state/many/Leaf 0"])
    text = json.dumps(header).encode()
    (step / FILE).write_bytes(len(text).to_bytes(8, "little") + text + data[8 + size :])
    seal(step)

    with pytest.raises(CheckpointDamagedError, match=FILE):
        Checkpointer(step.parent).load(1, like={"many": many()}, strict=False)
    assert cli.main(["verify", str(step)]) == 3
    assert FILE in capsys.readouterr().out


def test_steps_are_compared_shown_and_exported_with_their_small_leaves(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = many()
    saved(tmp_path, first, {**first, "Leaf 5": first["Leaf 5"] + 1})

    command = ["diff", f"{tmp_path}@1", f"{tmp_path}@2", "--values"]
    assert cli.main(command) == 3
    assert "Leaf 5" in capsys.readouterr().out
    out = tmp_path / "out.safetensors"
    command = ["export", f"{tmp_path}@2", str(out), "--all"]
    assert cli.main(command) == 0
    data = out.read_bytes()
    size = int.from_bytes(data[:8], "little")
    assert len(json.loads(data[8 : 8 + size])) == NUM_LEAVES + 1
