"""Corpora in a bucket: the same tokens as on a disk, or one clear error."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from limits import soon_given_up
from roxxel_format import BucketError, ChecksumError, Roxxel, ShardError
from roxxel_format._read.remote import _Fetcher  # pyright: ignore[reportPrivateUsage] - no other way to see memory
from roxxel_format.cli import main

from .buckets import Bucket, running_bucket, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

LONGEST = 700


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bucket]:
    with running_bucket(tmp_path_factory.mktemp("bucket")) as bucket:
        chosen = np.random.default_rng(0)
        sizes: list[int] = chosen.integers(1, LONGEST, 2000).tolist()
        documents = [
            chosen.integers(1, 50_000, size, dtype=np.uint16) for size in sizes
        ]
        local = Roxxel(bucket.folder / "wiki_*.rox")
        local.write(documents, separator=0, max_shard_bytes=60_000)
        local = Roxxel(bucket.folder / "wiki_*.rox")
        mask = np.arange(local.num_tokens, dtype=np.uint8) % 2
        local.write_column("loss_mask", mask)
        local.write_column("id", np.arange(2000), per="document")
        yield bucket


@pytest.fixture(autouse=True)
def no_faults(bucket: Bucket) -> None:
    bucket.set_faults()


@pytest.fixture
def local(bucket: Bucket) -> Roxxel:
    return Roxxel(bucket.folder / "wiki_*.rox")


@pytest.mark.parametrize("check", ["headers", "blocks"])
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_windows_equal_those_on_a_disk(
    bucket: Bucket, check: str, data: st.DataObject
) -> None:
    local = Roxxel(bucket.folder / "wiki_*.rox")
    remote = Roxxel("s3://data/wiki_*.rox", check=check)  # pyright: ignore[reportArgumentType] - both are valid
    length = data.draw(st.integers(0, 3000))
    starts = data.draw(st.lists(st.integers(0, local.num_tokens - length), max_size=9))
    if data.draw(st.booleans()):
        remote.will_need(starts, length)

    windows = remote.read(starts, length)

    assert windows.dtype == local.dtype
    assert np.array_equal(windows, local.read(starts, length))


def test_everything_else_equals_the_corpus_on_a_disk(local: Roxxel) -> None:
    remote = Roxxel("s3://data/wiki_*.rox")

    assert remote.fingerprint == local.fingerprint
    assert (len(remote), remote.num_documents) == (len(local), local.num_documents)
    assert remote.paths[0] == f"s3://data/{Path(local.paths[0]).name}"
    assert remote.metadata == local.metadata
    assert np.array_equal(remote.tokens[:], local.tokens[:])
    assert np.array_equal(remote.documents[1234], local.documents[1234])
    spans = remote.document_spans(0, remote.num_tokens)
    assert np.array_equal(spans, local.document_spans(0, local.num_tokens))
    assert remote.document_lengths() == local.document_lengths()
    assert remote.verify() == local.verify()


@pytest.mark.parametrize("check", ["headers", "blocks"])
def test_a_packed_corpus_has_the_documents_of_the_one_on_a_disk(
    bucket: Bucket, check: Literal["headers", "blocks"]
) -> None:
    sizes = np.random.default_rng(2).integers(1, 90, 300).tolist()
    local = Roxxel(bucket.folder / "packed_*.rox")
    local.write(([7] * size for size in sizes), separator=0, pack=64)
    remote = Roxxel("s3://data/packed_*.rox", check=check)
    assert (remote.unit, remote.num_padding) == (64, local.num_padding)
    for start, stop in ((0, 64), (130, 400), (0, local.num_tokens)):
        remote.will_need([start], stop - start, documents=True)
        spans = remote.document_spans(start, stop)
        assert spans.tolist() == local.document_spans(start, stop).tolist()
    numbers = range(0, local.num_documents, 29)
    ranges = [local.document_range(number) for number in numbers]
    assert [remote.document_range(number) for number in numbers] == ranges


def test_columns_are_read_by_ranges(bucket: Bucket, local: Roxxel) -> None:
    remote = Roxxel("s3://data/wiki_*.rox")
    mask, ids = remote.column("loss_mask"), remote.column("id")
    _ = ids.digest
    bucket.set_faults()

    windows = mask.read([5, 60_000], 100)

    assert np.array_equal(windows, local.column("loss_mask").read([5, 60_000], 100))
    assert bucket.stats()["bytes"] == 200
    assert ids[777] == 777
    assert np.array_equal(ids[:], local.column("id")[:])


def test_windows_of_a_column_are_requested_ahead(bucket: Bucket, local: Roxxel) -> None:
    """The read takes what arrived, also of a window across two shards."""
    remote = Roxxel("s3://data/wiki_*.rox")
    mask = remote.column("loss_mask")
    border = Roxxel(local.paths[0]).num_tokens
    starts = [5, border - 60, 60_000]
    bucket.set_faults()

    mask.will_need(starts, 100)
    wait_for(lambda: bucket.stats()["bytes"] == 300)
    windows = mask.read(starts, 100)

    assert np.array_equal(windows, local.column("loss_mask").read(starts, 100))
    assert bucket.stats()["bytes"] == 300
    local.column("loss_mask").will_need(starts, 100)
    with pytest.raises(IndexError, match="leaves the corpus"):
        mask.will_need([remote.num_tokens], 1)


def test_an_earlier_version_stays_readable(bucket: Bucket) -> None:
    Roxxel(bucket.folder / "grows_*.rox").write([[5, 6, 7]], vocab_size=10)
    first = Roxxel("s3://data/grows_*.rox")
    version = first.fingerprint
    Roxxel(bucket.folder / "grows_*.rox").write([[8]], vocab_size=10, exist="append")

    assert first.tokens[:].tolist() == [5, 6, 7]
    assert Roxxel("s3://data/grows_*.rox").tokens[:].tolist() == [5, 6, 7, 8]
    again = Roxxel("s3://data/grows_*.rox", version=version)
    assert again.tokens[:].tolist() == [5, 6, 7]
    with pytest.raises(ShardError, match="has no version 0000"):
        _ = Roxxel("s3://data/grows_*.rox", version="0000").num_tokens


def test_every_spelling_of_a_name(bucket: Bucket) -> None:
    Roxxel(bucket.folder / "one.rox").write([[1, 2]], vocab_size=10)
    (bucket.folder / "folder").mkdir()
    Roxxel(bucket.folder / "folder").write([[3]] * 4, vocab_size=10)

    assert Roxxel("s3://data/one.rox").tokens[:].tolist() == [1, 2]
    assert Roxxel("s3://data/folder").num_tokens == 4
    assert Roxxel("s3://data/folder/").filepath == "s3://data/folder"
    assert Roxxel("s3://data/folder/shard_*.rox").num_tokens == 4
    wiki = Roxxel("s3://data/wiki_*.rox")
    assert Roxxel("s3://data/wiki").fingerprint == wiki.fingerprint
    assert Roxxel("s3://data/wiki.rox").fingerprint == wiki.fingerprint
    web = Roxxel(f"{bucket.address}/data/wiki_*.rox")
    assert web.fingerprint == wiki.fingerprint
    both = Roxxel(["s3://data/one.rox", "s3://data/folder"])
    assert both.tokens[:].tolist() == [1, 2, 3, 3, 3, 3]


@pytest.mark.parametrize(
    ("url", "error", "message"),
    [
        ("s3://data/no_*.rox", FileNotFoundError, "there is no no_manifest.json"),
        ("s3://data/no.rox", FileNotFoundError, "there is no no_manifest.json"),
        ("s3://data/no", FileNotFoundError, "no manifest.json or no_manifest.json"),
        ("s3://data/*/a.rox", ShardError, "one star in its last part"),
        ("s3://data/a_*.txt", ShardError, "one star in its last part"),
        (["s3://data/wiki_*.rox", "a.rox"], ShardError, "URLs or paths on a disk"),
    ],
)
def test_a_wrong_name_is_one_clear_error(
    url: str, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message.replace("*", r"\*")):
        _ = Roxxel(url).num_tokens


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("s4://data/a.rox", "s4://: unknown kind of URL"),
        ("S3://data/a.rox", "S3://: unknown kind of URL"),
        ("s3://data", "s3://data: names no object"),
        ("s3://data/../a.rox", 'has an empty part, "." or ".."'),
        ("s3://user:secret@data/a.rox", r"s3://\.\.\.: the URL has a password"),
        ("s3://user:sec/secret@data/a.rox", r"s3://\.\.\.: the URL has a password"),
        ("s3://user:sec?secret@data/a.rox", r"s3://\.\.\.: the URL has a password"),
        ("https://host/a.rox?key=secret", r"https://\.\.\.: the URL has a password"),
        ("http://host:secret/a.rox", r"http://\.\.\.: the URL has a password"),
    ],
)
def test_a_url_that_cannot_be_is_refused_without_its_secrets(
    url: str, message: str
) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        Roxxel(url)

    assert "secret" not in str(caught.value)


def test_a_path_object_of_a_url_is_refused() -> None:
    from pathlib import PurePosixPath

    with pytest.raises(ValueError, match=r"give s3://data/wiki_.* as text"):
        Roxxel(PurePosixPath("s3://data/wiki_*.rox"))


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("503", "error (503 SlowDown)"),
        ("403", "access was refused"),
        ("cut", "the connection ended early"),
        ("reset", "the connection ended early"),
        ("hang", "no answer within the time limit"),
        ("longer", "has 116 bytes, not 100"),
        ("whole", "the server ignores byte ranges"),
        ("other", "the corpus was replaced"),
    ],
)
def test_a_server_that_fails_is_one_error(
    bucket: Bucket, local: Roxxel, kind: str, message: str
) -> None:
    remote = Roxxel("s3://data/wiki_*.rox")
    remote.read([0], 50)
    bucket.set_faults(kinds=[kind])

    with (
        soon_given_up(0.1 if kind == "hang" else 100.0),
        pytest.raises((BucketError, ShardError)) as caught,
    ):
        remote.read([200], 50)

    text = str(caught.value)
    assert message in text
    assert f"s3://data/{Path(local.paths[0]).name}" in text
    assert "secret" not in text
    bucket.set_faults()
    assert np.array_equal(remote.read([200], 50), local.read([200], 50))


@pytest.mark.parametrize("kind", ["503", "reset", "cut"])
def test_failures_that_pass_are_repeated_silently(
    bucket: Bucket, local: Roxxel, kind: str
) -> None:
    starts = np.arange(0, local.num_tokens - 500, 20_000)
    bucket.set_faults(kinds=[kind], rate=0.2, seed=1)

    windows = Roxxel("s3://data/wiki_*.rox", timeout_s=120).read(starts, 500)

    assert np.array_equal(windows, local.read(starts, 500))


def test_wrong_bytes_are_found_by_blocks(bucket: Bucket) -> None:
    remote = Roxxel("s3://data/wiki_*.rox", check="blocks")
    remote.read([0], 50)
    bucket.set_faults(kinds=["wrong"])

    with pytest.raises(ChecksumError, match=r"wiki_\w+_000\.rox"):
        remote.read([5000], 50)


def test_a_replaced_object_is_an_error(bucket: Bucket) -> None:
    path = bucket.folder / "replaced.rox"
    Roxxel(path).write([[1] * 5000], vocab_size=10)
    remote = Roxxel("s3://data/replaced.rox")
    assert remote.read([0], 3).tolist() == [[1, 1, 1]]
    Roxxel(path).write([[2] * 5000], vocab_size=10, exist="replace")

    with pytest.raises(ShardError, match="the corpus was replaced"):
        remote.read([0], 3)


def test_a_server_without_tags_is_refused(bucket: Bucket) -> None:
    bucket.set_faults(kinds=["untagged"])

    with pytest.raises(BucketError, match="neither an ETag nor a time"):
        Roxxel("s3://data/wiki_*.rox").read([0], 5)


def test_a_new_reader_gets_nothing_of_an_earlier_one(bucket: Bucket) -> None:
    path = bucket.folder / "swapped.rox"
    Roxxel(path).write([[1] * 5000], vocab_size=10)
    first = Roxxel("s3://data/swapped.rox")
    assert first.num_tokens == 5000
    bucket.set_faults()
    first.will_need([100], 50)
    wait_for(lambda: bucket.stats()["bytes"] >= 100)
    Roxxel(path).write([[2] * 5000], vocab_size=10, exist="replace")

    assert set(Roxxel("s3://data/swapped.rox").read([100], 50)[0].tolist()) == {2}


def test_closing_forgets_what_was_requested_ahead(bucket: Bucket) -> None:
    with mock.patch("roxxel_format._read.remote._fetcher", _Fetcher()):
        remote = Roxxel("s3://data/wiki_*.rox")
        remote.read([0], 50)
        bucket.set_faults()
        remote.will_need([100], 50)
        wait_for(lambda: bucket.stats()["bytes"] == 100)
        remote.close()
        remote.read([0], 1)
        before = bucket.stats()["bytes"]
        remote.read([100], 50)

        assert bucket.stats()["bytes"] == before + 100


def test_a_request_that_hangs_is_repeated(bucket: Bucket, local: Roxxel) -> None:
    remote = Roxxel("s3://data/wiki_*.rox", timeout_s=600)
    remote.read([0], 1)
    bucket.set_faults(kinds=["hang"], then={})

    with mock.patch("roxxel_store.client._REQUEST_S", 1.0):
        windows = remote.read([700], 50)

    assert bucket.stats()["requests"] > 1
    assert np.array_equal(windows, local.read([700], 50))


def test_many_small_hints_are_bounded(bucket: Bucket) -> None:
    fetcher: Any = _Fetcher()
    with (
        mock.patch("roxxel_format._read.remote._fetcher", fetcher),
        mock.patch("roxxel_format._read.remote._MOST_AHEAD", 100),
    ):
        remote = Roxxel("s3://data/wiki_*.rox")
        remote.read([5], 1)
        bucket.set_faults()
        remote.will_need(np.arange(3000), 1)
        wait_for(lambda: bucket.stats()["requests"] == 100)
        wait_for(lambda: not fetcher._runs_tasks)

        assert len(fetcher._ahead) == 100
        assert bucket.stats()["requests"] == 100


def test_a_missing_shard_is_an_error(bucket: Bucket) -> None:
    local = Roxxel(bucket.folder / "gone_*.rox")
    local.write([[1] * 100], vocab_size=10)
    remote = Roxxel("s3://data/gone_*.rox")
    assert remote.num_tokens == 100
    Path(local.paths[0]).unlink()

    with pytest.raises(ShardError, match=r"gone_\w+\.rox: the file is missing"):
        remote.read([0], 3)


def test_prefetched_windows_are_requested_once(bucket: Bucket) -> None:
    remote = Roxxel("s3://data/wiki_*.rox")
    starts = np.arange(0, remote.num_tokens - 257, 5000)
    remote.read(starts, 1)  # opens every shard
    bucket.set_faults()

    remote.will_need(starts, 257)
    wait_for(lambda: bucket.stats()["bytes"] == len(starts) * 257 * 2)
    remote.read(starts, 257)

    stats = bucket.stats()
    assert stats["bytes"] == len(starts) * 257 * 2
    assert len(starts) <= stats["requests"] <= len(starts) + remote.num_shards


@pytest.mark.parametrize("check", ["headers", "blocks"])
def test_hints_fetch_all_that_windows_and_documents_read(
    bucket: Bucket, local: Roxxel, check: Literal["headers", "blocks"]
) -> None:
    remote = Roxxel("s3://data/wiki_*.rox", check=check)
    starts = np.arange(0, remote.num_tokens - 257, 5000)
    bucket.set_faults()

    remote.will_need(starts, 257, documents=True)
    # Each shard sends its foot, its last end, its checksums and its documents.
    requests = len(starts) + 4 * remote.num_shards
    wait_for(lambda: bucket.stats()["requests"] >= requests)
    remote.read(starts, 257)
    for start in starts.tolist():
        spans = remote.document_spans(start, start + 257)
        assert spans.tolist() == local.document_spans(start, start + 257).tolist()

    crossing = bucket.stats()["requests"] - requests
    assert 0 <= crossing <= remote.num_shards


@pytest.mark.parametrize("pack", [None, 1000])
def test_a_shard_is_opened_by_two_requests(pack: int | None, bucket: Bucket) -> None:
    documents, name = [[1] * 150] * 700, f"opened_{pack}_*.rox"
    local = Roxxel(bucket.folder / name)
    local.write(documents, separator=0, vocab_size=9, max_shard_bytes=60_000, pack=pack)
    remote = Roxxel(f"s3://data/{name}")
    starts = np.arange(0, remote.num_tokens, 5000)
    bucket.set_faults()

    remote.read(starts, 1)

    assert remote.num_shards > 1
    assert bucket.stats()["requests"] == 2 * remote.num_shards + len(starts)


def test_verify_finds_a_damaged_head(bucket: Bucket) -> None:
    local = Roxxel(bucket.folder / "head_*.rox")
    path = Path(local.write([[1] * 50], vocab_size=10).paths[0])
    data = bytearray(path.read_bytes())
    data[2000] = 1
    path.write_bytes(data)
    remote = Roxxel("s3://data/head_*.rox")

    assert remote.read([0], 3).tolist() == [[1, 1, 1]]
    (error,) = remote.verify().errors

    assert "its head and sections do not match the digests in its foot" in str(error)


def test_the_first_batch_takes_few_round_trips(bucket: Bucket) -> None:
    # One trip for the two tables of each of 16 shards, and one for 16 windows: the
    # server answers none before all are there.
    bucket.set_faults(together=[2 * 16, 16], keys=r"\.rox$")

    Roxxel("s3://data/wiki_*.rox").read(np.linspace(0, 500_000, 16).astype(int), 1025)

    assert bucket.stats()["requests"] == 1 + 2 * 16 + 16


def test_hints_beyond_the_bound_are_dropped(bucket: Bucket, local: Roxxel) -> None:
    remote = Roxxel("s3://data/wiki_*.rox")
    starts = np.arange(0, remote.num_tokens - 600, 600)
    remote.read(starts, 1)
    bucket.set_faults()
    with (
        mock.patch("roxxel_format._read.remote.MOST_BYTES_AHEAD", 12_000),
        mock.patch("roxxel_format._read.remote._fetcher", _Fetcher()),
    ):
        remote.will_need(starts, 600)

        wait_for(lambda: bucket.stats()["bytes"] > 10_000)
        assert bucket.stats()["bytes"] <= 12_000
        assert np.array_equal(remote.read(starts, 600), local.read(starts, 600))


def test_windows_that_nobody_reads_are_evicted(bucket: Bucket) -> None:
    remote = Roxxel("s3://data/wiki_*.rox")
    remote.read([0, 6000], 1)
    with (
        mock.patch("roxxel_format._read.remote.MOST_BYTES_AHEAD", 4000),
        mock.patch("roxxel_format._read.remote._STALE_S", 0.0),
        mock.patch("roxxel_format._read.remote._fetcher", _Fetcher()),
    ):
        bucket.set_faults()
        remote.will_need([0], 2000)  # fills the room, and is never read
        wait_for(lambda: bucket.stats()["bytes"] == 4000)
        remote.will_need([6000], 2000)
        wait_for(lambda: bucket.stats()["bytes"] == 8000)
        remote.read([6000], 2000)

        assert bucket.stats()["bytes"] == 8000


def test_threads_end_when_idle() -> None:
    with mock.patch("roxxel_format._read.remote._IDLE_S", 0.05):
        Roxxel("s3://data/wiki_*.rox").read(np.arange(0, 90_000, 1000), 100)
        wait_for(
            lambda: all(each.name != "roxxel-bucket" for each in threading.enumerate())
        )


def test_many_threads_read_at_once(local: Roxxel) -> None:
    remote = Roxxel("s3://data/wiki_*.rox")
    starts = np.arange(0, local.num_tokens - 100, 30_000)
    wrong: list[int] = []

    def read(shift: int) -> None:
        for _ in range(5):
            windows = remote.read(starts + shift % 2, 90)
            if not np.array_equal(windows, local.read(starts + shift % 2, 90)):
                wrong.append(shift)

    threads = [threading.Thread(target=read, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert not wrong


def test_a_pickle_reads_the_same_version(local: Roxxel) -> None:
    remote = Roxxel("s3://data/wiki_*.rox", timeout_s=120)
    remote.read([0], 5)

    again = pickle.loads(pickle.dumps(remote))  # noqa: S301 - our own

    assert np.array_equal(again.read([7], 50), local.read([7], 50))


def _read_in_child(corpus: Roxxel, results: multiprocessing.Queue[str]) -> None:
    try:
        results.put(str(corpus.read([0], 5).shape))
    except BucketError as error:
        results.put(str(error))


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_gets_an_error_and_does_not_hang() -> None:
    remote = Roxxel("s3://data/wiki_*.rox")
    remote.read([0], 5)
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    child = context.Process(target=_read_in_child, args=(remote, results))
    child.start()

    assert 'with the method "spawn"' in results.get(timeout=600)
    child.join(timeout=600)
    assert child.exitcode == 0


def test_another_process_reads_a_pickle(tmp_path: Path) -> None:
    remote = Roxxel("s3://data/wiki_*.rox")
    remote.read([0], 5)
    (tmp_path / "corpus").write_bytes(pickle.dumps(remote))
    program = (
        "import pathlib, pickle, sys\n"
        "corpus = pickle.loads(pathlib.Path(sys.argv[1]).read_bytes())\n"
        "print(corpus.read([0], 5).tolist())"
    )

    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program, str(tmp_path / "corpus")],
        capture_output=True,
        text=True,
        check=True,
        timeout=600,
    )

    assert done.stdout == f"{remote.read([0], 5).tolist()}\n"
    assert done.stderr == ""


def test_without_the_extra_the_error_names_it() -> None:
    with (
        mock.patch.dict(sys.modules, {"obstore": None}),
        pytest.raises(ModuleNotFoundError, match=r"needs obstore; .*bucket"),
    ):
        _ = Roxxel("s3://data/wiki_*.rox").num_tokens


def test_a_column_is_not_written_to_a_bucket() -> None:
    with pytest.raises(ValueError, match="do it on a disk, then copy"):
        Roxxel("s3://data/new_*.rox").write_column("loss_mask", [1])


def test_the_commands_read_a_bucket(
    bucket: Bucket, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in (["info"], ["verify"], ["cat", "--ids", "--document", "3"]):
        outputs: list[str] = []
        for path in ("s3://data/wiki_*.rox", str(bucket.folder / "wiki_*.rox")):
            assert main([command[0], path, *command[1:]]) == 0
            shown = capsys.readouterr().out
            outputs.append(shown.replace(path, "").replace(str(bucket.folder), ""))
        assert outputs[0].replace("s3://data", "") == outputs[1], command


def test_a_command_prints_a_failure_as_one_line(
    bucket: Bucket, capsys: pytest.CaptureFixture[str]
) -> None:
    bucket.set_faults(kinds=["403"])

    assert main(["info", "s3://data/wiki_*.rox"]) == 1

    (line,) = capsys.readouterr().err.splitlines()
    assert "s3://data/wiki_manifest.json: access was refused" in line


def test_a_timeout_must_be_positive() -> None:
    with pytest.raises(ValueError, match="timeout_s must be positive, got 0"):
        Roxxel("s3://data/wiki_*.rox", timeout_s=0)


def test_a_client_that_is_not_set_up_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in [name for name in os.environ if name.startswith("AZURE_")]:
        monkeypatch.delenv(name)
    monkeypatch.delenv("AWS_ENDPOINT_URL_S3", raising=False)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "127.0.0.1:9000")
    cases = {
        "s3": "the environment variable AWS_ENDPOINT_URL is not the URL of a server; "
        "begin it with http:// or https://",
        "az": r"the client cannot begin \(GenericError\); set "
        "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY in the environment",
    }
    for scheme, text in cases.items():
        with pytest.raises(BucketError, match=rf"^{scheme}://data/corpus\S*: {text}"):
            Roxxel(f"{scheme}://data/corpus.rox").read([0], 5)


def test_no_credentials_of_google_are_one_sentence_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith("GOOGLE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{closed.getsockname()[1]}"
        monkeypatch.setenv("GCE_METADATA_HOST", address)
        with pytest.raises(BucketError, match=r"^gs://data/.*no credentials"):
            _ = Roxxel("gs://data/c_*.rox").num_tokens
        with pytest.raises(BucketError, match=r"^gs://data/.*no credentials"):
            Roxxel("gs://data/c_*.rox").write([[1]], vocab_size=9)
