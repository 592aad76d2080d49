"""A repair replaces a damaged shard by a copy of it, or changes nothing."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from roxxel_format import Roxxel
from roxxel_format.cli import main

from .helpers import documents_of, in_child, names_in, shard_at

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
    return main(["verify", str(shard), "--repair", str(copy)])


@settings(max_examples=20)
@given(data=st.data())
def test_any_damage_between_head_and_foot_is_repaired(
    data: st.DataObject, whole: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    at = shard_at(whole).layout.sections
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


def test_a_whole_shard_is_not_changed_and_its_copy_not_read(
    shard: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = shard.stat()

    assert repair(shard, "missing.rox") == 0

    after = shard.stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert "all checksums match, so nothing was changed" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("offset", "kind", "message"),
    [
        (5000, b"\x89ROX\r\n\x1a\n", "copy.rox: is not an undamaged copy of"),
        (5000, "another shard", "copy.rox: is not an undamaged copy of"),
        (5000, "a damaged copy", "copy.rox: is not an undamaged copy of"),
        (100, "a copy", "put the copy in its place"),
    ],
)
def test_what_cannot_be_repaired_is_one_sentence(
    offset: int,
    kind: bytes | str,
    message: str,
    shard: Path,
    whole: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    copy = shard.with_name("copy.rox")
    if kind == "another shard":
        Roxxel(copy).write(documents_of(5, 6), separator=5, block_size=BLOCK)
    else:
        copy.write_bytes(kind if isinstance(kind, bytes) else whole.read_bytes())
    if kind == "a damaged copy":
        flip(copy, 7000)
    flip(shard, offset)
    damaged = shard.read_bytes()

    assert repair(shard, copy) == 1

    assert message in capsys.readouterr().err
    assert shard.read_bytes() == damaged
    assert names_in(shard.parent) == ["a.rox", "copy.rox"]


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (["*.rox"], "--repair=copy.rox"),
        (["a.rox", "b.rox"], "--repair=copy.rox"),
        (["a.rox", "b.rox"], "--adopt"),
    ],
)
def test_a_repair_takes_one_file_and_an_adoption_one_corpus(
    words: list[str],
    option: str,
    shard: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(shard.parent)

    with pytest.raises(SystemExit) as ended:
        main(["verify", *words, option])

    assert ended.value.code == 2
    name = option.partition("=")[0]
    assert f"argument {name}: CORPUS must be" in capsys.readouterr().err
    assert names_in(shard.parent) == ["a.rox"]


def test_a_shard_that_was_cut_is_replaced_by_hand(
    shard: Path, whole: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shard.write_bytes(shard.read_bytes()[:-1])

    assert repair(shard, whole) == 1

    assert "put the copy in its place" in capsys.readouterr().err


def test_a_url_is_not_repaired_in_place(
    whole: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", "s3://data/a.rox", "--repair", str(whole)]) == 1
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
    first = Path(corpus.paths[0])
    flip(first, 9000)

    assert repair(first, backup / first.name) == 0

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
