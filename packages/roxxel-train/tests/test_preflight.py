from __future__ import annotations

import shutil
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
import optax
import pytest
from flax import nnx
from jax.sharding import Mesh, PartitionSpec
from roxxel_curriculum import Curriculum, Phase
from roxxel_format import Roxxel

from .helpers import mesh_of, trainer

if TYPE_CHECKING:
    from pathlib import Path


def test_preflight_finds_what_the_run_takes_and_compiles_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[Any] = []
    compile_now = jax.stages.Lowered.compile

    def counted(self: jax.stages.Lowered, **options: Any) -> Any:
        compiled.append(self)
        return compile_now(self, **options)

    phases = [Phase(4, 4, 9), Phase(4, 2, 17), Phase(2, 4, 9)]
    one = trainer(tmp_path, phases, max_to_keep=1)
    monkeypatch.setattr(jax.stages.Lowered, "compile", counted)

    found = one.preflight()
    assert not (tmp_path / "run").exists()
    one.preflight()
    assert len(compiled) == 2
    monkeypatch.undo()
    one.run()

    state = nnx.to_pure_dict(nnx.state((one.model, one.optimizer)))
    arrays = jax.tree.leaves(state)
    assert found.ok
    assert [shape.shape for shape in found.compiled] == [(4, 9), (2, 17)]
    assert found.checkpoint_bytes == sum(array.nbytes for array in arrays)
    assert found.disk_needed_bytes == 3 * found.checkpoint_bytes
    after = one.preflight()
    assert after.disk_needed_bytes is not None
    assert after.disk_needed_bytes < 3 * found.checkpoint_bytes
    more = trainer(tmp_path / "b", phases, max_to_keep=1, keep_every=2)
    permanent = more.preflight()
    assert permanent.disk_needed_bytes == 3 * found.checkpoint_bytes
    lines = str(found).splitlines()
    assert lines[0].startswith("compiled for batches of 4 x 9 in ")
    assert lines[1].startswith("compiled for batches of 2 x 17 in ")
    assert "10 steps on this machine" in lines[2]
    assert lines[3].startswith("a checkpoint holds ")
    assert lines[4].startswith("checkpoints need ")
    assert lines[5:] == ["ready"]


def test_preflight_times_the_steps_that_are_left_and_undoes_them(
    tmp_path: Path,
) -> None:
    def values(of: Any) -> list[Any]:
        state = nnx.to_pure_dict(nnx.state((of.model, of.optimizer)))
        return [
            np.asarray(x if isinstance(x.dtype, np.dtype) else jax.random.key_data(x))
            for x in jax.tree.leaves(state)
        ]

    one = trainer(tmp_path, [Phase(4, 4, 9), Phase(2, 2, 17)])
    before = values(one)

    found = one.preflight()

    first, second = (shape.step_s for shape in found.compiled)
    assert first is not None
    assert second is not None
    assert found.training_s == pytest.approx(4 * first + 2 * second)
    assert all(map(np.array_equal, before, values(one)))
    one.run()
    plain = trainer(tmp_path / "plain", [Phase(4, 4, 9), Phase(2, 2, 17)])
    plain.run()
    assert all(map(np.array_equal, values(plain), values(one)))

    longer = trainer(tmp_path, [Phase(4, 4, 9), Phase(5, 2, 17)]).preflight()

    assert longer.steps == 3
    assert longer.compiled[0].step_s is None
    assert "for 3 steps on this machine" in str(longer)


def test_rows_that_are_not_divided_over_the_devices_are_a_note(tmp_path: Path) -> None:
    phases = [Phase(2, 4, 9), Phase(2, 3, 9)]

    found = trainer(tmp_path, phases, mesh=mesh_of(2)).preflight()

    assert found.ok
    (note,) = found.notes
    assert note == (
        "batch_size=3 does not divide over the 2 devices of mesh axis 'data' (a "
        "multiple of 2 would use them all); the batch is replicated over that axis"
    )
    assert "; a device holds 3 x 9 at a time; about " in str(found).splitlines()[1]
    assert str(found).splitlines()[-2:] == [f"note: {note}", "ready"]
    assert trainer(tmp_path, phases).preflight().notes == ()


def test_disk_that_is_too_small_is_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Path] = []

    def nearly_full(path: Path) -> Any:
        asked.append(path)
        return SimpleNamespace(total=2**40, used=2**40, free=100)

    monkeypatch.setattr(shutil, "disk_usage", nearly_full)

    found = trainer(tmp_path).preflight()

    assert asked == [tmp_path]
    assert not found.ok
    assert found.disk_free_bytes == 100
    (problem,) = found.problems
    assert problem.startswith(f"{tmp_path / 'run' / 'checkpoints'}: 3 checkpoints need")
    assert problem.endswith("but 100 B are free; make room or lower max_to_keep")
    assert str(found).splitlines()[-2:] == [f"problem: {problem}", "not ready"]


def test_every_checkpoint_needs_room_where_all_are_kept(tmp_path: Path) -> None:
    one = trainer(tmp_path, max_to_keep=None, checkpoint_every=2)

    found = one.preflight()
    one.run()

    kept = {path.name for path in (tmp_path / "run" / "checkpoints").iterdir()}
    assert {"2", "4", "6", "8", "10"} <= kept
    assert found.disk_needed_bytes == 5 * found.checkpoint_bytes


def test_device_that_is_too_small_is_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = [{"bytes_limit": 2**30}, {"bytes_limit": 64}, None, {}]
    devices = [SimpleNamespace(memory_stats=lambda x=x: x) for x in limits]
    one = trainer(tmp_path, save_path=None)
    monkeypatch.setattr(jax, "local_devices", lambda: devices)

    found = one.preflight()

    assert found.device_limit_bytes == 64
    assert found.disk_needed_bytes is None
    assert found.disk_free_bytes is None
    assert len(found.problems) == 2
    assert found.problems[0].startswith("batches of 4 x 9 need about ")
    assert (
        "on a device that has 64 B; model, optimizer and batch alone"
        in (found.problems[0])
    )
    assert "a device has 64 B" in str(found).splitlines()


def test_what_would_fit_a_device_is_proposed_with_its_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = trainer(tmp_path, [Phase(2, 64, 9)], save_path=None)
    (needs,) = one.preflight().compiled
    assert needs.device_bytes is not None
    limit = needs.device_bytes - needs.activation_bytes // 3
    device = SimpleNamespace(memory_stats=lambda: {"bytes_limit": limit})
    monkeypatch.setattr(jax, "local_devices", lambda: [device])

    (problem,) = one.preflight().problems

    assert "; with grad_accum_steps=2, a device would need about " in problem
    halved = trainer(tmp_path / "b", [Phase(2, 64, 9)], grad_accum_steps=2)
    assert halved.preflight().problems == ()


@pytest.mark.parametrize("splits", [True, False])
def test_columns_that_a_model_leaves_whole_are_said(
    splits: bool, tmp_path: Path
) -> None:
    mesh = Mesh(np.asarray(jax.devices()[:8]).reshape(2, 4), ("data", "context"))
    phases = [Phase(2, 8, 9), Phase(2, 2, 17)]

    loss_fn = split_columns if splits else keep_columns
    found = trainer(tmp_path, phases, mesh=mesh, loss_fn=loss_fn).preflight()

    (note,) = found.notes
    assert note.startswith("batches of 2 x 17 have too few rows for all devices: the 4")
    said = "splits their columns" if splits else "does not split their columns, so all"
    assert said in note
    assert [one.held for one in found.compiled] == [(1, 9), (1, 4 if splits else 17)]


def test_compiler_without_an_estimate_is_no_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jax.stages.Compiled, "memory_analysis", lambda _: None)

    found = trainer(tmp_path, save_path=None).preflight()

    assert found.ok
    assert [shape.device_bytes for shape in found.compiled] == [None, None]
    assert "B a device" not in str(found.compiled[0])


def test_preflight_tries_the_sinks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("WANDB_API_KEY", "WANDB_MODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))

    one = trainer(tmp_path, [Phase(2, 4, 9)], log_to=["wandb"])
    found = one.preflight()

    assert any("WandB: nobody is logged in; run" in each for each in found.problems)
    offline = {"wandb": {"mode": "offline"}}
    assert trainer(tmp_path, [Phase(2, 4, 9)], log_to=offline).preflight().ok


def test_preflight_reads_the_held_out_sets(tmp_path: Path) -> None:
    held_out = Roxxel(tmp_path / "held.rox")
    held_out.write([np.arange(60) % 13], vocab_size=13)
    sets = {"web": Curriculum(held_out, [Phase(2, 2, 9)])}
    one = trainer(tmp_path, [Phase(2, 4, 9)], eval_curriculum=sets)
    (tmp_path / "held.rox").write_bytes(b"damaged")

    found = one.preflight()

    (problem,) = found.problems
    assert "held-out set 'web'" in problem
    assert "held.rox" in problem


def split_columns(model: Any, batch: jax.Array) -> jax.Array:
    return mean_loss(model, batch, PartitionSpec("data", "context"))


def keep_columns(model: Any, batch: jax.Array) -> jax.Array:
    return mean_loss(model, batch, PartitionSpec("data", None))


def mean_loss(model: Any, batch: jax.Array, spec: PartitionSpec) -> jax.Array:
    logits = jax.lax.with_sharding_constraint(model(batch[:, :-1]), spec)
    labels = batch[:, 1:]
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()
