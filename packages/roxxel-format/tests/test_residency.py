# pyright: reportPrivateUsage=false

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np
import pytest
from roxxel_format import Roxxel
from roxxel_format._read import read_ahead, reading
from roxxel_format._read.residency import are_resident, is_told
from roxxel_format._read.shard_map import ShardMap

if TYPE_CHECKING:
    from pathlib import Path

    from roxxel_format._spec.dtypes import Tokens


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Return the token ranges that are asked for: the windows, each by a call."""
    monkeypatch.setattr(read_ahead, "MEMORY_PARTS", 1 << 60)
    monkeypatch.setattr(read_ahead, "GAP_BYTES", 0)
    ranges: list[tuple[int, int]] = []

    def ask(_: ShardMap, start: int, stop: int) -> None:
        ranges.append((start, stop))

    monkeypatch.setattr(ShardMap, "will_need", ask)
    return ranges


def corpus(folder: Path) -> Roxxel:
    tokens = Roxxel(folder / "corpus.rox")
    tokens.write([np.arange(50_000, dtype=np.uint16)])
    return tokens


def test_pages_that_were_read_are_resident(tmp_path: Path) -> None:
    tokens = corpus(tmp_path).tokens[:]
    assert int(tokens.sum()) > 0

    assert are_resident(tokens, [(0, tokens.size)])
    assert are_resident(tokens[1001:], [(0, 1), (40_000, 40_001), (7, 30_000)])


def test_pages_that_nobody_read_are_not_resident(tmp_path: Path) -> None:
    path = tmp_path / "sparse"
    path.touch()
    os.truncate(path, 1 << 20)
    tokens = np.asarray(np.memmap(path, np.uint16, "r"))

    assert not are_resident(tokens, [(0, 1), (400_000, 400_010)])


def test_the_system_tells_of_own_files_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus(tmp_path)
    path = str(tmp_path / "corpus.rox")

    assert is_told(path)
    monkeypatch.setattr(os, "geteuid", lambda: 4_000_000)
    assert not is_told(path)
    assert not is_told(str(tmp_path / "gone.rox"))


def test_pages_in_memory_are_not_asked_for(
    tmp_path: Path, asked: list[tuple[int, int]]
) -> None:
    tokens = corpus(tmp_path)
    starts = np.arange(0, 40_000, 500)
    tokens.read(starts, 64)

    tokens.will_need(starts, 64)

    assert asked == []


def test_one_cold_window_of_the_sample_asks_for_all(
    tmp_path: Path, asked: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = corpus(tmp_path)
    starts = np.arange(0, 40_000, 500)

    last = int(starts[-(len(starts) // reading._SAMPLED_WINDOWS)])

    def all_but_one(_: Tokens, spans: list[tuple[int, int]]) -> bool:
        return (last, last + 64) not in spans

    monkeypatch.setattr(reading, "are_resident", all_but_one)
    tokens.will_need(starts, 64)

    assert asked == [(start, start + 64) for start in starts.tolist()]


def test_pages_are_asked_for_where_the_system_does_not_tell(
    tmp_path: Path, asked: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def untold(_: str) -> bool:
        return False

    tokens = corpus(tmp_path)
    monkeypatch.setattr(reading, "is_told", untold)

    tokens.will_need([7, 9000], 10)

    assert asked == [(7, 17), (9000, 9010)]
