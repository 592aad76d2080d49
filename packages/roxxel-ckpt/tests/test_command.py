"""The roxxel-ckpt command."""

from __future__ import annotations

import errno
import json
import math
import os
import re
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from roxxel_ckpt import Checkpointer
from roxxel_ckpt._place.disk import LocalStep
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
    assert lines[0].split()[:3] == ["step", "loss", "marks"]
    assert lines[2].split()[1:3] == ["1", "best"]
    assert lines[3].split()[1:3] == ["2", "newest"]

    assert main(["ls", str(folder), "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["marks"] for row in rows] == [[], ["best"], ["newest"]]
    assert rows[0]["num_bytes"] > 1000


def test_ls_marks_the_best_by_the_rule_of_the_program_that_saved(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with checkpointer(tmp_path, best_metric="score", best_mode="max") as saving:
        for step, score in ((1, 0.5), (2, 0.9), (3, 0.7)):
            save_all(saving, step, metrics_dict={"loss": -step, "score": score})

    assert main(["ls", str(tmp_path)]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines if "best" in line] == ["2"]


def test_ls_marks_a_step_that_lacks_the_files_of_a_process(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with checkpointer(tmp_path) as saving:
        for step in (1, 2, 3):
            save_all(saving, step)
    (tmp_path / "2" / "digests" / "0.json").unlink()
    largest_file(tmp_path / "3" / "state").unlink()

    assert main(["ls", str(tmp_path), "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["marks"] for row in rows] == [[], ["damaged"], ["newest", "damaged"]]


def test_a_file_in_place_of_a_directory_is_damage_of_its_step_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with checkpointer(tmp_path) as saving:
        for step in (1, 2):
            save_all(saving, step)
    shutil.rmtree(tmp_path / "1" / "state")
    (tmp_path / "1" / "state").write_text("")

    assert main(["ls", str(tmp_path)]) == 0
    assert "damaged" in capsys.readouterr().out.splitlines()[1]
    assert main(["verify", str(tmp_path)]) == 3
    lines = capsys.readouterr().out.splitlines()
    assert re.search(r"1: DAMAGED, state/.* is missing$", lines[0])
    assert lines[1].endswith("2: sound")


def test_a_directory_in_place_of_a_file_is_damage_of_its_step_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with checkpointer(tmp_path) as saving:
        save_all(saving, 1)
    file = largest_file(tmp_path / "1" / "state")
    file.unlink()
    file.mkdir()

    assert main(["verify", str(tmp_path)]) == 3
    assert "is not a regular file" in capsys.readouterr().out


def test_ls_shows_first_the_metric_that_ranks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with checkpointer(tmp_path) as saving:
        saving.save(1, {"grad_norm": 0.5, "loss": 3.123456, "eval_loss": 3.25})

    assert main(["ls", str(tmp_path)]) == 0
    head, row = capsys.readouterr().out.splitlines()
    assert head.split()[:2] == ["step", "eval_loss"]
    assert row.split()[:2] == ["1", "3.25"]
    assert row.endswith("  grad_norm=0.5 loss=3.123")


@pytest.mark.parametrize("columns", [64, 80, 120])
def test_ls_fits_the_terminal(
    columns: int,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with checkpointer(tmp_path) as saving:
        saving.save(1, {"loss": 3.0, **{f"loss_of_{n}": n + 0.5 for n in range(9)}})
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)

    assert main(["ls", str(tmp_path)]) == 0

    _, row = capsys.readouterr().out.splitlines()
    assert len(row) <= columns
    assert re.search(r"\(\+[1-9]\)$", row)


def test_ls_of_a_step_prints_every_leaf(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ls", str(folder / "20")]) == 0

    out = capsys.readouterr().out
    assert "  loss = 1\n" in out
    assert "  extra: seed; --json prints the values\n" in out
    assert "model/embed/kernel" in out
    row = next(line for line in out.splitlines() if "model/embed/kernel" in line)
    assert row.split() == ["model/embed/kernel", "float32", "4x8", "128", "B"]
    assert "key<fry>" in out


def test_ls_of_a_step_prints_json_with_what_else_was_saved(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ls", str(folder / "20"), "--json"]) == 0

    found = json.loads(capsys.readouterr().out)
    assert (found["step"], found["extra"]) == (20, {"seed": 20})
    assert found["metrics"] == {"loss": 1.0}
    leaf = {"dtype": "float32", "shape": [4, 8], "num_bytes": 128}
    assert found["leaves"]["model/embed/kernel"] == leaf


def test_a_step_is_named_by_its_folder_or_its_number(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in (f"{folder}@30", str(folder / "30")):
        assert main(["ls", name]) == 0
        assert capsys.readouterr().out.startswith(f"{folder / '30'}\n")


def test_diff_tells_what_changed(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["diff", str(folder / "10"), str(folder / "30"), "--values"]) == 3
    out = capsys.readouterr().out
    assert "! step: 10 -> 30\n" in out
    assert "! metrics.loss: 3.0 -> 2.0\n" in out
    assert "! extra.seed: 10 -> 30\n" in out
    assert "! model/norm/mean: 8 of 8 values differ, by up to" in out

    with Checkpointer(tmp_path, *make(depth=3)) as saving:
        saving.save(1)
    assert main(["diff", str(folder), str(tmp_path)]) == 3
    out = capsys.readouterr().out
    assert "+ model/blocks/2/kernel: float32[8, 8]\n" in out


def test_diff_names_each_value_that_was_saved_beside_the_arrays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    extras = {"a": {"of": [{"x": 1}, 2], "same": [3]}, "b": {"of": [{"x": 5}]}}
    for name, extra in extras.items():
        with checkpointer(tmp_path / name) as saving:
            saving.save(1, extra=extra)

    assert main(["diff", str(tmp_path / "a"), str(tmp_path / "b")]) == 3

    assert capsys.readouterr().out.splitlines()[:-1] == [
        "! extra.of[0].x: 1 -> 5",
        "! extra.of[1]: 2 -> absent",
        "! extra.same[0]: 3 -> absent",
    ]


def test_diff_of_shapes_says_that_it_compared_no_values(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two runs whose steps differ in nothing but the numbers."""
    for seed in (1, 2):
        with checkpointer(tmp_path / str(seed), seed) as saving:
            saving.save(1)
    pair = [str(tmp_path / "1"), str(tmp_path / "2")]

    assert main(["diff", *pair]) == 0
    assert capsys.readouterr().out == (
        "2 leaves of the same shape and dtype, 0 differences; values were not "
        "compared, add --values to compare them\n"
    )

    assert main(["diff", *pair, "--values"]) == 3
    assert capsys.readouterr().out.splitlines()[-1] == "0 leaves equal, 2 differences"

    assert main(["diff", pair[0], pair[0], "--values"]) == 0
    assert capsys.readouterr().out == "2 leaves equal, 0 differences\n"


@pytest.mark.parametrize(
    ("before", "after", "line"),
    [
        (
            [1.0, math.nan, 3.0],
            [1.5, math.nan, 3.0],
            "1 of 3 values differ, by up to 0.5",
        ),
        ([0.0, 1.0, 2.0], [-0.0, 1.0, 2.0], "1 of 3 values differ, by up to 0"),
        ([1.0, 2.0, 3.0], [1.0, 2.0, math.nan], "1 of 3 values differ, by up to nan"),
    ],
)
def test_diff_counts_the_values_whose_bits_differ(
    before: list[float],
    after: list[float],
    line: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, numbers in (("a", before), ("b", after)):
        with Checkpointer(
            tmp_path / name, nnx.Dict(x=nnx.Param(jnp.array(numbers)))
        ) as saving:
            saving.save(1)

    assert main(["diff", str(tmp_path / "a"), str(tmp_path / "b"), "--values"]) == 3
    assert capsys.readouterr().out.splitlines()[0] == f"! model/x: {line}"


def test_verify_finds_damage_and_says_where(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with checkpointer(tmp_path) as saving:
        save_all(saving, 1, 2, 3)
    assert main(["verify", str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines()[0] == f"{tmp_path / '1'}: sound"

    flip(largest_file(tmp_path / "2"))
    (tmp_path / "3" / "digests" / "0.json").unlink()
    assert main(["verify", str(tmp_path)]) == 3
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

    assert main(["export", str(tmp_path / "1"), str(target)]) == 0

    data = target.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    assert size % 8 == 0
    carried = {"format": "pt", "step": "1", "metrics": "{}"}
    assert header.pop("__metadata__") == carried
    assert header["half"]["dtype"] == "BF16"
    assert header["linear.kernel"]["shape"] == [3, 2]
    start, stop = header["linear.kernel"]["data_offsets"]
    kernel = np.frombuffer(data[8 + size + start : 8 + size + stop], np.float32)
    assert (kernel.reshape(3, 2) == linear.kernel[...]).all()
    assert len(data) == 8 + size + max(h["data_offsets"][1] for h in header.values())
    assert "rngs.default.key" not in header
    assert str(target) in capsys.readouterr().out


def test_damaged_step_is_neither_exported_nor_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with checkpointer(tmp_path) as saving:
        save_all(saving, 1, 2)
    target = tmp_path / "model.safetensors"
    (tmp_path / "1" / "checkpoint.json").write_text("{")
    largest = largest_file(tmp_path / "2" / "state")
    largest.write_bytes(largest.read_bytes()[:-1])

    for name in ("1", "2"):
        step = str(tmp_path / name)
        assert main(["export", step, str(target)]) == 1
        assert main(["diff", step, step, "--values"]) == 1

    size = largest.stat().st_size
    short = f"{largest.relative_to(tmp_path / '2')} has {size} bytes instead of "
    said = capsys.readouterr().err.splitlines()
    assert said[:2] == [
        (
            f"roxxel-ckpt: {tmp_path / '1'}: cannot be exported because "
            "checkpoint.json is damaged; name another step"
        ),
        (
            f"roxxel-ckpt: {tmp_path / '1'}: checkpoint.json is damaged; "
            "restore another step"
        ),
    ]
    for line, verb in zip(said[2:], ("exported", "compared"), strict=True):
        start = f"roxxel-ckpt: {tmp_path / '2'}: cannot be {verb} because {short}"
        assert line.startswith(start)
        assert line.endswith("; name another step")
    assert not target.exists()


def test_export_to_what_cannot_be_a_file_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with checkpointer(tmp_path) as saving:
        save_all(saving, 1)
    nowhere = tmp_path / "nowhere" / "model.safetensors"

    link, pipe = tmp_path / "link", tmp_path / "pipe"
    link.symlink_to("target")
    os.mkfifo(pipe)
    device = type(tmp_path)(os.devnull)
    targets = (nowhere, tmp_path, link, pipe, device)

    for target in targets:
        assert main(["export", str(tmp_path), str(target)]) == 1

    lines = capsys.readouterr().err.splitlines()
    for line, target in zip(lines, targets, strict=True):
        assert line.startswith(f"roxxel-ckpt: {target}: ")
        assert "; make it, or name a file" in line or "; name a file" in line
    assert link.is_symlink()
    assert pipe.is_fifo()
    assert device.is_char_device()


def test_exports_of_one_file_at_once_are_each_whole_and_leave_other_files_alone(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "a.safetensors"
    mine = [tmp_path / f"{target.name}{each}" for each in (".part", ".partial")]
    for path in mine:
        path.write_text("mine", encoding="utf-8")
    export = ["export", str(folder), str(target)]
    sizes: list[int] = []

    def sync(_: int) -> None:
        """Export once more before the draft of the first export has its name."""
        if not sizes:
            sizes.append(0)
            assert main([*export, "--all"]) == 0
            sizes.append(target.stat().st_size)

    monkeypatch.setattr("os.fsync", sync)
    assert main(export) == 0

    assert 0 < target.stat().st_size < sizes[1]
    assert sorted(tmp_path.iterdir()) == sorted([target, *mine])
    assert {path.read_text(encoding="utf-8") for path in mine} == {"mine"}


def test_an_export_that_cannot_be_written_names_its_file_and_leaves_none(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    target = tmp_path / "a.safetensors"

    assert main(["export", str(folder), str(target)]) == 1

    assert capsys.readouterr().err == (
        f"roxxel-ckpt: {target}: cannot be written (No space left on device); make "
        "room, or write elsewhere\n"
    )
    assert list(tmp_path.iterdir()) == []


def test_what_is_not_there_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)

    for name in ("none", "file", ".", "run"):
        for command in ("ls", "verify"):
            assert main([command, str(tmp_path / name)]) == 1

    problems = [
        f"{tmp_path / 'none'}: does not exist",
        f"{tmp_path / 'file'}: is a file",
        f"{tmp_path}: is not a checkpoint and holds none",
        f"{tmp_path / 'run' / 'checkpoints'}: is not a checkpoint and holds none",
    ]
    assert capsys.readouterr().err.splitlines() == [
        f"roxxel-ckpt: {problem}; name a folder of checkpoints or of a run"
        for problem in problems
        for _ in range(2)
    ]


@pytest.mark.parametrize("command", ["ls", "verify"])
def test_folder_of_a_run_stands_for_its_checkpoints(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    inner = tmp_path / "checkpoints"
    with checkpointer(inner) as saving:
        save_all(saving, 1, 2)

    assert main([command, str(inner)]) == 0
    of_checkpoints = capsys.readouterr().out
    assert main([command, str(tmp_path)]) == 0
    assert capsys.readouterr().out == of_checkpoints


def test_diff_and_export_take_the_folders_of_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a", "b"):
        with checkpointer(tmp_path / name / "checkpoints") as saving:
            save_all(saving, 1)
    target = tmp_path / "model.safetensors"

    assert main(["diff", str(tmp_path / "a"), str(tmp_path / "b"), "--values"]) == 0
    assert main(["export", str(tmp_path / "a"), str(target)]) == 0

    assert "2 leaves equal, 0 differences" in capsys.readouterr().out
    assert target.exists()


def test_ls_marks_a_step_whose_description_is_damaged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with checkpointer(tmp_path) as saving:
        save_all(saving, 1, 2, metrics_dict={"loss": 1.0})
    (tmp_path / "2" / "checkpoint.json").write_text("{")

    assert main(["ls", str(tmp_path)]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split()[1:3] == ["1", "best"]
    assert "newest, damaged" in lines[2]


@pytest.mark.parametrize("is_half", [False, True])
def test_ls_leaves_out_a_step_that_is_dropped_while_it_lists(
    is_half: bool,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with checkpointer(tmp_path) as saving:
        save_all(saving, 1, 2, metrics_dict={"loss": 1.0})
    sizes_of = LocalStep.sizes

    def sizes(step: LocalStep) -> dict[str, int]:
        if step.number == 1:
            (step.path / "checkpoint.json").unlink()
            if not is_half:
                shutil.rmtree(step.path)
        return sizes_of(step)

    monkeypatch.setattr(LocalStep, "sizes", sizes)

    assert main(["ls", str(tmp_path)]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["step", "2"]


def test_the_command_starts_without_jax_and_never_touches_an_accelerator(
    tmp_path: Path,
) -> None:
    kinds = ("bfloat16", "float8_e4m3fn", "float8_e8m0fnu", "int4", "complex64", "bool")
    with Checkpointer(tmp_path) as saving:
        saving.save(10, state={kind: jnp.ones(3, kind) for kind in kinds})
    step = str(tmp_path / "10")
    program = (
        "import os, sys; from roxxel_ckpt.cli import main; "
        f"code = main(['verify', {step!r}]) + main(['ls', {step!r}]); "
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
    assert main(["ls", str(tmp_path)], prog="roxxel ckpt") == 1
    assert capsys.readouterr().err.startswith("roxxel ckpt: ")
    with pytest.raises(SystemExit):
        main(["ls", "--nonsense"], prog="roxxel ckpt")
    assert "usage: roxxel ckpt " in capsys.readouterr().err
