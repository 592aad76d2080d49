from __future__ import annotations

import os
import pickle
import subprocess
import sys
from typing import TYPE_CHECKING, Any, cast

import datasets as hf
import jax
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import roxxel_loader
from roxxel_loader import (
    ArrowDataset,
    Dataloader,
    HuggingFaceDataset,
    LazyDataset,
    ParquetDataset,
    PolarsDataset,
    huggingface_stream,
)
from roxxel_loader.datasets import arrow, huggingface, polars, sqlite

from .helpers import fetch

if TYPE_CHECKING:
    from pathlib import Path

COLUMNS: dict[str, Any] = {
    "number": list(range(20)),
    "word": [f"word {n}" for n in range(20)],
    "vector": [[float(n), float(-n)] for n in range(20)],
}


@pytest.mark.parametrize("reads", ["arrow", "parquet", "polars"])
def test_a_null_in_a_list_is_none_and_changes_no_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reads: str
) -> None:
    great = 2**53 + 1
    table = pa.table({"y": pa.array([[great, None], [1, 2]], pa.list_(pa.int64()))})
    monkeypatch.setenv("HOME", str(tmp_path))
    pq.write_table(table, tmp_path / "y.parquet")
    dataset: LazyDataset[dict[str, Any]] = {
        "arrow": lambda: ArrowDataset(table),
        "parquet": lambda: ParquetDataset("~/y.parquet"),
        "polars": lambda: PolarsDataset(cast("pl.DataFrame", pl.from_arrow(table))),
    }[reads]()

    assert dataset[0]["y"] == [great, None]
    assert isinstance(dataset[1]["y"], np.ndarray)
    with pytest.raises(TypeError, match=r"item 0\['y'\]\[1\] is None"):
        list(Dataloader(dataset, 2))


def check(dataset: LazyDataset[dict[str, Any]]) -> None:
    """Check rows, batches, bounds and pickling of the table above."""
    assert len(dataset) == 20
    assert dataset[3]["number"] == 3
    assert dataset[3]["word"] == "word 3"
    assert isinstance(dataset[3]["vector"], np.ndarray)
    batches = list(Dataloader(dataset, 8, workers=2, shuffle=True))
    assert [batch["vector"].shape for batch in batches] == [(8, 2), (8, 2), (4, 2)]
    numbers = np.concatenate([batch["number"] for batch in batches])
    assert sorted(numbers.tolist()) == list(range(20))
    for batch in batches:
        assert batch["vector"][:, 1].tolist() == (-batch["number"]).tolist()
        assert list(batch["word"]) == [f"word {n}" for n in batch["number"]]
    assert dataset[-1]["number"] == 19
    for index in (-21, 20):
        with pytest.raises(IndexError):
            dataset[index]
    other = pickle.loads(pickle.dumps(dataset))  # noqa: S301 - our own bytes
    assert other[5]["word"] == "word 5"


def test_polars_frames_are_datasets() -> None:
    check(PolarsDataset(pl.DataFrame(COLUMNS)))
    lazy = PolarsDataset(pl.DataFrame(COLUMNS).lazy(), ["word"])
    assert lazy[1] == {"word": "word 1"}


def test_null_in_a_column_is_named_by_row_and_column() -> None:
    dataset = PolarsDataset(pl.DataFrame({"text": ["a", "b"], "label": [1, None]}))

    with pytest.raises(TypeError, match=r"item 1\['label'\] is None, which no array"):
        list(Dataloader(dataset, 2))


def test_arrow_tables_and_files_are_datasets(tmp_path: Path) -> None:
    table = pa.table(COLUMNS)
    check(ArrowDataset(table))
    path = tmp_path / "rows.arrow"
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as out:
        out.write_table(table)
    check(ArrowDataset(path))
    assert ArrowDataset(path, ["word"])[1] == {"word": "word 1"}


def test_parquet_files_are_one_dataset(tmp_path: Path) -> None:
    table = pa.table(COLUMNS)
    paths = [tmp_path / "a.parquet", tmp_path / "b.parquet"]
    pq.write_table(table.slice(0, 7), paths[0], row_group_size=3)
    pq.write_table(table.slice(7), paths[1], row_group_size=5)

    check(ParquetDataset(paths, max_groups=2))
    assert ParquetDataset(paths[0], ["number"])[6] == {"number": 6}
    with pytest.raises(ValueError, match=r"max_groups must be at least .*got 0"):
        ParquetDataset(paths, max_groups=0)
    with pytest.raises(TypeError, match=r"max_groups must be an integer, got 2\.5"):
        ParquetDataset(paths, max_groups=cast("Any", 2.5))
    with pytest.raises(ValueError, match=r"a\.parquet has no column 'missing'; it has"):
        ParquetDataset(paths, ["missing"])


def test_a_parquet_file_that_is_replaced_gives_no_row_of_another(
    tmp_path: Path,
) -> None:
    path, other = tmp_path / "a.parquet", tmp_path / "b.parquet"
    pq.write_table(pa.table({"number": range(6)}), path, row_group_size=3)
    pq.write_table(pa.table({"number": range(100, 106)}), other, row_group_size=3)
    dataset = ParquetDataset(path)
    assert dataset[0] == {"number": 0}

    other.replace(path)

    with pytest.raises(LookupError, match="was replaced after its dataset"):
        dataset[5]


def test_huggingface_datasets_are_datasets() -> None:
    dataset = hf.Dataset.from_dict(COLUMNS)
    check(HuggingFaceDataset(dataset))
    assert list(HuggingFaceDataset(dataset, ["number"])[1]) == ["number"]

    stream = huggingface_stream(dataset.to_iterable_dataset())
    whole = list(Dataloader(stream, 6))
    assert whole[3]["number"].tolist() == [18, 19]
    tail = list(Dataloader(stream, 6, start_step=2))
    assert [batch["number"].tolist() for batch in tail] == [
        batch["number"].tolist() for batch in whole[2:]
    ]


@pytest.mark.parametrize(
    "columns",
    [
        {"number": [2**24 + 1, None, 3, 2**24 + 3]},
        {"vector": [[2**24 + 1, 2], [3, None], [4, 5], [6, 7]]},
        {"pair": [{"a": 2**24 + 1}, {"a": None}, {"a": 4}, {"a": 5}]},
        {"number": [0.1, 0.2, 0.3, 0.4], "text": ["a", None, "b", None]},
        {"ragged": [[1, 2], [3], [], [4, 5]], "deep": [[[1], [2, 3]], [[4]], [], [[]]]},
    ],
    ids=" ".join,
)
def test_a_huggingface_row_does_not_depend_on_its_neighbours(
    columns: dict[str, Any],
) -> None:
    dataset = HuggingFaceDataset(hf.Dataset.from_dict(columns))
    alone = [dataset[index] for index in range(4)]

    for order in ([0, 1, 2, 3], [2, 3], [3, 1], [0]):
        for index, row in zip(order, fetch(dataset, order), strict=True):
            assert repr(row) == repr(alone[index])
            assert jax.tree.map(dtype_of, row) == jax.tree.map(dtype_of, alone[index])


def dtype_of(leaf: Any) -> np.dtype[Any]:
    return np.asarray(leaf).dtype


def test_a_huggingface_column_with_nulls_keeps_its_integers() -> None:
    columns = {"number": [2**24 + 1, None, 2**24 + 3, 5]}
    dataset = HuggingFaceDataset(hf.Dataset.from_dict(columns))

    for workers in (0, 8):
        [batch] = Dataloader(dataset, 4, workers=workers)
        assert batch["number"].dtype == np.float64
        assert np.nan_to_num(batch["number"]).tolist() == [2**24 + 1, 0, 2**24 + 3, 5]


def test_a_missing_library_names_the_extra() -> None:
    program = """
import sys
for library in ("polars", "pyarrow", "datasets"):
    sys.modules[library] = None
import roxxel_loader
from roxxel_loader import *
SQLiteDataset, SimpleDataset
for name in ("PolarsDataset", "ArrowDataset", "HuggingFaceDataset"):
    assert name in dir(roxxel_loader)
    assert name not in roxxel_loader.__all__
    try:
        getattr(roxxel_loader, name)
    except ModuleNotFoundError as error:
        print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = zip(
        done.stdout.splitlines(),
        [("polars", "polars"), ("arrow", "pyarrow"), ("huggingface", "datasets")],
        strict=True,
    )
    for line, (module, library) in told:
        sentence, command = line.split("; install it: ")
        assert sentence == f"roxxel_loader.datasets.{module} needs {library}"
        assert module in command


def test_all_names_are_listed_and_each_is_the_module_s_own() -> None:
    """The libraries are installed here, so the list is whole."""
    for name, module in [
        ("SQLiteDataset", sqlite),
        ("PolarsDataset", polars),
        ("ArrowDataset", arrow),
        ("ParquetDataset", arrow),
        ("HuggingFaceDataset", huggingface),
        ("huggingface_stream", huggingface),
    ]:
        assert name in roxxel_loader.__all__
        assert getattr(roxxel_loader, name) is getattr(module, name)
    with pytest.raises(AttributeError, match="no attribute 'PolarDataset'"):
        _ = roxxel_loader.PolarDataset  # pyright: ignore[reportAttributeAccessIssue]
