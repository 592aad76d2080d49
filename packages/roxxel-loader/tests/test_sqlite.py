from __future__ import annotations

import pickle
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from roxxel_loader import Dataloader
from roxxel_loader.datasets.sqlite import SQLiteDataset

from .helpers import threads

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(name="database")
def make_database(tmp_path: Path) -> Path:
    path = tmp_path / "a base?.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE samples (id INTEGER PRIMARY KEY, x, word)")
        rows = [(3 * n + 1, float(-n), f"word {n}") for n in range(1200)]
        connection.executemany("INSERT INTO samples VALUES (?, ?, ?)", rows)
        connection.commit()
    return path


def test_rows_come_in_the_order_of_the_key(database: Path) -> None:
    dataset = SQLiteDataset(database, "SELECT * FROM samples;")

    assert len(dataset) == 1200
    assert dataset[2] == {"id": 7, "x": -2.0, "word": "word 2"}
    places = [1199, 0, 5, *range(700)]
    assert [row["id"] for row in dataset.__getitems__(places)] == [
        3 * place + 1 for place in places
    ]
    with pytest.raises(IndexError):
        dataset[1200]


def test_another_order_and_parameters_may_be_given(database: Path) -> None:
    dataset = SQLiteDataset(
        database, "SELECT id, x FROM samples WHERE id < ?", "id", "x", (10,)
    )

    assert [row["x"] for row in dataset] == [-2.0, -1.0, 0.0]


def test_a_query_may_end_in_a_comment(database: Path) -> None:
    dataset = SQLiteDataset(database, "SELECT * FROM samples -- all of them")

    assert dataset[1199]["word"] == "word 1199"


@pytest.mark.parametrize("workers", [0, 4])
def test_any_number_of_workers_reads_it(database: Path, workers: int) -> None:
    dataset = SQLiteDataset(database, "SELECT * FROM samples")

    batches = list(Dataloader(dataset, 100, workers=workers, shuffle=True))

    words = [word for batch in batches for word in batch["word"]]
    assert sorted(words) == sorted(f"word {n}" for n in range(1200))
    assert batches[0]["x"].dtype == float
    assert threads() == []


def test_it_survives_pickling(database: Path) -> None:
    dataset = SQLiteDataset(database, "SELECT * FROM samples")

    other = pickle.loads(pickle.dumps(dataset))  # noqa: S301 - our own bytes

    assert other[3] == dataset[3]


def test_keys_must_be_distinct_integers(database: Path) -> None:
    with pytest.raises(ValueError, match=r"contains 'word 0', which is no integer"):
        len(SQLiteDataset(database, "SELECT * FROM samples", "word"))
    with pytest.raises(ValueError, match="contains 4, more than once"):
        len(SQLiteDataset(database, "SELECT 4 AS k FROM samples", "k"))
    with pytest.raises(ValueError, match="contains None, which is no integer"):
        len(SQLiteDataset(database, "SELECT NULL AS k FROM samples", "k"))


def test_a_wrong_query_is_an_error_of_sqlite(database: Path) -> None:
    with pytest.raises(sqlite3.OperationalError, match="no such table: none"):
        len(SQLiteDataset(database, "none"))
    with pytest.raises(sqlite3.OperationalError, match="no such column: y"):
        len(SQLiteDataset(database, "samples", order_by="y"))
    with pytest.raises(sqlite3.OperationalError, match="no such column: number"):
        len(SQLiteDataset(database, "samples", key="number"))


def test_a_missing_database_is_not_created(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no database file"):
        SQLiteDataset(tmp_path / "none.db", "SELECT 1 AS id")
    assert list(tmp_path.iterdir()) == []


def test_a_row_that_goes_away_is_named(database: Path) -> None:
    dataset = SQLiteDataset(database, "SELECT * FROM samples")
    assert len(dataset) == 1200
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("DELETE FROM samples WHERE id = 7")
        connection.commit()

    with pytest.raises(LookupError, match="id = 7 is missing"):
        dataset[2]
