"""A folder on a disk and one in a bucket do the same for whoever holds them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from obstore.store import MemoryStore
from roxxel_store.place import FilePlace, InBucket, OnDisk

if TYPE_CHECKING:
    from pathlib import Path

    from roxxel_store.output import Output


@pytest.fixture(params=["disk", "bucket"])
def place(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> FilePlace:
    if request.param == "disk":
        (tmp_path / "folder").mkdir()
        return OnDisk(tmp_path / "folder", tmp_path / "lock")
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
