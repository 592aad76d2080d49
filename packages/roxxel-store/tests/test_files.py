"""Listing files: what a pattern names is found, or the reason is raised."""

from __future__ import annotations

import errno
import os
import shutil
from typing import TYPE_CHECKING, Any

import pytest
from roxxel_store.files import POINTER_BYTES, matches_in, read_file

if TYPE_CHECKING:
    from pathlib import Path

PATTERNS = (
    "*",
    "*/*",
    "b/*.txt",
    "*/1.txt",
    "*/c/*.txt",
    "**/*",
    "**/*.txt",
    "**/c/1.txt",
    "*/**/1.txt",
    "[ab]/?.txt",
    "a/../b/*",
    "no/*",
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("a/1.txt", "a/2.md", "b/1.txt", "b/c/1.txt", "b/c/.2.txt", "3.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / "d").symlink_to(tmp_path / "b")
    (tmp_path / "broken").symlink_to(tmp_path / "absent")
    return tmp_path


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_pattern_matches_what_it_matches_in_pathlib(
    folder: Path, pattern: str
) -> None:
    assert sorted(matches_in(folder, pattern)) == sorted(folder.glob(pattern))


def test_a_file_that_several_folders_of_a_pattern_reach_is_found_once(
    folder: Path,
) -> None:
    assert matches_in(folder, "**/b/**/1.txt").count(folder / "b/c/1.txt") == 1


def test_a_file_that_may_not_be_looked_at_is_not_taken_for_absent(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = os.stat

    def refuse_one(path: Any, *arguments: Any, **named: Any) -> os.stat_result:
        if os.fspath(path) == str(folder / "b/1.txt"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return look(path, *arguments, **named)

    monkeypatch.setattr(os, "stat", refuse_one)
    with pytest.raises(PermissionError, match=r"b/1\.txt"):
        matches_in(folder, "*/1.txt")


def test_a_folder_that_is_removed_meanwhile_holds_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scan = os.scandir

    def remove_first(path: Path) -> Any:
        if path == folder / "b":
            shutil.rmtree(path)
        return scan(path)

    monkeypatch.setattr(os, "scandir", remove_first)

    found = matches_in(folder, "**/*.txt")

    assert sorted(found) == [folder / "3.txt", folder / "a/1.txt"]


def test_two_stars_at_the_end_match_files_and_folders(folder: Path) -> None:
    found = {str(each.relative_to(folder)) for each in matches_in(folder, "b/**")}
    assert found == {"b/1.txt", "b/c", "b/c/1.txt", "b/c/.2.txt"}


@pytest.mark.parametrize("pattern", ["b/*", "*/1.txt", "*/c/*", "**/*", "**/1.txt"])
@pytest.mark.parametrize("number", [5, 13])
def test_a_folder_that_cannot_be_read_is_an_error(
    folder: Path, monkeypatch: pytest.MonkeyPatch, pattern: str, number: int
) -> None:
    def refusing(call: Any) -> Any:
        def refuse(path: Any, **options: Any) -> Any:
            if os.fspath(path).startswith(f"{folder}/b/") or path == folder / "b":
                raise OSError(number, os.strerror(number), str(path))
            return call(path, **options)

        return refuse

    monkeypatch.setattr(os, "scandir", refusing(os.scandir))
    if pattern == "*/1.txt":
        monkeypatch.setattr(os, "stat", refusing(os.stat))

    with pytest.raises(OSError, match=os.strerror(number)):
        matches_in(folder, pattern)


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b""])
def test_a_pointer_of_git_lfs_is_no_file(tmp_path: Path, end: bytes) -> None:
    lines = b"version https://git-lfs.github.com/spec/v1", b"oid sha256:" + b"0a" * 32
    path = tmp_path / "model.bin"
    path.write_bytes((end or b"\n").join((*lines, b"size 7")) + end)

    with pytest.raises(ValueError, match=rf"{path}: .*git lfs pull"):
        read_file(path, 1 << 20)

    text = path.read_bytes() + b"This is how a pointer looks."
    path.write_bytes(text)
    assert read_file(path, 1 << 20) == text
    path.write_bytes(text.ljust(POINTER_BYTES + 1, b"\n"))
    assert len(read_file(path, 1 << 20)) == POINTER_BYTES + 1
