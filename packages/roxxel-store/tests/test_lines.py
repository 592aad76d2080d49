"""Lines appended to a file, after those of a program that was killed."""

from __future__ import annotations

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
