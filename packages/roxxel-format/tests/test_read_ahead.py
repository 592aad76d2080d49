# pyright: reportPrivateUsage=false

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from roxxel_format._read import read_ahead, reading, window_reader
from roxxel_format._read.addresses import AddressRange
from roxxel_format._read.read_ahead import (
    CALL_BYTES,
    GAP_BYTES,
    _blocks_around,
    _stretches,
    calls,
)
from roxxel_format._read.reading import OpenCorpus
from roxxel_format._read.shard_map import ShardMap

from .helpers import corpus_of, documents_of

if TYPE_CHECKING:
    from collections.abc import Iterator

# Of such tokens a call is for 16, and a gap is of 4 at most.
ITEM_SIZE = CALL_BYTES // 16
GAP = GAP_BYTES // ITEM_SIZE

WINDOWS = {
    "starts": st.lists(st.integers(0, 500), min_size=1, max_size=40),
    "length": st.integers(1, 60),
}


@given(**WINDOWS)
def test_a_stretch_is_of_near_windows_and_asked_for_in_calls_that_are_done_in_full(
    starts: list[int], length: int
) -> None:
    found = list(_stretches(np.array(starts), length, ITEM_SIZE))

    assert all(0 < stop - start <= 16 for start, stop in found)
    asked = [token for start, stop in found for token in range(start, stop)]
    assert len(set(asked)) == len(asked)
    wanted = {token for start in starts for token in range(start, start + length)}
    tokens = np.array(sorted(wanted))
    gaps = [
        range(int(before) + 1, int(after))
        for before, after in pairwise(tokens)
        if after - before - 1 <= GAP
    ]
    assert set(asked) == wanted.union(*gaps)


@given(**WINDOWS)
def test_around_windows_whole_blocks_are_asked_for_in_the_order_of_need(
    starts: list[int], length: int
) -> None:
    num_tokens = max(starts) + length

    found = list(_blocks_around(np.array(starts), length, ITEM_SIZE, num_tokens))

    needed = [(start + i) // 16 for start in starts for i in range(length)]
    expected = [
        (block * 16, min(block * 16 + 16, num_tokens))
        for block in dict.fromkeys(needed)
    ]
    assert found == expected


def test_stretches_are_asked_for_in_the_order_of_need() -> None:
    starts = np.array([900, 100, 905, 500])

    found = list(_stretches(starts, 4, ITEM_SIZE))

    assert found == [(900, 909), (100, 104), (500, 504)]


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Have a machine of 1000 pages; return the file of a container's limit."""
    limit = tmp_path / "memory.max"
    values = {"SC_PHYS_PAGES": 1000, "SC_PAGE_SIZE": 4096}
    monkeypatch.setattr(os, "sysconf", values.__getitem__)
    monkeypatch.setattr(read_ahead, "_CONTAINER_LIMIT", limit)
    read_ahead._memory.cache_clear()
    yield limit
    read_ahead._memory.cache_clear()


def is_read_around(num_bytes: int) -> bool:
    return list(calls(np.array([1]), 1, 1, num_bytes)) != [(1, 2)]


def test_a_corpus_is_read_around_its_windows_where_it_is_small_beside_the_memory(
    machine: Path,
) -> None:
    assert not machine.exists()

    assert is_read_around(256_000)
    assert not is_read_around(256_001)


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [("max\n", 256_000), ("1600\n", 100), ("99999999999\n", 256_000)],
)
def test_memory_is_what_a_container_may_have_of_it(
    text: str, num_bytes: int, machine: Path
) -> None:
    machine.write_text(text)

    assert is_read_around(num_bytes)
    assert not is_read_around(num_bytes + 1)


@pytest.mark.parametrize("error", [AttributeError, OSError, ValueError])
def test_only_windows_are_asked_for_where_memory_is_not_known(
    error: type[Exception], machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(_: str) -> int:
        raise error

    assert not machine.exists()
    monkeypatch.setattr(os, "sysconf", unknown)

    assert not is_read_around(100)


@pytest.mark.parametrize("mapped", ["side by side", "alone"])
def test_what_is_asked_for_goes_on_in_the_next_shard_and_ends_with_the_corpus(
    mapped: str, machine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, int]] = []

    def ask_alone(_: ShardMap, start: int, stop: int) -> None:
        asked.append((start, stop))

    def ask(_: AddressRange, shard: int, start: int, stop: int) -> None:
        del shard
        asked.append((start, stop))

    monkeypatch.setattr(reading, "are_resident", no)
    monkeypatch.setattr(ShardMap, "will_need", ask_alone)
    monkeypatch.setattr(AddressRange, "will_need", ask)
    if mapped == "alone":
        monkeypatch.setattr(reading, "reserve", no)
    corpus = corpus_of(tmp_path, documents_of(900, 900, 900))  # shards of 1800 and 900

    corpus.will_need([2600, 5], 10)
    assert asked == [(0, 1800), (0, 900)]

    asked.clear()
    machine.write_text("0")
    read_ahead._memory.cache_clear()
    corpus.will_need([1795], 10)
    assert asked == [(1795, 1800), (0, 5)]


def no(*_: object) -> None:
    return None


@pytest.fixture
def asked_windows(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """Return the starts of the windows that were asked for, a list for each time."""
    calls: list[list[int]] = []

    def ask(_: OpenCorpus, starts: Any, length: int) -> bool:
        assert length == 10
        calls.append(starts.tolist())
        return True

    monkeypatch.setattr(OpenCorpus, "will_need", ask)
    monkeypatch.setattr(window_reader, "_MOST_BYTES_AHEAD", 8 * 10 * 2)
    return calls


@pytest.mark.parametrize("at_once", [1, 2, 4, 5, 30])
def test_windows_that_are_read_in_order_are_asked_for_ahead_and_once(
    at_once: int, tmp_path: Path, asked_windows: list[list[int]]
) -> None:
    starts = np.arange(0, 890, 10)
    reader = corpus_of(tmp_path, documents_of(900)).window_reader(starts, 10)

    for first in range(0, starts.size, at_once):
        reader.read(first, first + at_once)
        asked = [start for starts_asked in asked_windows for start in starts_asked]
        assert asked == starts[: len(asked)].tolist()
        # Those that the next read is of, where half as many as are asked for are read.
        assert len(asked) >= min(first + at_once + min(at_once, 4), starts.size)
        assert len(asked) <= first + max(8, 2 * at_once)


def test_of_very_short_windows_only_some_are_asked_for(
    tmp_path: Path, asked_windows: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(window_reader, "_MOST_AHEAD", 3)
    starts = np.arange(0, 890, 10)

    corpus_of(tmp_path, documents_of(900)).window_reader(starts, 10).read(0, 1)

    assert asked_windows == [[0, 10, 20]]


def test_few_windows_are_asked_for_at_first_and_more_each_time(
    tmp_path: Path, asked_windows: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(window_reader, "_FIRST_AHEAD", 2)
    starts = np.arange(0, 890, 10)
    reader = corpus_of(tmp_path, documents_of(900)).window_reader(starts, 10)

    for first in range(9):
        reader.read(first, first + 1)

    # Each time from what is read on: 2 from 0, 4 from 1, 8 from 3, 8 from 7.
    assert [len(each) for each in asked_windows] == [2, 3, 6, 4]


def test_windows_that_are_in_memory_are_looked_at_less_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at: list[int] = []

    def look(_: OpenCorpus, starts: Any, length: int) -> bool:
        del length
        looked_at.append(int(starts[0]) // 10)
        return len(looked_at) == 2  # then alone some were not there

    monkeypatch.setattr(OpenCorpus, "will_need", look)
    monkeypatch.setattr(window_reader, "_MOST_BYTES_AHEAD", 8 * 10 * 2)
    starts = np.arange(0, 890, 10)
    reader = corpus_of(tmp_path, documents_of(900)).window_reader(starts, 10)

    for first in range(starts.size):
        reader.read(first, first + 1)

    # Four times the 8 windows ahead, but where some were not there.
    assert looked_at == [0, 32, 40, 68]


def test_nothing_is_asked_for_ahead_where_the_system_does_not_tell_what_is_there(
    tmp_path: Path, asked_windows: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "is_told", no)

    corpus_of(tmp_path, documents_of(900)).window_reader([0, 500], 10).read(0, 1)

    assert asked_windows == []


def test_a_shard_that_is_gone_fails_who_reads_it_and_nobody_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "are_resident", no)
    corpus = corpus_of(tmp_path, documents_of(900, 900, 900))
    reader = corpus.window_reader([0, 1790, 1795], 10)
    Path(corpus.paths[1]).unlink()

    assert np.array_equal(reader.read(0, 2), corpus.read([0, 1790], 10))
    with pytest.raises(FileNotFoundError, match=r"c_00001\.rox"):
        reader.read(2, 3)


def test_windows_read_from_the_middle_on_are_asked_for_from_there(
    tmp_path: Path, asked_windows: list[list[int]]
) -> None:
    starts = np.arange(0, 890, 10)
    reader = corpus_of(tmp_path, documents_of(900)).window_reader(starts, 10)

    reader.read(40, 41)
    reader.read(3, 4)

    assert asked_windows == [starts[40:48].tolist()]


def test_windows_of_a_closed_corpus_are_not_asked_for(
    tmp_path: Path, asked_windows: list[list[int]]
) -> None:
    corpus = corpus_of(tmp_path, documents_of(900))
    reader = corpus.window_reader([5, 50], 10)

    corpus.close()
    reader.read(0, 2)

    assert asked_windows == []
