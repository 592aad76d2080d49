"""Sinks that a trainer makes by name, and the sink that writes CSV."""

from __future__ import annotations

import csv
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from roxxel_curriculum import Phase
from roxxel_train import Logger, RunFolder
from roxxel_train.csv_files import CsvFiles

from .helpers import rows, trainer

if TYPE_CHECKING:
    from collections.abc import Mapping


def table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


steps = st.lists(st.integers(1, 9), unique=True, max_size=6).map(sorted)
names = st.lists(st.sampled_from(["loss", "lr", "a,b", 'c"d']), unique=True)


@given(
    st.lists(st.tuples(st.integers(0, 9), steps, names), min_size=1, max_size=4),
    st.booleans(),
)
def test_a_resumed_run_has_each_row_once(
    starts: list[tuple[int, list[int], list[str]]], is_cut: bool
) -> None:
    expected: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        for start, ahead, fields in starts:
            sink = CsvFiles(name)
            if is_cut:
                sink.cut(start)
                expected = [row for row in expected if row["step"] <= start]
            for step in (start + each for each in ahead):
                row = {"step": step} | dict.fromkeys(fields, step / 2)
                sink({"kind": "train", **row})
                expected = [*(r for r in expected if r["step"] < step), row]
            sink.close()
        file = Path(name, "train.csv")
        found = table(file) if file.exists() else []

    assert [
        {n: float(x) for n, x in row.items() if x and n != "time"} for row in found
    ] == expected


def test_a_row_that_a_kill_has_torn_is_dropped(tmp_path: Path) -> None:
    sink = CsvFiles(tmp_path)
    for step in (1, 2):
        sink({"kind": "train", "step": step, "loss": 0.5})
    sink.close()
    file = tmp_path / "train.csv"
    file.write_text(file.read_text().removesuffix("0.5\n"))

    again = CsvFiles(tmp_path)
    again({"kind": "train", "step": 3, "loss": 0.25, "text": "a\nb"})
    again.close()

    assert [row["step"] for row in table(file)] == ["1", "3"]
    assert table(file)[1]["text"] == "a\nb"


def test_sinks_by_name_write_into_the_folder_of_the_run(tmp_path: Path) -> None:
    def go_on(steps: int) -> None:
        phases = [Phase(6, 4, 9), Phase(steps, 2, 17)]
        trainer(
            tmp_path,
            phases,
            log_to=["csv", "tensorboard"],
            eval_fn=lambda _: {"score": 2.0, "text": "Once"},
            eval_every=3,
        ).run()

    go_on(2)
    go_on(4)

    run = tmp_path / "run"
    for kind, field in (("train", "loss"), ("eval", "score")):
        expected = [
            (str(row["step"]), str(row[field]))
            for row in rows(tmp_path)
            if row["kind"] == kind
        ]
        found = [
            (row["step"], row[field]) for row in table(run / "csv" / f"{kind}.csv")
        ]
        assert found == expected
    assert "tokens_by_source/self" in table(run / "csv" / "train.csv")[0]
    assert len(list((run / "tensorboard").iterdir())) == 2
    assert {path.name for path in run.iterdir()} <= RunFolder.NAMES


def test_options_of_a_sink_are_its_arguments(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    trainer(tmp_path, log_to={"csv": {"log_dir": elsewhere}}).run()

    assert {path.name for path in elsewhere.iterdir()} == {"run.txt", "train.csv"}


def test_folder_of_csv_files_belongs_to_one_run(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    log_to = {"csv": {"log_dir": shared}}
    trainer(tmp_path, log_to=log_to).run()
    before = (shared / "train.csv").read_bytes()
    assert before

    trainer(tmp_path, log_to=log_to)  # the same run again
    with pytest.raises(ValueError, match=r"shared holds the rows of the run .*/run, "):
        trainer(tmp_path, log_to=log_to, save_path=tmp_path / "other")

    assert (shared / "train.csv").read_bytes() == before


def test_a_sink_that_fails_is_one_warning(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "csv").write_text("a file in place of the folder")

    summary = trainer(tmp_path, log_to=["csv"], log_every=1).run()

    assert summary.complete
    log = (tmp_path / "run" / "system.log").read_text()
    assert log.count("WARNING sink 0 (CsvFiles) failed and gets no more rows: ") == 1


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        (
            {"log_to": ["tensorbord"]},
            ValueError,
            "'tensorbord', but the sinks are .*, 'wandb'; did you mean 'tensorboard'",
        ),
        ({"log_to": ["x"]}, ValueError, "'wandb'; name one of these"),
        ({"log_to": "csv"}, TypeError, r"log_to is a str; .*, such as \['csv'\]"),
        (
            {"log_to": {"csv": {"folder": "x"}}},
            TypeError,
            "log_to, sink 'csv': .*unexpected keyword argument 'folder'",
        ),
        (
            {"log_to": ["csv"], "save_path": None},
            ValueError,
            "log_to is given without save_path; give save_path and log_to",
        ),
        (
            {"log_to": ["csv"], "logger": Logger()},
            ValueError,
            "log_to is given with a logger",
        ),
    ],
)
def test_wrong_sinks_are_named(
    tmp_path: Path, options: Mapping[str, Any], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        trainer(tmp_path, **options)
    assert not (tmp_path / "run").exists()
