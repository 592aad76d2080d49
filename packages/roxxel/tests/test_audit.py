"""`roxxel verify --data`: the corpora hold what a run was fed, or steps differ."""

from __future__ import annotations

import json
import re
import shutil
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from roxxel import Curriculum, Phase, Roxxel, Trainer, open_run
from roxxel.cli import main

if TYPE_CHECKING:
    from pathlib import Path


def loss_fn(model: Any, batch: Any) -> Any:
    return jnp.square(model(batch) - 1.0).mean()


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a corpus and a run on it."""
    folder = tmp_path_factory.mktemp("trained")
    web = Roxxel(folder / "web_*.rox")
    web.write([f"document {n} of the web. ".encode() * 30 for n in range(40)])
    model = nnx.Embed(256, 2, rngs=nnx.Rngs(0))
    Trainer(
        model,
        nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param),
        Curriculum(web, [Phase(40, 2, 33)]),
        loss_fn,
        folder / "run",
        checkpoint_every=100,
        log_every=10,
    ).run()
    return folder


def test_a_sound_run_is_one_line(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", "--data", str(trained / "run")]) == 0
    said = capsys.readouterr()
    assert said.out == "40 steps: the corpora hold what the run was fed\n"
    assert said.err == ""


def test_the_checkpoint_of_another_run_is_named(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    shutil.copytree(trained / "run", run)
    model = nnx.Embed(256, 2, rngs=nnx.Rngs(1))
    Trainer(
        model,
        nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param),
        Curriculum(Roxxel(trained / "web_*.rox"), [Phase(40, 2, 33)]),
        loss_fn,
        tmp_path / "other",
        checkpoint_every=100,
    ).run()
    shutil.rmtree(run / "checkpoints" / "40")
    shutil.copytree(tmp_path / "other/checkpoints/40", run / "checkpoints" / "40")

    assert main(["verify", "--data", str(run)]) == 3
    (run / "run.json").unlink()  # as if a loop of its own had written the log
    assert main(["verify", "--data", str(run)]) == 3
    assert main(["verify", "--data", str(run), "--steps", "0:9"]) == 0
    assert main(["ckpt", "verify", str(run)]) == 3

    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("checkpoint of step 40: ")
    assert "this run did not save them" in said[-1]


def test_a_mask_that_was_replaced_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    web = Roxxel(tmp_path / "web_*.rox")
    web.write([f"document {n} of the web. ".encode() * 30 for n in range(40)])
    web.write_column("loss_mask", np.arange(web.num_tokens) % 2 == 0, dtype=np.uint8)
    model = nnx.Embed(256, 2, rngs=nnx.Rngs(0))
    Trainer(
        model,
        nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param),
        Curriculum(web, [Phase(2, 2, 33)]),
        lambda model, batch: loss_fn(model, batch["tokens"]),
        tmp_path / "run",
        fields=("tokens", "loss_mask"),
    ).run()
    assert main(["verify", "--data", str(tmp_path / "run")]) == 0
    ones = np.ones(web.num_tokens, np.uint8)
    web.write_column("loss_mask", ones, exist="replace")
    capsys.readouterr()

    assert main(["verify", "--data", str(tmp_path / "run")]) == 1
    assert "the column 'loss_mask' of source 'self' had" in capsys.readouterr().err


def test_a_part_of_the_run_can_be_chosen(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        main(["verify", "--data", str(trained / "run"), "--steps", "12:13", "--json"])
        == 0
    )
    found = {"num_steps": 10, "differences": [], "checkpoints": []}
    assert json.loads(capsys.readouterr().out) == found

    assert main(["verify", "--data", str(trained / "run"), "--sample", "2"]) == 0
    assert capsys.readouterr().out.startswith("20 steps: ")


@pytest.mark.parametrize(
    "more",
    [["--receipt", "r.json"], ["--processes", "2"], ["--devices-per-process", "2"]],
)
def test_options_of_a_training_are_refused(
    more: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["verify", "run", "--data", *more])

    assert more[0] in capsys.readouterr().err


def test_a_flipped_token_names_the_steps(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    moved = tmp_path / "moved"
    moved.mkdir()
    for path in trained.glob("web_*"):
        shutil.copy(path, moved)
    place = open_run(trained / "run").sampler().locate(23, 0)
    shard = next(moved.glob("web_*.rox"))
    data = bytearray(shard.read_bytes())
    data[4096 + place.start] ^= 1
    shard.write_bytes(data)

    source = f"self={moved}/web_*.rox"
    assert main(["verify", "--data", str(trained / "run"), "--source", source]) == 3

    said = capsys.readouterr()
    assert "steps 20 to 29 differ; " in said.out
    found = said.out.splitlines()
    damage = rf"; steps? \d+.*: {re.escape(str(shard))}: block "
    assert len(found) > 1  # the block is read in several intervals
    assert all(re.search(damage, line) for line in found)
    assert any(re.search(r"[ ,]23[,:]", line) for line in found)
    assert "intervals of its log differ from what the corpora hold now; " in said.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--steps", "900:901"],
            "no digest of the steps [900, 901); choose steps in [0, 40)",
        ),
        (["--source", "code=x.rox"], "the run has no source 'code'"),
    ],
)
def test_what_cannot_be_compared_is_one_sentence(
    trained: Path,
    arguments: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["verify", "--data", str(trained / "run"), *arguments]) == 1
    assert message in capsys.readouterr().err


def test_a_run_without_a_row_has_nothing_to_compare(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    shutil.copytree(trained / "run", run)
    start, *_ = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text(start)

    assert main(["verify", "--data", str(run)]) == 1

    said = capsys.readouterr().err
    assert said.startswith(f"roxxel: {run}: the log holds no digest to compare; ")


@pytest.mark.parametrize("arguments", [["--steps", "3:3"], ["--sample", "0"]])
def test_a_wrong_number_shows_the_usage(trained: Path, arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["verify", "--data", str(trained / "run"), *arguments])
    assert ended.value.code == 2
