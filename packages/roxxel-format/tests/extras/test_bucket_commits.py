"""Commits whose answer is lost, while another process appends or compacts."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest
from roxxel_format import Roxxel
from roxxel_store import client

from .buckets import Bucket, running_bucket

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

URL = "s3://data/c_*.rox"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bucket]:
    with running_bucket(tmp_path_factory.mktemp("bucket")) as bucket:
        yield bucket


@pytest.fixture
def bucket(server: Bucket) -> Bucket:
    shutil.rmtree(server.folder)
    server.folder.mkdir()
    for token in (1, 2, 3):
        append(token)
    return server


def append(token: int) -> None:
    options: dict[str, Any] = {"dtype": "uint16", "separator": 0, "exist": "append"}
    Roxxel(URL).write([[token] * 5], **options)


def losing_the_answer(meanwhile: Callable[[], object]) -> Any:
    """Lose the answer of the next commit, and repeat the request after `meanwhile`."""
    replace = client.Bucket.replace

    def lose(self: client.Bucket, *request: Any) -> Any:
        patch.stop()
        assert replace(self, *request) is not None
        meanwhile()
        return replace(self, *request)

    patch = mock.patch.object(client.Bucket, "replace", lose)
    return patch


@pytest.mark.usefixtures("bucket")
def test_an_append_that_was_compacted_before_its_answer_is_not_made_twice() -> None:
    patch = losing_the_answer(lambda: Roxxel(URL).compact())
    patch.start()

    with pytest.raises(FileExistsError, match=r"c_manifest\.json.*compare the corpus"):
        append(4)

    corpus = Roxxel(URL)
    assert [each[0] for each in corpus.documents] == [1, 2, 3, 4]
    assert corpus.verify().ok


def test_a_compaction_whose_answer_is_lost_is_done(bucket: Bucket) -> None:
    patch = losing_the_answer(lambda: append(4))
    patch.start()

    done = Roxxel(URL).compact()

    assert (done.num_merged, done.num_shards) == (3, 2)
    assert [each[0] for each in Roxxel(URL).documents] == [1, 2, 3, 4]
    assert len([*bucket.folder.iterdir()]) == 3  # the manifest and two shards


def test_clean_deletes_nothing_that_was_committed_since_it_looked(
    bucket: Bucket,
) -> None:
    manifest = bucket.folder / "c_manifest.json"
    before = manifest.read_bytes()
    append(4)
    after = manifest.read_bytes()
    manifest.write_bytes(before)
    for path in bucket.folder.iterdir():
        os.utime(path, (0, 0))
    names = client.Bucket.names

    def commit(self: client.Bucket, prefix: str = "") -> client.Listing:
        found = names(self, prefix)
        manifest.write_bytes(after)
        return found

    with mock.patch.object(client.Bucket, "names", commit):
        Roxxel(URL).remove_leftovers()

    assert Roxxel(URL).verify().ok


def test_a_bucket_is_listed_once_to_be_cleaned_of_old_files(bucket: Bucket) -> None:
    corpus = Roxxel(URL)
    folder, _, name = corpus.paths[0].rpartition("/")
    left, young = (
        bucket.folder / name.replace("_00000_", f"_0000{number}_") for number in (1, 2)
    )
    left.write_bytes(b"left by a killed write")
    os.utime(left, (0, 0))
    young.write_bytes(b"perhaps its writer lives")
    names = client.Bucket.names

    with mock.patch.object(
        client.Bucket, "names", autospec=True, side_effect=names
    ) as listed:
        removed = corpus.remove_leftovers()

    assert (removed, listed.call_count) == ([f"{folder}/{left.name}"], 1)
    assert young.exists()
