"""A write leaves files alone that only have the names of shards of its corpus."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from roxxel_format import Roxxel, ShardError, ShardWriter

from .helpers import corpus_of, documents_of, main, names_in, short
from .test_first_roxxel import shard_of

DAYS = ["c_20240101.rox", "c_20240102.rox"]


def write_days(folder: Path) -> None:
    """Write two corpora of one file, whose names could be those of shards."""
    for value, day in enumerate(DAYS):
        Roxxel(folder / day).write([[value]], dtype="uint8")


def check_days(folder: Path) -> None:
    """Check that both are as they were written."""
    for value, day in enumerate(DAYS):
        assert Roxxel(folder / day).tokens[:].tolist() == [value]


@pytest.mark.parametrize("exist", ["keep", "error", "replace"])
@pytest.mark.parametrize("name", ["c.rox", "c"])
def test_a_plain_name_is_not_the_corpora_of_one_file_beside_it(
    name: str, exist: Any, tmp_path: Path
) -> None:
    write_days(tmp_path)
    corpus = Roxxel(tmp_path / name)

    corpus.write([[7]], exist=exist)

    assert corpus.tokens[:].tolist() == [7]
    assert names_in(tmp_path) == ["c.rox", *DAYS]
    check_days(tmp_path)


def test_the_command_replaces_no_corpora_of_one_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_days(tmp_path)
    Path("all.txt").write_text("hello", encoding="utf-8")

    assert main(["write", "c.rox", "all.txt", "--exist", "replace"]) == 0

    assert names_in(tmp_path) == ["all.txt", "c.rox", *DAYS]
    check_days(tmp_path)


OTHERS = {
    "a text": b"notes of mine",
    "an empty file": b"",
    "a shard of the first Roxxel": shard_of([b"AAAA"]),
}


@pytest.mark.parametrize("data", OTHERS.values(), ids=OTHERS)
def test_replace_keeps_a_file_that_is_not_a_shard(data: bytes, tmp_path: Path) -> None:
    other = tmp_path / "c_20240101.rox"
    other.write_bytes(data)
    pattern = Roxxel(tmp_path / "c_*.rox")

    for exist in ("keep", "append", "error"):
        with pytest.raises(ShardError) as caught:
            pattern.write([[7]], exist=exist)
        assert str(caught.value).startswith(f"{other}: ")
    pattern.write([[7]], exist="replace")
    pattern.write([[8]], exist="replace")
    assert pattern.remove_leftovers() == []

    assert other.read_bytes() == data
    assert pattern.tokens[:].tolist() == [8]
    names = ["c_000.rox", "c_20240101.rox", "c_manifest.json"]
    assert short(names_in(tmp_path)) == names


@pytest.mark.parametrize("name", ["c_*.rox", "c.rox"])
def test_a_corpus_of_several_shards_does_not_take_in_corpora_of_one_file(
    name: str, tmp_path: Path
) -> None:
    write_days(tmp_path)
    corpus = Roxxel(tmp_path / name)
    arguments: dict[str, Any] = {"max_shard_bytes": 20_000}

    for exist in ("keep", "append", "error"):
        with pytest.raises(ShardError, match=r"01\.rox: .*no manifest lists it"):
            corpus.write([[7]], exist=exist, **arguments)
    assert names_in(tmp_path) == DAYS
    corpus.write([[7]], exist="replace", **arguments)
    corpus.write([[8]], exist="append", **arguments)

    assert corpus.tokens[:].tolist() == [7, 8]
    shards = ["c_000.rox", "c_000.rox"]
    assert short(names_in(tmp_path)) == [*shards, *DAYS, "c_manifest.json"]
    check_days(tmp_path)


def test_replacing_a_corpus_leaves_corpora_of_one_file_alone(tmp_path: Path) -> None:
    corpus_of(tmp_path, documents_of(10))
    write_days(tmp_path)
    corpus = Roxxel(tmp_path / "c.rox")

    corpus.write([[7]], exist="replace")
    assert corpus.leftovers() == []
    corpus.write([[8]], exist="append")

    assert corpus.tokens[:].tolist() == [7, 8]
    shards = ["c_000.rox", "c_000.rox"]
    assert short(names_in(tmp_path)) == [*shards, *DAYS, "c_manifest.json"]
    check_days(tmp_path)


def test_a_write_that_fails_beside_other_files_leaves_no_manifest(
    tmp_path: Path,
) -> None:
    write_days(tmp_path)

    with pytest.raises(ZeroDivisionError):
        Roxxel(tmp_path / "c_*.rox").write(
            ([1 // number] for number in (1, 0)), exist="replace"
        )

    assert names_in(tmp_path) == DAYS


def test_replace_keeps_a_shard_that_says_nothing_of_its_write(tmp_path: Path) -> None:
    with ShardWriter(tmp_path / "c_20240101.rox", "uint8") as writer:
        writer.append(np.array([9]))

    Roxxel(tmp_path / "c.rox").write([[7]], exist="replace")
    Roxxel(tmp_path / "c_*.rox").write([[8]], exist="replace")

    assert Roxxel(tmp_path / "c_20240101.rox").tokens[:].tolist() == [9]
    assert Roxxel(tmp_path / "c.rox").tokens[:].tolist() == [7]
    assert Roxxel(tmp_path / "c_*.rox").tokens[:].tolist() == [8]


def test_replace_leaves_a_corpus_of_one_file_that_is_being_written(
    tmp_path: Path,
) -> None:
    corpus = Roxxel(tmp_path / "c_*.rox")
    corpus.write([[1]])
    day = Roxxel(tmp_path / DAYS[0])

    def documents() -> Any:
        yield [5]
        corpus.write([[7]], exist="replace")
        yield [6]

    day.write(documents())

    assert day.tokens[:].tolist() == [5, 6]
    assert corpus.tokens[:].tolist() == [7]
