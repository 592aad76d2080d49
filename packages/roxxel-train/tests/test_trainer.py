from __future__ import annotations

import inspect
import json
import logging
import re
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax.sharding import AxisType
from roxxel_ckpt import Checkpointer, CheckpointStateLostError
from roxxel_curriculum import Curriculum, Phase
from roxxel_curriculum.testing import PositionReader
from roxxel_format import ShardError
from roxxel_train import (
    Logger,
    ModelState,
    NonFiniteError,
    Preempted,
    RunFolder,
    RunMismatchError,
    Trainer,
)
from roxxel_train.config import TrainConfig

from .helpers import VOCABULARY, corpus, loss_fn, mesh_of, pair, rows, trainer, values

if TYPE_CHECKING:
    from collections.abc import Callable


def test_run_makes_every_update_and_says_what_it_did(tmp_path: Path) -> None:
    one = trainer(tmp_path)
    before = values(one)

    summary = one.run()

    assert summary.complete
    assert (summary.start_step, summary.step, summary.total_steps) == (0, 10, 10)
    assert summary.tokens == 6 * 4 * 9 + 4 * 2 * 17
    assert summary.save_path == tmp_path / "run"
    assert str(summary).startswith("done: 10 of 10 steps, loss 2.")
    assert int(one.optimizer.step[...]) == 10
    assert values(one) != before
    assert [row["step"] for row in rows(tmp_path)] == [1, 3, 6, 9, 10]
    assert rows(tmp_path)[-1]["tokens"] == summary.tokens
    assert [row["phase"] for row in rows(tmp_path)] == [0, 0, 0, 1, 1]


def test_a_trainer_shows_its_state_checkpoints_and_log(tmp_path: Path) -> None:
    seen: list[int] = []

    def look(state: ModelState) -> None:
        assert state.model is one.state.model
        seen.append(int(one.state.step[...]))

    one = trainer(tmp_path, eval_fn=look, eval_every=4)
    assert int(one.state.step[...]) == 0
    one.run()

    assert seen == [4, 8, 10]
    assert int(one.state.step[...]) == 10
    assert one.state.optimizer is one.optimizer
    assert one.checkpointer is not None
    assert one.checkpointer.latest_step == 10
    assert isinstance(one.logger, Logger)


def test_an_unknown_argument_names_the_trainer_and_the_closest_one(
    tmp_path: Path,
) -> None:
    with pytest.raises(
        TypeError,
        match=r"^Trainer: got an unexpected keyword argument 'grad_accum_step'; "
        r"did you mean 'grad_accum_steps'",
    ):
        trainer(tmp_path, grad_accum_step=2)
    make: Any = Trainer
    with pytest.raises(TypeError, match=r"^Trainer: missing a required argument"):
        make()


def test_rows_have_the_perplexity_of_the_mean_loss(tmp_path: Path) -> None:
    trainer(
        tmp_path, eval_curriculum=Curriculum(corpus(tmp_path), [Phase(1, 4, 9)])
    ).run()

    for row in rows(tmp_path):
        prefix = "eval_" if row["kind"] == "eval" else ""
        loss = row["eval_loss" if prefix else "loss_mean"]
        assert row[prefix + "perplexity"] == pytest.approx(np.exp(loss), rel=1e-14)


def test_a_perplexity_of_the_loss_function_stays_and_none_overflows(
    tmp_path: Path,
) -> None:
    def own(model: Any, batch: Any) -> Any:
        return {"loss": loss_fn(model, batch), "perplexity": jnp.float32(3)}

    def large(model: Any, batch: Any) -> Any:
        return loss_fn(model, batch) + 1000

    phases = [Phase(2, 4, 9)]
    trainer(tmp_path / "a", phases, loss_fn=own).run()
    trainer(tmp_path / "b", phases, loss_fn=large).run()

    assert {row["perplexity"] for row in rows(tmp_path / "a")} == {3.0}
    assert all("perplexity" not in row for row in rows(tmp_path / "b"))


def test_run_that_failed_goes_on_as_if_it_never_had(tmp_path: Path) -> None:
    def name(state: ModelState) -> str:
        return f"after {int(state.step[...])}"

    def fails(state: ModelState) -> str:
        if int(state.step[...]) == 7:
            raise RuntimeError("the sampler tripped")
        return name(state)

    unbroken = trainer(tmp_path / "a", eval_fn=name, eval_every=7)
    unbroken.run()
    broken = trainer(tmp_path / "b", eval_fn=fails, eval_every=7)
    with pytest.raises(RuntimeError, match="tripped"):
        broken.run()
    log = (tmp_path / "b" / "run" / "system.log").read_text()
    assert "RuntimeError: the sampler tripped" in log
    resumed = trainer(tmp_path / "b", pair=pair(seed=5), eval_fn=name, eval_every=7)
    summary = resumed.run()

    assert summary.start_step == 7
    assert values(resumed) == values(unbroken)
    assert rows(tmp_path / "b") == rows(tmp_path / "a")
    starts = RunFolder(tmp_path / "b" / "run").starts()
    assert [start.step for start in starts] == [0, 7]


class Growing(PositionReader):
    """A corpus of small tokens that was appended to, with its earlier versions."""

    def __init__(self, *sizes: int) -> None:
        super().__init__(sizes[-1], dtype=np.uint8)
        self._sizes = sizes

    def read(self, starts: Any, length: int, dtype: Any = None, out: Any = None) -> Any:
        tokens = super().read(starts, length, dtype) % VOCABULARY
        if out is None:
            return tokens
        out[...] = tokens
        return out

    def with_version(self, fingerprint: str) -> Growing:
        for stop in range(1, len(self._sizes) + 1):
            version = Growing(*self._sizes[:stop])
            if version.fingerprint == fingerprint:
                return version
        raise ShardError(f"no version {fingerprint}")


def test_run_resumes_on_a_corpus_that_has_grown_as_if_it_had_not(
    tmp_path: Path,
) -> None:
    phases = [Phase(6, 4, 9), Phase(4, 2, 17)]

    def of(folder: str, *sizes: int, **options: Any) -> Trainer:
        curriculum = Curriculum(Growing(*sizes), phases)
        return trainer(tmp_path / folder, curriculum=curriculum, **options)

    def fails(state: ModelState) -> str:
        raise RuntimeError(f"evaluation failed at step {int(state.step[...])}")

    unbroken = of("a", 2000)
    unbroken.run()
    with pytest.raises(RuntimeError, match="at step 7"):
        of("b", 2000, eval_fn=fails, eval_every=7).run()
    resumed = of("b", 2000, 5000, pair=pair(seed=5))

    assert resumed.plan().sources[0].num_tokens == 2000
    assert resumed.run().start_step == 7
    assert values(resumed) == values(unbroken)
    with pytest.raises(RunMismatchError, match="source 'self' holds other data"):
        of("b", 3000, 5000)


def test_complete_run_started_again_returns_at_once(tmp_path: Path) -> None:
    first = trainer(tmp_path)
    first.run()
    again = trainer(tmp_path, pair=pair(seed=9))

    summary = again.run()

    assert summary.complete
    assert summary.start_step == 10
    assert summary.tokens == 0
    assert summary.loss is None
    assert values(again) == values(first)
    assert first.run().start_step == 10


def test_longer_last_phase_is_accepted(tmp_path: Path) -> None:
    trainer(tmp_path, [Phase(6, 4, 9), Phase(2, 2, 17)]).run()

    summary = trainer(tmp_path, [Phase(6, 4, 9), Phase(4, 2, 17)]).run()

    whole = trainer(tmp_path / "whole")
    whole.run()
    assert (summary.start_step, summary.step) == (8, 10)
    assert summary.loss == rows(tmp_path / "whole")[-1]["loss"]


def test_another_seed_is_refused_by_name(tmp_path: Path) -> None:
    trainer(tmp_path).run()

    with pytest.raises(ValueError, match="seed"):
        trainer(tmp_path, seed=1)


def test_changed_past_is_refused(tmp_path: Path) -> None:
    trainer(tmp_path).run()

    with pytest.raises(ValueError, match="phase"):
        trainer(tmp_path, [Phase(6, 2, 9), Phase(4, 2, 17)])


def test_shorter_curriculum_than_what_was_done_is_refused(tmp_path: Path) -> None:
    trainer(tmp_path).run()

    with pytest.raises(ValueError, match=r"\b10\b"):
        trainer(tmp_path, [Phase(6, 4, 9), Phase(2, 2, 17)])


def test_foreign_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "metrics.jsonl").write_text("{}\n")

    with pytest.raises(RunMismatchError, match="not a run of this trainer"):
        trainer(tmp_path)


ONE_SHAPE = [Phase(10, 4, 9)]


def trains(model: Any, optimizer: Any, batch: jax.Array) -> Any:
    loss, grads = nnx.value_and_grad(loss_fn)(model, batch)
    optimizer.update(model, grads)
    return loss


def nan_at(step: int) -> Any:
    """Return a step of training whose loss is NaN at one update."""

    def train_step(model: Any, optimizer: Any, batch: jax.Array) -> Any:
        loss = trains(model, optimizer, batch)
        return jnp.where(optimizer.step[...] == step, jnp.nan, loss)

    return train_step


def poisons_at(step: int) -> Any:
    """Return a step of training that leaves a NaN in the model at one update."""

    def train_step(model: Any, optimizer: Any, batch: jax.Array) -> Any:
        loss = trains(model, optimizer, batch)
        poison = jnp.where(optimizer.step[...] == step, jnp.nan, 0.0)
        model.embed.embedding[...] += poison
        return loss

    return train_step


def test_nan_loss_stops_with_the_rows_of_its_batch(tmp_path: Path) -> None:
    one = trainer(tmp_path, ONE_SHAPE, loss_fn=None, train_step=nan_at(6), log_every=1)
    with pytest.raises(NonFiniteError, match="step 6: the loss is nan") as caught:
        one.run()

    assert caught.value.step == 6
    assert [row.row for row in caught.value.rows] == [0, 1, 2, 3]
    assert all(row.stop - row.start == 9 for row in caught.value.rows)
    assert [row["step"] for row in rows(tmp_path)] == [1, 2, 3, 4, 5]
    saved = tmp_path / "run" / "checkpoints"
    assert (saved / "4").is_dir()
    assert not (saved / "6").exists()
    assert "NonFiniteError" in (tmp_path / "run" / "system.log").read_text()


def test_state_after_a_nan_is_not_saved_though_its_save_began(tmp_path: Path) -> None:
    one = trainer(tmp_path, ONE_SHAPE, loss_fn=None, train_step=nan_at(8))
    with pytest.raises(NonFiniteError, match="step 8: the loss is nan"):
        one.run()

    saved = tmp_path / "run" / "checkpoints"
    assert {path.name for path in saved.iterdir()} == {"4", "manifest.json"}


def test_parameters_that_are_not_finite_are_never_saved(tmp_path: Path) -> None:
    one = trainer(tmp_path, ONE_SHAPE, loss_fn=None, train_step=poisons_at(8))
    with pytest.raises(NonFiniteError, match="step 8: the update left NaN or infinite"):
        one.run()

    assert not (tmp_path / "run" / "checkpoints" / "8").exists()
    again = trainer(tmp_path, ONE_SHAPE)
    assert again.run().start_step == 4


def test_stop_before_the_first_checkpoint_needs_a_fresh_model(tmp_path: Path) -> None:
    one = trainer(tmp_path, ONE_SHAPE, loss_fn=None, train_step=nan_at(3))
    with pytest.raises(NonFiniteError):
        one.run()
    with pytest.raises(RunMismatchError, match="make a new Trainer"):
        one.run()

    assert trainer(tmp_path, ONE_SHAPE).run().start_step == 0


def test_restore_that_fails_in_the_middle_spoils_the_trainer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lose(*_: object, **__: object) -> int:
        raise CheckpointStateLostError("reading failed")

    trainer(tmp_path, [Phase(6, 4, 9)]).run()
    one = trainer(tmp_path, pair=pair(seed=5))
    with monkeypatch.context() as patch:
        patch.setattr(Checkpointer, "restore", lose)
        with pytest.raises(CheckpointStateLostError):
            one.run()

    with pytest.raises(RunMismatchError, match="lost its model while it read a check"):
        one.run()
    assert trainer(tmp_path).run().start_step == 6


def test_a_run_that_cannot_save_says_so_before_it_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Orbax loads late, and may be broken, or replaced while the run trains."""
    monkeypatch.delitem(sys.modules, "roxxel_ckpt._arrays.orbax", raising=False)
    monkeypatch.setitem(sys.modules, "orbax.checkpoint", None)

    with pytest.raises(ImportError, match=r"orbax\.checkpoint"):
        trainer(tmp_path, log_every=1).run()

    assert not rows(tmp_path)


def test_checkpoints_are_ranked_by_the_mean_loss_since_the_one_before(
    tmp_path: Path,
) -> None:
    def checkpoints(folder: Path) -> dict[int, dict[str, float]]:
        with Checkpointer(folder / "run" / "checkpoints", pair()[0]) as kept:
            found = {step: kept.metrics(step) for step in kept.steps()}
            means = {
                step: metrics["loss_since_save"] for step, metrics in found.items()
            }
            assert kept.best_step == min(means, key=lambda step: means[step])
        return found

    def save_early(state: ModelState) -> None:
        if int(state.step[...]) in (2, 6):
            one.save()

    trainer(tmp_path / "a", log_every=1, max_to_keep=None).run()
    one = trainer(
        tmp_path / "b", eval_fn=save_early, eval_every=1, max_to_keep=None, log_every=1
    )
    one.run()

    found = checkpoints(tmp_path / "a")
    losses = [row["loss"] for row in rows(tmp_path / "a")]
    for step, start in ((4, 0), (8, 4), (10, 8)):
        mean = sum(losses[start:step]) / (step - start)
        assert found[step]["loss_since_save"] == pytest.approx(mean, rel=1e-12)
        assert checkpoints(tmp_path / "b")[step] == found[step]


def test_trainer_goes_on_after_an_error_in_its_own_process(tmp_path: Path) -> None:
    failures = iter([RuntimeError("once")])

    def fails_once(_: ModelState) -> str:
        for failure in failures:
            raise failure
        return "fine"

    one = trainer(tmp_path / "a", eval_fn=fails_once, eval_every=5)
    with pytest.raises(RuntimeError, match="once"):
        one.run()
    summary = one.run()
    unbroken = trainer(tmp_path / "b")
    unbroken.run()

    assert (summary.start_step, summary.step) == (5, 10)
    assert values(one) == values(unbroken)


def test_a_new_run_with_objects_that_were_trained_says_so(tmp_path: Path) -> None:
    trained = pair()
    trainer(tmp_path, [Phase(3, 4, 9)], pair=trained).run()

    trainer(tmp_path, [Phase(3, 4, 9)], pair=trained, save_path=tmp_path / "b").run()

    lines = {
        name: [e.text for e in RunFolder(tmp_path / name).log() if "already" in e.text]
        for name in ("run", "b")
    }
    assert lines["run"] == []
    (line,) = lines["b"]
    assert line.startswith("the optimizer has already counted 3 updates")


def test_signal_saves_and_the_same_trainer_goes_on(tmp_path: Path) -> None:
    def stop_at_the_third(state: ModelState) -> None:
        if int(state.step[...]) == 3:
            signal.raise_signal(signal.SIGTERM)

    one = trainer(tmp_path, eval_fn=stop_at_the_third, eval_every=1)
    with pytest.raises(Preempted) as caught:
        one.run()
    assert (caught.value.step, caught.value.code) == (3, 75)
    assert one.run().start_step == 3


def test_signal_in_the_last_evaluation_is_not_lost(tmp_path: Path) -> None:
    one = trainer(
        tmp_path, eval_fn=lambda _: signal.raise_signal(signal.SIGTERM), eval_every=99
    )

    with pytest.raises(Preempted) as caught:
        one.run()
    assert caught.value.step == 10
    assert trainer(tmp_path).run().start_step == 10


def by_another_thread(stop: Callable[[], object]) -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(stop).result()


def by_a_handler(stop: Callable[[], object]) -> None:
    before = signal.signal(signal.SIGUSR2, lambda *_: stop())
    signal.raise_signal(signal.SIGUSR2)
    signal.signal(signal.SIGUSR2, before)


@pytest.mark.parametrize(
    ("call", "step"),
    [(by_another_thread, 6), (by_a_handler, 3)],
)
def test_stop_saves_and_run_returns_what_happened(
    tmp_path: Path, call: Callable[[Callable[[], object]], None], step: int
) -> None:
    asked: list[bool] = []

    def stop_once(state: ModelState) -> None:
        if int(state.step[...]) == step and not asked:
            call(lambda: asked.append(one.stop("the budget is spent")))

    one = trainer(tmp_path, eval_fn=stop_once, eval_every=1)
    summary = one.run()

    assert asked == [True]
    assert (summary.step, summary.stop_reason) == (step, "the budget is spent")
    assert not summary.complete
    assert "the budget is spent" in str(summary)
    assert one.checkpointer is not None
    assert one.checkpointer.latest_step == step
    log = (tmp_path / "run" / "system.log").read_text().splitlines()
    assert "the budget is spent" in log[-1]
    assert not one.stop()
    again = one.run()
    assert (again.start_step, again.complete, again.stop_reason) == (step, True, None)


def test_stop_in_the_last_step_ends_a_complete_run(tmp_path: Path) -> None:
    def stop(state: ModelState) -> None:
        if int(state.step[...]) == 10:
            one.stop()

    one = trainer(tmp_path, eval_fn=stop, eval_every=5)

    assert one.run().complete
    run = RunFolder(tmp_path / "run")
    assert (run.status, run.ending["status"]) == ("complete", "complete")


def test_a_run_in_a_thread_says_that_signals_are_not_its_own(tmp_path: Path) -> None:
    one = trainer(tmp_path)
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(one.run).result().complete

    log = (tmp_path / "run" / "system.log").read_text()
    assert "signals are the caller's" in log
    assert "trainer.stop()" in log


def test_stop_between_opening_and_the_first_step_leaves_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(*_: object, **__: object) -> int:
        raise RuntimeError("stopped here")

    with monkeypatch.context() as patch:
        patch.setattr(Checkpointer, "restore", crash)
        with pytest.raises(RuntimeError, match="stopped here"):
            trainer(tmp_path).run()

    assert trainer(tmp_path).run().complete


def test_logger_and_checkpointer_of_the_user_are_used(tmp_path: Path) -> None:
    both = pair()
    with (
        Logger(tmp_path / "log", terminal=False) as log,
        Checkpointer(tmp_path / "kept", *both) as kept,
    ):
        one = trainer(
            tmp_path,
            [Phase(3, 4, 9)],
            pair=both,
            logger=log,
            checkpointer=kept,
            checkpoint_every=1,
        )
        one.run()
        log.info("still open")

    assert kept.latest_step == 3
    assert "still open" in (tmp_path / "log" / "system.log").read_text()
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_a_checkpointer_of_another_model_is_refused(tmp_path: Path) -> None:
    kept = Checkpointer(tmp_path / "kept", *pair())

    with pytest.raises(ValueError, match="checkpointer saves another model"):
        trainer(tmp_path, checkpointer=kept)


def test_evaluation_can_name_the_best_checkpoint(tmp_path: Path) -> None:
    def evaluate(state: ModelState) -> dict[str, Any]:
        return {"held_out": abs(int(state.step[...]) - 4), "text": "x"}

    one = trainer(tmp_path, eval_fn=evaluate, eval_every=4, max_to_keep=1)
    kept = Checkpointer(
        tmp_path / "kept", one.model, one.optimizer, 1, best_metric="held_out"
    )
    again = trainer(
        tmp_path / "again",
        pair=(one.model, one.optimizer),
        eval_fn=evaluate,
        eval_every=4,
        checkpointer=kept,
    )
    again.run()

    assert kept.best_step == 4
    assert kept.steps() == [4, 10]


def test_run_without_a_folder_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = trainer(tmp_path, save_path=None)
    before = sorted(tmp_path.iterdir())

    summary = one.run()

    assert summary.complete
    assert summary.save_path is None
    assert summary.tokens == 6 * 4 * 9 + 4 * 2 * 17
    *_, last_row, last = capsys.readouterr().err.splitlines()
    assert last_row.startswith("step 10/10  loss")
    assert last == "complete: 10 of 10 steps are done; nothing is saved"
    assert sorted(tmp_path.iterdir()) == before
    assert one.run().tokens == 0


def test_who_else_holds_the_arrays_keeps_them(tmp_path: Path) -> None:
    model, optimizer = pair()
    average = nnx.clone(model)
    before = np.asarray(model.embed.embedding[...]).copy()

    trainer(tmp_path, save_path=None, pair=(model, optimizer)).run()

    np.testing.assert_array_equal(average.embed.embedding[...], before)
    assert not np.array_equal(model.embed.embedding[...], before)


def test_evaluations_are_logged_and_do_not_disturb_training(tmp_path: Path) -> None:
    seen: list[int] = []

    def evaluate(state: ModelState) -> Any:
        seen.append(int(state.step[...]))
        state.model(jnp.zeros((1, 3), jnp.int32))  # draws from its dropout stream
        results: list[Any] = ["text", 1.5, {"held_out": jnp.float32(2), "note": "x"}]
        return results[len(seen) - 1]

    quiet = trainer(tmp_path / "quiet")
    quiet.run()
    one = trainer(tmp_path / "eval", eval_fn=evaluate, eval_every=4)
    summary = one.run()

    assert seen == [4, 8, 10]
    assert summary.evaluation == {"held_out": 2.0, "note": "x"}
    logged = [row for row in rows(tmp_path / "eval") if row["kind"] == "eval"]
    assert logged == [
        {"kind": "eval", "step": 4, "text": "text"},
        {"kind": "eval", "step": 8, "value": 1.5},
        {"kind": "eval", "step": 10, "held_out": 2.0, "note": "x"},
    ]
    assert values(one) == values(quiet)


@pytest.mark.parametrize("num_steps", [10, 1])
def test_a_log_that_fails_is_noticed_at_its_row_and_loses_nothing(
    tmp_path: Path, num_steps: int
) -> None:
    options: dict[str, Any] = {"log_every": 1, "checkpoint_every": 99}
    quiet = trainer(tmp_path / "quiet", [Phase(num_steps, 4, 9)], **options)
    quiet.run()
    log = tmp_path / "full" / "run" / "metrics.jsonl"
    log.parent.mkdir(parents=True)
    log.symlink_to("/dev/full")

    one = trainer(tmp_path / "full", [Phase(num_steps, 4, 9)], **options)
    with pytest.raises(OSError, match=r"No space left on device.*metrics\.jsonl"):
        one.run()
    [saved] = (tmp_path / "full" / "run" / "checkpoints").glob("[0-9]*")
    assert int(saved.name) <= num_steps
    log.unlink()
    again = trainer(tmp_path / "full", [Phase(num_steps, 4, 9)], **options)
    again.run()

    assert rows(tmp_path / "full") == rows(tmp_path / "quiet")
    assert values(again) == values(quiet)


@pytest.mark.parametrize(
    ("value", "what"),
    [
        (jnp.zeros(3), r"its result is an array of shape \(3,\)"),
        ({"score": 10**400}, "'score' is an int too large for a float"),
    ],
)
def test_evaluation_that_cannot_be_logged_is_an_error(
    tmp_path: Path, value: Any, what: str
) -> None:
    one = trainer(tmp_path, save_path=None, eval_fn=lambda _: value)

    with pytest.raises(TypeError, match=f"{what}.*must return text, a number"):
        one.run()


def test_evaluation_cannot_take_the_names_of_every_row(tmp_path: Path) -> None:
    one = trainer(tmp_path, save_path=None, eval_fn=lambda _: {"step": 9})

    with pytest.raises(TypeError, match="value named 'step'"):
        one.run()


def test_mesh_with_explicit_axes_serves_as_any_other(tmp_path: Path) -> None:
    explicit = (AxisType.Explicit, AxisType.Explicit)
    mesh = jax.make_mesh((1, 1), ("data", "model"), axis_types=explicit)

    phases = [Phase(2, 4, 9)]
    assert trainer(tmp_path, phases, mesh=mesh, save_path=None).run().complete


def test_mesh_that_the_program_has_set_changes_nothing(tmp_path: Path) -> None:
    mine = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Explicit,))
    asked: list[float] = []

    def evaluate(state: ModelState) -> float:
        asked.append(float(loss_fn(state.model, jnp.zeros((8, 9), jnp.int32))))
        return asked[-1]

    options: dict[str, Any] = {
        "mesh": mesh_of(8),
        "eval_fn": evaluate,
        "eval_curriculum": Curriculum(corpus(tmp_path), [Phase(1, 8, 9)]),
    }
    phases = [Phase(3, 8, 9)]
    trainer(tmp_path / "alone", phases, **options).run()
    alone = rows(tmp_path / "alone")

    with jax.set_mesh(mine):
        one = trainer(tmp_path / "set", phases, **options)
        one.run()
        assert jax.sharding.get_mesh() == mine
        trainer(
            tmp_path / "next",
            phases,
            **options,
            init_from=tmp_path / "set" / "run",
        ).preflight()

    assert rows(tmp_path / "set") == alone


def test_last_parameters_are_looked_at_without_a_folder_too(tmp_path: Path) -> None:
    one = trainer(
        tmp_path, ONE_SHAPE, save_path=None, loss_fn=None, train_step=poisons_at(10)
    )
    with pytest.raises(NonFiniteError, match="step 10"):
        one.run()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"log_every": -1}, "log_every must be an integer of 1 or more, got -1"),
        ({"grad_accum_steps": 4}, "phase 1 has batch_size=2, which does not divide"),
        ({"loss_fn": None}, "loss_fn and train_step are both None"),
        (
            {"best_metric": "los"},
            "best_metric='los' is not measured .*; name one of grad_norm, loss",
        ),
        ({"save_path": "https://b/run"}, "https://b/run: a web server cannot"),
        ({"save_path": Path("s3://b/run")}, "save_path='s3:/b/run': is a URL"),
        ({"init_from": "https://b/run"}, "https://b/run: a web server cannot"),
        ({"init_from": Path("s3://b/run")}, "init_from='s3:/b/run': is a URL"),
    ],
)
def test_wrong_argument_is_named(
    tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        trainer(tmp_path, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"log_every": 2.5}, "log_every must be an integer of 1 or more, got 2.5"),
        ({"eval_fn": "text"}, "eval_fn is a str, which cannot be called"),
        ({"loss_fn": 3}, "loss_fn is a int, which cannot be called"),
        ({"train_step": []}, "train_step is a list, which cannot be called"),
        (
            {"curriculum": [Phase(2, 4, 9)]},
            "curriculum is a list; give a roxxel_curriculum.Curriculum",
        ),
        ({"eval_curriculum": 3}, "eval_curriculum is a int; give a Curriculum"),
        (
            {"logger": print},
            "logger is a builtin_function_or_method; give a roxxel_train.Logger",
        ),
        (
            {"checkpointer": "x"},
            "checkpointer is a str; give a roxxel_ckpt.Checkpointer, or .* save_path=",
        ),
        ({"timeout": None}, "timeout must be a finite number above 0, got None"),
        ({"mesh": jax.devices()}, "mesh is a list; .*jax.sharding.Mesh"),
        ({"mesh": None, "data_sharding": "data"}, "data_sharding is a str; .*Named"),
    ],
)
def test_argument_of_another_kind_is_named(
    tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(TypeError, match=message):
        trainer(tmp_path, **options)


def test_best_checkpoint_may_go_by_what_only_eval_fn_knows(tmp_path: Path) -> None:
    scores = iter([3.0, 1.0, 2.0])

    trainer(
        tmp_path,
        eval_fn=lambda _: {"score": next(scores)},
        eval_every=4,
        max_to_keep=1,
        best_metric="score",
    ).run()

    kept = {path.name for path in (tmp_path / "run" / "checkpoints").iterdir()}
    assert kept >= {"8", "10"}
    assert "4" not in kept
    assert "best_metric" not in (tmp_path / "run" / "system.log").read_text()


@pytest.mark.parametrize(
    ("keep_every", "steps"), [(2, [2, 4, 5, 6]), ("1h", [1, 5, 6])]
)
def test_some_checkpoints_are_permanent(
    tmp_path: Path, keep_every: int | str, steps: list[int]
) -> None:
    one = trainer(
        tmp_path,
        [Phase(6, 4, 9)],
        checkpoint_every=1,
        max_to_keep=2,
        keep_every=keep_every,
        best_metric="age",
        eval_fn=lambda state: {"age": -int(state.step[...])},
        eval_every=1,
    )
    one.run()

    assert one.checkpointer is not None
    assert one.checkpointer.steps() == steps


def test_run_that_goes_on_keeps_its_best_metric(tmp_path: Path) -> None:
    def run(phases: list[Phase], **options: Any) -> None:
        trainer(tmp_path, phases, checkpoint_every=1, max_to_keep=1, **options).run()

    def score(state: ModelState) -> dict[str, float]:
        return {"score": abs(int(state.step[...]) - 2)}

    evaluation = {"eval_fn": score, "eval_every": 1}
    run([Phase(3, 4, 9)], **evaluation, best_metric="score")
    run([Phase(4, 4, 9)], **evaluation)
    run([Phase(5, 4, 9)])

    checkpoints = tmp_path / "run" / "checkpoints"
    assert sorted(path.name for path in checkpoints.glob("[0-9]*")) == ["2", "5"]
    log = (tmp_path / "run" / "system.log").read_text()
    assert log.count("WARNING") == 1
    assert (
        "WARNING this run ranks its checkpoints by 'score' and measures no such number"
    ) in log


def test_best_checkpoint_may_go_by_the_mean_loss(tmp_path: Path) -> None:
    one = trainer(tmp_path, best_metric="loss_since_save")

    assert one.run().complete


def test_best_metric_that_eval_fn_does_not_return_is_told_once(tmp_path: Path) -> None:
    trainer(
        tmp_path, eval_fn=lambda _: {"score": 1.0}, eval_every=4, best_metric="scroe"
    ).run()

    log = (tmp_path / "run" / "system.log").read_text()
    assert log.count("ranks its checkpoints by 'scroe' and measures no such") == 1


@pytest.mark.parametrize("program_logs", [False, True])
def test_damage_that_is_met_stays_in_the_log(
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    *,
    program_logs: bool,
) -> None:
    handlers = [logging.NullHandler()] if program_logs else []
    monkeypatch.setattr(logging.getLogger(), "handlers", handlers)
    trainer(tmp_path).run()
    newest = tmp_path / "run" / "checkpoints" / "10"
    largest = max(
        (path for path in newest.rglob("*") if path.is_file()),
        key=lambda path: path.stat().st_size,
    )
    largest.write_bytes(largest.read_bytes()[:-1])
    again = trainer(tmp_path)
    capfd.readouterr()

    assert again.run().start_step == 8

    said = "cannot be used because .* trying an older checkpoint"
    assert len(re.findall(said, (tmp_path / "run" / "system.log").read_text())) == 1
    shown = len(re.findall(said, capfd.readouterr().err))
    assert shown == (0 if program_logs else 1)


def test_numbers_of_numpy_serve_as_pythons(tmp_path: Path) -> None:
    two, phases = np.int64(2), [Phase(2, 4, 9)]
    names = ("seed", "log_every", "eval_every", "checkpoint_every", "max_to_keep")

    options = {**dict.fromkeys(names, two), "eval_fn": lambda _: None}
    assert trainer(tmp_path, phases, **options).run().complete
    assert trainer(tmp_path, phases, seed=2).run().start_step == 2


def test_trainer_takes_and_documents_the_arguments_of_its_config() -> None:
    text = inspect.getdoc(Trainer.__init__) or ""

    assert inspect.signature(Trainer) == inspect.signature(TrainConfig)
    for argument in fields(TrainConfig):
        assert f"\n    {argument.name}: " in text


def test_editors_that_follow_no_decorator_list_the_settings() -> None:
    jedi: Any = import_module("jedi")

    [shown] = jedi.Script("from roxxel_train import Trainer\nTrainer(").get_signatures()

    # Jedi does not know that `kw_only` changes the order.
    expected = sorted(each.name for each in fields(TrainConfig))
    names = [each.name for each in shown.params if each.name != "_"]  # KW_ONLY
    assert names[0] == "model"
    assert sorted(names) == expected


def test_settings_that_pace_a_run_are_compared_each_under_its_own_name() -> None:
    given: dict[str, Any] = {
        **dict.fromkeys(("eval_every", "checkpoint_every", "log_every"), 7),
        "max_to_keep": None,
        "keep_every": "6h",
        "best_metric": "acc",
        "grad_accum_steps": 2,
        "fields": ["tokens", "loss_mask"],
    }
    pacing = TrainConfig(cast("Any", None), eval_fn=str, **given).pacing()

    assert given.items() <= pacing.items()
    # One process may wait longer than another, or write a profile.
    assert not {"timeout", "hang_after_s", "profile", "log_to"} & pacing.keys()


class Span(NamedTuple):
    start: Any
    stop: Any


def test_settings_are_values_that_json_can_hold() -> None:
    given: dict[str, Any] = {
        "seed": np.int64(3),
        "timeout": np.float32(8),
        "hang_after_s": None,
        "profile": Span(np.int8(1), 2),
        "save_path": Path("run"),
    }
    settings = TrainConfig(cast("Any", None), **given).settings()

    assert json.loads(json.dumps(settings, allow_nan=False)) == settings
    assert {name: settings[name] for name in given} == {
        "seed": 3,
        "timeout": 8.0,
        "hang_after_s": None,
        "profile": [1, 2],
        "save_path": "run",
    }
    # The options of a sink may hold a password.
    assert "log_to" not in settings


def test_wrong_loss_is_found_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="loss as an array of shape"):
        trainer(tmp_path, loss_fn=lambda model, batch: model(batch))
    assert not (tmp_path / "run").exists()


def test_loss_of_every_token_is_refused_beside_a_metric_that_is_a_scalar(
    tmp_path: Path,
) -> None:
    def loss_of_tokens(model: Any, batch: Any) -> Any:
        logits = model(batch[:, :-1])
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch[:, 1:])
        return {"loss": losses, "acc": (logits.argmax(-1) == batch[:, 1:]).mean()}

    with pytest.raises(TypeError) as caught:
        trainer(tmp_path, loss_fn=loss_of_tokens)

    assert str(caught.value) == (
        "loss_fn returned 'loss' as an array of shape (4, 8) and dtype float32; "
        "return a real scalar, such as the mean over the tokens (`.mean()`)"
    )


def test_plan_is_the_curriculums(tmp_path: Path) -> None:
    one = trainer(tmp_path)

    assert isinstance(one, Trainer)
    assert one.plan().to_dict() == one.curriculum.plan(0).to_dict()
    assert corpus(tmp_path).num_tokens > 0


def test_a_model_with_an_int4_variable_trains_evaluates_and_resumes(
    tmp_path: Path,
) -> None:
    def make(steps: int) -> Trainer:
        objects: list[Any] = [*pair()]
        model, optimizer = objects
        model.levels = nnx.Variable(jnp.asarray([1, -8, 7], jnp.int4))

        def counted(model: Any, batch: Any) -> Any:
            model.levels[...] = -model.levels[...]
            return loss_fn(model, batch)

        return Trainer(
            model,
            optimizer,
            Curriculum(corpus(tmp_path), [Phase(steps, 4, 9)]),
            counted,
            tmp_path / "run",
            eval_curriculum=Curriculum(corpus(tmp_path), [Phase(1, 4, 9)]),
        )

    make(3).run()
    one: Any = make(5)
    one.run()

    levels = one.model.levels[...]
    assert levels.dtype == jnp.int4
    assert levels.tolist() == [-1, -8, -7]
