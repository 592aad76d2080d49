"""An export is read back into live objects, bit for bit."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import optax
import pytest
from flax import nnx
from roxxel_ckpt import (
    CheckpointDamagedError,
    CheckpointMismatchError,
    import_safetensors,
)
from roxxel_ckpt.cli import main

from .helpers import checkpointer, content, make, save_all, train

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path


def exported(folder: Path, model: Any, optimizer: Any, *options: str) -> Path:
    from roxxel_ckpt import Checkpointer

    with Checkpointer(folder / "checkpoints", model, optimizer) as saving:
        saving.save(3, {"loss": 0.5})
    target = folder / "model.safetensors"
    command = ["export", str(folder), str(target), *options]
    assert main(command) == 0
    return target


def without_keys(found: dict[str, tuple[str, bytes]]) -> dict[str, tuple[str, bytes]]:
    return {name: x for name, x in found.items() if not x[0].startswith("key<")}


def test_model_and_optimizer_come_back(tmp_path: Path) -> None:
    model, optimizer = make()
    train(model, optimizer, range(3))
    target = exported(tmp_path, model, optimizer, "--all")
    other, moments = make(seed=5)
    expected = without_keys(content(model, optimizer))
    keys = {n: x for n, x in content(other).items() if x[0].startswith("key<")}

    carried = import_safetensors(target, other, moments)

    assert without_keys(content(other, moments)) == expected
    found = content(other)
    assert {name: found[name] for name in keys} == keys
    assert carried == {"format": "pt", "step": "3", "metrics": '{"loss": 0.5}'}


@pytest.mark.parametrize("options", [(), ("--all",)])
def test_the_model_alone_comes_back(tmp_path: Path, options: tuple[str, ...]) -> None:
    model, optimizer = make()
    target = exported(tmp_path, model, optimizer, *options)
    other, _ = make(seed=5)

    import_safetensors(target, other)

    assert without_keys(content(other)) == without_keys(content(model))


def test_every_kind_of_leaf_comes_back(tmp_path: Path) -> None:
    def state(value: float) -> nnx.Dict[Any]:
        return nnx.Dict(
            half=nnx.Param(jnp.full(3, value, jnp.bfloat16)),
            number=nnx.Variable(int(value)),
            rate=nnx.Variable(value),
            flag=nnx.Variable(jnp.asarray(value > 2)),
            empty=nnx.Param(jnp.zeros((0, 2))),
        )

    target = exported(tmp_path, state(2.5), None)
    other = state(1.5)

    import_safetensors(target, other)

    assert content(other) == content(state(2.5))


def test_what_does_not_fit_is_named_and_changes_nothing(tmp_path: Path) -> None:
    model, optimizer = make()
    target = exported(tmp_path, model, optimizer)
    wider, _ = make(width=9)
    deeper, moments = make(depth=3)
    shallow, _ = make(depth=1)
    for live, pattern in (
        ((wider,), r"is F32\[.*\] in the file and F32\[.*9.*\] in the model"),
        ((deeper,), r"is absent in the file"),
        ((shallow,), r"and absent in the model"),
        ((model, optimizer), r"optimizer/.* is absent in the file"),
    ):
        before = content(*live)
        with pytest.raises(CheckpointMismatchError, match=pattern):
            import_safetensors(target, *live)
        assert content(*live) == before
    assert moments is not None


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-1],
        lambda data: data + b"0",
        lambda data: data[:5],
        lambda data: b"\xff" * 8 + data[8:],
        lambda data: data[:8] + b"[" + data[9:],
    ],
    ids=["short", "long", "torn", "huge", "no object"],
)
def test_a_damaged_file_is_named(
    tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    model, optimizer = make()
    target = exported(tmp_path, model, optimizer)
    target.write_bytes(damage(target.read_bytes()))

    with pytest.raises(CheckpointDamagedError, match=r"safetensors: is not a complete"):
        import_safetensors(target, model)


def test_a_pointer_of_git_lfs_is_named(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_text(
        f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0a' * 32}\nsize 7\n",
        encoding="utf-8",
    )

    with pytest.raises(CheckpointDamagedError, match=f"{path}: .*git lfs pull"):
        import_safetensors(path, make()[0])


def test_an_export_carries_what_a_program_adds(tmp_path: Path) -> None:
    model = nnx.Linear(2, 2, rngs=nnx.Rngs(0))
    exported(tmp_path, model, nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param))

    def describe(folder: str, step: int, extra: Mapping[str, Any]) -> dict[str, str]:
        return {"note": json.dumps([folder, step, dict(extra)])}

    target = tmp_path / "again.safetensors"
    command = ["export", str(tmp_path), str(target)]
    assert main(command, describe=describe) == 0

    folder = str(tmp_path / "checkpoints")
    assert json.loads(import_safetensors(target, model)["note"]) == [folder, 3, {}]


def test_a_step_of_a_folder_is_named_by_its_number(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with checkpointer(tmp_path / "run" / "checkpoints") as saving:
        save_all(saving, 1, 2)
    folder = tmp_path / "run"

    for command in ("ls", "verify"):
        for name in (f"{folder}@1", f"{folder}/checkpoints@1"):
            assert main([command, name]) == 0
            assert f"{folder}/checkpoints/1" in capsys.readouterr().out
    assert main(["ls", f"{folder}@7"]) == 1
    assert "has no step 7; it holds steps 1, 2" in capsys.readouterr().err
