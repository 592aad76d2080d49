"""Merging the shards of many appends changes no token, document, column or version."""

from __future__ import annotations

import os
import shutil
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from roxxel_format import Roxxel, ShardError, ShardWriter
from roxxel_format._write.place import Place
from roxxel_format.cli import main

from .helpers import corpus_of, documents_of, names_in, short

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

APPENDS = st.lists(
    st.lists(st.integers(0, 900), min_size=1, max_size=4), min_size=1, max_size=5
)


def grown(pattern: str | Path, appends: list[list[int]], **options: Any) -> Roxxel:
    """Write a corpus by appends of documents of these lengths, each with an id."""
    corpus = Roxxel(pattern)
    given: dict[str, Any] = {
        "document_id": "id",
        "dtype": "uint16",
        "block_size": 512,
        "without_columns": ["mask"],
        **options,
    }
    for number, lengths in enumerate(appends):
        documents = documents_of(*lengths, seed=number)
        rows = [
            {"text": each, "id": f"{number}-{at}" * at}
            for at, each in enumerate(documents)
        ]
        corpus.write(rows, exist="append", **given)
    return corpus


def view_of(corpus: Roxxel) -> dict[str, Any]:
    """Return all that can be read of a version, but how it is divided into shards."""
    columns = [corpus.column(name) for name in corpus.columns]
    span = corpus.document_spans(0, corpus.num_tokens)
    return {
        "fingerprint": corpus.fingerprint,
        "tokens": corpus.tokens[:].tolist(),
        "documents": [each.tolist() for each in corpus.documents],
        "with separators": [
            corpus.document_range(number) for number in range(corpus.num_documents)
        ],
        "spans": span.tolist(),
        "lengths": corpus.document_lengths(),
        "range": corpus.token_range_seen,
        "bins": (corpus.unit, corpus.num_padding, corpus.num_cut),
        "columns": {
            each.name: (each.per, each[:].tolist(), each.digest) for each in columns
        },
    }


def views_of(corpus: Roxxel) -> list[dict[str, Any]]:
    return [view_of(corpus.with_version(each)) for each in corpus.versions]


@settings(max_examples=15, deadline=None)
@given(
    appends=APPENDS,
    separator=st.sampled_from([None, 7]),
    arranged=st.sampled_from([{}, {"pack": 64}, {"max_shard_bytes": 8300}]),
    column_after=st.integers(0, 4),
    most=st.sampled_from([1, 9000, 14_000, 1 << 20]),
)
def test_every_version_reads_as_before(
    appends: list[list[int]],
    separator: int | None,
    arranged: dict[str, int],
    column_after: int,
    most: int,
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        pattern = Path(folder, "c_*.rox")
        if arranged.get("pack") and separator is None:
            appends = [[each + 1 for each in lengths] for lengths in appends]
        options: dict[str, Any] = {"separator": separator, **arranged}
        corpus = grown(pattern, appends[:column_after], **options)
        if column_after:
            corpus.write_column("mask", np.arange(corpus.num_tokens) % 3 == 0)
        corpus = grown(pattern, appends, **options)
        before, shards = views_of(corpus), corpus.num_shards
        partial = corpus.partial_columns

        first = corpus.compact(max_shard_bytes=most)
        corpus.compact(max_shard_bytes=2 * most)

        assert views_of(corpus) == before
        assert corpus.partial_columns == partial
        assert corpus.num_shards <= first.num_shards
        assert first.num_shards == shards - first.num_merged + first.num_written
        assert corpus.verify().ok
        assert corpus.leftovers() == []


def test_a_corpus_grows_and_is_compacted_again_and_again(tmp_path: Path) -> None:
    corpus = grown(tmp_path / "c_*.rox", [[30, 0], [5], [70]], separator=9)
    seen = views_of(corpus)
    for turn in range(3):
        corpus.compact()
        grown(tmp_path / "c_*.rox", [[40, turn], [8]], separator=9)
        corpus = Roxxel(tmp_path / "c_*.rox")
        seen += views_of(corpus)[len(seen) :]
    corpus.compact()

    assert views_of(corpus) == seen
    assert len(names_in(tmp_path)) == 3  # manifest, shard and column


def test_a_shard_whose_file_is_gone_keeps_its_name(tmp_path: Path) -> None:
    corpus = grown(tmp_path / "c_*.rox", [[30], [40], [9000]])
    moved = Path(corpus.paths[2])
    before = corpus.tokens[:]
    moved.rename(tmp_path / "moved")

    corpus.compact(max_shard_bytes=20_000)

    assert moved.name not in names_in(tmp_path)
    (tmp_path / "moved").rename(moved)
    assert np.array_equal(corpus.tokens[:], before)


def test_a_reader_of_a_merged_file_is_told_of_the_compaction_and_to_open_again(
    tmp_path: Path,
) -> None:
    corpus = grown(tmp_path / "c_*.rox", [[30], [40]])
    opened = Roxxel(corpus.filepath)
    old = opened.tokens[:30].copy()
    names = opened.column("id")

    corpus.compact()

    for read in (lambda: opened.tokens[30:], lambda: names[:]):
        with pytest.raises(ShardError, match=r"compacted.*open the corpus again"):
            read()
    opened.close()  # The next use opens the same version.
    assert np.array_equal(opened.tokens[:30], old)
    assert opened.num_tokens == 70


def test_columns_that_are_written_later_are_read_at_earlier_versions(
    tmp_path: Path,
) -> None:
    corpus = grown(tmp_path / "c_*.rox", [[30], [40]])
    corpus.write_column("mask", np.zeros(70, np.uint8))
    first, _ = corpus.versions
    zeros = corpus.with_version(first).column("mask").digest
    corpus.compact()
    assert corpus.with_version(first).column("mask").digest == zeros

    corpus.write_column("mask", np.arange(70, dtype=np.uint8), exist="replace")

    column = corpus.with_version(first).column("mask")
    assert column[:].tolist() == [*range(30)]
    assert column.digest != zeros


def test_a_column_of_another_dtype_has_another_digest_at_earlier_versions(
    tmp_path: Path,
) -> None:
    corpus = grown(tmp_path / "c_*.rox", [[30], [40]])
    corpus.write_column("mask", np.zeros(70, np.uint8))
    corpus.compact()
    first = corpus.with_version(corpus.versions[0])
    unsigned = first.column("mask").digest

    corpus.write_column("mask", np.zeros(70, np.int8), exist="replace")

    first = corpus.with_version(corpus.versions[0])
    assert first.column("mask").digest != unsigned


def test_a_column_younger_than_a_merged_version_keeps_its_digest_there(
    tmp_path: Path,
) -> None:
    path = tmp_path / "c_*.rox"
    for number in range(3):
        Roxxel(path).write([[number] * 9], vocab_size=9, exist="append")
    old = Roxxel(path).versions[1]
    Roxxel(path).compact()
    Roxxel(path).write_column("mask", np.arange(27) % 2, per="token")
    before = Roxxel(path, version=old).column("mask").digest
    lacking: dict[str, Any] = {"exist": "append", "without_columns": ["mask"]}
    Roxxel(path).write([[7] * 9], vocab_size=9, **lacking)
    Roxxel(path).write_column("mask", np.ones(9, int), per="token", exist="append")

    Roxxel(path).compact()

    column = Roxxel(path, version=old).column("mask")
    assert column.digest == before
    assert column[:].tolist() == [*(np.arange(18) % 2)]


def test_full_shards_stay_the_files_that_they_are(tmp_path: Path) -> None:
    corpus = grown(tmp_path / "c_*.rox", [[900], [5], [6], [900], [7]])
    before = corpus.paths

    done = corpus.compact(max_shard_bytes=12_000)

    assert [before[0], before[3], before[4]] == [*corpus.paths[:1], *corpus.paths[2:]]
    assert (done.num_merged, done.num_written, done.num_shards) == (2, 1, 4)


def test_an_append_that_is_committed_meanwhile_stays(tmp_path: Path) -> None:
    corpus = grown(tmp_path / "c_*.rox", [[30], [40]])
    versions = [*corpus.versions]

    def append(_done: int, total: int) -> None:
        if _done == total and len(Roxxel(corpus.filepath).versions) == 2:
            Roxxel(corpus.filepath).write(
                [{"text": np.array([1, 2]), "id": "late"}],
                exist="append",
                document_id="id",
                dtype="uint16",
            )

    done = corpus.compact(progress=append)

    assert (corpus.num_tokens, corpus.num_shards) == (72, 2)
    assert corpus.versions[:2] == versions
    assert done.num_versions == 3
    assert corpus.column("id")[-1] == "late"


def test_a_replacement_meanwhile_refuses_the_compaction(tmp_path: Path) -> None:
    corpus = grown(tmp_path / "c_*.rox", [[30], [40]])

    def replace(_done: int, _total: int) -> None:
        Roxxel(corpus.filepath).write([np.array([1])], exist="replace")

    with pytest.raises((FileExistsError, ShardError), match="replaced"):
        corpus.compact(progress=replace)

    assert Roxxel(corpus.filepath).tokens[:].tolist() == [1]
    assert len(names_in(tmp_path)) == 2


def test_a_damaged_block_is_found_before_anything_is_committed(tmp_path: Path) -> None:
    corpus = grown(tmp_path / "c_*.rox", [[30], [40]])
    path = Path(corpus.paths[1])
    data = bytearray(path.read_bytes())
    data[4100] ^= 1
    path.write_bytes(data)
    names = names_in(tmp_path)

    with pytest.raises(ShardError, match=f"{path.name}.*block 0"):
        corpus.compact()

    assert names_in(tmp_path) == names


@pytest.mark.parametrize("lose", [Path.unlink, partial(os.truncate, length=99)])
def test_a_merged_shard_that_is_lost_before_the_commit_is_an_error(
    tmp_path: Path, lose: Callable[[Path], None]
) -> None:
    corpus = grown(tmp_path / "c_*.rox", [[30], [40]])
    before, names = views_of(corpus), names_in(tmp_path)
    check = Place.check_present

    def after_a_clean(place: Place, sizes: Mapping[str, int]) -> None:
        lose(tmp_path / next(iter(sizes)))
        check(place, sizes)

    with (
        mock.patch.object(Place, "check_present", after_a_clean),
        pytest.raises(FileNotFoundError, match="before the commit"),
    ):
        corpus.compact()

    assert views_of(corpus) == before
    assert names_in(tmp_path) == names


def test_a_column_that_is_written_during_a_compaction_is_kept(tmp_path: Path) -> None:
    corpus = grown(tmp_path / "c_*.rox", [[3], [4]])
    check = Place.check_present

    def before_a_column(place: Place, sizes: Mapping[str, int]) -> None:
        check(place, sizes)
        Roxxel(tmp_path).write_column("late", [*range(7)])

    with (
        mock.patch.object(Place, "check_present", before_a_column),
        pytest.raises(FileExistsError, match=r"a column meanwhile.*; compact again"),
    ):
        corpus.compact()

    assert Roxxel(tmp_path).column("late")[:].tolist() == [*range(7)]
    assert corpus.leftovers() == []


def test_metadata_is_that_of_the_first_shard_with_the_counts_of_all(
    tmp_path: Path,
) -> None:
    for number in range(3):
        path = tmp_path / f"c_{number:05d}.rox"
        record = {
            "numbers": [0],
            "names": [f"part-{number}"],
            "documents": [1],
            "tokens": [2],
            "text_bytes": [5],
        }
        skipped = {"number": number, "errors": [f"bad {number}"] * number}
        metadata = {"source": number, "input_files": record, "skipped": skipped}
        with ShardWriter(path, "uint16", metadata=metadata) as writer:
            writer.append(np.array([number, 1], np.uint16))
    corpus = Roxxel(tmp_path / "c_*.rox")
    corpus.adopt()

    corpus.compact()

    assert corpus.metadata["source"] == 0
    errors = ["bad 1", "bad 2", "bad 2"]
    assert corpus.metadata["skipped"] == {"number": 3, "errors": errors}
    assert [each.name for each in corpus.input_totals()] == [
        "part-0",
        "part-1",
        "part-2",
    ]
    assert sum(each.num_tokens for each in corpus.input_totals()) == corpus.num_tokens


@pytest.mark.parametrize("other", [7, None, {"number": 1}, {"number": 1, "errors": 2}])
def test_metadata_of_the_same_name_and_another_meaning_stop_no_merge(
    tmp_path: Path, other: object
) -> None:
    corpus = Roxxel(tmp_path / "c_*.rox")
    for number, skipped in enumerate((other, {"number": 2, "errors": ["bad"]})):
        metadata = {"skipped": skipped, "input_files": other}
        path = tmp_path / f"c_{number:05d}.rox"
        with ShardWriter(path, "uint8", metadata=metadata) as writer:
            writer.append(np.array([1]))
    corpus.adopt()

    assert corpus.compact().num_merged == 2
    assert corpus.metadata["skipped"] == {"number": 2, "errors": ["bad"]}


def test_the_command_says_what_was_merged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = grown(tmp_path / "c_*.rox", [[30], [40], [50]]).versions[0]

    assert main(["clean", "--compact", str(tmp_path / "c_*.rox")]) == 0
    said = capsys.readouterr().out
    assert all(
        each in said for each in ("merged 3 shards into 1", "3 versions stay readable")
    )
    assert main(["clean", "--compact", str(tmp_path)]) == 0
    assert "nothing to merge" in capsys.readouterr().out
    assert main(["info", str(tmp_path), "--no-lengths"]) == 0
    assert f"{first}, 30 tokens in 1 document" in capsys.readouterr().out


def test_what_cannot_be_compacted_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Roxxel(tmp_path / "one.rox").write([np.array([1])])
    corpus_of(tmp_path / "c", documents_of(5))

    assert main(["clean", "--compact", str(tmp_path / "one.rox")]) == 1
    assert "is one file" in capsys.readouterr().err
    assert main(["clean", "--compact", str(tmp_path / "none_*.rox")]) == 1
    assert "no such corpus" in capsys.readouterr().err
    with pytest.raises(ValueError, match="max_shard_bytes must be at least 1, got 0"):
        Roxxel(tmp_path / "c").compact(max_shard_bytes=0)
    assert short(names_in(tmp_path / "c")) == ["c_000.rox", "c_manifest.json"]


def test_shards_whose_manifest_is_lost_become_no_leftovers(tmp_path: Path) -> None:
    [path] = corpus_of(tmp_path, documents_of(5)).paths
    copy = tmp_path / "copy" / Path(path).name
    copy.parent.mkdir()
    shutil.copy(path, copy)
    corpus = Roxxel(tmp_path / "copy" / "c_*.rox")

    for change in (corpus.compact, lambda: corpus.write(documents_of(3))):
        with pytest.raises(ShardError, match="--adopt"):
            change()

    assert [*copy.parent.iterdir()] == [copy]


def test_a_copy_of_an_earlier_state_is_brought_up_to_date(tmp_path: Path) -> None:
    corpus = grown(tmp_path / "c_*.rox", [[30], [40]])
    corpus.copy_to(tmp_path / "copy" / "c_*.rox")
    corpus.compact()

    corpus.copy_to(tmp_path / "copy" / "c_*.rox")

    assert views_of(Roxxel(tmp_path / "copy")) == views_of(corpus)
    assert len(names_in(tmp_path / "copy")) == 3


def test_a_kept_write_and_a_copy_say_the_version_of_a_merged_corpus(
    tmp_path: Path,
) -> None:
    corpus = Roxxel(tmp_path / "c_*.rox")
    corpus.write([[1]], dtype="uint16")
    corpus.write([[2]], exist="append")
    corpus.compact()

    copied = corpus.copy_to(tmp_path / "copy" / "c_*.rox")

    assert copied.fingerprint == Roxxel(tmp_path / "copy" / "c_*.rox").fingerprint
    assert copied.fingerprint == corpus.fingerprint
    again = corpus.copy_to(tmp_path / "copy" / "c_*.rox")
    assert (again.kept, again.fingerprint) == (True, corpus.fingerprint)
