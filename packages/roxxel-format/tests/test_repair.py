"""A repair replaces damaged blocks by those of a copy, or changes nothing."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from roxxel_format import Roxxel, Shard
from roxxel_format.cli import main
from roxxel_store.amounts import short_size

from .helpers import documents_of, in_child, names_in

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

BLOCK = 512


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("whole") / "a.rox"
    Roxxel(path).write(documents_of(*[40] * 150), separator=5, block_size=BLOCK)
    return path


@pytest.fixture
def shard(whole: Path, tmp_path: Path) -> Path:
    path = tmp_path / "shards" / "a.rox"
    path.parent.mkdir()
    shutil.copy(whole, path)
    return path


def flip(path: Path, *offsets: int) -> None:
    """Flip a bit in each of some bytes of a file, in place."""
    with path.open("r+b") as file:
        for offset in offsets:
            file.seek(offset)
            (byte,) = file.read(1)
            file.seek(offset)
            file.write(bytes([byte ^ 1]))


def repair(shard: Path, copy: object) -> int:
    return main(["repair", str(shard), "--from", str(copy)])


@settings(max_examples=40)
@given(data=st.data())
def test_any_damage_between_head_and_foot_is_repaired(
    data: st.DataObject, whole: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    at = Shard(whole).layout.sections
    path = tmp_path_factory.getbasetemp() / "any.rox"
    copy = tmp_path_factory.getbasetemp() / "copy.rox"
    blocks = data.draw(st.sets(st.integers(at.tokens, at.foot - 1), min_size=1))
    shutil.copy(whole, path)
    shutil.copy(whole, copy)
    flip(path, *blocks)
    path.chmod(0o640)

    assert repair(path, copy) == 0

    assert path.read_bytes() == whole.read_bytes()
    assert path.stat().st_mode & 0o777 == 0o640
    assert Roxxel(path).verify().ok


def test_a_damaged_end_of_the_last_document_is_repaired(
    shard: Path, whole: Path
) -> None:
    flip(shard, Shard(whole).layout.sections.checksums - 8)

    assert repair(shard, whole) == 0

    assert shard.read_bytes() == whole.read_bytes()


def test_each_replaced_block_is_named(
    shard: Path, whole: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    at = Shard(shard).layout.sections
    flip(shard, at.tokens + 3 * BLOCK + 7, at.documents, at.metadata)

    assert repair(shard, whole) == 0

    assert capsys.readouterr().out.splitlines() == [
        f"replaced block 3 of the tokens (byte {at.tokens + 3 * BLOCK} on)",
        f"replaced block 0 of the documents (byte {at.documents} on)",
        f"replaced the metadata (byte {at.metadata} on)",
        f"{shard}: {short_size(at.stop)}, all checksums match",
    ]


def test_two_damaged_copies_repair_each_other(shard: Path, whole: Path) -> None:
    other = shard.with_name("b.rox")
    shutil.copy(shard, other)
    at = Shard(shard).layout.sections
    flip(shard, at.tokens, at.checksums)
    flip(other, at.tokens + 4 * BLOCK, at.documents)

    assert repair(shard, other) == 0
    assert repair(other, shard) == 0

    assert shard.read_bytes() == other.read_bytes() == whole.read_bytes()


def test_a_whole_shard_is_not_changed_and_its_copy_not_read(
    shard: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = shard.stat()

    assert repair(shard, "missing.rox") == 0

    after = shard.stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert "all checksums match, so nothing was changed" in capsys.readouterr().out


def test_a_copy_that_differs_is_refused_by_its_block(
    shard: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = shard.with_name("copy.rox")
    at = Shard(shard).layout.sections
    flip(shard, at.tokens, at.tokens + 2 * BLOCK)
    shutil.copy(shard, copy)
    flip(copy, at.tokens)
    damaged = shard.read_bytes()

    assert repair(shard, copy) == 1

    assert capsys.readouterr().err == (
        f"roxxel-format: {copy}: block 2 of the tokens (byte {at.tokens + 2 * BLOCK} "
        f"on) does not match the checksum that {shard} records, so nothing was "
        "changed; give another copy of the same shard\n"
    )
    assert shard.read_bytes() == damaged
    assert names_in(shard.parent) == ["a.rox", "copy.rox"]


@pytest.mark.parametrize(
    ("offset", "copy_bytes", "message"),
    [
        (5000, b"\x89ROX\r\n\x1a\n", "has 8 bytes, but"),
        (100, None, "the head (bytes 0 to 4096) does not match its checksum"),
    ],
)
def test_what_cannot_be_repaired_is_one_sentence(
    offset: int,
    copy_bytes: bytes | None,
    message: str,
    shard: Path,
    whole: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    copy = shard.with_name("copy.rox")
    copy.write_bytes(whole.read_bytes() if copy_bytes is None else copy_bytes)
    flip(shard, offset)
    damaged = shard.read_bytes()

    assert repair(shard, copy) == 1

    assert message in capsys.readouterr().err
    assert shard.read_bytes() == damaged


def test_a_url_is_not_repaired_in_place(
    whole: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["repair", "s3://data/a.rox", "--from", str(whole)]) == 1
    assert "a repair writes to a local disk" in capsys.readouterr().err


def test_a_link_to_a_shard_stays_a_link(
    shard: Path, whole: Path, tmp_path: Path
) -> None:
    link = tmp_path / "link.rox"
    link.symlink_to(shard)
    flip(shard, 5000)

    assert repair(link, whole) == 0

    assert link.is_symlink()
    assert shard.read_bytes() == whole.read_bytes()


def test_a_repaired_shard_is_the_one_in_its_manifest(tmp_path: Path) -> None:
    corpus = Roxxel(tmp_path / "c_*.rox")
    corpus.write(documents_of(*[3000] * 4), dtype="uint16", max_shard_bytes=20_000)
    backup = tmp_path / "backup"
    backup.mkdir()
    for path in corpus.paths:
        shutil.copy(path, backup)
    first = tmp_path / "c_00000.rox"
    flip(first, 9000)

    assert repair(first, backup / "c_00000.rox") == 0

    assert Roxxel(tmp_path / "c_*.rox").verify().ok
    assert corpus.leftovers() == []


def test_a_killed_repair_leaves_the_shard_as_it_was_or_whole(
    shard: Path, whole: Path
) -> None:
    """Kill a repair before many of its calls, and before each of the last ones."""
    flip(shard, 5000, 6000)
    damaged, right = shard.read_bytes(), whole.read_bytes()
    total = calls_of(shard, whole, at=None)
    assert shard.read_bytes() == right
    ends: list[bool] = []

    for at in [*range(0, total - 80, total // 12), *range(total - 80, total, 8)]:
        shard.write_bytes(damaged)
        code = in_child(partial(calls_of, shard, whole, at=at))
        assert code in {0, -signal.SIGKILL}
        ends.append(shard.read_bytes() == right)
        assert ends[-1] or shard.read_bytes() == damaged

    assert {*ends} == {False, True}
    Roxxel(shard).remove_leftovers()
    assert names_in(shard.parent) == ["a.rox"]


def calls_of(shard: Path, copy: Path, at: int | None) -> int:
    """Return the number of calls of a repair; kill the process before call `at`."""
    calls = count()

    def trace(_frame: object, event: str, _argument: Any) -> None:
        if event in {"call", "c_call"} and next(calls) == at:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.setprofile(trace)
    try:
        repair(shard, copy)
    finally:
        sys.setprofile(None)
    return next(calls)


def test_many_damaged_blocks_of_a_large_shard(tmp_path: Path) -> None:
    """Blocks in several runs, adjacent and alone."""
    path, copy = tmp_path / "a.rox", tmp_path / "b.rox"
    tokens = np.arange(3_000_000, dtype=np.uint16)
    Roxxel(path).write([tokens], dtype="uint16", separator=None)
    shutil.copy(path, copy)
    flip(path, *offsets_of([*range(0, 20, 3), *range(20, 1300), 1400]))

    assert repair(path, copy) == 0

    assert path.read_bytes() == copy.read_bytes()


def offsets_of(blocks: Sequence[int]) -> list[int]:
    return [4096 + block * 4096 + 9 for block in blocks]
