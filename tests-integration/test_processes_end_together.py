"""After an accident in one of several real processes, all of them end."""

from __future__ import annotations

import json
import re
import shutil
import signal
import sys
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import forked
import pytest
from roxxel_train import RunFolder

from .conftest import PROGRAMS, SEVERAL_PROCESSES, environment
from .programs import drill
from .runs import free_port, rows

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

pytestmark = [SEVERAL_PROCESSES, pytest.mark.long]

GUARD_S = 600
"""Far longer than any run takes; a run that does not end fails its test."""


SHORT = ("steps=40",)


@dataclass(frozen=True)
class Ended:
    """What the processes of a run left."""

    codes: list[int]
    texts: list[str]
    log: str


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ending") / "data"
    drill.write(folder)
    return folder


@pytest.fixture(scope="module")
def stopped(data: Path, compilation_cache: Path) -> Path:
    """A run that was stopped and saved; a test resumes a copy."""
    run = data.parent / "stopped"
    assert train(data, run, compilation_cache, "sigterm@20:1").codes == [75, 75]
    return run


def train(
    data: Path,
    run: Path,
    cache: Path,
    *arguments: str,
    count: int = 2,
) -> Ended:
    """Train in several processes and wait until all have ended."""
    command = [sys.executable, str(PROGRAMS / "ending.py"), str(data), str(run)]
    shared = {
        **environment(1, cache),
        "JAX_NUM_PROCESSES": str(count),
        "JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{free_port()}",
    }
    outputs = [run.parent / f"{run.name}-{index}.txt" for index in range(count)]
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for index, path in enumerate(outputs):
            with path.open("wb") as output:
                process = forked.Popen(
                    [*command, *arguments],
                    env={**shared, "JAX_PROCESS_ID": str(index)},
                    stdout=output,
                    stderr=output,
                )
            processes.append(process)
        codes = [process.wait(GUARD_S) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    log = run / "system.log"
    return Ended(
        codes,
        [path.read_text(errors="replace") for path in outputs],
        log.read_text() if log.exists() else "",
    )


def checkpoints(run: Path) -> set[int]:
    folder = run / "checkpoints"
    return {int(path.name) for path in folder.iterdir() if path.name.isdecimal()}


@pytest.mark.versions
def test_read_error_in_one_process_ends_all_with_the_reason(
    data: Path, tmp_path: Path, compilation_cache: Path
) -> None:
    ended = train(data, tmp_path / "run", compilation_cache, "error@30:1")

    assert ended.codes == [1, 1]
    reason = "the run ends: process 1 failed: OSError: the disk is gone"
    assert all(reason in text for text in (*ended.texts, ended.log))


@pytest.mark.versions
def test_killed_process_ends_the_others_with_the_reason(
    data: Path, tmp_path: Path, compilation_cache: Path
) -> None:
    ended = train(data, tmp_path / "run", compilation_cache, "kill@30:3", count=4)

    assert ended.codes == [1, 1, 1, -signal.SIGKILL]
    reason = "the run ends: process 3 failed: "
    assert all(reason in text for text in (*ended.texts[:3], ended.log))


def test_end_of_the_first_process_ends_the_other(
    data: Path, tmp_path: Path, compilation_cache: Path
) -> None:
    ended = train(data, tmp_path / "run", compilation_cache, "kill@30:0")

    assert ended.codes[0] == -signal.SIGKILL
    assert ended.codes[1] != 0


@pytest.mark.parametrize(
    ("accident", "reason"),
    [
        ("error@before:1", "process 1 failed: OSError: the disk is gone"),
        ("error@after:1", "process 1 failed: OSError: the disk is gone"),
        ("error@before:0", "process 0 failed: OSError: the disk is gone"),
        ("exit@before:1", "process 1 failed: its program ended while other processes"),
        ("exit@after:0", "process 0 failed: its program ended while other processes"),
        (
            "checkpoint_every=0:1",
            "process 1 failed: ValueError: checkpoint_every must be",
        ),
    ],
)
def test_end_of_one_process_outside_the_run_ends_all_with_the_reason(
    data: Path, tmp_path: Path, compilation_cache: Path, accident: str, reason: str
) -> None:
    ended = train(data, tmp_path / "run", compilation_cache, accident)

    assert ended.codes == [1, 1]
    assert all(f"the run ends: {reason}" in text for text in ended.texts)


@pytest.mark.parametrize("own", [0, 1])
def test_process_killed_while_the_other_evaluates_ends_it_with_the_reason(
    data: Path, tmp_path: Path, compilation_cache: Path, own: int
) -> None:
    accidents = ("sleep@evaluate:0", "kill@evaluate:1")
    options = ("eval_every=5", f"own={own}")
    ended = train(data, tmp_path / "run", compilation_cache, *options, *accidents)

    assert ended.codes == [1, -signal.SIGKILL]
    reason = "the run ends: process 1 failed: killed or crashed"
    assert all(reason in text for text in (ended.texts[0], ended.log))


def test_process_killed_while_all_save_ends_the_others_with_the_reason(
    data: Path, tmp_path: Path, compilation_cache: Path
) -> None:
    ended = train(
        data, tmp_path / "run", compilation_cache, "checkpoint_every=5", "kill@save:1"
    )

    assert ended.codes == [1, -signal.SIGKILL]
    reason = "the run ends: process 1 failed: killed or crashed"
    assert all(reason in text for text in (ended.texts[0], ended.log))


def test_process_killed_while_all_restore_ends_the_others_with_the_reason(
    data: Path, stopped: Path, tmp_path: Path, compilation_cache: Path
) -> None:
    run = shutil.copytree(stopped, tmp_path / "run")

    ended = train(data, run, compilation_cache, "kill@restore:1")

    assert ended.codes == [1, -signal.SIGKILL]
    reason = "the run ends: process 1 failed: killed or crashed"
    assert all(reason in text for text in (ended.texts[0], ended.log))


@pytest.mark.parametrize(
    ("differing", "build"), [("arrays=1:1", 0), ("arrays=1:1", 1), ("values=1:1", 0)]
)
def test_models_that_differ_are_an_error_in_all(
    data: Path, tmp_path: Path, compilation_cache: Path, differing: str, build: int
) -> None:
    ended = train(
        data, tmp_path / "run", compilation_cache, differing, f"build={build}"
    )

    assert ended.codes == [1, 1]
    error = "caught SettingsDifferError: model or optimizer differs between processes ("
    assert all(error in text for text in ended.texts)


def test_processes_that_share_no_disk_are_refused_before_the_first_step(
    data: Path, tmp_path: Path, compilation_cache: Path
) -> None:
    run = tmp_path / "run"

    ended = train(data, run, compilation_cache, "disks=1")

    assert ended.codes == [1, 1]
    log = (run / "0" / "system.log").read_text()
    error = "process 1 does not see the file that process 0 wrote here"
    remedy = "; give checkpoint_path a folder on a disk that all processes share"
    for text in (*ended.texts, log):
        assert error in text
        assert remedy in text


def test_nan_is_raised_by_all_although_one_is_slow(
    data: Path, tmp_path: Path, compilation_cache: Path
) -> None:
    ended = train(data, tmp_path / "run", compilation_cache, "nan@50:0", "slow@45:1")

    assert ended.codes == [1, 1]
    error = "caught NonFiniteError: step 50: the loss is nan"
    assert all(error in text for text in ended.texts)


def test_hanging_process_is_named_with_the_stacks_of_all(
    data: Path, tmp_path: Path, compilation_cache: Path
) -> None:
    ended = train(
        data, tmp_path / "run", compilation_cache, "hang_after_s=10.0", "sleep@30:1"
    )

    assert ended.codes == [1, 1]
    for index, text in enumerate(ended.texts):
        assert "the run ends: process 1 failed: step" in text
        assert "is not done after 10 s" in text
        assert f"the stacks of process {index}:" in text
    assert "time.sleep(1000)" in ended.texts[1]


@pytest.mark.parametrize(
    ("argument", "difference"),
    [
        (
            "grad_accum_steps=2:1",
            "grad_accum_steps differs between processes (process 0: 1; process 1: 2); ",
        ),
        (
            "corpus=code:1",
            "fingerprint of source 'self' differs between processes (process 0: ",
        ),
        (
            "rows=6:1",
            (
                "phase 0 differs between processes "
                '(process 0: "100 steps of 4 x 17 from step 0"; '
                'process 1: "100 steps of 6 x 17 from step 0"); '
            ),
        ),
    ],
)
def test_different_setting_or_part_of_the_curriculum_is_named_by_all(
    data: Path, tmp_path: Path, compilation_cache: Path, argument: str, difference: str
) -> None:
    ended = train(data, tmp_path / "run", compilation_cache, argument)

    assert ended.codes == [1, 1]
    error = f"caught SettingsDifferError: {difference}"
    assert all(error in text for text in ended.texts)


def test_requests_to_one_process_are_served_by_all_and_the_run_continues(
    data: Path, tmp_path: Path, compilation_cache: Path
) -> None:
    """Three rows do not divide, so no update synchronises the two processes."""
    run, size = tmp_path / "run", "rows=3"
    requests = ["save@10:1", "sigterm@60:1"]

    ended = train(data, run, compilation_cache, size, *requests)
    saved = checkpoints(run)
    resumed = train(data, run, compilation_cache, size)
    whole = train(data, tmp_path / "whole", compilation_cache, size)

    assert ended.codes == [75, 75]
    assert len(saved) == 2
    stop = f"caught Preempted: SIGTERM ended the run after step {max(saved)};"
    assert all(stop in text for text in ended.texts)
    assert resumed.codes == whole.codes == [0, 0]
    assert json.dumps(rows(run)) == json.dumps(rows(tmp_path / "whole"))


def test_a_slow_process_is_named_in_the_log_and_its_lag_in_the_rows(
    data: Path, tmp_path: Path, compilation_cache: Path
) -> None:
    """A busy machine may delay the other process too, so a row is a mean of 5 steps."""
    options = ("steps=30", "log_every=5", "slow@1:1")
    ended = train(data, tmp_path / "run", compilation_cache, *options)

    assert ended.codes == [0, 0]
    assert re.search(r"step \d+: process 1 stays behind", ended.log)
    metrics = (tmp_path / "run" / "metrics.jsonl").read_text()
    lags = [float(lag) for lag in re.findall(r'"lag_s": ([\d.]+)', metrics)]
    assert max(lags) > 0.1


@pytest.mark.parametrize(
    ("where", "arguments", "line"),
    [
        ("restore", (), r"in 'restore' after step 0 \(verify step \d+"),
        ("compile", SHORT, r"in 'compile' after step 0 \(compiling for .* 4 x 17"),
        (
            "save",
            (*SHORT, "checkpoint_every=5"),
            r"in 'save' after step 10 \(commit step 5",
        ),
        ("evaluate", (*SHORT, "eval_every=5"), r"in 'evaluate' after step 5 \(eval_fn"),
        ("30", SHORT, r"in step \d+"),
        ("compile", ("rows=3", "sigterm@10:0"), r"in 'compile' after step 0"),
    ],
)
def test_process_for_which_the_others_wait_is_named_with_what_it_does(
    data: Path,
    stopped: Path,
    tmp_path: Path,
    compilation_cache: Path,
    where: str,
    arguments: tuple[str, ...],
    line: str,
) -> None:
    run = tmp_path / "run"
    if where == "restore":
        shutil.copytree(stopped, run)
    until = rf"process 0 waited \d+ s at .* for process 1 {line}"

    ended = train(
        data,
        run,
        compilation_cache,
        *arguments,
        f"hold@{where}:1",
        f"until={until}",
        "held_s=0.5",
    )

    assert ended.codes == ([75, 75] if "rows=3" in arguments else [0, 0])
    assert re.search(until, ended.texts[0])
    if "rows=3" in arguments:
        assert "at 'agree on a step' for process 1" in ended.log


def test_the_goodput_of_a_run_with_three_kills_is_that_counted_by_hand(
    data: Path, tmp_path: Path, compilation_cache: Path
) -> None:
    """Every step has a row, and the rows that a restart drops are copied before."""
    run = tmp_path / "run"
    written: list[dict[int, float]] = []
    for kill in ("kill@38:0", "kill@33:0", "kill@28:0", "sigterm@30:0"):
        accidents = ("checkpoint_every=10", kill)
        train(data, run, compilation_cache, *accidents, count=1)
        metrics = RunFolder(run).rows()[0]
        times = {
            row["step"]: datetime.fromisoformat(row["time"]).timestamp()
            for row in metrics
            if row["kind"] == "train"
        }
        assert len(times) == max(times)
        written.append(times)
    written_rows: list[dict[str, Any]] = [
        {**row, "time": datetime.fromisoformat(row["time"]).timestamp()}
        for row in map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    ]
    starts = [row for row in written_rows if row["kind"] == "start"]
    assert len(starts) == 4
    result = RunFolder(run).rows()[0]

    found = RunFolder(run).goodput()

    # The row of a save may be the last that a killed start has written.
    before = pairwise(written_rows)
    ends = [row["time"] for row, then in before if then["kind"] == "start"]
    idle = sum(start["time"] - end for start, end in zip(starts[1:], ends, strict=True))
    # A start that was killed before its first save has lost all of its time.
    lost = 0.0
    for times, start, then, end in zip(written, starts, starts[1:], ends, strict=False):
        lost += end - max(times[then["step"]], start["time"])
    assert found.lost == pytest.approx(lost, abs=0.01)
    restoring = found.restoring - starts[0]["seconds"]
    assert found.idle + restoring == pytest.approx(idle, abs=0.01)
    stepped = sum(row["step_s"] for row in result if row["kind"] == "train")
    assert found.steps + found.waiting == pytest.approx(stepped, abs=0.01)
    whole = written_rows[-1]["time"] - starts[0]["time"] + starts[0]["seconds"]
    assert found.seconds == pytest.approx(whole, abs=0.01)
