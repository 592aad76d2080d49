"""Lines appended to a file, after those of a program that was killed."""

from __future__ import annotations

import errno
import os
import resource
import zlib
from typing import TYPE_CHECKING

import pytest
from roxxel_store.lines import LineFile, LinePosition

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("before", [b"", b"one\n", b"one\ntw", b"on"])
def test_a_program_goes_on_after_the_last_line_torn_or_not(
    tmp_path: Path, before: bytes
) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(before)
    file = LineFile(path)
    file.begin()
    found = file.position()
    file.close()

    content = path.read_bytes()
    last = content.splitlines(keepends=True)[-1:]
    assert content in {before, before + b"\n"}
    assert found == LinePosition(zlib.crc32(b"".join(last)), len(content))


def test_after_a_failed_flush_no_later_one_counts_as_success(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system may drop what it could not write, and then report success."""

    def refuse(_: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    file = LineFile(tmp_path / "rows.jsonl")
    file.begin()
    file.write_lines(["one\n"])
    file.sync()
    file.write_lines(["two\n"])
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", refuse)
        file.try_to_sync()
    file.try_to_sync()

    assert file.position() == LinePosition(zlib.crc32(b"one\n"), 4, ["two\n"])
    with pytest.raises(OSError, match=r"rows\.jsonl"):
        file.close()


def test_a_position_lies_behind_the_last_whole_line(tmp_path: Path) -> None:
    file = LineFile(tmp_path / "rows.jsonl")
    file.begin()
    file.write_lines(["one\n"])
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (6, hard))
    try:
        file.write_lines(["two\n"])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    file.try_to_sync()

    assert (tmp_path / "rows.jsonl").read_bytes() == b"one\ntw"
    assert file.position() == LinePosition(zlib.crc32(b"one\n"), 4, ["two\n"])
    with pytest.raises(OSError, match=r"rows\.jsonl"):
        file.close()
