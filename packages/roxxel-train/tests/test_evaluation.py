from __future__ import annotations

import signal
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from roxxel_ckpt import Checkpointer
from roxxel_curriculum import Curriculum, Phase
from roxxel_train import Preempted
from roxxel_train._model_state import take
from roxxel_train._observe.evaluation import HeldOut
from roxxel_train._placement import BatchPlacement, batch_sharding
from roxxel_train._profile import Trace

from .helpers import VOCABULARY, corpus, loss_fn, mesh_of, rows, trainer, values

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


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
    return model, nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)


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


def evaluator(folder: Path, loss: Any) -> tuple[HeldOut, Any]:
    mesh = mesh_of(1)
    model, optimizer = stateful()
    state = jax.device_put(take(model, optimizer), mesh.devices.flat[0])
    held = HeldOut(
        held_out(folder).sampler(0),
        BatchPlacement(batch_sharding(mesh, None)),
        loss,
        nnx.graphdef((model, optimizer)),
        state,
    )
    with ThreadPoolExecutor(1) as compiler:
        held.compile_ahead(compiler)
    return held, state


def test_evaluation_that_is_given_up_has_no_result(tmp_path: Path) -> None:
    held, state = evaluator(tmp_path, loss_fn)
    answers = iter([False] * 5 + [True] * 20)

    assert held.evaluate(state, lambda: True) is None
    assert held.evaluate(state, lambda: next(answers)) is None
    assert (held.evaluate(state, lambda: False) or {}).keys() == {"eval_loss"}


def test_held_out_data_in_which_nothing_counts_is_an_error(tmp_path: Path) -> None:
    def nothing(model: Any, batch: jax.Array) -> Any:
        return loss_fn(model, batch), {"loss_weight": jnp.zeros(())}

    held, state = evaluator(tmp_path, nothing)

    with pytest.raises(ValueError, match="'loss_weight' is 0 in every batch of eval_"):
        held.evaluate(state, lambda: False)


def test_held_out_data_needs_a_loss(tmp_path: Path) -> None:
    def step(model: Any, optimizer: Any, batch: Any) -> Any:
        del optimizer
        return loss_fn(model, batch)

    with pytest.raises(ValueError, match="eval_curriculum needs loss_fn"):
        trainer(
            tmp_path, loss_fn=None, train_step=step, eval_curriculum=held_out(tmp_path)
        )


def test_evaluation_that_was_interrupted_is_made_once_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = held_out(tmp_path)
    options: dict[str, Any] = {"eval_curriculum": data, "eval_every": 4, "log_every": 2}
    unbroken = trainer(tmp_path / "a", **options)
    unbroken.run()

    def signal_in_evaluation(patch: pytest.MonkeyPatch) -> None:
        evaluate = HeldOut.evaluate

        def stopped(self: HeldOut, state: Any, give_up: Callable[[], bool]) -> Any:
            signal.raise_signal(signal.SIGTERM)
            return evaluate(self, state, give_up)

        patch.setattr(HeldOut, "evaluate", stopped)

    def killed_at_step_5(patch: pytest.MonkeyPatch) -> None:
        def kill(_: Trace, step: int, __: Any) -> None:
            if step == 5:
                raise KeyboardInterrupt

        patch.setattr(Trace, "at", kill)

    # The owed evaluation is stopped too, with all compiled that the next step needs;
    # then it is made, but the run is killed before it saves that.
    broken = trainer(tmp_path / "b", **options)
    for interruption, error in (
        (signal_in_evaluation, Preempted),
        (signal_in_evaluation, Preempted),
        (killed_at_step_5, KeyboardInterrupt),
    ):
        with monkeypatch.context() as patch:
            interruption(patch)
            with pytest.raises(error) as caught:
                broken.run()
        if isinstance(caught.value, Preempted):
            assert caught.value.step == 4
    resumed = trainer(tmp_path / "b", **options)

    assert resumed.run().start_step == 4
    assert rows(tmp_path / "b") == rows(tmp_path / "a")
    assert values(resumed) == values(unbroken)


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
