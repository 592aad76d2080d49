from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from roxxel_ckpt import Checkpointer
from roxxel_curriculum import Curriculum, Phase
from roxxel_curriculum.testing import PositionReader
from roxxel_train import Logger, Preempted, RunFolder

from .helpers import VOCABULARY, adam, corpus, loss_fn, rows, trainer, values

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path


ONE_STEP = [Phase(1, 4, 9)]


class Stateful(nnx.Module):
    """Has all that training changes beside parameters."""

    def __init__(self, seed: int) -> None:
        rngs = nnx.Rngs(seed)
        self.embed = nnx.Embed(VOCABULARY, 4, rngs=rngs)
        self.norm = nnx.BatchNorm(4, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)
        self.out = nnx.Linear(4, VOCABULARY, rngs=rngs)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        return self.out(self.dropout(self.norm(self.embed(tokens))))


def stateful(seed: int = 0) -> tuple[nnx.Module, nnx.Optimizer[Any]]:
    model = Stateful(seed)
    return model, nnx.Optimizer(model, adam(1e-2), wrt=nnx.Param)


def masked_loss(model: Any, batch: jax.Array) -> Any:
    logits, targets = model(batch[:, :-1]), batch[:, 1:]
    mask = targets % 3 > 0
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, targets)
    hits = logits.argmax(axis=-1) == targets
    weight = mask.sum()
    aux = {"accuracy": (hits * mask).sum() / weight, "loss_weight": weight}
    return (losses * mask).sum() / weight, aux


def held_out(folder: Path) -> Curriculum:
    return Curriculum(corpus(folder), [Phase(2, 3, 9), Phase(3, 2, 12)])


def by_hand(model: nnx.Module, data: Curriculum) -> dict[str, float]:
    copy = nnx.clone(model)
    copy.eval()
    sums = np.zeros(3)
    sampler = data.sampler(0)
    for step in range(sampler.total_steps):
        loss, aux = masked_loss(copy, jnp.asarray(sampler.batch(step)))
        weight = float(aux["loss_weight"])
        sums += weight * np.asarray([float(loss), float(aux["accuracy"]), 1.0])
    return {"eval_loss": sums[0] / sums[2], "eval_accuracy": sums[1] / sums[2]}


def test_held_out_loss_is_the_mean_over_all_tokens_and_disturbs_nothing(
    tmp_path: Path,
) -> None:
    data = held_out(tmp_path)
    options: dict[str, Any] = {
        "loss_fn": masked_loss,
        "phases": [Phase(10, 4, 9)],
    }
    quiet = trainer(tmp_path / "quiet", pair=stateful(), **options)
    quiet.run()
    one = trainer(
        tmp_path / "eval",
        pair=stateful(),
        eval_curriculum=data,
        eval_every=4,
        best_metric="eval_loss",
        max_to_keep=9,
        **options,
    )

    summary = one.run()

    assert isinstance(one.model, Stateful)
    assert one.model.dropout.deterministic is False
    assert one.model.norm.use_running_average is False
    assert values(one) == values(quiet)
    expected = by_hand(one.model, data)
    logged = [row for row in rows(tmp_path / "eval") if row["kind"] == "eval"]
    assert [row["step"] for row in logged] == [4, 8, 10]
    for name, value in expected.items():
        assert logged[-1][name] == pytest.approx(value, rel=1e-5)
    assert summary.eval_loss == logged[-1]["eval_loss"]
    saved = Checkpointer(
        tmp_path / "eval" / "run" / "checkpoints",
        one.model,
        best_metric="eval_loss",
    )
    assert saved.metrics(10)["eval_loss"] == summary.eval_loss
    by_step = {row["step"]: row["eval_loss"] for row in logged}
    assert saved.best_step is not None
    assert by_step[saved.best_step] == min(by_step.values())


def test_named_held_out_sets_have_their_own_losses(tmp_path: Path) -> None:
    sets = {
        "web": held_out(tmp_path),
        "code": Curriculum(corpus(tmp_path), [Phase(3, 2, 9)]),
    }
    one = trainer(
        tmp_path / "eval",
        pair=stateful(),
        phases=[Phase(10, 4, 9)],
        loss_fn=masked_loss,
        eval_curriculum=sets,
        eval_every=5,
        best_metric="eval_loss/code",
        max_to_keep=9,
        checkpoint_every=5,
    )

    summary = one.run()

    last = [row for row in rows(tmp_path / "eval") if row["kind"] == "eval"][-1]
    for name, data in sets.items():
        for value, mean in by_hand(one.model, data).items():
            assert last[f"{value}/{name}"] == pytest.approx(mean, rel=1e-5)
        assert f"eval_perplexity/{name}" in last
    both = last["eval_loss/web"], last["eval_loss/code"]
    assert last["eval_loss"] == summary.eval_loss == sum(both) / 2
    assert one.checkpointer is not None
    with Checkpointer(
        tmp_path / "eval" / "run" / "checkpoints",
        one.model,
        best_metric="eval_loss/code",
    ) as saved:
        assert saved.metrics(10)["eval_loss/code"] == last["eval_loss/code"]
        assert saved.best_step in {5, 10}


@pytest.mark.parametrize("names", [["web"], []])
def test_a_set_outside_the_mean_is_logged_alone(
    tmp_path: Path, names: list[str]
) -> None:
    sets = {
        "web": held_out(tmp_path),
        "code": Curriculum(corpus(tmp_path), [Phase(3, 2, 9)]),
    }
    one = trainer(tmp_path / "eval", ONE_STEP, eval_curriculum=sets, eval_mean=names)

    summary = one.run()

    [last] = [row for row in rows(tmp_path / "eval") if row["kind"] == "eval"]
    assert last["eval_loss/web"] != last["eval_loss/code"]
    assert summary.eval_loss == (last["eval_loss/web"] if names else None)
    assert last.get("eval_loss") == summary.eval_loss


def test_a_mean_over_sets_that_do_not_exist_is_refused(tmp_path: Path) -> None:
    sets = {"web": held_out(tmp_path)}

    with pytest.raises(ValueError, match=r"eval_mean names 'wbe'.*'web'"):
        trainer(tmp_path, eval_curriculum=sets, eval_mean=["wbe"])
    with pytest.raises(ValueError, match=r"eval_mean names 'web'.* are none"):
        trainer(tmp_path, eval_curriculum=sets["web"], eval_mean=["web"])


def nothing(model: Any, batch: jax.Array) -> Any:
    """Return a loss of which no token counts."""
    return loss_fn(model, batch), {"loss_weight": jnp.zeros(())}


def test_named_set_in_which_nothing_counts_is_named(tmp_path: Path) -> None:
    sets = {"web": held_out(tmp_path)}
    one = trainer(tmp_path, ONE_STEP, loss_fn=nothing, eval_curriculum=sets)

    with pytest.raises(ValueError, match=r"every batch of eval_curriculum\['web'\]"):
        one.run()


@pytest.mark.parametrize(
    ("sets", "words"),
    [
        ({"web": 3}, r"eval_curriculum\['web'\] is a int"),
        ({"": 3}, r"eval_curriculum\[''\] .*from names"),
        (3, "eval_curriculum is a int"),
    ],
)
def test_held_out_sets_are_checked(tmp_path: Path, sets: Any, words: str) -> None:
    with pytest.raises((TypeError, ValueError), match=words):
        trainer(tmp_path, eval_curriculum=sets)


def test_held_out_data_in_which_nothing_counts_is_an_error(tmp_path: Path) -> None:
    data = held_out(tmp_path)
    one = trainer(tmp_path, ONE_STEP, loss_fn=nothing, eval_curriculum=data)

    with pytest.raises(ValueError, match="'loss_weight' is 0 in every batch of eval_"):
        one.run()


def test_held_out_data_needs_a_loss(tmp_path: Path) -> None:
    def step(model: Any, optimizer: Any, batch: Any) -> Any:
        del optimizer
        return loss_fn(model, batch)

    with pytest.raises(ValueError, match="eval_curriculum needs loss_fn"):
        trainer(
            tmp_path, loss_fn=None, train_step=step, eval_curriculum=held_out(tmp_path)
        )


class Stopping(PositionReader):
    """Data that raises SIGTERM when it is next read after `is_on` was set."""

    is_on = False

    def read(self, *args: Any, **options: Any) -> Any:
        if self.is_on:
            self.is_on = False
            os.kill(os.getpid(), signal.SIGTERM)
        return super().read(*args, **options)


class Killing(Logger):
    """A log that kills the run when it has read the loss of step 5."""

    is_on = False

    def progress(self, step: int, total_steps: int, loss: float | None = None) -> None:
        if self.is_on and step == 5:
            raise KeyboardInterrupt
        super().progress(step, total_steps, loss)


def small(model: Any, batch: jax.Array) -> jax.Array:
    return loss_fn(model, batch % VOCABULARY)


def test_evaluation_that_was_interrupted_is_made_once_later(tmp_path: Path) -> None:
    data = Stopping(500)
    held = Curriculum(data, [Phase(2, 3, 9), Phase(3, 2, 12)])

    options: dict[str, Any] = {
        "loss_fn": small,
        "eval_curriculum": held,
        "eval_every": 4,
        "log_every": 2,
    }
    unbroken = trainer(tmp_path / "a", **options)
    unbroken.run()

    # The owed evaluation is stopped too, with all compiled that the next step needs;
    # then it is made, but the run is killed before it saves that.
    log = Killing(tmp_path / "b" / "run")
    broken = trainer(tmp_path / "b", logger=log, **options)
    for _ in range(2):
        data.is_on = True
        with pytest.raises(Preempted) as caught:
            broken.run()
        assert caught.value.step == 4
    log.is_on = True
    with pytest.raises(KeyboardInterrupt):
        broken.run()
    resumed = trainer(tmp_path / "b", **options)

    assert resumed.run().start_step == 4
    assert rows(tmp_path / "b") == rows(tmp_path / "a")
    assert values(resumed) == values(unbroken)
    assert ranked(tmp_path / "b") == ranked(tmp_path / "a")


def ranked(folder: Path) -> list[tuple[int, Mapping[str, float], bool]]:
    """Return what ranks each checkpoint of the run, and whether it was evaluated."""
    found, _ = RunFolder(folder / "run").checkpoints()
    return [(each.step, each.metrics, each.extra["evaluated"]) for each in found]


def failing_once() -> Callable[[Any], dict[str, float]]:
    """Return an evaluation that raises an error when it is first called."""
    fails = [True]

    def evaluate(_: Any) -> dict[str, float]:
        if fails and fails.pop():
            raise OSError("no room for the samples")
        return {"eval_loss": 2.0}

    return evaluate


def test_a_checkpoint_whose_evaluation_failed_is_ranked_once_it_is_made(
    tmp_path: Path,
) -> None:
    options: dict[str, Any] = {"eval_fn": failing_once(), "eval_every": 10}
    with pytest.raises(OSError, match="no room"):
        trainer(tmp_path / "b", **options).run()
    trainer(tmp_path / "b", **options).run()
    trainer(tmp_path / "a", **options).run()

    assert ranked(tmp_path / "b") == ranked(tmp_path / "a")
    assert rows(tmp_path / "b") == rows(tmp_path / "a")


def test_a_branch_saves_again_the_step_at_which_it_made_an_owed_evaluation(
    tmp_path: Path,
) -> None:
    options: dict[str, Any] = {"eval_fn": failing_once(), "eval_every": 4}
    with pytest.raises(OSError, match="no room"):
        trainer(tmp_path / "a", **options).run()

    # The save at which the branch begins is in flight when its evaluation ends.
    trainer(tmp_path / "b", branch_from=tmp_path / "a" / "run", **options).run()

    [(step, metrics, is_evaluated), *_] = ranked(tmp_path / "b")
    assert (step, metrics["eval_loss"], is_evaluated) == (4, 2.0, True)


def test_owed_evaluation_is_forgotten_by_a_run_that_evaluates_nothing(
    tmp_path: Path,
) -> None:
    def stop(_: Any) -> None:
        signal.raise_signal(signal.SIGTERM)
        raise RuntimeError("while it is evaluated")

    with pytest.raises(RuntimeError, match="while it is"):
        trainer(tmp_path, eval_fn=stop, eval_every=3).run()
    seen: list[int] = []

    trainer(tmp_path).run()
    trainer(tmp_path, eval_fn=lambda state: seen.append(int(state.step[...]))).run()

    assert seen == []
