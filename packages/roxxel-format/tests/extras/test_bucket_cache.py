"""A cache of shards on a local disk: the same tokens, and never in the way."""

from __future__ import annotations

import contextlib
import fcntl
import gc
import logging
import os
import pickle
import re
import resource
import shutil
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from limits import soon_given_up
from roxxel_format import Roxxel, ShardError

from .buckets import Bucket, running_bucket, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

URL = "s3://data/wiki_*.rox"

READ = """
import sys
from roxxel_format import Roxxel
corpus = Roxxel("s3://data/wiki_*.rox", cache=sys.argv[1])
corpus.read([0], 10)
print("reading", flush=True)
while corpus.cache_status().state == "copying":
    pass
print(corpus.cache_status().state, flush=True)
"""


def state_of(corpus: Roxxel) -> str:
    status = corpus.cache_status()
    assert status is not None
    return status.state


def filled(cache: Path) -> Roxxel:
    """Return a corpus that is wholly in the cache."""
    corpus = Roxxel(URL, cache=cache)
    corpus.read([0], 10)
    wait_for(lambda: state_of(corpus) == "complete")
    return corpus


def copies_in(cache: Path) -> list[Path]:
    return sorted(each for each in cache.glob("*.rox") if not each.name.startswith("."))


def size_of(cache: Path) -> int:
    """Return the size of all files; a draft that is renamed meanwhile counts once."""
    sizes: dict[str, int] = {}
    for each in cache.iterdir():
        name = each.name.lstrip(".").split("~")[0]
        with contextlib.suppress(FileNotFoundError):
            sizes[name] = max(sizes.get(name, 0), each.stat().st_size)
    return sum(sizes.values())


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bucket]:
    with running_bucket(tmp_path_factory.mktemp("bucket")) as bucket:
        chosen = np.random.default_rng(0)
        for name in ("wiki", "code"):
            Roxxel(bucket.folder / f"{name}_*.rox").write(
                [chosen.integers(1, 50_000, 400, np.uint16) for _ in range(500)],
                separator=0,
                max_shard_bytes=60_000,
            )
        yield bucket


@pytest.fixture(autouse=True)
def no_faults(bucket: Bucket) -> None:
    bucket.set_faults()


@pytest.fixture
def local(bucket: Bucket) -> Roxxel:
    return Roxxel(bucket.folder / "wiki_*.rox")


@pytest.mark.parametrize("check", ["headers", "blocks"])
@settings(
    max_examples=20,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_windows_are_the_same_while_the_cache_fills(
    bucket: Bucket,
    tmp_path_factory: pytest.TempPathFactory,
    check: str,
    data: st.DataObject,
) -> None:
    local = Roxxel(bucket.folder / "wiki_*.rox")
    remote = Roxxel(URL, check=check, cache=tmp_path_factory.mktemp("cache"))  # pyright: ignore[reportArgumentType] - both are valid
    for _ in range(6):
        length = data.draw(st.integers(1, 3000))
        starts = data.draw(
            st.lists(st.integers(0, local.num_tokens - length), max_size=5)
        )
        if data.draw(st.booleans()):
            remote.will_need(starts, length)
        windows = remote.read(starts, length)
        assert np.array_equal(windows, local.read(starts, length))
    assert np.array_equal(remote.tokens[:], local.tokens[:])
    assert np.array_equal(remote.documents[321], local.documents[321])
    remote.close()


def test_a_full_cache_is_read_without_the_bucket(
    bucket: Bucket, local: Roxxel, tmp_path: Path
) -> None:
    filled(tmp_path).close()
    again = Roxxel(URL, cache=tmp_path)
    assert state_of(again) == "complete"
    bucket.set_faults()

    assert np.array_equal(again.tokens[:], local.tokens[:])
    assert np.array_equal(again.read([7, 99_000], 900), local.read([7, 99_000], 900))
    again.will_need([7], 900)

    assert bucket.stats()["requests"] == 0
    assert len(copies_in(tmp_path)) == local.num_shards


def test_nothing_is_copied_before_the_first_read(tmp_path: Path) -> None:
    corpus = Roxxel(URL, cache=tmp_path)

    assert corpus.num_tokens == 200_500
    assert corpus.cache_status() is not None
    assert state_of(corpus) == "idle"
    assert not copies_in(tmp_path)


def test_the_status_counts_shards_and_bytes(local: Roxxel, tmp_path: Path) -> None:
    status = filled(tmp_path).cache_status()

    assert status is not None
    num_bytes = sum(os.stat(path).st_size for path in local.paths)  # noqa: PTH116
    assert (status.num_shards, status.total_shards) == (local.num_shards,) * 2
    assert (status.num_bytes, status.total_bytes) == (num_bytes, num_bytes)
    assert local.cache_status() is None


def test_two_processes_copy_every_shard_once(
    bucket: Bucket, local: Roxxel, tmp_path: Path
) -> None:
    bucket.set_faults(latency_s=0.005)
    command = [sys.executable, "-c", READ, str(tmp_path)]
    readers = [
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]
    assert [reader.communicate()[0].split()[-1] for reader in readers] == [
        "complete",
        "complete",
    ]

    num_bytes = sum(os.stat(path).st_size for path in local.paths)  # noqa: PTH116
    # Each process also opens a few shards and the manifest.
    assert num_bytes <= bucket.stats()["bytes"] < 1.5 * num_bytes


def test_another_process_goes_on_after_a_kill(
    bucket: Bucket, local: Roxxel, tmp_path: Path
) -> None:
    bucket.set_faults(latency_s=0.03)
    with subprocess.Popen(
        [sys.executable, "-c", READ, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as reader:
        wait_for(lambda: len(copies_in(tmp_path)) >= 2)
        reader.send_signal(signal.SIGKILL)
    bucket.set_faults()

    corpus = filled(tmp_path)

    assert np.array_equal(corpus.tokens[:], local.tokens[:])
    assert corpus.verify().ok
    assert not list(tmp_path.glob(".*.partial"))


def test_nobody_waits_for_the_process_that_copies(
    tmp_path: Path, local: Roxxel
) -> None:
    filled(tmp_path).close()
    for copy in copies_in(tmp_path)[1:]:
        copy.unlink()
    with (tmp_path / "download.lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)

        corpus = Roxxel(URL, cache=tmp_path)

        assert np.array_equal(corpus.tokens[:], local.tokens[:])
        assert state_of(corpus) == "copying"
    wait_for(lambda: state_of(corpus) == "complete")


def test_a_lack_of_descriptors_removes_no_copy(
    tmp_path: Path, local: Roxxel, caplog: pytest.LogCaptureFixture
) -> None:
    filled(tmp_path).close()
    corpus = Roxxel(URL, cache=tmp_path)
    assert state_of(corpus) == "complete"
    gc.collect()  # A corpus of another test would give its descriptors away.
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    taken: list[int] = []
    try:
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        with pytest.raises(OSError, match="Too many open files"):
            corpus.read([0, 100_000], 10)
    finally:
        for fd in taken:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    assert np.array_equal(corpus.tokens[:], local.tokens[:])
    assert len(copies_in(tmp_path)) == local.num_shards
    assert not caplog.text


def test_a_program_may_end_while_it_copies(bucket: Bucket, tmp_path: Path) -> None:
    bucket.set_faults(latency_s=0.01)
    program = f"""
import sys
from roxxel_format import Roxxel
corpus = Roxxel({URL!r}, cache=sys.argv[1])
corpus.read([0], 10)
while not corpus.cache_status().num_shards:
    pass
"""
    for number in range(3):
        done = subprocess.run(
            [sys.executable, "-c", program, str(tmp_path / str(number))],
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stderr == ""


def test_the_cache_never_exceeds_its_limit(local: Roxxel, tmp_path: Path) -> None:
    limit = 200_000
    corpora = [
        Roxxel(f"s3://data/{name}_*.rox", cache=tmp_path, cache_bytes=limit)
        for name in ("wiki", "code")
    ]
    sizes: list[int] = []
    for corpus in corpora:
        corpus.read([0], 10)

    def is_full() -> bool:
        sizes.append(size_of(tmp_path))
        return [state_of(corpus) for corpus in corpora] == ["full", "full"]

    wait_for(is_full)
    assert limit - 61_000 < max(sizes) <= limit
    assert np.array_equal(corpora[0].tokens[:], local.tokens[:])


def test_other_files_of_the_folder_stay(tmp_path: Path) -> None:
    mine = Roxxel(tmp_path / "mine_*.rox")
    mine.write([[5, 6, 7]] * 9000, separator=0, max_shard_bytes=20_000)
    (tmp_path / ".mine_00099.rox~0123abcd.partial").write_bytes(b"in progress")
    before = {each.name for each in tmp_path.iterdir()}
    limit = size_of(tmp_path) + 100_000

    other = Roxxel("s3://data/code_*.rox", cache=tmp_path, cache_bytes=limit)
    other.read([0], 10)
    wait_for(lambda: state_of(other) == "full")

    assert before <= {each.name for each in tmp_path.iterdir()}
    assert mine.verify().ok


def test_wrong_bytes_never_become_a_copy(
    bucket: Bucket, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bucket.set_faults(kinds=["wrong"], keys=r"wiki_\w+_00[1-9]")
    corpus = Roxxel(URL, cache=tmp_path)
    corpus.read([0], 10)
    wait_for(lambda: state_of(corpus) == "stopped")

    assert len(copies_in(tmp_path)) == 1
    assert re.search(r"s3://data/wiki_\w+_001\.rox: arrived damaged", caplog.text)


def test_a_server_that_fails_for_a_while_only_delays_the_cache(
    bucket: Bucket, tmp_path: Path, local: Roxxel
) -> None:
    corpus = Roxxel(URL, cache=tmp_path)
    corpus.read([0], 10)
    bucket.set_faults(kinds=["503", "cut", "reset"], rate=0.3)
    with soon_given_up():
        wait_for(lambda: len(copies_in(tmp_path)) >= 2)
        bucket.set_faults()
        wait_for(lambda: state_of(corpus) == "complete")

    assert np.array_equal(corpus.tokens[:], local.tokens[:])


def test_a_replaced_corpus_is_not_read_from_old_copies(
    bucket: Bucket, tmp_path: Path
) -> None:
    folder = bucket.folder / "changes_*.rox"
    Roxxel(folder).write([[5, 6, 7]] * 50, vocab_size=10)
    with Roxxel("s3://data/changes_*.rox", cache=tmp_path) as old:
        old.read([0], 3)
        wait_for(lambda: state_of(old) == "complete")
    Roxxel(folder).write([[1, 2, 3]] * 50, vocab_size=10, exist="replace")

    new = Roxxel("s3://data/changes_*.rox", cache=tmp_path)

    assert new.tokens[:3].tolist() == [1, 2, 3]
    with pytest.raises(ShardError, match="has no version"):
        old.read([0], 3)


def test_a_corpus_replaced_before_it_is_copied_is_an_error_of_the_reader(
    bucket: Bucket, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = bucket.folder / "moves_*.rox"
    Roxxel(folder).write([[5, 6, 7] * 900] * 40, vocab_size=10, max_shard_bytes=20_000)
    corpus = Roxxel("s3://data/moves_*.rox", cache=tmp_path)
    assert corpus.num_shards > 1
    Roxxel(folder).write([[1, 2, 3] * 900] * 40, vocab_size=10, exist="replace")

    with pytest.raises((ShardError, OSError)):
        corpus.read([0, 100_000], 3)
    wait_for(lambda: state_of(corpus) == "stopped")
    assert "stops growing" in caplog.text


def test_a_full_disk_only_stops_the_cache(tmp_path: Path, local: Roxxel) -> None:
    program = f"""
import resource, signal, sys, logging
logging.basicConfig()
from roxxel_format import Roxxel
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
corpus = Roxxel({URL!r}, cache=sys.argv[1])
corpus.read([0], 10)
while corpus.cache_status().state == "copying":
    pass
print(corpus.cache_status().state, int(corpus.tokens[:].sum(dtype="u8")))
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
    )

    total = int(local.tokens[:].sum(dtype="u8"))
    assert done.stdout.split() == ["stopped", str(total)]
    assert "stops growing" in done.stderr
    assert "make room" in done.stderr
    assert not copies_in(tmp_path)


def test_a_folder_that_cannot_be_a_cache_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    corpus = Roxxel(URL, cache=tmp_path / "file" / "cache")

    with pytest.raises(OSError, match="file/cache"):
        corpus.read([0], 10)


@pytest.mark.parametrize(
    ("filepath", "options", "message"),
    [
        ("wiki_*.rox", {"cache": "c"}, "is on a disk, where a cache has no use"),
        (URL, {"cache_bytes": 5}, "cache_bytes is given without cache"),
        (URL, {"cache": "c", "cache_bytes": 0}, "cache_bytes must be at least 1"),
        (URL, {"cache": "c", "cache_bytes": "2G"}, "cache_bytes must be an integer"),
        (URL, {"cache": "c", "cache_bytes": 1e9}, "cache_bytes must be an integer"),
        (URL, {"cache": ""}, "cache is ''; pass the path of a folder on a local disk"),
        (URL, {"cache": "s3://data/c"}, "pass the path of a folder on a local disk"),
    ],
)
def test_invalid_arguments_are_one_sentence(
    filepath: str, options: dict[str, object], message: str
) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        Roxxel(filepath, **options)  # pyright: ignore[reportArgumentType] - invalid


def test_a_pickled_reader_uses_the_same_cache(tmp_path: Path, local: Roxxel) -> None:
    corpus = filled(tmp_path)

    again = pickle.loads(pickle.dumps(corpus))  # noqa: S301 - our own

    assert state_of(again) == "complete"
    assert np.array_equal(again.tokens[:], local.tokens[:])


def test_the_copying_ends_with_the_reader(bucket: Bucket, tmp_path: Path) -> None:
    bucket.set_faults(latency_s=0.05)
    closed = Roxxel(URL, cache=tmp_path / "closed")
    closed.read([0], 10)
    closed.close()
    dropped = Roxxel(URL, cache=tmp_path / "dropped")
    dropped.read([0], 10)
    del dropped

    wait_for(lambda: all(each.name != "roxxel-cache" for each in threading.enumerate()))
    assert not list(tmp_path.glob("*/.*.partial"))


def test_the_end_of_the_copying_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "roxxel_format"):
        filled(tmp_path)
        said = f"the cache {tmp_path} holds the 9 shards of s3://data/"
        wait_for(lambda: said in caplog.text)


@pytest.mark.parametrize("harm", ["a bit of a block", "a bit of the head", "the end"])
def test_a_damaged_copy_is_an_error_that_names_the_file_to_delete(
    local: Roxxel, tmp_path: Path, harm: str
) -> None:
    filled(tmp_path).close()
    for copy in copies_in(tmp_path):
        data = bytearray(copy.read_bytes())
        if harm == "the end":
            os.truncate(copy, len(data) - 5)
            continue
        data[10 if harm == "a bit of the head" else 4096 + 100] ^= 1
        copy.write_bytes(data)
    again = Roxxel(URL, cache=tmp_path, check="blocks")

    starts = list(range(0, 200_000, 5000))
    with pytest.raises(ShardError, match=f"{tmp_path}/.*delete") as raised:
        again.read(starts, 500)

    assert "s3://data/wiki_" in str(raised.value)
    for copy in copies_in(tmp_path):
        copy.unlink()
    healed = Roxxel(URL, cache=tmp_path)
    assert np.array_equal(healed.read(starts, 500), local.read(starts, 500))


@pytest.mark.parametrize("is_folder", [False, True])
def test_copies_may_be_removed_while_they_are_in_use(
    local: Roxxel, tmp_path: Path, *, is_folder: bool
) -> None:
    cache = tmp_path / "cache"
    filled(cache).close()
    corpus = Roxxel(URL, cache=cache)
    assert state_of(corpus) == "complete"
    if is_folder:
        shutil.rmtree(cache)
    else:
        for copy in copies_in(cache):
            copy.unlink()

    assert np.array_equal(corpus.tokens[:], local.tokens[:])
    assert np.array_equal(corpus.read([7, 99_000], 900), local.read([7, 99_000], 900))


def test_a_copy_that_arrives_is_read_instead_of_the_object(
    bucket: Bucket, local: Roxxel, tmp_path: Path
) -> None:
    corpus = Roxxel(URL, cache=tmp_path)
    starts = list(range(0, 200_000, 5000))
    assert np.array_equal(corpus.read(starts, 500), local.read(starts, 500))
    wait_for(lambda: state_of(corpus) == "complete")
    bucket.set_faults()

    assert np.array_equal(corpus.read(starts, 500), local.read(starts, 500))

    assert bucket.stats()["requests"] == 0
