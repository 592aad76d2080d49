"""A folder on a disk: replaced under a lock, one program at a time."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest
from roxxel_store.client import Version
from roxxel_store.locks import lock_folder, unlock_folder
from roxxel_store.swap import (
    MANIFEST,
    DiskFolder,
    SupersededError,
    Writer,
    read_manifest,
)

if TYPE_CHECKING:
    from pathlib import Path


def writers(path: Path, number: int) -> list[Writer]:
    return [Writer(DiskFolder(path, timeout_s=60)) for _ in range(number)]


def test_who_begins_last_wins(tmp_path: Path) -> None:
    first, second = writers(tmp_path, 2)
    first.begin()
    first.swap(lambda _: {"steps": [1]})
    second.begin()

    with pytest.raises(SupersededError, match=f"{tmp_path}: another program"):
        first.swap(lambda _: {"steps": [2]})

    second.swap(lambda listed: {"steps": [*listed["steps"], 3]})
    assert read_manifest(DiskFolder(tmp_path, 60)).listed == {"steps": [1, 3]}
    assert [path.name for path in tmp_path.iterdir()] == [MANIFEST]


def test_only_what_earlier_programs_left_is_deleted(tmp_path: Path) -> None:
    first, second = writers(tmp_path, 2)
    first.begin()
    left, kept = first.new_name("5."), first.new_name("6.")
    (tmp_path / left / "inner").mkdir(parents=True)
    (tmp_path / kept).mkdir()
    (tmp_path / first.new_name()).touch()
    (tmp_path / "7").mkdir()
    first.swap(lambda _: {"kept": [kept]})
    first.collect()
    assert (tmp_path / left).exists()

    second.begin()
    own = second.new_name("8.")
    (tmp_path / own).mkdir()
    second.collect()

    there = {path.name for path in tmp_path.iterdir()}
    assert there == {MANIFEST, kept, "7", own}


def test_a_program_that_holds_the_lock_for_too_long_is_named(tmp_path: Path) -> None:
    [writer] = writers(tmp_path, 1)
    writer.begin()
    writer.bucket = DiskFolder(tmp_path, timeout_s=0.01)
    held = lock_folder(tmp_path)
    assert held is not None

    with pytest.raises(TimeoutError, match=f"{tmp_path}: .*holds the lock"):
        writer.swap(lambda _: {})

    unlock_folder(held)
    writer.swap(lambda _: {})


def test_threads_of_one_program_swap_one_after_another(tmp_path: Path) -> None:
    [writer] = writers(tmp_path, 1)
    writer.begin()

    def add(number: int) -> None:
        writer.swap(lambda listed: {**listed, f"{number}": number})

    threads = [threading.Thread(target=add, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert set(read_manifest(DiskFolder(tmp_path, 60)).listed.values()) == {*range(8)}


def test_a_folder_that_is_gone_is_named(tmp_path: Path) -> None:
    [writer] = writers(tmp_path / "a", 1)
    (tmp_path / "a").mkdir()
    writer.begin()
    (tmp_path / "a").rename(tmp_path / "b")

    with pytest.raises(SupersededError, match=r"a/manifest.json: is gone.*new name"):
        writer.swap(lambda _: {})

    assert not (tmp_path / "a").exists()


def test_a_file_of_another_version_is_not_replaced(tmp_path: Path) -> None:
    folder = DiskFolder(tmp_path, 60)
    version = folder.replace("file", b"one", None)

    assert folder.replace("file", b"two", Version("other", None)) is None
    assert folder.replace("file", b"two", None) is None
    assert folder.replace("file", b"two", version) == folder.get("file").version
    with pytest.raises(FileNotFoundError):
        folder.replace("none", b"two", version)
