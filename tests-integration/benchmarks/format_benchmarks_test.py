"""Every benchmark of the format runs once, small."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from . import (
    format_cold,
    format_fuzz,
    format_kill,
    format_open,
    format_read,
    format_write,
)

if TYPE_CHECKING:
    from pathlib import Path

on_linux = pytest.mark.skipif(
    sys.platform != "linux", reason="looks at pages and memory as Linux shows them"
)


def test_reading(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    format_read.run(tmp_path, mib=8, rounds=1)

    assert capsys.readouterr().out.count("\n") == 10


def test_writing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    format_write.run(tmp_path, mib=1, rounds=1, dtype="int64")

    assert "ratio" in capsys.readouterr().out


@on_linux
def test_opening(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    format_open.make(tmp_path, num_shards=20, mib=1)
    format_open.run(tmp_path)

    assert capsys.readouterr().out.startswith("20 shards")


@on_linux
def test_cold_pages(tmp_path: Path) -> None:
    corpus = format_cold.write_corpus(tmp_path, mib=2)

    assert format_cold.resident(corpus.paths) > 0
    assert format_cold.blocked_s(corpus, 3, 0.0, 0, ahead=2) > 0


def test_fuzzing(tmp_path: Path) -> None:
    found = format_fuzz.run(tmp_path, num_files=300, seed=0)

    assert sum(found.values()) == 300


def test_killing() -> None:
    found = format_kill.run(times=2, seed=0)

    assert found["right after a second write"] == 2
