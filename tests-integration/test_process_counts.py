"""One script makes the same run in 1 and in 4 processes with four devices in total."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import zlib
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import forked
import numpy as np
import pytest
from roxxel import TIMING_FIELDS, Curriculum, Phase, Roxxel
from roxxel_train import RunFolder

from .conftest import PROGRAMS, SEVERAL_PROCESSES, environment
from .programs import drill
from .runs import all_said, free_port

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

pytestmark = [SEVERAL_PROCESSES, pytest.mark.long]

# The drill of runs covers 2 processes of 2 devices.
COUNTS = (1, 4)

# What Gloo says, in any order of its pieces.
GLOO = re.compile(
    r"(\[Gloo\]|Rank|is connected to|peer ranks\.|"
    r"Expected number of connected peer ranks is :|[\d\s])*"
)

# As in the program.
PHASES = [Phase(3, 8, 17, {"self": 0.75, "code": 0.25}), Phase(12, 4, 33)]

EXACT = (
    *("kind", "step", "phase", "tokens", "tokens_by_source", "rows_by_source"),
    *("data_low", "data_high", "digest", "skipped"),
)


@dataclass(frozen=True)
class Run:
    """What is left of a run, and what each of its processes said and saw."""

    rows: list[dict[str, Any]]
    said: list[tuple[str, str]]
    seen: list[dict[str, Any]]

    @property
    def windows(self) -> Counter[tuple[str, int, int, int]]:
        """How often each window was read, over all processes."""
        return Counter(
            (name, *window)
            for process in self.seen
            for name, windows in process["windows"].items()
            for window in windows
        )


def train(count: int, folder: Path, cache: Path) -> Run:
    """Train in so many processes, of four devices together."""
    run, seen = folder / f"run-{count}", folder / f"seen-{count}"
    seen.mkdir()
    command = [sys.executable, "-W", "error", str(PROGRAMS / "several.py")]
    shared = {
        **environment(4 // count, cache),
        "JAX_COMPILATION_CACHE_DIR": "",  # else only process 0 finds its programs
        "JAX_NUM_PROCESSES": str(count),
        "JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{free_port()}",
    }
    processes = [
        forked.Popen(
            [*command, str(folder / "data"), str(run), str(seen)],
            env={**shared, "JAX_PROCESS_ID": str(index)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for index in range(count)
    ]
    said = all_said(processes, 300)
    assert [process.returncode for process in processes] == [0] * count, said
    reports = [json.loads((seen / f"{i}.json").read_text()) for i in range(count)]
    return Run(RunFolder(run).rows()[0], said, reports)


@pytest.fixture(scope="module")
def runs(
    tmp_path_factory: pytest.TempPathFactory, compilation_cache: Path
) -> Mapping[int, Run]:
    folder = tmp_path_factory.mktemp("counts")
    drill.write(folder / "data")
    return {count: train(count, folder, compilation_cache) for count in COUNTS}


@pytest.fixture(scope="module")
def alone(runs: Mapping[int, Run]) -> Run:
    return runs[1]


@pytest.fixture(scope="module")
def spread(runs: Mapping[int, Run]) -> Run:
    return runs[max(COUNTS)]


def test_processes_together_read_what_one_reads(spread: Run, alone: Run) -> None:
    assert spread.windows == alone.windows
    # No process reads for the others: each has its own rows and no more.
    for process in spread.seen:
        num_windows = sum(map(len, process["windows"].values()))
        assert num_windows == sum(alone.windows.values()) / max(COUNTS)


def test_no_process_gathers_the_model_of_the_others(
    spread: Run,
) -> None:
    """For every process, that would take twice the model in the memory of each host."""
    num_smallest = 16  # numbers of a bias of the model
    for process in spread.seen:
        assert max(process["gathered"]) < num_smallest


def test_what_was_read_is_what_the_curriculum_says(alone: Run, tmp_path: Path) -> None:
    drill.write(tmp_path)
    corpora = {name: Roxxel(tmp_path / f"{name}_*.rox") for name in ("web", "code")}
    sampler = Curriculum(corpora["web"], PHASES, {"code": corpora["code"]}).sampler(
        drill.SEED
    )
    expected: Counter[tuple[str, int, int, int]] = Counter()
    sums: list[dict[str, float]] = []
    for step in range(sampler.total_steps):
        batch = sampler.batch(step)
        sums.append({k: float(v) for k, v in drill.checksum(batch, np).items()})
        for row, tokens in enumerate(batch):
            place = sampler.locate(step, row)
            name = "web" if place.source == "self" else place.source
            window = (place.start, tokens.size, zlib.crc32(tokens.tobytes()))
            expected[name, *window] += 1

    assert alone.windows == expected
    trained = [row for row in alone.rows if row["kind"] == "train"]
    assert [{name: row[name] for name in sums[0]} for row in trained] == sums


def test_batches_on_the_devices_and_losses_are_the_same(
    spread: Run, alone: Run
) -> None:
    assert [row["step"] for row in alone.rows if row["kind"] == "train"] == [
        *range(1, 16)
    ]
    for row, other in zip(spread.rows, alone.rows, strict=True):
        assert {name: row.get(name) for name in EXACT} == {
            name: other.get(name) for name in EXACT
        }
        # Of the times only those are told that are worth it.
        assert set(row) - TIMING_FIELDS == set(other) - TIMING_FIELDS
        # Sums over devices may be made in another order.
        floats = [
            name
            for name, value in other.items()
            if isinstance(value, float) and name not in TIMING_FIELDS
        ]
        assert "loss" in floats or other["kind"] == "eval"
        assert {name: row[name] for name in floats} == pytest.approx(
            {name: other[name] for name in floats}, rel=1e-5
        )


def test_some_updates_are_left_out_as_spikes(alone: Run) -> None:
    skipped = [row["skipped"] for row in alone.rows if row["kind"] == "train"]

    assert skipped[:11] == [0] * 11
    assert 0 < skipped[-1] <= 4
    assert any("loss/self" in row for row in alone.rows)


def test_all_processes_collect_garbage_after_the_same_steps_and_at_no_other_time(
    runs: Mapping[int, Run],
) -> None:
    for run in runs.values():
        for process in run.seen:
            # Before its first and after its last step, a process is like any other.
            assert [x for x in process["collected"] if 0 < x < 15] == [4, 8, 12]


def test_only_the_first_process_writes_and_speaks(
    spread: Run,
) -> None:
    first, *others = spread.seen

    assert {"metrics.jsonl", "system.log"} <= set(first["written"])
    for process in others:
        # Arrays that lie on its devices alone are its own to save.
        assert [x for x in process["written"] if not x.startswith("checkpoints")] == []
    assert "step 15/15" in spread.said[0][1]
    # Gloo, which connects processes on CPUs, speaks from threads of C++ at once.
    said = ["".join(both) for both in spread.said[1:]]
    assert [text for text in said if not GLOO.fullmatch(text)] == []
