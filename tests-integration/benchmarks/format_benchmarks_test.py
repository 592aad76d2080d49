"""Every benchmark of the format runs once, small."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from . import (
    format_open,
    format_open_many,
    format_packing,
    format_read,
    format_write,
)

on_linux = pytest.mark.skipif(
    sys.platform != "linux", reason="looks at pages and memory as Linux shows them"
)


def test_reading(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    format_read.run(tmp_path, mib=8, rounds=1)

    assert capsys.readouterr().out.count("\n") == 10


def test_writing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    format_write.run(tmp_path, mib=1, rounds=1, dtype="int64")

    assert "ratio" in capsys.readouterr().out


def test_packing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    format_packing.pack(2000)
    format_packing.write(tmp_path, 200)

    assert capsys.readouterr().out.count("documents/s") == 3


@on_linux
def test_opening(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    format_open.make(tmp_path, num_shards=20, mib=1)
    format_open.run(tmp_path)

    assert capsys.readouterr().out.startswith("20 shards")


def test_opening_many(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    format_open_many.open_many(tmp_path, num_shards=50, rounds=1)
    format_open_many.first_batch(tmp_path, mib=4, rounds=1)

    assert "50 shards: open" in capsys.readouterr().out


@on_linux
def test_cold_pages(tmp_path: Path) -> None:
    script = Path(__file__).with_name("format_cold.py")
    options = ("--mib", "2", "--batches", "3", "--rounds", "1", "--work-ms", "0")

    done = subprocess.run(
        [sys.executable, str(script), *options, "--folder", str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
    )

    assert "with will_need, ratio" in done.stdout
