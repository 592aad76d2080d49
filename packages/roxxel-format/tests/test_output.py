from __future__ import annotations

# pyright: reportPrivateUsage=false
import gc
import resource
import signal
import threading
import tracemalloc
from concurrent.futures import Future
from io import FileIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from roxxel_format import Shard, ShardWriter
from roxxel_format._write.output import _CHUNK, Output


def our_threads() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name.startswith("roxxel-format")]


class Noted(FileIO):
    """Remembers where each of its writes ended."""

    ends: list[int]

    def write(self, data: Any) -> int:
        written = super().write(data)
        self.ends.append(self.tell())
        return written


@settings(max_examples=20)
@given(
    sizes=st.lists(
        st.sampled_from([0, 1, 5000, 1 << 18, _CHUNK - 1, _CHUNK, _CHUNK + 7, 1 << 24]),
        max_size=8,
    )
)
def test_pieces_lie_in_the_file_in_their_order(sizes: list[int]) -> None:
    pieces = [bytes([number + 1]) * size for number, size in enumerate(sizes)]
    with TemporaryDirectory() as folder:
        output = Output(Path(folder) / "file", Path("name"))
        output._file.close()
        output._file = file = Noted(Path(folder) / "file", "wb")
        file.ends = []
        for piece in pieces:
            output.write(memoryview(piece))
        output.finish()

        assert (Path(folder) / "file").read_bytes() == b"".join(pieces)
    # Whole chunks at a time, so that the system keeps them in large pages.
    assert [end % _CHUNK for end in file.ends[:-1]] == [0] * (len(file.ends) - 1)
    assert our_threads() == []


@pytest.mark.parametrize("failing", [0, 1, 2])
@pytest.mark.parametrize("size", [1 << 19, 3 << 20])
def test_a_thread_that_does_not_start_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: int, size: int
) -> None:
    pieces = [bytes([number]) * size for number in range(20)]
    start, num_starts = threading.Thread.start, 0

    def started(thread: threading.Thread) -> None:
        nonlocal num_starts
        num_starts += 1
        if num_starts == failing + 1:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", started)
    output = Output(tmp_path / "file", Path("name"))
    for piece in pieces:
        output.write(piece)
    output.finish()

    assert num_starts >= 2
    assert (tmp_path / "file").read_bytes() == b"".join(pieces)


@pytest.mark.parametrize("size", [1000, 1 << 19, (1 << 23) + 1])
def test_a_piece_that_finds_no_room_is_an_error_at_the_latest_at_the_end(
    tmp_path: Path, size: int
) -> None:
    output = Output(tmp_path / "file", Path("name"))
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (900, hard))
    try:
        with pytest.raises(OSError, match="make room and write again: 'name'"):
            fill(output, size)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    output.abort()

    assert our_threads() == []


def test_a_file_that_could_not_be_written_takes_nothing_more(tmp_path: Path) -> None:
    output = Output(tmp_path / "file", Path("name"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Output, "_write", full)
        for _ in range(4):
            try:
                output.write(bytes(1 << 20))
            except OSError:
                break
        with pytest.raises(OSError, match=r"full|a write before this one has failed"):
            output.finish()

    with pytest.raises(OSError, match="name: a write before this one has failed"):
        output.write(b"more")
    with pytest.raises(OSError, match="a write before this one has failed"):
        output.finish()
    output.abort()


def full(*_: object) -> None:
    raise OSError(28, "full")


def test_a_sync_that_fails_names_the_shard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.fsync", full)
    for num_pieces in (1, 20):  # at the end; in the background
        writer = ShardWriter(tmp_path / "a.rox", "uint16")
        with pytest.raises(OSError, match=r"the shard was given up.*a\.rox"):
            append_and_close(writer, num_pieces)

        assert list(tmp_path.iterdir()) == []
        assert our_threads() == []


def append_and_close(writer: ShardWriter, num_pieces: int) -> None:
    with writer:
        for _ in range(num_pieces):
            writer.append(np.zeros(1 << 20, np.uint16))


class DoneAtTheSecondLook(Future[None]):
    """Becomes done between two looks."""

    looks = 0

    def done(self) -> bool:
        self.looks += 1
        return self.looks > 1


def test_a_stage_is_taken_again_only_when_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    handed: list[tuple[memoryview, bytes, DoneAtTheSecondLook]] = []

    def keep(_: Output, data: memoryview) -> Future[None]:
        handed.append((data, bytes(data), DoneAtTheSecondLook()))
        return handed[-1][-1]

    monkeypatch.setattr(Output, "write", keep)
    writer = ShardWriter(tmp_path / "a.rox", "uint16")
    for number in range(60):
        writer.append(np.full(1 << 19, number, np.uint16))
        for data, before, written in handed:
            assert written.looks > 1 or bytes(data) == before
    writer.abort()
    assert sum(written.looks > 1 for *_, written in handed) > 5


def test_a_finished_writer_keeps_no_stage(tmp_path: Path) -> None:
    tracemalloc.start()
    try:
        writers: list[ShardWriter] = []
        for number in range(4):
            writers.append(ShardWriter(tmp_path / f"{number}.rox", "uint16"))
            for _ in range(8):
                writers[-1].append(np.zeros(1 << 20, np.uint16))
            writers[-1].append(np.zeros(1 << 19, np.uint16))  # less than a chunk
            writers[-1].close()
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 1 << 20


def test_metadata_that_is_no_json_leaves_a_shard_that_can_be_mended(
    tmp_path: Path,
) -> None:
    writer = ShardWriter(tmp_path / "a.rox", "uint16")
    writer.append(np.arange(5, dtype=np.uint16))
    writer.metadata["when"] = object()
    with pytest.raises(TypeError, match="cannot be stored as JSON"):
        writer.finish()

    writer.metadata["when"] = "now"
    writer.close()

    assert Shard(tmp_path / "a.rox").tokens[:].tolist() == [0, 1, 2, 3, 4]


def fill(output: Output, size: int) -> None:
    for _ in range(4):
        output.write(bytes(size))
    output.finish()


def test_an_aborted_file_is_left_as_it_is_and_without_threads(tmp_path: Path) -> None:
    output = Output(tmp_path / "file", Path("name"))
    for _ in range(6):
        output.write(bytes(1 << 20))

    output.abort()

    assert our_threads() == []
    assert (tmp_path / "file").stat().st_size % (1 << 20) == 0


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_writer_that_is_dropped_lets_its_threads_go(tmp_path: Path) -> None:
    writer = ShardWriter(tmp_path / "a.rox", "uint16")
    for _ in range(20):
        writer.append(np.zeros(1 << 20, np.uint16))
    threads = our_threads()
    assert threads

    del writer
    gc.collect()
    for thread in threads:
        thread.join(timeout=10)

    assert our_threads() == []


@given(lengths=st.lists(st.integers(0, 300_000), min_size=1, max_size=30))
@settings(max_examples=15)
def test_stages_that_wait_to_be_written_are_not_filled_again(
    lengths: list[int],
) -> None:
    documents = [np.arange(n, dtype=np.uint32) + n for n in lengths] * 4
    with TemporaryDirectory() as folder:
        path = Path(folder) / "a.rox"
        with ShardWriter(path, "uint32") as writer:
            for document in documents:
                writer.append(document)

        tokens = Shard(path).tokens[:]
        assert np.array_equal(tokens, np.concatenate(documents))
