from __future__ import annotations

import gc
import resource
import signal
import threading
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from roxxel_format import Shard, ShardWriter
from roxxel_format._output import Output


def our_threads() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name.startswith("roxxel-format")]


@settings(max_examples=20)
@given(
    sizes=st.lists(
        st.sampled_from([0, 1, 5000, 1 << 18, (1 << 20) + 7, (1 << 23) + 1]),
        max_size=8,
    )
)
def test_pieces_lie_in_the_file_in_their_order(sizes: list[int]) -> None:
    pieces = [bytes([number + 1]) * size for number, size in enumerate(sizes)]
    with TemporaryDirectory() as folder:
        output = Output(Path(folder) / "file", Path("name"))
        for piece in pieces:
            output.write(memoryview(piece))
        output.finish()

        assert (Path(folder) / "file").read_bytes() == b"".join(pieces)
    assert our_threads() == []


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
