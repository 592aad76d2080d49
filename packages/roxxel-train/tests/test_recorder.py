from __future__ import annotations

import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import pytest
from roxxel_curriculum import Curriculum, Phase
from roxxel_curriculum.testing import PositionReader
from roxxel_train import TIMING_FIELDS, Logger, NonFiniteError
from roxxel_train._observe.losses import LossMeans
from roxxel_train._observe.recorder import ROW_FIELDS, Recorder

if TYPE_CHECKING:
    from pathlib import Path

    from roxxel_curriculum import Sampler


def blend() -> Sampler:
    """Return a run in which `code` runs out in the second phase."""
    readers = {name: PositionReader(n, name) for name, n in SIZES.items()}
    phases = [
        Phase(30, 3, 10, {"self": 0.7, "code": 0.3}),
        Phase(40, 2, 16, {"self": 0.5, "code": 0.5}),
    ]
    return Curriculum(readers["self"], phases, {"code": readers["code"]}).sampler(0)


SIZES = {"self": 50_000, "code": 900}


def run(
    folder: Path, start: int, stop: int, losses: LossMeans, log_every: int = 7
) -> LossMeans:
    """Record steps `[start, stop)` whose loss is their number."""
    with Logger(folder, terminal=False) as log:
        recorder = Recorder(log, blend(), log_every, start, losses)
        log.cut_metrics(start)
        for step in range(start + 1, stop + 1):
            recorder.push(step, {"loss": jnp.float32(step), "norm": jnp.float32(2)})
        recorder.drain()
    return losses


def rows(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_rows_say_what_each_source_gave_and_should_have_given(tmp_path: Path) -> None:
    run(tmp_path, 0, 70, LossMeans())

    sampler = blend()
    counted = dict.fromkeys(SIZES, 0)
    by_step = {row["step"]: row for row in rows(tmp_path)}
    assert list(by_step) == [1, *range(7, 71, 7)]
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


@pytest.mark.parametrize("at", [3, 7, 31])
def test_rows_of_a_run_that_goes_on_are_those_of_an_unbroken_one(
    tmp_path: Path, at: int
) -> None:
    run(tmp_path / "a", 0, 40, LossMeans())
    losses = run(tmp_path / "b", 0, at, LossMeans())
    state = json.loads(json.dumps(losses.to_json()))
    run(tmp_path / "b", at, 40, LossMeans.from_json(state))

    whole, broken = (
        [{k: v for k, v in row.items() if k not in TIMING_FIELDS} for row in rows(f)]
        for f in (tmp_path / "a", tmp_path / "b")
    )
    assert broken == whole
    assert whole[1]["loss_mean"] == 4.5  # of steps 2 to 7
    assert set(rows(tmp_path / "a")[0]) <= ROW_FIELDS | {"loss", "norm"}


def test_waiting_is_split_since_the_row_before(tmp_path: Path) -> None:
    with Logger(tmp_path, terminal=False) as log:
        recorder = Recorder(log, blend(), 2, 0, LossMeans())
        for step in range(1, 7):
            recorder.read_stats = lambda step=step: stream(step)
            recorder.push(step, {"loss": jnp.float32(1)})
        recorder.drain()
        assert recorder.waited_s == 48.0
        assert recorder.new_tokens == 6 * 30

    row = next(row for row in rows(tmp_path) if row["step"] == 4)
    assert row["wait_s"] == 16.0
    assert (row["read_s"], row["assemble_s"], row["transfer_s"]) == (8.0, 6.0, 2.0)


def stream(step: int) -> Any:
    """Return the times of a stream whose every batch was waited for for 8 s."""
    return SimpleNamespace(
        waited_s=8.0 * step, read_s=4.0 * step, assemble_s=3.0 * step, transfer_s=step
    )


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
        recorder = Recorder(log, blend(), 99, 1, LossMeans())
        recorder.push(2, {"loss": jnp.float32(1)})
        recorder.push(3, {"loss": loss})
        recorder.push(4, {"loss": jnp.float32(1)})
        with pytest.raises(NonFiniteError, match="step 3: the loss is nan"):
            recorder.push(5, {"loss": jnp.float32(1)})


def test_checkpoint_metrics_have_the_mean_and_the_evaluation_of_the_step() -> None:
    losses = LossMeans()
    with Logger(terminal=False) as log:
        recorder = Recorder(log, blend(), 99, 0, losses)
        for step in (1, 2):
            recorder.push(step, {"loss": jnp.float32(step)})
        recorder.drain()
        recorder.evaluation(2, {"eval_loss": 5.0, "text": "no number"})

        assert recorder.metrics() == {"loss": 2.0, "loss_mean": 1.5, "eval_loss": 5.0}
        losses.checkpoint.close()
        recorder.push(3, {"loss": jnp.float32(4)})
        recorder.drain()
        assert recorder.metrics() == {"loss": 4.0, "loss_mean": 4.0}


def test_every_line_on_the_terminal_names_the_total(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with Logger() as log:
        recorder = Recorder(log, blend(), 2, 0, LossMeans())
        for step in (1, 2):
            recorder.push(step, {"loss": jnp.float32(1)})
        recorder.drain()

    lines = capsys.readouterr().err.splitlines()
    assert [line.split("  ")[0] for line in lines] == ["step 1/70", "step 2/70"]


def test_every_row_of_a_bad_batch_is_in_the_system_log_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Logger(tmp_path) as log:
        recorder = Recorder(log, blend(), 2, 1, LossMeans())
        recorder.push(3, {"loss": jnp.float32("nan")})
        with pytest.raises(NonFiniteError) as caught:
            recorder.drain()

    text = (tmp_path / "system.log").read_text()
    for row in caught.value.rows:
        assert f"step 3: the loss is nan: {row}\n" in text
    assert len(caught.value.rows) == 3
    assert capsys.readouterr().err == ""
