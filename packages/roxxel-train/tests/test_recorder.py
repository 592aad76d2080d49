from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import pytest
from roxxel_curriculum import Curriculum, Phase
from roxxel_curriculum.testing import PositionReader
from roxxel_loader import StreamStats
from roxxel_train import TIMING_FIELDS, Logger, NonFiniteError
from roxxel_train._metrics import ROW_FIELDS, Interval
from roxxel_train._recorder import Recorder

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
    folder: Path, start: int, stop: int, interval: Interval, log_every: int = 7
) -> Interval:
    """Record steps `[start, stop)` whose loss is their number."""
    with Logger(folder, terminal=False) as log:
        recorder = Recorder(log, blend(), log_every, start, interval)
        log.cut_metrics(start)
        for step in range(start + 1, stop + 1):
            recorder.push(step, {"loss": jnp.float32(step), "norm": jnp.float32(2)})
        recorder.drain()
    return recorder.interval


def rows(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_rows_say_what_each_source_gave_and_should_have_given(tmp_path: Path) -> None:
    run(tmp_path, 0, 70, Interval())

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
    run(tmp_path / "a", 0, 40, Interval())
    interval = run(tmp_path / "b", 0, at, Interval())
    state = json.loads(json.dumps(interval.state()))
    run(tmp_path / "b", at, 40, Interval.restore(state))

    whole, broken = (
        [{k: v for k, v in row.items() if k not in TIMING_FIELDS} for row in rows(f)]
        for f in (tmp_path / "a", tmp_path / "b")
    )
    assert broken == whole
    assert whole[1]["loss_mean"] == 4.5  # of steps 2 to 7
    assert set(rows(tmp_path / "a")[0]) <= ROW_FIELDS | {"loss", "norm"}


def test_waiting_is_split_since_the_row_before(tmp_path: Path) -> None:
    with Logger(tmp_path, terminal=False) as log:
        recorder = Recorder(log, blend(), 2, 0, Interval())
        for step in (1, 2, 3, 4):
            stats = StreamStats(step, 8.0 * step, 4.0 * step, 3.0 * step, step)
            recorder.stats = lambda stats=stats: stats
            recorder.push(step, {"loss": jnp.float32(1)})
        recorder.drain()
        assert recorder.waited_s == 32.0
        assert recorder.new_tokens == 4 * 30

    last = rows(tmp_path)[-1]
    assert (last["step"], last["wait_s"]) == (4, 16.0)
    assert (last["read_s"], last["assemble_s"], last["transfer_s"]) == (8.0, 6.0, 2.0)


def test_every_line_on_the_terminal_names_the_total(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with Logger() as log:
        recorder = Recorder(log, blend(), 2, 0, Interval())
        for step in (1, 2):
            recorder.push(step, {"loss": jnp.float32(1)})
        recorder.drain()

    lines = capsys.readouterr().err.splitlines()
    assert [line.split("  ")[0] for line in lines] == ["step 1/70", "step 2/70"]


def test_every_row_of_a_bad_batch_is_in_the_system_log_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Logger(tmp_path) as log:
        recorder = Recorder(log, blend(), 2, 1, Interval())
        recorder.push(3, {"loss": jnp.float32("nan")})
        with pytest.raises(NonFiniteError) as caught:
            recorder.drain()

    text = (tmp_path / "system.log").read_text()
    for row in caught.value.rows:
        assert f"step 3: the loss is nan: {row}\n" in text
    assert len(caught.value.rows) == 3
    assert capsys.readouterr().err == ""
