"""Locks: one holder, and a sentence for everybody else."""

from __future__ import annotations

import fcntl
import os
from typing import TYPE_CHECKING

import pytest
from roxxel_store.locks import (
    held,
    lock_folder,
    tried,
    try_lock,
    unlock,
    unlock_folder,
)

if TYPE_CHECKING:
    from pathlib import Path


def test_only_one_holder_is_free(tmp_path: Path) -> None:
    path = tmp_path / "run.lock"

    with tried(path) as first, tried(path) as second:
        assert (first, second) == (True, False)
    with tried(path) as again:
        assert again


def test_a_held_lock_is_an_error_that_the_caller_words(tmp_path: Path) -> None:
    path = tmp_path / "commit.lock"
    with (
        held(path),
        pytest.raises(BlockingIOError, match="wait for it"),
        held(path, busy="wait for it"),
    ):
        pass
    with held(path, busy="wait for it"):
        pass


def test_readers_share_a_lock(tmp_path: Path) -> None:
    path = tmp_path / "write.lock"
    with (
        held(path, is_shared=True),
        held(path, is_shared=True),
        pytest.raises(BlockingIOError, match="a reader has it"),
        held(path, busy="a reader has it"),
    ):
        pass


def test_a_folder_is_locked_until_it_is_unlocked(tmp_path: Path) -> None:
    first, second = (os.open(tmp_path, os.O_RDONLY) for _ in range(2))
    assert try_lock(first)
    assert try_lock(second) is False
    unlock(first)
    assert try_lock(second)
    os.close(first)
    os.close(second)


def test_a_lock_file_that_may_not_be_made_names_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, plain = tmp_path / "commit.lock", os.open

    def refuse(name: Path, flags: int, *mode: int) -> int:
        if flags & os.O_CREAT:
            raise PermissionError(13, "Permission denied", str(name))
        return plain(name, flags, *mode)

    monkeypatch.setattr(os, "open", refuse)
    with (
        pytest.raises(PermissionError, match=r"Permission denied.*commit\.lock"),
        held(path),
    ):
        pass


def test_a_lock_file_that_goes_during_the_wait_is_made_and_held_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, flock = tmp_path / "commit.lock", fcntl.flock

    def wait(descriptor: int, operation: int) -> None:
        monkeypatch.setattr(fcntl, "flock", flock)
        path.unlink()
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", wait)

    with held(path), tried(path) as other:
        assert not other


def test_a_locked_folder_is_free_once_it_is_unlocked(tmp_path: Path) -> None:
    first = lock_folder(tmp_path)
    assert first is not None
    assert lock_folder(tmp_path) is None
    unlock_folder(first)
    again = lock_folder(tmp_path)
    assert again is not None
    unlock_folder(again)


def test_a_folder_that_does_not_exist_cannot_be_locked(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="none"):
        lock_folder(tmp_path / "none")
