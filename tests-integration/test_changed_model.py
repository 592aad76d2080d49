"""A changed model keeps the weights that fit; the log names all others.

One small run is trained; every test changes its model in a copy of the folder.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax.sharding import Mesh
from roxxel import (
    Checkpointer,
    CheckpointMismatchError,
    Curriculum,
    Phase,
    Roxxel,
    RunMismatchError,
    Trainer,
)
from roxxel.cli import main
from roxxel_train import RunFolder

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.first

VOCABULARY = 13
STEPS = 4


class Model(nnx.Module):
    """Embeds, mixes in a number of residual blocks, predicts."""

    def __init__(self, depth: int = 2, width: int = 4, seed: int = 0) -> None:
        rngs = nnx.Rngs(seed)
        self.embed = nnx.Embed(VOCABULARY, width, rngs=rngs)
        self.blocks = nnx.List(
            [nnx.Linear(width, width, rngs=rngs) for _ in range(depth)]
        )
        self.out = nnx.Linear(width, VOCABULARY, rngs=rngs)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        x = self.embed(tokens)
        for block in self.blocks:
            x = x + block(x)
        return self.out(x)


def loss_fn(model: Any, batch: jax.Array) -> jax.Array:
    return optax.softmax_cross_entropy_with_integer_labels(
        model(batch[:, :-1]), batch[:, 1:]
    ).mean()


def optimizer_of(
    model: nnx.Module, tx: optax.GradientTransformation | None = None
) -> nnx.Optimizer[Any]:
    return nnx.Optimizer(model, tx or optax.adam(1e-2), wrt=nnx.Param)


def curriculum_of(data: Path, steps: int) -> Curriculum:
    return Curriculum(Roxxel(data / "web_*.rox"), [Phase(steps, 4, 9)])


def trainer(
    data: Path,
    save_path: Path | None,
    model: Model,
    steps: int = 2 * STEPS,
    tx: optax.GradientTransformation | None = None,
    **options: Any,
) -> Trainer:
    return Trainer(
        model,
        optimizer_of(model, tx),
        curriculum_of(data, steps),
        loss_fn,
        save_path,
        checkpoint_every=2,
        log_every=1,
        mesh=Mesh(np.asarray(jax.devices()[:1]), ("data",)),
        **options,
    )


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    random = np.random.default_rng(0)
    Roxxel(folder / "web_*.rox").write(
        (random.integers(0, VOCABULARY, 40) for _ in range(50)), vocab_size=VOCABULARY
    )
    return folder


@pytest.fixture(scope="module")
def trained(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run of the old model; tests only read it."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    trainer(data, folder, Model(), STEPS).run()
    return folder


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    """Return a copy of the run that a test may continue."""
    return shutil.copytree(trained, tmp_path / "run")


def losses(run: Path) -> list[float]:
    return [row["loss"] for row in RunFolder(run).rows()[0]]


def contents(run: Path) -> dict[str, bytes]:
    """Return the files of a run that training writes; its text log may grow."""
    return {
        str(path): path.read_bytes()
        for path in run.rglob("*")
        if path.is_file() and path.name != "system.log"
    }


def loss_by_hand(data: Path, step: int, model: Model) -> float:
    batch = jnp.asarray(curriculum_of(data, 2 * STEPS).sampler(0).batch(step))
    return float(loss_fn(model, batch))


def test_new_layer_goes_on_with_all_that_was_learnt(
    data: Path, trained: Path, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    by_hand = Model(depth=3, seed=1)
    Checkpointer(trained / "checkpoints", by_hand, optimizer_of(by_hand)).restore()

    done = trainer(data, run, Model(depth=3, seed=1)).run()

    assert (done.start_step, done.step) == (STEPS, 2 * STEPS)
    assert losses(run)[:STEPS] == losses(trained)
    expected = loss_by_hand(data, STEPS, by_hand)
    assert losses(run)[STEPS] == pytest.approx(expected, rel=1e-5)
    log = (run / "system.log").read_text()
    assert "checkpoints: step 4: 23 restored, 6 new, 0 dropped" in log
    assert "model/blocks/2/kernel: not in the checkpoint" in log
    # The folder has steps of the old and of the new model.
    steps = [str(run / "checkpoints" / str(step)) for step in (STEPS, 2 * STEPS)]
    assert main(["ckpt", "diff", *steps]) == 3
    assert "+ model/blocks/2/kernel: float32[4, 4]" in capsys.readouterr().out
    assert main(["ckpt", "verify", str(run / "checkpoints")]) == 0


def test_lost_layer_is_refused_and_the_run_stays_whole(data: Path, run: Path) -> None:
    before = contents(run)

    with pytest.raises(CheckpointMismatchError) as refused:
        trainer(data, run, Model(depth=1))

    message = str(refused.value)
    assert "checkpoints/4" in message
    assert "model/blocks/1/bias" in message
    assert "another save_path" in message
    assert len(message.splitlines()) == 1
    assert contents(run) == before


@pytest.mark.parametrize(
    "tx",
    [optax.sgd(1e-2), optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-2))],
    ids=["another", "one place further"],
)
def test_lost_moments_are_refused_and_the_run_stays_whole(
    data: Path, run: Path, tx: optax.GradientTransformation
) -> None:
    before = contents(run)

    with pytest.raises(CheckpointMismatchError) as refused:
        trainer(data, run, Model(), tx=tx)

    message = str(refused.value)
    assert "checkpoints/4: 14 leaves have no place" in message
    assert "optimizer/opt_state/0/mu/blocks/0/bias" in message
    assert "init_from=" in message
    assert contents(run) == before


def test_a_rate_may_become_a_schedule_and_a_constant_again(
    data: Path, run: Path
) -> None:
    for steps, rate in [(STEPS + 1, lambda _: 1e-2), (STEPS + 2, 1e-2)]:
        done = trainer(data, run, Model(), steps, tx=optax.adam(rate)).run()
        assert done.step == steps


def test_lost_layer_is_dropped_from_the_weights_that_a_run_begins_with(
    data: Path, trained: Path, tmp_path: Path
) -> None:
    before = contents(trained)
    by_hand = Model(depth=1, seed=1)
    Checkpointer(trained / "checkpoints", by_hand).restore()

    done = trainer(
        data, tmp_path / "new", Model(depth=1, seed=1), STEPS, init_from=trained
    ).run()

    assert (done.start_step, done.step) == (0, STEPS)
    expected = loss_by_hand(data, 0, by_hand)
    assert losses(tmp_path / "new")[0] == pytest.approx(expected, rel=1e-5)
    log = (tmp_path / "new" / "system.log").read_text()
    assert f"begins with the weights of step 4 of {trained}" in log
    assert "model/blocks/1/kernel: only in the checkpoint" in log
    assert contents(trained) == before


def test_same_model_says_nothing_of_changes(
    data: Path, run: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trainer(data, run, Model(seed=1)).run()

    assert "changed" not in (run / "system.log").read_text()
    assert not caplog.records


def test_changed_shape_is_refused_and_the_run_stays_whole(
    data: Path, run: Path, tmp_path: Path
) -> None:
    before = contents(run)
    named = (
        r"checkpoints/4: \d+ leaves have another shape or dtype \("
        r"model/blocks/0/bias: float32\[4\] in the checkpoint, float32\[6\] now"
    )

    logged = (run / "system.log").read_text()
    with pytest.raises(CheckpointMismatchError, match=named) as same_folder:
        trainer(data, run, Model(width=6))
    with pytest.raises(CheckpointMismatchError, match=named):
        trainer(data, tmp_path / "new", Model(width=6), init_from=run)

    assert len(str(same_folder.value).splitlines()) == 1
    assert "another save_path" in str(same_folder.value)
    assert contents(run) == before
    assert (run / "system.log").read_text() == logged
    assert not (tmp_path / "new").exists()


def test_changed_shape_can_be_kept_fresh_and_trained_on(
    data: Path, trained: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As the guide says: `on_mismatch="keep"`; a larger vocabulary needs it."""
    model = Model()
    model.out = nnx.Linear(4, VOCABULARY + 1, rngs=nnx.Rngs(5))
    fresh = np.asarray(model.out.kernel[...])
    reading = Checkpointer(trained / "checkpoints", model)

    assert reading.restore(on_mismatch="keep") == STEPS

    assert reading.report is not None
    assert [name for name, _, _ in reading.report.mismatched] == [
        "model/out/bias",
        "model/out/kernel",
    ]
    assert "model/out/kernel: float32[4, 13] in the checkpoint" in caplog.text
    np.testing.assert_array_equal(model.out.kernel[...], fresh)
    expected = loss_by_hand(data, 0, model)
    done = trainer(data, None, model, steps=1).run()
    assert done.loss == pytest.approx(expected, rel=1e-5)


def test_strict_restore_refuses_any_change(trained: Path) -> None:
    for depth in (1, 3):
        with pytest.raises(CheckpointMismatchError, match="match this model exactly"):
            Checkpointer(trained / "checkpoints", Model(depth)).restore(strict=True)


def test_other_model_before_the_first_checkpoint_is_another_run(
    data: Path, run: Path
) -> None:
    shutil.rmtree(run / "checkpoints")
    (run / "metrics.jsonl").unlink()
    before = contents(run)

    with pytest.raises(RunMismatchError, match="other shapes and has no checkpoint"):
        trainer(data, run, Model(depth=3))

    assert contents(run) == before


def test_commands_show_what_a_run_s_checkpoints_hold(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoints = trained / "checkpoints"

    assert main(["ckpt", "ls", str(checkpoints)]) == 0
    step = max(int(x.name) for x in checkpoints.iterdir() if x.name.isdigit())
    assert main(["ckpt", "ls", f"{checkpoints}@{step}"]) == 0
    shown = capsys.readouterr().out
    assert "newest" in shown
    assert "model/blocks/1/kernel" in shown

    assert main(["ckpt", "ls", str(trained)]) == 0
    assert main(["ckpt", "ls", f"{trained}@{step}"]) == 0
    assert capsys.readouterr().out == shown
