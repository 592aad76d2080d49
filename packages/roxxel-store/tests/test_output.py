"""An output is a regular file, which is complete or absent."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

import pytest
from roxxel_store import check_output, published
from roxxel_store.files import Output, replace_file

if TYPE_CHECKING:
    from pathlib import Path


def test_a_file_appears_when_it_is_complete_and_replaces_an_older_one(
    tmp_path: Path,
) -> None:
    path = tmp_path / "out.bin"
    path.write_bytes(b"old")

    with published(path) as file:
        file.write(b"new")
        assert path.read_bytes() == b"old"

    assert path.read_bytes() == b"new"
    assert [entry.name for entry in tmp_path.iterdir()] == ["out.bin"]


def test_a_failure_leaves_the_older_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "out.bin"
    path.write_bytes(b"old")

    def write() -> None:
        with published(path) as file:
            file.write(b"new")
            raise KeyError

    with pytest.raises(KeyError):
        write()

    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["out.bin"]


def test_an_error_of_the_disk_names_the_file_and_the_reason(tmp_path: Path) -> None:
    path = tmp_path / "out.bin"

    with pytest.raises(OSError, match="No space") as error, published(path):
        raise OSError(28, "No space left on device")

    assert str(path) in str(error.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["link", "dangling link", "pipe", "folder", "device"])
def test_what_is_no_regular_file_is_refused_and_left(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "out"
    (tmp_path / "file").write_bytes(b"kept")
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "device":
        pair = os.openpty()
        path = type(path)(os.ttyname(pair[1]))
    else:
        path.symlink_to("file" if kind == "link" else "nothing")
    before = stat.S_IFMT(path.lstat().st_mode)

    with pytest.raises(OSError, match=r"; name ") as error, published(path):
        pass

    assert str(path) in str(error.value)
    assert stat.S_IFMT(path.lstat().st_mode) == before
    assert (tmp_path / "file").read_bytes() == b"kept"


def test_a_folder_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="its folder does not exist; make it"):
        check_output(tmp_path / "no" / "out")


def test_a_file_is_replaced_with_a_draft_of_the_callers_name(tmp_path: Path) -> None:
    path, draft = tmp_path / "run.json", tmp_path / "run.json.tmp"
    path.write_text("old")
    draft.write_text("left by a kill, longer than what is written")

    replace_file(path, b"new", draft)

    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_block_that_fails_leaves_no_draft(tmp_path: Path) -> None:
    def write() -> None:
        with Output(tmp_path / "a.rox") as output:
            output.write(b"half")
            raise KeyError

    with pytest.raises(KeyError):
        write()
    assert list(tmp_path.iterdir()) == []
