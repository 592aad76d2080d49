# pyright: reportPrivateUsage=false

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from roxxel_format import _read_ahead, _reading, _window_reader
from roxxel_format._read_ahead import CALL_BYTES, GAP_BYTES, block_of, stretches
from roxxel_format._reading import OpenCorpus
from roxxel_format._shard_map import ShardMap

from .helpers import corpus_of, documents_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# A token of so many bytes makes gaps and calls a few tokens long.
ITEM_SIZE = CALL_BYTES // 16


@given(
    starts=st.lists(st.integers(0, 500), min_size=1, max_size=40),
    length=st.integers(1, 60),
    block=st.sampled_from([1, 7, 16]),
)
def test_stretches_hold_every_window_once_in_calls_that_are_done_in_full(
    starts: list[int], length: int, block: int
) -> None:
    found = list(stretches(np.array(starts), length, ITEM_SIZE, block))

    asked = [token for begin, stop in found for token in range(begin, stop)]
    assert len(set(asked)) == len(asked)
    assert all(0 < stop - begin <= 16 for begin, stop in found)
    wanted = {token for start in starts for token in range(start, start + length)}
    assert wanted <= set(asked)
    # No more than the rest of blocks, and gaps that are worth no call of their own.
    near = {token + step for token in wanted for step in range(-block + 1, block)}
    gap = GAP_BYTES // ITEM_SIZE
    runs = np.split(far := np.array(sorted(set(asked) - near)), cuts(far))
    assert all(run.size <= gap for run in runs)


def cuts(tokens: np.ndarray[Any, Any]) -> Any:
    return np.flatnonzero(np.diff(tokens) != 1) + 1


def test_what_is_read_first_is_asked_for_first() -> None:
    starts = np.array([900, 100, 905, 500])

    assert list(stretches(starts, 4, ITEM_SIZE, 1)) == [
        (900, 909),
        (100, 104),
        (500, 504),
    ]
    assert list(stretches(starts, 4, ITEM_SIZE, 16)) == [
        (896, 912),
        (96, 112),
        (496, 512),
    ]


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Have a machine of 1000 pages; return the file of a container's limit."""
    limit = tmp_path / "memory.max"
    values = {"SC_PHYS_PAGES": 1000, "SC_PAGE_SIZE": 4096}
    monkeypatch.setattr(os, "sysconf", values.__getitem__)
    monkeypatch.setattr(_read_ahead, "_CONTAINER_LIMIT", limit)
    _read_ahead._memory.cache_clear()
    yield limit
    _read_ahead._memory.cache_clear()


def test_around_windows_is_asked_for_where_memory_holds_the_corpus_with_ease(
    machine: Path,
) -> None:
    assert not machine.exists()

    assert block_of(128_000, 2) == CALL_BYTES // 2
    assert block_of(128_001, 2) == 1
    assert block_of(1, 1 << 18) == 1


@pytest.mark.parametrize(
    ("text", "num_tokens"),
    [("max\n", 128_000), ("1600\n", 50), ("99999999999\n", 128_000)],
)
def test_memory_is_what_a_container_may_have_of_it(
    text: str, num_tokens: int, machine: Path
) -> None:
    machine.write_text(text)

    assert block_of(num_tokens, 2) > 1
    assert block_of(num_tokens + 1, 2) == 1


@pytest.mark.parametrize("error", [AttributeError, OSError, ValueError])
def test_only_windows_are_asked_for_where_memory_is_not_known(
    error: type[Exception], machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(_: str) -> int:
        raise error

    assert not machine.exists()
    monkeypatch.setattr(os, "sysconf", unknown)

    assert block_of(1, 2) == 1


def test_stretches_end_with_the_corpus_and_go_on_in_the_next_shard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cold(*_: object) -> bool:
        return False

    asked: list[tuple[int, int]] = []

    def ask(_: ShardMap, start: int, stop: int) -> None:
        asked.append((start, stop))

    monkeypatch.setattr(_reading, "are_resident", cold)
    monkeypatch.setattr(_reading, "reserve", cold_reserve)
    monkeypatch.setattr(ShardMap, "will_need", ask)
    corpus = corpus_of(tmp_path, documents_of(900, 900, 900))

    corpus.will_need([2600, 5], 10)
    assert asked == [(0, 1800), (0, 900)]

    asked.clear()
    monkeypatch.setattr(_read_ahead, "SHARE_OF_MEMORY", 1 << 60)
    corpus.will_need([1795], 10)
    assert asked == [(1795, 1800), (0, 5)]


def cold_reserve(_: object) -> None:
    return None


@pytest.fixture
def asked_windows(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """Return the starts of the windows that were asked for, a list for each time."""
    calls: list[list[int]] = []

    def ask(_: OpenCorpus, starts: Any, length: int) -> None:
        assert length == 10
        calls.append(starts.tolist())

    monkeypatch.setattr(OpenCorpus, "will_need", ask)
    monkeypatch.setattr(_window_reader, "_ASKED_BYTES", 8 * 10 * 2)
    return calls


def test_windows_that_are_read_in_order_are_asked_for_ahead_and_once(
    tmp_path: Path, asked_windows: list[list[int]]
) -> None:
    starts = np.arange(0, 890, 10)
    reader = corpus_of(tmp_path, documents_of(900)).window_reader(starts, 10)

    for first in range(0, starts.size, 2):
        reader.read(first, first + 2)
        asked = [start for starts_asked in asked_windows for start in starts_asked]
        assert asked == starts[: len(asked)].tolist()
        assert min(first + 4, starts.size) <= len(asked) <= first + 8

    assert len(asked_windows) == -(-starts.size // 4)


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
