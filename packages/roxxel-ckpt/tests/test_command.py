"""The roxxel-ckpt command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from roxxel_ckpt import Checkpointer
from roxxel_ckpt.cli import main

from .helpers import checkpointer, flip, largest_file, make, save_all, train

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with steps 10, 20 and 30, of which 20 is the best."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    model, optimizer = make()
    with Checkpointer(folder, model, optimizer) as saving:
        for step, loss in ((10, 3.0), (20, 1.0), (30, 2.0)):
            train(model, optimizer, range(1))
            saving.save(step, {"loss": loss}, {"seed": step})
    return folder


def test_ls_marks_the_newest_and_the_best(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ls", str(folder)]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["step", "10", "20", "30"]
    assert lines[2].split()[-2:] == ["best", "loss=1"]
    assert lines[3].split()[-2:] == ["newest", "loss=2"]

    assert main(["ls", str(folder), "--mode", "max", "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["marks"] for row in rows] == [["best"], [], ["newest"]]
    assert rows[0]["num_bytes"] > 1000


def test_show_prints_every_leaf(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["show", str(folder / "20")]) == 0

    out = capsys.readouterr().out
    assert "  loss = 1\n" in out
    assert '  extra: {"seed": 20}\n' in out
    assert "model/embed/kernel" in out
    row = next(line for line in out.splitlines() if "model/embed/kernel" in line)
    assert row.split() == ["model/embed/kernel", "float32", "4x8", "128", "B"]
    assert "key<fry>" in out


def test_a_folder_stands_for_its_newest_step(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["show", str(folder)]) == 0
    assert capsys.readouterr().out.startswith(f"{folder / '30'}\n")


def test_diff_tells_what_changed(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["diff", str(folder / "10"), str(folder / "10")]) == 0
    assert main(["diff", str(folder / "10"), str(folder / "30"), "--values"]) == 1
    out = capsys.readouterr().out
    assert '! metrics: {"loss": 3.0} -> {"loss": 2.0}' in out
    assert "! model/norm/mean: 8 of 8 values differ, by up to" in out

    with Checkpointer(tmp_path, *make(depth=3)) as saving:
        saving.save(1)
    assert main(["diff", str(folder), str(tmp_path)]) == 1
    out = capsys.readouterr().out
    assert "+ model/blocks/2/kernel: float32[8, 8]\n" in out


def test_verify_finds_damage_and_says_where(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with checkpointer(tmp_path) as saving:
        save_all(saving, 1, 2, 3)
    assert main(["verify", str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines()[0] == f"{tmp_path / '1'}: sound"

    flip(largest_file(tmp_path / "2"))
    (tmp_path / "3" / "digests" / "0.json").unlink()
    assert main(["verify", str(tmp_path)]) == 1
    out = capsys.readouterr().out
    assert f"{tmp_path / '2'}: DAMAGED, state/" in out
    assert f"{tmp_path / '3'}: DAMAGED, digests/0.json is missing" in out
    assert main(["verify", str(tmp_path / "1")]) == 0


def test_export_writes_a_safetensors_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    linear = nnx.Linear(3, 2, rngs=nnx.Rngs(0))
    model = nnx.Dict(
        linear=linear,
        half=nnx.Param(jnp.asarray([1.5, -2], jnp.bfloat16)),
        rngs=nnx.Rngs(0),
        empty=nnx.Param(jnp.zeros((0, 2))),
    )
    with Checkpointer(tmp_path, model) as saving:
        saving.save(1)
    target = tmp_path / "model.safetensors"

    assert main(["export", str(tmp_path / "1"), "--safetensors", str(target)]) == 0

    data = target.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    assert size % 8 == 0
    assert header["half"]["dtype"] == "BF16"
    assert header["linear.kernel"]["shape"] == [3, 2]
    start, stop = header["linear.kernel"]["data_offsets"]
    kernel = np.frombuffer(data[8 + size + start : 8 + size + stop], np.float32)
    assert (kernel.reshape(3, 2) == linear.kernel[...]).all()
    assert len(data) == 8 + size + max(h["data_offsets"][1] for h in header.values())
    assert "rngs.default.key" not in header
    assert str(target) in capsys.readouterr().out

    flip(largest_file(tmp_path / "1" / "state"))
    assert main(["export", str(tmp_path / "1"), "--safetensors", str(target)]) == 1
    assert "cannot be exported" in capsys.readouterr().err


def test_what_is_not_there_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ls", str(tmp_path / "none")]) == 1
    assert main(["ls", str(tmp_path)]) == 1
    assert main(["show", str(tmp_path)]) == 1

    assert capsys.readouterr().err.splitlines() == [
        (
            f"roxxel-ckpt: {tmp_path / 'none'}: this folder does not exist; "
            "name a folder of checkpoints"
        ),
        f"{tmp_path}: no checkpoints",
        (
            f"roxxel-ckpt: {tmp_path}: neither holds nor is a checkpoint; "
            "name a folder of steps or a step"
        ),
    ]


@pytest.mark.parametrize("command", ["ls", "show", "verify"])
def test_folder_of_a_run_is_told_from_that_of_its_checkpoints(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    inner = tmp_path / "checkpoints"
    with Checkpointer(inner, nnx.Linear(2, 3, rngs=nnx.Rngs(0))) as saving:
        saving.save(1)

    assert main([command, str(tmp_path)]) == 1

    [said] = capsys.readouterr().err.splitlines()
    assert said == (
        f"roxxel-ckpt: {tmp_path}: holds no step, but {inner} does; give that folder"
    )


def test_the_command_starts_without_jax_and_never_touches_an_accelerator(
    folder: Path,
) -> None:
    step = str(folder / "10")
    program = (
        "import os, sys; from roxxel_ckpt.cli import main; "
        f"code = main(['verify', {step!r}]) + main(['show', {step!r}]); "
        "assert 'jax' not in sys.modules; "
        f"code += main(['diff', {step!r}, {step!r}, '--values']); "
        "import jax; assert jax.config.jax_platforms == 'cpu'; "
        "sys.exit(code)"
    )
    elsewhere = {k: v for k, v in os.environ.items() if k != "JAX_PLATFORMS"}
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        env=elsewhere,
        capture_output=True,
        text=True,
        check=False,
    )

    assert (ended.returncode, ended.stderr) == (0, "")


def test_a_command_that_passes_on_to_this_one_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["show", str(tmp_path)], prog="roxxel ckpt") == 1
    assert capsys.readouterr().err.startswith("roxxel ckpt: ")
    with pytest.raises(SystemExit):
        main(["ls", "--nonsense"], prog="roxxel ckpt")
    assert "usage: roxxel ckpt " in capsys.readouterr().err
