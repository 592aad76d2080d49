"""Writes to a name whose files are shards of the first Roxxel do not harm these."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

import pytest
from roxxel_format import Roxxel, ShardError
from roxxel_format.cli import main
from roxxel_store import roxxel_command

from .helpers import in_child, names_in, shard_of
from .test_commit import kill_self

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# Two writers of the first Roxxel numbered in their own ways; the last is as ours.
STARS = ["{:04d}", "base_{:04d}", "{:05d}"]
TEXT = b"some text and more text"


def old_corpus(folder: Path, star: str = STARS[-1]) -> dict[str, bytes]:
    """Write three old shards, and return their bytes by name."""
    parts = TEXT[:8], TEXT[8:16], TEXT[16:]
    shards = {
        f"wiki_{star.format(number)}.rox": shard_of([part])
        for number, part in enumerate(parts)
    }
    for name, data in shards.items():
        (folder / name).write_bytes(data)
    return shards


def check_old(folder: Path, shards: dict[str, bytes]) -> None:
    assert {name: (folder / name).read_bytes() for name in shards} == shards


@pytest.mark.parametrize("exist", ["keep", "append", "error"])
def test_no_write_extends_old_shards(exist: Any, tmp_path: Path) -> None:
    shards = old_corpus(tmp_path)

    with pytest.raises(ShardError, match=r"first Roxxel.*convert") as caught:
        Roxxel(tmp_path / "wiki_*.rox").write([[1, 2, 3]], exist=exist)

    assert str(caught.value).startswith(f"{tmp_path / min(shards)}: ")
    assert names_in(tmp_path) == sorted(shards)
    check_old(tmp_path, shards)


@pytest.mark.parametrize("star", STARS)
def test_old_shards_are_no_corpus(star: str, tmp_path: Path) -> None:
    shards = old_corpus(tmp_path, star)

    for path in (tmp_path, tmp_path / "wiki_*.rox"):
        with pytest.raises(ShardError, match=rf"{min(shards)}: .*first Roxxel"):
            Roxxel(path).num_tokens  # noqa: B018 - opens the corpus


@pytest.mark.parametrize("exist", ["keep", "error"])
def test_a_write_onto_one_old_shard_says_how_to_convert_it(
    exist: Any, tmp_path: Path
) -> None:
    path = tmp_path / "wiki.rox"
    path.write_bytes(shard_of([TEXT]))

    with pytest.raises((ShardError, FileExistsError)) as caught:
        Roxxel(path).write([[1, 2, 3]], exist=exist)

    if exist == "keep":
        assert str(caught.value).startswith(f"{path}: is a shard of the first Roxxel")
        assert roxxel_command("prepare write") in str(caught.value)
    assert path.read_bytes() == shard_of([TEXT])


def test_a_replacement_that_fails_changes_nothing(tmp_path: Path) -> None:
    shards = old_corpus(tmp_path)
    pattern = tmp_path / "wiki_*.rox"

    with pytest.raises(ValueError, match="document 0: value 115 is outside"):
        Roxxel(pattern).write(TEXT.split(), separator=0, vocab_size=50, exist="replace")

    assert names_in(tmp_path) == sorted(shards)
    check_old(tmp_path, shards)


@pytest.mark.parametrize("num_shards", [0, 1, 2])
def test_after_a_killed_replacement_old_shards_are_as_safe_as_before(
    num_shards: int, tmp_path: Path
) -> None:
    shards = old_corpus(tmp_path)
    other = tmp_path / "wiki_00077.rox"
    other.write_bytes(b"notes of mine")
    pattern = tmp_path / "wiki_*.rox"
    limits: dict[str, Any] = {"max_shard_bytes": 20_000, "dtype": "uint16"}

    def killed() -> Iterator[list[int]]:
        yield from [[1] * 9000] * (num_shards + 1)
        kill_self()

    def replace() -> None:
        Roxxel(pattern).write(killed(), exist="replace", **limits)

    assert in_child(replace) == -signal.SIGKILL
    left = set(names_in(tmp_path)) - set(shards) - {other.name}
    assert len(left) >= 2

    assert main(["clean", str(pattern)]) == 0

    assert names_in(tmp_path) == sorted([*shards, other.name])
    check_old(tmp_path, shards)
    assert other.read_bytes() == b"notes of mine"


def test_after_a_replacement_old_shards_stay_beside_the_new(tmp_path: Path) -> None:
    shards = old_corpus(tmp_path)
    pattern = tmp_path / "wiki_*.rox"

    Roxxel(pattern).write(TEXT.split(), separator=0, exist="replace")
    Roxxel(pattern).write([b"mo"], separator=0, exist="append")
    assert main(["clean", str(pattern)]) == 0

    check_old(tmp_path, shards)
    documents = [bytes(each) for each in Roxxel(pattern).documents]
    assert documents == [*TEXT.split(), b"mo"]
