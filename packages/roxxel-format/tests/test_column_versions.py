"""Columns of a corpus that grows: each version keeps its own."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from roxxel_format import Roxxel, ShardError
from roxxel_format.cli import main
from roxxel_format.errors import ManifestError

from .conformance.reader import read_column, seal
from .helpers import corpus_of, documents_of, listed, names_in

if TYPE_CHECKING:
    from collections.abc import Iterator


def grow(folder: Path, *values: int) -> Roxxel:
    """Append a shard of one document, without columns; return the corpus then."""
    lacking: dict[str, Any] = {"without_columns": ["mask", "old", "both"]}
    documents = [np.array(values, np.uint16)]
    return corpus_of(folder, documents, exist="append", **lacking)


def column_at(folder: Path, version: str, column: str = "mask") -> list[int]:
    return Roxxel(folder / "c_*.rox", version=version).column(column)[:].tolist()


def reseal(folder: Path, table: dict[str, Any]) -> None:
    """Write a manifest of other content, with the right checksum."""
    (folder / "c_manifest.json").write_bytes(seal(table))


@pytest.mark.parametrize("per", ["token", "document"])
def test_append_of_a_column_writes_the_shards_that_lack_it(
    per: Any, tmp_path: Path
) -> None:
    corpus = grow(tmp_path, 1, 2)
    first = corpus.fingerprint
    count = {"token": 2, "document": 1}[per]
    corpus.write_column("mask", np.arange(count, dtype=np.uint8), per)
    before = {name: (tmp_path / name).read_bytes() for name in names_in(tmp_path)}
    grow(tmp_path, 3, 4)
    corpus = grow(tmp_path, 5, 6)

    values = np.arange(count, 3 * count, dtype=np.uint8)
    corpus.write_column("mask", values, per, exist="append")

    assert corpus.column("mask")[:].tolist() == list(range(3 * count))
    assert column_at(tmp_path, first) == list(range(count))
    assert corpus.verify().ok
    del before["c_manifest.json"]
    assert {name: (tmp_path / name).read_bytes() for name in before} == before
    assert corpus.leftovers() == []


def test_append_of_a_new_column_writes_all_of_it(tmp_path: Path) -> None:
    corpus = grow(tmp_path, 1, 2)

    corpus.write_column("mask", [1, 0], exist="append")
    corpus.write_column("mask", [], exist="append")

    assert corpus.column("mask")[:].tolist() == [1, 0]


@pytest.mark.parametrize(
    ("values", "per", "dtype", "message"),
    [
        (
            [1],
            "token",
            None,
            "without this column have 2 tokens, but there are only",
        ),
        (
            [1, 2, 3],
            "token",
            None,
            "have 2 tokens, but there are more values; pass",
        ),
        (
            [256, 1],
            "token",
            None,
            r"value 0 is 256, outside \[0, 255\] of uint8; use a wider dtype with exi",
        ),
        ([1], "document", None, "is per token, so values per document cannot be appe"),
        ([1, 1], "token", "int64", "holds uint8, so int64 cannot be appended; leave d"),
    ],
)
def test_append_of_values_that_do_not_fit_the_column_changes_nothing(
    values: list[int], per: Any, dtype: Any, message: str, tmp_path: Path
) -> None:
    grow(tmp_path, 1).write_column("mask", np.zeros(1, np.uint8))
    corpus = grow(tmp_path, 2, 3)
    before = listed(tmp_path), names_in(tmp_path)

    with pytest.raises(ValueError, match=message):
        corpus.write_column("mask", values, per, dtype, exist="append")

    assert (listed(tmp_path), names_in(tmp_path)) == before


def test_append_to_a_complete_column_says_how_to_change_it(tmp_path: Path) -> None:
    corpus = grow(tmp_path, 1)
    corpus.write_column("mask", [1])

    message = "every shard has this column already; to change its values, use exist"
    with pytest.raises(ValueError, match=message):
        corpus.write_column("mask", [0], exist="append")

    assert corpus.column("mask")[:].tolist() == [1]


def test_a_replaced_column_is_replaced_in_every_version(tmp_path: Path) -> None:
    corpus = grow(tmp_path, 1, 2)
    first = corpus.fingerprint
    corpus.write_column("mask", [1, 0])
    digest = Roxxel(tmp_path / "c_*.rox", version=first).column("mask").digest
    corpus = grow(tmp_path, 3)

    for values in ([5, 5, 5], [6, 6, 6], [7, 7, 7]):
        corpus.write_column("mask", values, dtype="int32", exist="replace")

    assert corpus.column("mask")[:].tolist() == [7, 7, 7]
    assert column_at(tmp_path, first) == [7, 7]
    assert Roxxel(tmp_path / "c_*.rox", version=first).column("mask").digest != digest
    assert read_column(tmp_path / "c_manifest.json", "mask").tolist() == [7] * 3
    assert corpus.leftovers() == []
    assert sum(name.endswith(".bin") for name in names_in(tmp_path)) == 2


def test_a_column_that_is_replaced_after_a_compaction_has_another_digest(
    tmp_path: Path,
) -> None:
    digests: dict[str, set[str]] = {}
    grow(tmp_path, 1, 2)
    corpus = grow(tmp_path, 3)
    for values in ([0, 1, 0], [1, 1, 0]):
        corpus.write_column("mask", values, exist="replace")
        corpus.compact()
        for version in Roxxel(tmp_path).versions:
            column = Roxxel(tmp_path / "c_*.rox", version=version).column("mask")
            digests.setdefault(version, set()).add(column.digest)

    assert [len(found) for found in digests.values()] == [2, 2]


def test_a_version_lists_the_columns_that_it_has(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus = grow(tmp_path, 1)
    first = corpus.fingerprint
    assert corpus.columns == []
    corpus.write_column("old", [1])
    corpus.write_column("both", [1])
    corpus = grow(tmp_path, 2)
    corpus.write_column("both", [1], exist="append")
    corpus.write_column("new", [1, 1])

    assert corpus.columns == ["both", "new"]
    assert corpus.with_version(first).columns == ["both", "new", "old"]
    assert Roxxel(corpus.paths[0]).columns == []
    assert main(["info", str(tmp_path), "--no-lengths"]) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = [line for line in lines if "for each token" in line]
    assert [
        row.split(maxsplit=row.startswith("columns"))[-1].strip() for row in rows
    ] == [
        "old: int64 for each token, in 1 shard, missing in 1",
        "both: int64 for each token, in 2 shards",
        "new: int64 for each token, in 2 shards",
    ]
    message = (
        r"c_\w+_000\.rox: the shard has no column 'old'; append it with write_colu"
    )
    with pytest.raises(ShardError, match=message):
        corpus.column("old")


@pytest.mark.parametrize("exist", ["append", "replace"])
def test_column_that_another_write_changes_meanwhile_is_an_error(
    exist: Any, tmp_path: Path
) -> None:
    grow(tmp_path, 1).write_column("mask", [1])
    corpus = grow(tmp_path, 2)

    def values() -> Iterator[Any]:
        yield np.array([2, 2] if exist == "replace" else [2])
        Roxxel(tmp_path).write_column("mask", [3], exist="append")

    with pytest.raises(FileExistsError, match="another write of the column 'mask' was"):
        corpus.write_column("mask", values(), exist=exist)

    assert corpus.column("mask")[:].tolist() == [1, 3]
    assert corpus.leftovers() == []


def test_replaced_column_of_a_version_that_an_append_makes_an_earlier_one(
    tmp_path: Path,
) -> None:
    corpus = grow(tmp_path, 1)
    first = corpus.fingerprint
    corpus.write_column("mask", [1])

    def values() -> Iterator[Any]:
        grow(tmp_path, 2)
        yield np.array([7])

    corpus.write_column("mask", values(), exist="replace")

    assert column_at(tmp_path, first) == [7]
    assert corpus.leftovers() == []


def test_a_file_of_a_column_is_verified_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = corpus_of(tmp_path, documents_of(5000, 5000))
    corpus.write_column("mask", np.arange(corpus.num_tokens))
    reads: list[int] = []
    pread = os.pread

    def counted(fd: int, length: int, offset: int) -> bytes:
        reads.append(length)
        return pread(fd, length, offset)

    monkeypatch.setattr("os.pread", counted)
    assert corpus.column("mask")[3] == 3
    assert sum(reads) >= 8000
    reads.clear()

    for index in range(10):
        assert corpus.column("mask")[index] == index

    assert reads == []


def open_files(folder: Path, suffix: str) -> set[Path]:
    """Return the files of a folder with a suffix that this process has open."""
    links = [each for each in Path("/proc/self/fd").iterdir() if each.is_symlink()]
    return {each.readlink() for each in links} & {*folder.glob(f"*{suffix}")}


def test_a_column_keeps_as_many_files_open_as_its_corpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not Path("/proc/self/fd").exists():
        pytest.skip("this system does not list the files of a process")
    written = corpus_of(tmp_path, documents_of(*[1700] * 18))
    written.write_column("mask", np.arange(written.num_tokens))
    monkeypatch.setattr("roxxel_format._read.files._MOST_MAPS", 2)
    with Roxxel(written.filepath) as corpus:
        column = corpus.column("mask")
        starts = np.arange(0, corpus.num_tokens - 10, 1000)
        assert corpus.num_shards == 18

        assert np.array_equal(column.read(starts, 10)[:, 0], starts)
        corpus.read(starts, 10)

        opened = [len(open_files(tmp_path, each)) for each in (".bin", ".rox")]
        assert opened[0] == opened[1] < 5
    assert open_files(tmp_path, ".bin") == set()


@pytest.mark.parametrize("changed", ["the copy", "the source"])
@pytest.mark.parametrize("merged", [False, True])
def test_a_copy_takes_no_replaced_column_back(
    changed: str, merged: bool, tmp_path: Path
) -> None:
    grow(tmp_path, 5)
    corpus = grow(tmp_path, 6)
    corpus.write_column("mask", [1, 1])
    target = tmp_path / "copy" / "c_*.rox"
    corpus.copy_to(target)
    replaced = Roxxel(target if changed == "the copy" else corpus.filepath)
    replaced.write_column("mask", [2, 2], exist="replace")
    if merged:
        Roxxel(corpus.filepath).compact()

    with pytest.raises(FileExistsError, match=r"'mask' has other values than the sou"):
        Roxxel(corpus.filepath).copy_to(target)

    assert replaced.column("mask")[:].tolist() == [2, 2]
    Roxxel(corpus.filepath).copy_to(target, exist="replace")
    assert Roxxel(target).column("mask")[:].tolist() == (
        [1, 1] if changed == "the copy" else [2, 2]
    )


@pytest.mark.parametrize("values", [(5, 5, 5), (5, 6, 7)])
def test_a_copy_of_equal_shards_or_columns_lists_no_file_twice(
    values: tuple[int, ...], tmp_path: Path
) -> None:
    corpus = [grow(tmp_path, value) for value in values][-1]
    corpus.write_column("mask", [1, 1, 1])
    target = tmp_path / "copy" / "c_*.rox"
    corpus.copy_to(target)
    copied = Roxxel(target)
    size = Path(copied.paths[0]).stat().st_size
    assert copied.compact(max_shard_bytes=2 * size + size // 2).num_shards == 2

    corpus.copy_to(target)

    assert copied.with_version(corpus.fingerprint).verify().ok
    assert Roxxel(target).tokens[:].tolist() == [*values]
    assert Roxxel(target).column("mask")[:].tolist() == [1, 1, 1]
    assert Roxxel(target).leftovers() == []


@pytest.mark.parametrize("merged", ["the copy", "the source"])
def test_a_copy_follows_merged_shards_of_which_the_last_lack_a_column(
    merged: str, tmp_path: Path
) -> None:
    grow(tmp_path, 5)
    corpus = grow(tmp_path, 6)
    corpus.write_column("mask", [1, 2])
    corpus = grow(tmp_path, 7)
    target = tmp_path / "copy" / "c_*.rox"
    corpus.copy_to(target)
    Roxxel(target if merged == "the copy" else corpus.filepath).compact()
    corpus = grow(tmp_path, 8)

    corpus.copy_to(target)

    assert Roxxel(target).tokens[:].tolist() == [5, 6, 7, 8]
    corpus.write_column("mask", [3, 4], exist="append")
    corpus.copy_to(target)
    assert Roxxel(target).column("mask")[:].tolist() == [1, 2, 3, 4]


def test_values_after_a_gap_in_merged_shards_cannot_be_compared(tmp_path: Path) -> None:
    corpus, target = Roxxel(tmp_path / "c_*.rox"), tmp_path / "copy" / "c_*.rox"
    arguments: dict[str, Any] = {"separator": 0, "exist": "append"}
    rows = [{"text": "a", "key": "b"}]
    corpus.write(rows, **arguments, document_id="key")
    corpus.write(["a"], **arguments, without_columns=["id"])
    for _ in range(2):
        corpus.write(rows, **arguments, document_id="key")
    corpus.copy_to(target)
    corpus.compact()

    with pytest.raises(FileExistsError, match=r"'id'.*gap.*merged.*replace"):
        corpus.copy_to(target)

    assert corpus.copy_to(target, exist="replace").num_documents == 4


def test_a_copy_gets_values_that_were_appended(tmp_path: Path) -> None:
    corpus = grow(tmp_path, 5)
    corpus.write_column("mask", [1])
    target = tmp_path / "copy" / "c_*.rox"
    corpus = grow(tmp_path, 6)
    corpus.copy_to(target)
    corpus.write_column("mask", [2], exist="append")

    corpus.copy_to(target)

    assert Roxxel(target).column("mask")[:].tolist() == [1, 2]


def test_a_replaced_column_is_an_error_of_who_reads_its_old_files(
    tmp_path: Path,
) -> None:
    corpus = grow(tmp_path, 1)
    corpus.write_column("mask", [1])
    reader = Roxxel(corpus.filepath).column("mask")

    corpus.write_column("mask", [2], exist="replace")

    with pytest.raises(ShardError, match=r"is missing.* the column was replaced"):
        reader[0]
    assert corpus.column("mask")[:].tolist() == [2]


@pytest.mark.parametrize(
    "name", ["a/b", "../a", "..", "a.b", "", "1a", "a b", "\N{LATIN SMALL LETTER U}."]
)
def test_manifest_with_a_column_of_a_hostile_name_is_refused(
    name: str, tmp_path: Path
) -> None:
    grow(tmp_path, 1).write_column("mask", [1])
    table = listed(tmp_path)
    table["columns"][name] = table["columns"].pop("mask")
    reseal(tmp_path, table)

    with pytest.raises(ManifestError, match=r"contradicts itself .*the column name"):
        _ = Roxxel(tmp_path).num_tokens


@pytest.mark.parametrize(
    "change",
    [
        {"names": ["x.bin", "y.bin"]},
        {"names": [], "bytes": [], "digests": []},
        {"names": ["../x"]},
        {"names": ["x" * 256]},
        {"digests": ["x"]},
        {"bytes": [-1]},
        {"per": "shard"},
    ],
)
def test_manifest_with_a_wrong_column_is_refused(change: Any, tmp_path: Path) -> None:
    grow(tmp_path, 1).write_column("mask", [1])
    table = listed(tmp_path)
    table["columns"]["mask"] |= change
    reseal(tmp_path, table)

    with pytest.raises(ManifestError, match="contradicts itself"):
        _ = Roxxel(tmp_path).num_tokens


def test_manifest_with_one_file_for_two_uses_is_refused(tmp_path: Path) -> None:
    grow(tmp_path, 1).write_column("mask", [1])
    table = listed(tmp_path)
    table["columns"]["mask"]["names"] = table["shards"]["names"]
    reseal(tmp_path, table)

    with pytest.raises(ManifestError, match="contradicts itself"):
        _ = Roxxel(tmp_path).num_tokens
