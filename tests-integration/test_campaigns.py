"""Campaigns run as a small sample; `nox -s fuzz campaign` runs them whole.

Those that kill one writer have no sample, because other tests kill it at each call:
`test_commit.py` of the format, `test_prepare.py`, `test_ray.py`, and
`test_bucket_takeovers.py`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

SEED = ("--seed", "7")


def run(program: str, *options: str) -> str:
    """Run a campaign and return what it printed."""
    # The programs of a campaign make a model before a trainer chooses this folder.
    cache = Path(os.environ["XDG_CACHE_HOME"]) / "roxxel" / "jax"
    path = Path(__file__).parent / "benchmarks" / program
    done = subprocess.run(
        [sys.executable, "-W", "error", str(path), *options, *SEED],
        env={**os.environ, "JAX_COMPILATION_CACHE_DIR": str(cache)},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def counts(output: str) -> dict[str, int]:
    """Return the counts that a campaign printed, by what was counted."""
    found = re.findall(r"^(.*): (\d+)$", output, re.MULTILINE)
    return {what: int(number) for what, number in found}


def test_mutated_shards_give_the_right_tokens_or_an_error() -> None:
    output = run("format_fuzz.py", "--files", "300")

    assert sum(counts(output).values()) == 300


def test_mutated_manifests_give_the_right_tokens_or_an_error() -> None:
    output = run("manifest_fuzz.py", "--files", "200")

    found = counts(output)
    assert sum(found.values()) == 200
    assert found["flip_bits refused"]
    assert found["of_json refused"]


def test_damaged_inputs_give_the_right_documents_or_an_error() -> None:
    output = run("input_fuzz.py", "--files", "200")

    found = counts(output)
    assert sum(found.values()) == 200
    assert found["jsonl zst truncate refused"]
    assert found["parquet plain truncate refused"]


def test_inputs_are_recognised_or_refused() -> None:
    output = run("recognise_fuzz.py", "--inputs", "150")

    assert sum(counts(output).values()) == 150


def test_a_failing_server_gives_the_right_tokens_or_an_error() -> None:
    output = run("bucket_faults.py", "--runs", "60")

    found = counts(output)
    assert sum(found.values()) == 60
    assert found["several refused"]
    assert found["several right"]


def test_no_acknowledged_append_is_lost() -> None:
    output = run("format_append.py", "--appends", "12", "--kills", "2")

    found = counts(output)
    assert sum(found.values()) == 2 * 12
    assert found["acknowledged and there"]


def test_cleaning_takes_nothing_of_a_living_writer() -> None:
    output = run("format_clean.py", "--writes", "3")

    whole = [n for what, n in counts(output).items() if "whole after cleaning" in what]
    assert sum(whole) == 3


def test_a_killed_run_in_a_bucket_ends_as_an_unbroken_one() -> None:
    output = run("bucket_kills.py", "--kills", "2", "--steps", "16")

    found = counts(output)
    assert found["checkpoints equal"] >= 3
    assert found["rows equal"] >= 16
