from __future__ import annotations

import contextlib
import mmap
import os
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from roxxel_format import Roxxel

from .helpers import corpus_of, documents_of

if TYPE_CHECKING:
    from pathlib import Path

HEAD = 4096


@pytest.fixture
def advice(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int, int]]:
    """Return the advice that maps get: what, first byte, number of bytes."""
    given: list[tuple[int, int, int]] = []

    class Recorded(mmap.mmap):
        def madvise(self, option: int, start: int = 0, length: int = 0) -> None:  # pyright: ignore[reportIncompatibleMethodOverride] - positions only
            given.append((option, start, length))
            super().madvise(option, start, length)

    monkeypatch.setattr("mmap.mmap", Recorded)
    return given


@pytest.fixture
def cold(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no page be in the system's cache, as after a start of the machine."""

    def preadv(*arguments: Any) -> int:
        raise BlockingIOError(arguments)

    monkeypatch.setattr("os.preadv", preadv)


def needed(advice: list[tuple[int, int, int]]) -> list[range]:
    """Return the bytes of the file that were prefetched, call by call."""
    return [
        range(start, start + size)
        for option, start, size in advice
        if option == mmap.MADV_WILLNEED
    ]


@pytest.mark.usefixtures("cold")
def test_windows_are_prefetched_near_ones_together(
    tmp_path: Path, advice: list[tuple[int, int, int]]
) -> None:
    corpus = Roxxel(tmp_path / "a.rox")
    corpus.write(documents_of(1_000_000))

    corpus.will_need([700_000, 10_000, 10_400], 500)

    near, far = needed(advice)
    for window in (10_000, 10_400):
        assert {HEAD + 2 * window, HEAD + 2 * (window + 500) - 1} <= set(near)
    assert {HEAD + 2 * 700_000, HEAD + 2 * 700_500 - 1} <= set(far)
    assert len(near) + len(far) <= 4 * mmap.PAGESIZE


@pytest.mark.usefixtures("cold")
def test_a_long_window_is_prefetched_in_calls_that_linux_reads_whole(
    tmp_path: Path, advice: list[tuple[int, int, int]]
) -> None:
    corpus = Roxxel(tmp_path / "a.rox")
    corpus.write(documents_of(1_000_000))

    corpus.will_need([5], 900_000)

    calls = needed(advice)
    assert max(map(len, calls)) <= 128 << 10
    assert calls[0].start <= HEAD + 10
    assert calls[-1].stop == HEAD + 2 * 900_005
    assert all(after.start <= before.stop for before, after in pairwise(calls))


@pytest.mark.usefixtures("cold")
def test_windows_across_shards_are_prefetched_from_each(
    tmp_path: Path, advice: list[tuple[int, int, int]]
) -> None:
    corpus = corpus_of(tmp_path, documents_of(900, 900, 900), max_shard_bytes=9000)
    assert corpus.num_shards == 3

    corpus.will_need([890], 1000)

    assert len(needed(advice)) == 3


def test_maps_are_not_read_ahead(
    tmp_path: Path, advice: list[tuple[int, int, int]]
) -> None:
    corpus = Roxxel(tmp_path / "a.rox")
    corpus.write(documents_of(10_000))

    corpus.read([0], 10)

    assert advice == [(mmap.MADV_RANDOM, HEAD - HEAD % mmap.PAGESIZE, 20480)]


@pytest.mark.usefixtures("cold")
@pytest.mark.parametrize("is_read_first", [False, True])
def test_a_hint_ends_the_advice_that_maps_are_read_at_random(
    is_read_first: bool, tmp_path: Path, advice: list[tuple[int, int, int]]
) -> None:
    corpus = Roxxel(tmp_path / "a.rox")
    corpus.write(documents_of(10_000))
    if is_read_first:
        corpus.read([0], 10)
    advice.clear()

    for start in (0, 5000):
        corpus.will_need([start], 10)
        corpus.read([start], 10)

    kinds = [kind for kind, *_ in advice if kind != mmap.MADV_WILLNEED]
    assert kinds == [mmap.MADV_NORMAL] * is_read_first


@pytest.mark.usefixtures("cold")
def test_a_large_read_of_cold_pages_is_no_hint(
    tmp_path: Path, advice: list[tuple[int, int, int]]
) -> None:
    corpus = Roxxel(tmp_path / "a.rox")
    corpus.write(documents_of(10_000))

    corpus.read([0], 9000)

    assert needed(advice)
    assert mmap.MADV_NORMAL not in [kind for kind, *_ in advice]


@pytest.mark.usefixtures("cold")
def test_a_hint_for_nothing_does_nothing(
    tmp_path: Path, advice: list[tuple[int, int, int]]
) -> None:
    corpus: Any = corpus_of(tmp_path, documents_of(900))

    corpus.will_need([], 10)
    corpus.will_need(np.array([3]), 0)

    assert needed(advice) == []


@pytest.mark.skipif(not hasattr(os, "RWF_NOWAIT"), reason="only Linux can say so")
def test_windows_in_memory_are_not_advised(
    tmp_path: Path, advice: list[tuple[int, int, int]]
) -> None:
    corpus = corpus_of(tmp_path, documents_of(*[900] * 50))
    looked: list[int] = []
    before = os.preadv

    def preadv(fd: int, buffers: Any, offset: int, flags: int) -> int:
        looked.append(offset)
        with contextlib.suppress(OSError):
            before(fd, buffers, offset, flags)
        return 1  # A file system in memory cannot say so.

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.preadv", preadv)
        corpus.will_need(range(0, 40_000, 10), 100)

    assert needed(advice) == []
    assert len(looked) <= 32


@pytest.mark.usefixtures("cold")
def test_a_large_read_asks_for_all_its_windows_at_once(
    tmp_path: Path, advice: list[tuple[int, int, int]]
) -> None:
    corpus = Roxxel(tmp_path / "a.rox")
    corpus.write(documents_of(1_000_000))
    starts = range(0, 1_000_000, 60_000)

    corpus.read(starts[:2], 1000)
    assert needed(advice) == []
    corpus.read(starts, 1000)

    assert len(needed(advice)) == len(starts)
    for call, start in zip(needed(advice), starts, strict=True):
        assert {HEAD + 2 * start, HEAD + 2 * (start + 1000) - 1} <= set(call)
