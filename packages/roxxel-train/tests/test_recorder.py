from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import pytest
from roxxel_ckpt import Checkpointer
from roxxel_curriculum import Curriculum, Phase
from roxxel_curriculum.testing import PositionReader
from roxxel_loader import StreamStats
from roxxel_train import Logger, NonFiniteError, RunFolder
from roxxel_train._observe.ledger import Ledger, LossMeans
from roxxel_train._observe.machine import Machine
from roxxel_train._observe.recorder import Recorder
from roxxel_train._observe.stragglers import Stragglers

from .helpers import pair, rows, trainer

if TYPE_CHECKING:
    from pathlib import Path

    from roxxel_train import ModelState, Trainer

SIZES = {"self": 50_000, "code": 900}


def blend() -> Curriculum:
    """Return 70 steps in which `code` runs out in the second phase."""
    readers = {name: PositionReader(n, name) for name, n in SIZES.items()}
    phases = [
        Phase(30, 3, 10, {"self": 0.7, "code": 0.3}),
        Phase(40, 2, 16, {"self": 0.5, "code": 0.5}),
    ]
    return Curriculum(readers["self"], phases, {"code": readers["code"]})


def eight_steps() -> Curriculum:
    return Curriculum(PositionReader(500), [Phase(8, 3, 10)])


def count(_: Any, optimizer: Any, __: Any) -> Any:
    """Make no update; the loss is the number of the step."""
    optimizer.step[...] += 1
    return {"loss": optimizer.step[...].astype(jnp.float32), "norm": 2.0}


def counting(folder: Path, **options: Any) -> Trainer:
    """Return a run of 70 steps whose loss is their number."""
    defaults: dict[str, Any] = {
        "curriculum": blend(),
        "loss_fn": None,
        "train_step": count,
        "log_every": 7,
        "checkpoint_every": 10,
    }
    return trainer(folder, **(defaults | options))


def test_rows_say_what_each_source_gave_and_should_have_given(tmp_path: Path) -> None:
    counting(tmp_path).run()

    sampler = blend().sampler(0)
    counted = dict.fromkeys(SIZES, 0)
    by_step = {row["step"]: row for row in rows(tmp_path)}
    assert list(by_step) == sorted([1, *range(7, 71, 7), 30])
    for step in range(1, 71):
        seq_len = sampler.shape(step - 1)[1]
        for source in sampler.windows(step - 1).source:
            counted[sampler.source_names[int(source)]] += seq_len
        if row := by_step.get(step):
            assert row["tokens_by_source"] == counted
            assert row["tokens"] == sum(counted.values())
            for name, planned in row["planned_tokens_by_source"].items():
                assert abs(planned - counted[name]) <= 3 * seq_len
    assert by_step[70]["tokens_by_source"]["code"] <= SIZES["code"]


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run that keeps all its checkpoints."""
    folder = tmp_path_factory.mktemp("unbroken")
    options: dict[str, Any] = {"eval_fn": lambda _: None, "eval_every": 1}
    counting(folder, max_to_keep=None, **options).run()
    return folder


@pytest.mark.parametrize("at", [7, 31])
def test_rows_of_a_run_that_goes_on_are_those_of_an_unbroken_one(
    tmp_path: Path, unbroken: Path, at: int
) -> None:
    trips = True

    def trip(state: ModelState) -> None:
        nonlocal trips
        if trips and int(state.step[...]) == at:
            trips = False
            raise RuntimeError("it tripped")

    def checkpoints(folder: Path) -> list[dict[str, float]]:
        with Checkpointer(folder / "run" / "checkpoints", pair()[0]) as kept:
            return [kept.metrics(step) for step in range(10, 71, 10)]

    options: dict[str, Any] = {"eval_every": 1, "max_to_keep": None}
    with pytest.raises(RuntimeError, match="it tripped"):
        counting(tmp_path, eval_fn=trip, **options).run()
    counting(tmp_path, eval_fn=trip, **options).run()

    assert rows(tmp_path) == rows(unbroken)
    assert rows(unbroken)[1]["loss_mean"] == 4.5  # of steps 2 to 7
    assert checkpoints(tmp_path) == checkpoints(unbroken)


def test_metric_cannot_take_the_name_of_a_field_that_a_row_has(
    tmp_path: Path, unbroken: Path
) -> None:
    [first, *_], _ = RunFolder(unbroken / "run").rows()
    fields = first.keys() - {"norm"}
    assert fields >= {"loss", "phase", "tokens_by_source", "step_s", "read_s"}
    for name in fields - {"loss", "perplexity"}:
        with pytest.raises(
            TypeError, match=f"metric named '{name}', which is a reserved"
        ):
            counting(tmp_path / name, train_step=lambda *_, n=name: (1.0, {n: 1.0}))


class Loss:
    """A NaN on a device that is more or less late."""

    def __init__(self, *, is_ready: bool) -> None:
        self._is_ready = is_ready

    def is_ready(self) -> bool:
        return self._is_ready

    def copy_to_host_async(self) -> None: ...

    def block_until_ready(self) -> None: ...

    def __float__(self) -> float:
        return float("nan")


@pytest.mark.parametrize("is_ready", [False, True])
def test_loss_is_read_two_updates_late_however_fast_the_device_is(
    *, is_ready: bool
) -> None:
    loss: Any = Loss(is_ready=is_ready)
    with Logger(terminal=False) as log:
        machine = Machine(pair()[0], [])
        sampler, stats = blend().sampler(0), StreamStats(0, 0, 0, 0, 0)
        read: list[int] = []
        tally = jnp.zeros(7, jnp.uint32)
        recorder = Recorder(
            log,
            sampler,
            99,
            1,
            LossMeans(),
            Ledger(),
            machine,
            (),
            lambda: stats,
            read.append,
            Stragglers(dict, log.warning),
        )
        recorder.push(2, {"loss": jnp.float32(1)}, tally)
        recorder.push(3, {"loss": loss}, tally)
        recorder.push(4, {"loss": jnp.float32(1)}, tally)
        with pytest.raises(NonFiniteError, match="step 3: the loss is nan"):
            recorder.push(5, {"loss": jnp.float32(1)}, tally)
        assert read == [2]


def test_checkpoint_metrics_have_the_mean_and_the_evaluation_of_the_step(
    tmp_path: Path,
) -> None:
    one = counting(
        tmp_path,
        curriculum=eight_steps(),
        checkpoint_every=2,
        max_to_keep=None,
        eval_every=4,
        eval_fn=lambda _: {"score": 5.0, "text": "no number"},
    )

    one.run()

    with Checkpointer(tmp_path / "run" / "checkpoints", pair()[0]) as kept:
        metrics = {step: kept.metrics(step) for step in (2, 4, 6)}
    assert metrics == {
        2: {"loss": 2.0, "norm": 2.0, "loss_since_save": 1.5},
        4: {"loss": 4.0, "norm": 2.0, "loss_since_save": 3.5, "score": 5.0},
        6: {"loss": 6.0, "norm": 2.0, "loss_since_save": 5.5},
    }


def test_updates_without_a_token_to_learn_count_in_no_mean(tmp_path: Path) -> None:
    def masked(state: Any, optimizer: Any, batch: Any) -> Any:
        """Give steps 1, 5 and 6 no weight, as a loss of fully masked batches does."""
        scalars = count(state, optimizer, batch)
        step = optimizer.step[...]
        weight = ((step != 1) & (step != 5) & (step != 6)).astype(jnp.float32)
        return {"loss": scalars["loss"] * weight, "loss_weight": weight}

    counting(
        tmp_path,
        curriculum=eight_steps(),
        train_step=masked,
        log_every=2,
        checkpoint_every=2,
        max_to_keep=None,
    ).run()

    means = {row["step"]: row.get("loss_mean") for row in rows(tmp_path)}
    assert [means[step] for step in (1, 2, 4, 6, 8)] == [None, 2.0, 3.5, None, 7.5]
    assert not {"perplexity", "loss_mean"} & rows(tmp_path)[0].keys()
    with Checkpointer(tmp_path / "run" / "checkpoints", pair()[0]) as kept:
        assert "loss_since_save" not in kept.metrics(6)
        assert kept.metrics(8)["loss_since_save"] == 7.5
        assert kept.best_step == 2


def test_every_row_on_the_terminal_names_the_total(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    counting(tmp_path, log_every=35, checkpoint_every=99).run()

    lines = capsys.readouterr().err.splitlines()
    shown = [line.split("  ")[0] for line in lines if "  loss " in line]
    assert shown == ["step 1/70", "step 30/70", "step 35/70", "step 70/70"]


def test_every_row_of_a_bad_batch_is_in_the_system_log_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def spoil(model: Any, optimizer: Any, batch: Any) -> Any:
        loss = count(model, optimizer, batch)["loss"]
        return jnp.where(loss == 3, jnp.nan, loss)

    with pytest.raises(NonFiniteError) as caught:
        counting(tmp_path, train_step=spoil).run()

    text = (tmp_path / "run" / "system.log").read_text()
    for row in caught.value.rows:
        assert f"step 3: the loss is nan: {row}\n" in text
    assert len(caught.value.rows) == 3
    assert "the loss is nan" not in capsys.readouterr().err
