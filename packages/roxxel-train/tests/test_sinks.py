from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np
import pytest
from roxxel_train import Logger

if TYPE_CHECKING:
    from pathlib import Path


class Sink:
    """Keeps what it is told, and raises at a row of a given step."""

    def __init__(self, raises_at: int | None = None) -> None:
        self.told: list[Any] = []
        self.raises_at = raises_at

    def __call__(self, row: dict[str, Any]) -> None:
        self.told.append(row)
        if row["step"] == self.raises_at:
            raise OSError("the server has gone")

    def close(self) -> None:
        self.told.append("closed")


def text(folder: Path) -> str:
    return (folder / "system.log").read_text()


def test_sinks_get_every_row_as_plain_values_of_their_own(tmp_path: Path) -> None:
    changes, keeps = Sink(), Sink()
    row: dict[Any, Any] = {
        "step": np.int64(3),
        "loss": jnp.bfloat16(1.5),
        "nan": np.float32("nan"),
        "by": {7: jnp.arange(2)},
    }

    def change(row: dict[str, Any]) -> None:
        row["by"].clear()
        changes(row)

    with Logger(tmp_path, [change, keeps], terminal=False) as log:
        log.metrics(row)

    (got, closed) = keeps.told
    assert closed == "closed"
    assert np.isnan(got.pop("nan"))
    assert got == {"step": 3, "loss": 1.5, "by": {"7": [0, 1]}}
    assert [type(got[name]) for name in ("step", "loss")] == [int, float]
    line = (tmp_path / "metrics.jsonl").read_text()
    assert json.loads(line) == {**got, "nan": "nan"}


def test_functions_without_close_will_do(tmp_path: Path) -> None:
    steps: list[int] = []
    with Logger(tmp_path, [lambda row: steps.append(row["step"])]) as log:
        log.metrics({"step": 1})

    assert steps == [1]
    assert text(tmp_path) == ""


def test_sink_that_raises_is_named_once_and_dropped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad, good = Sink(raises_at=2), Sink()
    with Logger(tmp_path, [bad, good]) as log:
        for step in (1, 2, 3):
            log.metrics({"step": step})

    assert [row["step"] for row in good.told[:-1]] == [1, 2, 3]
    assert bad.told == [{"step": 1}, {"step": 2}, "closed"]
    reported = text(tmp_path)
    message = "sink 0 (Sink) failed and gets no more rows: OSError: the server has gone"
    assert reported.count(f"WARNING {message}") == 1
    assert "Traceback" in reported
    shown = capsys.readouterr().err
    assert message in shown
    assert "Traceback" not in shown


def test_dropped_sink_gets_rows_again_when_the_log_is_opened_again(
    tmp_path: Path,
) -> None:
    sink = Sink(raises_at=1)
    log = Logger(tmp_path, [sink], terminal=False)
    for step in (1, 2):
        with log:
            log.metrics({"step": step})

    assert sink.told == [{"step": 1}, "closed", {"step": 2}, "closed"]


def test_sink_that_fails_to_close_is_named(tmp_path: Path) -> None:
    class Unclosed(Sink):
        def close(self) -> None:
            raise RuntimeError("still writing")

    with Logger(tmp_path, [Unclosed()], terminal=False) as log:
        log.metrics({"step": 1})

    assert "Unclosed) failed and gets no more rows: Runtime" in text(tmp_path)


def test_sinks_hear_of_a_start_between_the_rows() -> None:
    sink = Sink()
    with Logger(None, [sink], terminal=False) as log:
        log.metrics({"step": 9})
        log.start({"step": 4}, None)
        log.metrics({"step": 5})

    start = {"kind": "start", "step": 4, "after": 0}
    assert sink.told == [{"step": 9}, start, {"step": 5}, "closed"]


def test_sink_that_blocks_holds_up_neither_files_nor_the_end(tmp_path: Path) -> None:
    called, let_go = threading.Event(), threading.Event()
    before = set(threading.enumerate())

    def block(_: dict[str, Any]) -> None:
        called.set()
        let_go.wait()

    with Logger(tmp_path, [block], terminal=False, timeout_s=0.01) as log:
        log.metrics({"step": 1})
        called.wait()
        log.metrics({"step": 2})
        log.flush()
        assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 2

    assert "block) did not accept all rows within 0.01 s" in text(tmp_path)
    let_go.set()
    for thread in set(threading.enumerate()) - before:
        thread.join()


def test_rows_of_a_sink_that_is_far_behind_are_dropped_with_one_warning(
    tmp_path: Path,
) -> None:
    called, let_go = threading.Event(), threading.Event()
    steps: list[int] = []

    def block(row: dict[str, Any]) -> None:
        steps.append(row["step"])
        called.set()
        let_go.wait()

    with Logger(tmp_path, [block], terminal=False) as log:
        log.metrics({"step": 0})
        called.wait()
        for step in range(1, 10_003):
            log.metrics({"step": step})
        let_go.set()

    assert steps == list(range(10_001))
    assert text(tmp_path).count("too slow; the logger drops rows") == 1


def test_what_cannot_be_called_is_no_sink(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="holds a str, which cannot be called"):
        Logger(tmp_path, ["wandb"])  # pyright: ignore[reportArgumentType] - the point
    with pytest.raises(TypeError, match="holds a str, which cannot be called"):
        Logger(tmp_path, "prefix")  # pyright: ignore[reportArgumentType] - the point
