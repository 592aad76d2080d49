"""One shard: what a disk that fails, an interrupt and wrong arguments leave of it."""

from __future__ import annotations

import errno
import resource
import signal
import tracemalloc
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from roxxel_format import ShardWriter

from .helpers import shard_at


def append_and_close(writer: ShardWriter, num_documents: int) -> None:
    with writer:
        for _ in range(num_documents):
            writer.append(np.zeros(1 << 20, np.uint16))


@pytest.mark.parametrize("num_documents", [1, 20])
@pytest.mark.parametrize("limit", [5000, 10_000_000])
def test_disk_without_room_is_an_error_that_names_the_shard(
    tmp_path: Path, num_documents: int, limit: int
) -> None:
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    writer = ShardWriter(tmp_path / "a.rox", "uint16")
    resource.setrlimit(resource.RLIMIT_FSIZE, (min(limit, num_documents << 20), hard))
    try:
        with pytest.raises(OSError, match=r"make room and write again: .*a\.rox"):
            append_and_close(writer, num_documents)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)

    assert list(tmp_path.iterdir()) == []


def test_sync_that_fails_names_the_shard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match=r"the new file was discarded.*a\.rox"):
        append_and_close(ShardWriter(tmp_path / "a.rox", "uint16"), 1)

    assert list(tmp_path.iterdir()) == []


def test_writer_that_has_failed_takes_nothing_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(_: int) -> None:
        raise KeyboardInterrupt

    writer = ShardWriter(tmp_path / "a.rox", "uint16")
    writer.append(np.zeros(100, np.uint16))
    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", interrupt)
        with pytest.raises(KeyboardInterrupt):
            writer.finish()

    with pytest.raises(OSError, match="an earlier write failed"):
        writer.close()
    assert list(tmp_path.iterdir()) == []


def test_finished_writer_keeps_no_stage(tmp_path: Path) -> None:
    tracemalloc.start()
    try:
        writers: list[ShardWriter] = []
        for number in range(4):
            writers.append(ShardWriter(tmp_path / f"{number}.rox", "uint16"))
            for _ in range(8):
                writers[-1].append(np.zeros(1 << 20, np.uint16))
            writers[-1].append(np.zeros(1 << 19, np.uint16))
            writers[-1].close()
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 1 << 20


def test_metadata_that_is_not_json_leaves_a_shard_that_can_be_finished(
    tmp_path: Path,
) -> None:
    writer = ShardWriter(tmp_path / "a.rox", "uint16")
    writer.append(np.arange(5, dtype=np.uint16))
    writer.metadata["when"] = object()
    with pytest.raises(TypeError, match="cannot be stored as JSON"):
        writer.finish()

    writer.metadata["when"] = "now"
    writer.close()

    assert shard_at(tmp_path / "a.rox").tokens[:].tolist() == [0, 1, 2, 3, 4]


@given(
    documents=st.lists(
        st.tuples(
            st.integers(0, 300_000), st.sampled_from(["uint8", "uint16", "int64"])
        ),
        min_size=1,
        max_size=30,
    )
)
@settings(max_examples=15)
def test_documents_of_every_length_and_dtype_round_trip(
    documents: list[tuple[int, str]],
) -> None:
    arrays = [(np.arange(n) % 256).astype(dtype) for n, dtype in documents] * 4
    with TemporaryDirectory() as folder:
        path = Path(folder) / "a.rox"
        with ShardWriter(path, "uint32") as writer:
            for array in arrays:
                writer.append(array)

        shard = shard_at(path)
        assert np.array_equal(shard.tokens[:], np.concatenate(arrays))
        lengths = np.diff(shard.document_ends, prepend=0)
        assert lengths.tolist() == [array.size for array in arrays]
