"""Columns: one file beside each shard, listed by the manifest."""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from roxxel_format import Roxxel, ShardError

from .helpers import corpus_of, documents_of, listed, names_in, short

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def table_of(folder: Path, column: str) -> dict[str, Any]:
    return listed(folder)["columns"][column]


def items_of(folder: Path, column: str) -> list[Any]:
    """Return the items of a column; None for each shard without it."""
    table = table_of(folder, column)
    items: list[Any] = []
    for name, size, digest in zip(
        table["names"], table["bytes"], table["digests"], strict=True
    ):
        if name is None:
            items.append(None)
            continue
        data = (folder / name).read_bytes()
        assert len(data) == size
        assert blake2b(data, digest_size=32).hexdigest() == digest
        items += np.frombuffer(data, table["dtype"]).tolist()
    return items


@settings(max_examples=25)
@given(
    lengths=st.lists(st.integers(0, 9000), min_size=1, max_size=6),
    cuts=st.lists(st.integers(0, 9000), max_size=4),
    per_token=st.booleans(),
)
def test_columns_hold_one_item_for_each_token_or_document(
    lengths: list[int],
    cuts: list[int],
    *,
    per_token: bool,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("corpus")
    corpus = corpus_of(folder, documents_of(*lengths), separator=b"\1")
    per: Literal["token", "document"] = "token" if per_token else "document"
    count = corpus.num_tokens if per == "token" else corpus.num_documents
    values = np.random.default_rng(0).integers(0, 256, count).astype(np.uint8)

    parts = iter(np.split(values, sorted(cut % (count + 1) for cut in cuts)))
    corpus.write_column("mask", parts, per, "uint8")

    assert items_of(folder, "mask") == values.tolist()
    assert table_of(folder, "mask")["per"] == per


def test_column_is_listed_under_a_name_of_its_own(tmp_path: Path) -> None:
    corpus = corpus_of(tmp_path, [[1, 2], [3]])

    corpus.write_column("loss_mask", [True, False, True])

    table = table_of(tmp_path, "loss_mask")
    assert (table["per"], table["dtype"]) == ("token", "bool")
    (name,) = [name for name in names_in(tmp_path) if name.endswith(".bin")]
    assert table["names"] == [name]
    assert short([name])[0].startswith("c_000.loss_mask.")
    assert corpus.leftovers() == []


@pytest.mark.parametrize(
    ("values", "dtype", "stored", "items"),
    [
        (["a", "bé"], None, "S3", [b"a", "bé".encode()]),
        (np.array(["a", "b"]), "S4", "S4", [b"a", b"b"]),
        ((np.array([each]) for each in ("a", "b")), "S2", "S2", [b"a", b"b"]),
        (np.array([1.5, 2]), "float32", "float32", [1.5, 2.0]),
        (np.array([1, 2], ">i4"), None, "int32", [1, 2]),
        ([[1], [2]], "uint8", "uint8", [1, 2]),
    ],
)
def test_values_are_stored_as_their_dtype(
    values: Any, dtype: str | None, stored: str, items: list[Any], tmp_path: Path
) -> None:
    corpus = corpus_of(tmp_path, [[1, 2], [3]])

    corpus.write_column("id", values, "document", dtype)

    assert table_of(tmp_path, "id")["dtype"] == stored
    assert items_of(tmp_path, "id") == items


@pytest.mark.parametrize(
    "values", [np.empty(0, np.float32), [np.empty(0, np.float32)] * 2]
)
def test_a_column_of_no_values_has_their_type(values: Any, tmp_path: Path) -> None:
    corpus = corpus_of(tmp_path, [[], []])

    corpus.write_column("weight", values)

    assert table_of(tmp_path, "weight")["dtype"] == "float32"


def test_no_values_of_no_type_are_refused(tmp_path: Path) -> None:
    corpus = corpus_of(tmp_path, [[], []])

    nothing: list[Any] = [[], iter([]), [[], []]]
    for values in nothing:
        with pytest.raises(TypeError, match="pass dtype"):
            corpus.write_column("weight", values)
    corpus.write_column("weight", [], dtype="float32")

    assert table_of(tmp_path, "weight")["dtype"] == "float32"


@pytest.mark.parametrize(
    ("values", "dtype", "error", "message"),
    [
        ([1], None, ValueError, "have 2 documents, but there are only 1 values; pas"),
        ([1, 2, 3], None, ValueError, "have 2 documents, but there are more values"),
        ([1, 256], "uint8", ValueError, r"value 1 is 256, outside \[0, 255\] of uint8"),
        ([0.5, 1], "uint8", TypeError, "dtype float64 cannot be stored as uint8"),
        (["a", "abc"], "S2", ValueError, r"value 1 has 3 bytes, more than \|S2 holds"),
        ([1, 2], "S2", TypeError, r"dtype int64 cannot be stored as S2"),
        ([1, "a"], None, TypeError, "value 0 is 1, but the column holds texts"),
        (iter([np.array(["a", "b"])]), None, TypeError, "no common width; pass dtype"),
        (np.zeros((2, 1)), None, ValueError, r"values have shape \(2, 1\); pass flat"),
    ],
)
def test_values_that_do_not_fit_leave_no_file(
    values: Any, dtype: str | None, error: Any, message: str, tmp_path: Path
) -> None:
    corpus = corpus_of(tmp_path, [[1, 2], [3]])
    before = names_in(tmp_path)

    with pytest.raises(error, match=message):
        corpus.write_column("id", values, "document", dtype)

    assert names_in(tmp_path) == before


def test_column_is_replaced_only_if_asked(tmp_path: Path) -> None:
    corpus = corpus_of(tmp_path, [[1, 2], [3]])
    corpus.write_column("id", [1, 2], "document")
    before = names_in(tmp_path)

    with pytest.raises(FileExistsError, match="the column 'id' exists already; use ex"):
        corpus.write_column("id", [3, 4], "document")
    assert names_in(tmp_path) == before
    corpus.write_column("id", [3, 4], "document", exist="replace")

    assert items_of(tmp_path, "id") == [3, 4]
    assert len(names_in(tmp_path)) == len(before)
    assert not set(names_in(tmp_path)) >= set(before)


def test_append_leaves_the_new_shards_without_the_column(tmp_path: Path) -> None:
    corpus = corpus_of(tmp_path, [[1, 2], [3]])

    def values() -> Iterator[Any]:
        yield np.array([1, 2])
        lacking: dict[str, Any] = {"without_columns": ["early"]}
        corpus_of(tmp_path, [[4]], exist="append", **lacking)

    corpus.write_column("early", [7, 8], "document")
    corpus.write_column("late", values(), "document")

    assert items_of(tmp_path, "early") == [7, 8, None]
    assert items_of(tmp_path, "late") == [1, 2, None]
    corpus.write_column("all", [1, 2, 3, 4])
    assert items_of(tmp_path, "all") == [1, 2, 3, 4]


def test_column_of_a_corpus_that_is_replaced_meanwhile_is_an_error(
    tmp_path: Path,
) -> None:
    corpus = corpus_of(tmp_path, [[1, 2], [3]])

    def values() -> Iterator[Any]:
        yield np.array([1, 2])
        corpus_of(tmp_path, [[4]], exist="replace")

    with pytest.raises(ShardError, match="was replaced while its column was written"):
        corpus.write_column("id", values(), "document")

    assert short(names_in(tmp_path)) == ["c_000.rox", "c_manifest.json"]


def test_a_list_of_large_integers_is_exact(tmp_path: Path) -> None:
    corpus = corpus_of(tmp_path, [[1, 2]])

    corpus.write_column("id", [2**63 + 1, 1])

    assert corpus.column("id")[:].tolist() == [2**63 + 1, 1]
    for least in (-1, np.int64(-1)):
        with pytest.raises(OverflowError, match="-1 out of bounds for uint64"):
            corpus.write_column("other", [np.uint64(2**63 + 1), least])


def test_texts_of_a_list_keep_the_zeros_at_their_ends(tmp_path: Path) -> None:
    corpus = corpus_of(tmp_path, [[1], [2]])

    corpus.write_column("name", ["x\0", "y\0\0"], "document", dtype="utf8")

    assert corpus.column("name")[:].tolist() == ["x\0", "y\0\0"]


def test_replaced_corpus_has_no_columns(tmp_path: Path) -> None:
    corpus = corpus_of(tmp_path, [[1, 2], [3]])
    corpus.write_column("id", [1, 2], "document")

    corpus_of(tmp_path, [[4]], exist="replace")

    assert short(names_in(tmp_path)) == ["c_000.rox", "c_manifest.json"]


def test_columns_need_a_committed_corpus_and_a_plain_name(tmp_path: Path) -> None:
    Roxxel(tmp_path / "a.rox").write([[1]])
    corpus = Roxxel(tmp_path / "c_*.rox")

    with pytest.raises(ValueError, match="is one file, so it has no columns; use"):
        Roxxel(tmp_path / "a.rox").write_column("id", [1])
    with pytest.raises(FileNotFoundError, match="no such corpus, so no column can be"):
        corpus.write_column("id", [1])
    corpus.write([[1]])
    for name in ("", "a.b", "../a", "1", "ü"):
        with pytest.raises(ValueError, match="cannot name a column; use ASCII letters"):
            corpus.write_column(name, [1])
    with pytest.raises(ValueError, match='per must be "token" or "document", got'):
        corpus.write_column("id", [1], "shard")  # pyright: ignore[reportArgumentType]
