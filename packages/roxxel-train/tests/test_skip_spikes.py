from __future__ import annotations

import re
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from roxxel_curriculum import Curriculum, Phase
from roxxel_train import NonFiniteError
from roxxel_train._step.step import descend, jit_update, take

from .helpers import Tiny, corpus, fed, loss_fn, mesh_of, pair, rows, trainer, values

if TYPE_CHECKING:
    from pathlib import Path

    from roxxel_train import ModelState

PHASES = [Phase(40, 4, 9), Phase(30, 4, 9)]
TABLE = np.random.default_rng(4).pareto(1.0, 97).astype(np.float32) + 1
RULE: dict[str, Any] = {"deviations": 4, "window": 9, "what": ["loss"]}
MOST_IN_A_ROW = 8


def draw(_: Any, optimizer: Any, batch: Any) -> Any:
    """Count an update, whose loss the tokens choose from a table of heavy tails."""
    optimizer.step[...] += 1
    loss = jnp.asarray(TABLE)[(batch.sum() + batch[0, 0] * 7) % len(TABLE)]
    return loss, {"row_loss": jnp.full(len(batch), loss)}


def spikes_by_hand(losses: list[np.float32], starts: set[int]) -> list[int]:
    """Return the updates, from 1, that the rule leaves out."""
    found: list[int] = []
    window: list[np.float32] = []
    in_a_row = 0
    for step, loss in enumerate(losses):
        if step in starts:
            window, in_a_row = [], 0
        usual = window[-RULE["window"] :]
        if len(usual) == RULE["window"]:
            median = float(np.median(usual))
            deviation = float(np.median(np.abs(np.subtract(usual, median))))
            deviation = max(deviation, 1e-3 * abs(median))
            if loss > median + RULE["deviations"] * deviation:
                if in_a_row < MOST_IN_A_ROW:
                    found.append(step + 1)
                    in_a_row += 1
                    continue
                window = []
        window.append(loss)
        in_a_row = 0
    return found


def skipped(folder: Path) -> list[int]:
    log = (folder / "run" / "system.log").read_text()
    return [int(step) for step in re.findall(r"step (\d+): a spike \(", log)]


def test_spikes_are_those_of_a_hand_computation(tmp_path: Path) -> None:
    run = trainer(
        tmp_path,
        PHASES,
        mesh=mesh_of(2),
        loss_fn=None,
        train_step=draw,
        skip_spikes=RULE,
        checkpoint_every=100,
    )
    losses: list[np.float32] = []
    for step in range(run.sampler.total_steps):
        batch = run.sampler.batch(step)
        losses.append(TABLE[(int(batch.sum()) + int(batch[0, 0]) * 7) % len(TABLE)])
    expected = spikes_by_hand(losses, {0, 40})
    assert len(expected) > 4

    run.run()

    assert skipped(tmp_path) == expected
    assert run.optimizer.step[...] == 70 - len(expected)
    found = rows(tmp_path)
    assert found[-1]["skipped"] == len(expected)
    for before, row in pairwise([{"step": 0}, *found]):
        steps = range(before["step"], row["step"])
        counted = [losses[step] for step in steps if step + 1 not in expected]
        mean = pytest.approx(np.mean(counted), rel=1e-5) if counted else None
        assert row.get("loss_mean") == mean
        assert row.get("loss/self") == mean


def test_a_run_that_goes_on_skips_what_an_unbroken_one_skips(tmp_path: Path) -> None:
    at = 25

    def trip(state: ModelState, *, is_tripping: bool) -> None:
        nonlocal at
        # The optimizer counts applied updates, `state.step` all of them.
        if is_tripping and int(state.step[...]) == at:
            at = 0
            raise RuntimeError("it tripped")

    def run(name: str, *, is_tripping: bool = False) -> Any:
        one = trainer(
            tmp_path / name,
            PHASES,
            loss_fn=None,
            train_step=draw,
            skip_spikes=RULE,
            checkpoint_every=20,
            eval_fn=partial(trip, is_tripping=is_tripping),
            eval_every=5,
        )
        one.run()
        return one

    whole = run("a")
    with pytest.raises(RuntimeError, match="it tripped"):
        run("b", is_tripping=True)
    resumed = run("b")

    assert values(resumed) == values(whole)
    assert rows(tmp_path / "b") == rows(tmp_path / "a")
    assert sorted(set(skipped(tmp_path / "b"))) == skipped(tmp_path / "a")


def test_values_of_another_name_begin_a_window_anew(tmp_path: Path) -> None:
    """By the window of the losses, each of these values would be a spike."""

    def step(model: Any, optimizer: Any, batch: Any) -> Any:
        loss, _ = draw(model, optimizer, batch)
        return loss, {"other": 1000 * loss}

    for watched, until in (("loss", 20), ("other", 29)):
        one = trainer(
            tmp_path,
            PHASES,
            loss_fn=None,
            train_step=step,
            skip_spikes=RULE | {"what": [watched]},
        )
        one.run(until=until)

    assert not [at for at in skipped(tmp_path) if at > 20]


def planted(row: Any, model: Any, batch: Any) -> Any:
    """Return a loss whose gradient explodes on the batch that has a row."""
    is_planted = (batch == jnp.asarray(row)).all(axis=1).any()
    return loss_fn(model, batch) * jnp.where(is_planted, 1e30, 1.0)


def planted_run(
    folder: Path, at: int, curriculum: Curriculum | None = None, **options: Any
) -> Any:
    usual = Curriculum(corpus(folder), [Phase(30, 4, 9)])
    model, _ = pair()
    return trainer(
        folder,
        pair=(model, nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)),
        loss_fn=partial(planted, usual.sampler(0).batch(at)[1]),
        checkpoint_every=100,
        curriculum=curriculum or usual,
        **options,
    )


def test_a_skipped_spike_leaves_the_run_as_without_its_batch(tmp_path: Path) -> None:
    """With accumulation: the spike is in one part of the batch."""
    rule = {"window": 16}
    survivor = planted_run(tmp_path / "alive", 20, grad_accum_steps=2, skip_spikes=rule)
    assert survivor.run().complete

    assert skipped(tmp_path / "alive") == [21]
    without = planted_run(
        tmp_path / "without",
        20,
        curriculum=Curriculum(
            corpus(tmp_path / "without"), [Phase(29, 4, 9)], skips=[(20, 1)]
        ),
        grad_accum_steps=2,
        skip_spikes=rule,
    )
    without.run()
    assert values(survivor) == values(without)
    log = (tmp_path / "alive" / "run" / "system.log").read_text()
    assert "roxxel show RUN --step 20" in log
    assert len(re.findall(r"step 21: .*: row \d: self tokens \[\d+, \d+\)", log)) == 4
    assert "document" in log
    assert rows(tmp_path / "alive")[-1]["skipped"] == 1


@pytest.mark.parametrize("given", [None, {"window": 21}])
def test_a_spike_that_is_not_skipped_ends_the_run(
    tmp_path: Path, given: dict[str, Any] | None
) -> None:
    """Without the option, and as long as the window is not full."""
    with pytest.raises(NonFiniteError):
        planted_run(tmp_path, 20, skip_spikes=given).run()

    assert skipped(tmp_path) == []


@pytest.mark.parametrize("pause", [40, 24])
def test_values_that_stay_high_are_a_new_level(tmp_path: Path, pause: int) -> None:
    """Also in a run that pauses between two spikes."""

    def rising(_: Any, optimizer: Any, batch: Any) -> Any:
        optimizer.step[...] += 1
        return jnp.where(optimizer.step[...] > 20, 9.0, 1.0) + 0 * batch.sum()

    run = trainer(
        tmp_path,
        [Phase(40, 4, 9)],
        loss_fn=None,
        train_step=rising,
        checkpoint_every=100,
        skip_spikes={"window": 10, "what": "loss"},
    )
    run.run(until=pause)
    run.run()

    assert skipped(tmp_path) == list(range(21, 29))
    assert run.optimizer.step[...] == 32
    assert "new level" in (tmp_path / "run" / "system.log").read_text()


def test_a_gradient_that_is_no_number_is_a_spike(tmp_path: Path) -> None:
    curriculum = Curriculum(corpus(tmp_path), [Phase(30, 4, 9)])
    broken = jnp.asarray(curriculum.sampler(0).batch(20))

    def step(_: Any, optimizer: Any, batch: Any) -> Any:
        optimizer.step[...] += 1
        norm = jnp.where((batch == broken).all(), jnp.nan, 1.0)
        return {"loss": 1.0 + 0 * norm.astype(int), "grad_norm": norm}

    trainer(
        tmp_path,
        curriculum=curriculum,
        loss_fn=None,
        train_step=step,
        checkpoint_every=100,
        skip_spikes={"window": 10},
    ).run()

    assert skipped(tmp_path) == [21]


def test_without_the_option_the_program_is_that_of_a_plain_update() -> None:
    model = Tiny(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)
    state = take(model, optimizer)
    update = jit_update(
        nnx.graphdef((model, optimizer)), descend(loss_fn), state, ["self"]
    )

    program = update.lower(state, fed(np.ones((2, 9), np.int32))).as_text()

    assert "stablehlo.sort" not in program
    assert "tensor<2x64xf32>" not in program


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ({"deviation": 3}, ["deviation", "deviations"]),
        ({"window": 7}, ["window", "8", "7"]),
        ({"window": 9.5}, ["window", "9.5"]),
        ({"deviations": -1}, ["deviations", "-1"]),
        ({"deviations": True}, ["deviations", "True"]),
        ({"what": []}, ["what", "[]"]),
        (8, ["skip_spikes", "8"]),
        ({"what": "los"}, ["los", "loss"]),
    ],
)
def test_a_wrong_rule_is_named(tmp_path: Path, given: Any, names: list[str]) -> None:
    with pytest.raises((ValueError, TypeError)) as caught:
        trainer(tmp_path, skip_spikes=given)

    assert all(name in str(caught.value) for name in ["skip_spikes", *names])
