"""A folder on a disk and one in a bucket do the same for whoever holds them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from obstore.store import MemoryStore
from roxxel_store.place import FilePlace, InBucket, OnDisk

if TYPE_CHECKING:
    from pathlib import Path

    from roxxel_store.files import Output


@pytest.fixture(params=["disk", "bucket"])
def place(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> FilePlace:
    if request.param == "disk":
        (tmp_path / "folder").mkdir()
        return OnDisk(tmp_path / "folder", tmp_path / "lock", tmp_path / "writers")
    store = MemoryStore()
    monkeypatch.setattr("roxxel_store.client._store", lambda *_: store)
    return InBucket("s3://data/folder/", 10)


def test_a_small_file_is_created_once(place: FilePlace) -> None:
    assert place.read("plan", 100) is None

    assert place.create("plan", b"first")
    assert not place.create("plan", b"second")

    assert place.read("plan", 100) == b"first"
    assert place.sizes() == {"plan": 5}
    assert place.location.endswith("folder/")


def test_a_file_is_swapped_by_whoever_read_it_last(place: FilePlace) -> None:
    before = place.get("manifest")
    assert before.data is None
    assert place.swap("manifest", b"one", before)
    assert not place.swap("manifest", b"two", before)

    before = place.get("manifest")
    assert before.data == b"one"
    assert place.swap("manifest", b"two", before)
    assert not place.swap("manifest", b"three", before)
    assert place.read("manifest", 100) == b"two"

    place.delete(["manifest"])
    assert not place.swap("manifest", b"four", before)
    assert place.get("manifest") == (None, None)


def test_a_cleaner_and_writers_exclude_each_other_on_a_disk(tmp_path: Path) -> None:
    place = OnDisk(tmp_path / "new", tmp_path / "lock", tmp_path / "writers")
    assert not place.may_be_interrupted()

    with place.writing(), place.writing():
        assert place.may_be_interrupted()
        place.create("a", b"1")
        with pytest.raises(BlockingIOError, match="wait"), place.alone("wait"):
            pass

    with place.alone("wait"):
        assert place.settled() == {"a": True}


def test_after_a_commit_nothing_is_taken_for_interrupted(tmp_path: Path) -> None:
    place = OnDisk(tmp_path / "new", tmp_path / "lock", tmp_path / "writers")

    with place.writing():
        place.note(is_committed=True)

    with place.writing():
        assert not place.may_be_interrupted()
        place.note(is_committed=False)
        assert place.may_be_interrupted()


def test_files_in_a_bucket_are_settled_after_a_week(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = MemoryStore()
    monkeypatch.setattr("roxxel_store.client._store", lambda *_: store)
    place = InBucket("s3://data/folder/", 10)
    place.create("a", b"1")

    with place.writing(), place.alone("wait"):
        assert place.settled() == {"a": False}
        monkeypatch.setattr("roxxel_store.place._SETTLED_AGE_S", -1)
        assert place.settled() == {"a": True}


def test_a_small_file_is_replaced_or_added(place: FilePlace) -> None:
    place.replace("plan", b"first")
    place.replace("plan", b"second")

    assert place.read("plan", 100) == b"second"
    assert place.sizes() == {"plan": 6}


def test_a_staged_file_is_there_when_it_is_published(place: FilePlace) -> None:
    with place.stage() as stage:
        path = stage.path / "a.rox"
        path.write_bytes(b"shard")
        stage.publish(path)

    assert place.read("a.rox", 100) == b"shard"


@pytest.mark.parametrize("has_source", [False, True])
def test_a_file_is_added_after_its_check(
    place: FilePlace, tmp_path: Path, *, has_source: bool
) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"content")
    checked: list[bytes] = []

    def write(output: Output) -> None:
        output.write(b"content")

    def check(path: Path) -> None:
        checked.append(path.read_bytes())
        assert place.read("new", 100) is None

    place.add("new", write, check, source if has_source else None)

    assert checked == [b"content"]
    assert place.read("new", 100) == b"content"


def test_a_file_that_its_check_refuses_is_not_added(place: FilePlace) -> None:
    def refuse(path: Path) -> None:
        raise KeyError(path)

    with pytest.raises(KeyError):
        place.add("new", lambda output: output.write(b"bad"), refuse)

    assert place.sizes() == {}


def test_deleting_skips_what_is_gone(place: FilePlace) -> None:
    for name in ("a", "b"):
        place.create(name, b"1")

    place.delete(["none", "a"])

    assert place.sizes() == {"b": 1}


def test_a_web_server_is_no_place_to_write() -> None:
    with pytest.raises(ValueError, match="a web server is read-only"):
        InBucket("http://host/x", 10)
