from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
from roxxel_train import RunFolder

from .helpers import trainer

if TYPE_CHECKING:
    from pathlib import Path


def training_rows(folder: Path) -> dict[int, dict[str, Any]]:
    rows, _ = RunFolder(folder / "run").rows()
    return {row["step"]: row for row in rows if row["kind"] == "train"}


def test_clock_stops_while_other_work_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 10.0

    def evaluate(_: Any) -> float:
        nonlocal now
        now += 6.0
        return 0.0

    monkeypatch.setattr(time, "perf_counter", lambda: now)
    trainer(tmp_path, eval_fn=evaluate, eval_every=4).run()

    by_step = training_rows(tmp_path)
    assert {step: row.get("eval_s") for step, row in by_step.items()} == {
        1: None,
        3: None,
        6: 6.0,
        9: 6.0,
        10: None,
    }
    assert all(row["step_s"] < 1e-6 for row in by_step.values())


def test_rates_are_those_since_the_row_before(tmp_path: Path) -> None:
    one = trainer(tmp_path)

    summary = one.run()

    rows = training_rows(tmp_path)
    waited = 0.0
    for before, step in zip([0, *rows], rows, strict=False):
        row = rows[step]
        tokens = row["tokens"] - (rows[before]["tokens"] if before else 0)
        seconds = row["step_s"] * (step - before)
        assert row["tokens_per_s"] == pytest.approx(tokens / seconds)
        assert row["wait_share"] == pytest.approx(min(row["wait_s"] / seconds, 1.0))
        work = row["read_s"] + row["assemble_s"] + row["transfer_s"]
        assert work == pytest.approx(row["wait_s"])
        waited += row["wait_s"]
    assert waited == pytest.approx(summary.waited_s)
