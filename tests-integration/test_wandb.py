"""Runs that log to Weights & Biases in its offline mode, with the real client."""

from __future__ import annotations

import importlib
import json
import os
import signal
import struct
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import forked
import pytest

from .conftest import simulated
from .runs import MODEL, PACED, all_said, rows, stop_at, write_small_project

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

pytestmark = pytest.mark.long

# The type checker's session has no W&B.
RECORDS: Any = importlib.import_module("wandb.proto.wandb_internal_pb2")

OPTIONS = """
[trainer.log_to.wandb]
project = "first"
mode = "offline"
"""


# The client may start for longer than a run waits for its sinks at its end.
PATIENT = """
from roxxel_train import Logger

Logger.__init__.__kwdefaults__["timeout_s"] = 300
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = write_small_project(tmp_path / "project")
    config = folder / "run.toml"
    text = config.read_text().replace("[eval]", f"{OPTIONS}\n[eval]")
    config.write_text(text)
    (folder / "tiny.py").write_text(MODEL + PATIENT)
    return folder


def start(
    folder: Path, *options: str, variables: Mapping[str, str] | None = None
) -> subprocess.Popen[str]:
    return forked.Popen(
        [sys.executable, "-m", "roxxel", "train", "run.toml", *options],
        cwd=folder,
        env={
            **os.environ,
            **simulated(1),
            "WANDB_API_KEY": "0" * 40,
            "WANDB__SERVICE_WAIT": "300",
            "WANDB_INIT_TIMEOUT": "300",
            **(variables or {}),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def records(content: bytes) -> Iterator[bytes]:
    """Yield the records of a file in the format of LevelDB's log."""
    position, record = 7, b""
    while position + 7 <= len(content):
        left = 32768 - position % 32768
        if left < 7:
            position += left
            continue
        _, size, kind = struct.unpack_from("<IHB", content, position)
        record += content[position + 7 : position + 7 + size]
        position += 7 + size
        if kind in {1, 4}:
            yield record
            record = b""


def flat(row: dict[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in row.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{name}/")
        elif name not in {"kind", "step", "digest"}:
            yield prefix + name, value


def sent(run: Path) -> list[dict[str, Any]]:
    """Return the rows that W&B has, in all files of its offline mode."""
    found: list[dict[str, Any]] = []
    for file in sorted(run.glob("wandb/offline-run-*/*.wandb")):
        for content in records(file.read_bytes()):
            record = RECORDS.Record()
            record.ParseFromString(content)
            items = {
                item.key or "/".join(item.nested_key): json.loads(item.value_json)
                for item in record.history.item
            }
            if items:
                found.append(items)
    return found


def expected(run: Path) -> list[dict[str, Any]]:
    """Return the rows of `metrics.jsonl` as W&B has them: one for each step."""
    by_step: dict[int, dict[str, Any]] = {}
    for row in rows(run):
        values = dict(flat(row, f"{row['kind']}/"))
        by_step.setdefault(row["step"], {"_step": row["step"]}).update(values)
    return list(by_step.values())


def assert_each_row(run: Path) -> None:
    """Check what W&B has; of a step that was made again, the newest row counts."""
    found = [*{row["_step"]: row for row in sent(run)}.values()]
    found.sort(key=lambda row: row["_step"])
    assert [row["_step"] for row in found] == list(range(1, 17))
    for ours, theirs in zip(found, expected(run), strict=True):
        assert theirs.items() <= ours.items()


def test_a_stopped_and_lengthened_run_is_one_run_of_wandb(project: Path) -> None:
    assert stop_at(3, signal.SIGTERM, start(project, variables=PACED)) == 75
    process = start(project, "--set", "phases.1.steps=2")
    [(_, told)] = all_said([process], 300)
    assert process.returncode == 0, told
    [(shown, told)] = all_said([start(project)], 300)

    assert "done: 16 of 16 steps" in shown
    assert "wandb" not in told
    assert_each_row(project / "run")
    steps = [row["_step"] for row in sent(project / "run")]
    assert len(steps) == len({*steps})
    ids = {path.stem for path in (project / "run" / "wandb").glob("offline-*/*.wandb")}
    assert ids == {f"run-{json.loads((project / 'run/run.json').read_text())['id']}"}


def test_a_killed_run_loses_no_row(project: Path) -> None:
    assert stop_at(8, signal.SIGKILL, start(project)) == -signal.SIGKILL
    [(shown, told)] = all_said([start(project)], 300)

    assert "done: 16 of 16 steps" in shown, told
    assert_each_row(project / "run")


def test_a_sink_that_is_added_later_gets_the_earlier_rows(project: Path) -> None:
    changes = ("trainer.log_to=[]", "phases.1.steps=1")
    all_said([start(project, *(f"--set={change}" for change in changes))], 300)

    [(shown, told)] = all_said([start(project)], 300)

    assert "done: 16 of 16 steps" in shown, told
    assert_each_row(project / "run")


def test_a_client_that_fails_does_not_stop_the_run(project: Path) -> None:
    process = start(project, "--set", "trainer.log_to.wandb.id=a/b")

    [(shown, told)] = all_said([process], 300)

    assert "done: 16 of 16 steps" in shown, told
    assert told.count("sink 0 (WandB) failed and gets no more rows: ") == 1


def test_an_unknown_option_is_an_error_at_the_start(project: Path) -> None:
    process = start(project, "--set", "trainer.log_to.wandb.projekt=first")
    [(_, told)] = all_said([process], 300)

    assert process.returncode == 1
    assert "log_to, sink 'wandb': wandb.init: got an unexpected keyword" in told


def test_a_missing_client_is_an_error_that_names_the_extra(project: Path) -> None:
    (project / "wandb.py").write_text("raise ModuleNotFoundError('no wandb')\n")
    process = start(project)
    [(_, told)] = all_said([process], 300)

    assert process.returncode == 1
    assert told.splitlines()[-1].startswith("roxxel: roxxel_train.wandb needs wandb; ")
    assert "Traceback" not in told
