"""The rows of an SQLite query as a dataset; needs only the standard library."""

from __future__ import annotations

import sqlite3
import threading
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from roxxel_store.urls import expanded

from ._lazy import BulkDataset

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence
    from pathlib import Path

    import numpy.typing as npt

MAX_VARIABLES = 500
"""Maximum number of rows per statement; SQLite limits the variables of a statement."""


class SQLiteDataset(BulkDataset[dict[str, Any]]):
    """The rows of a query, each a dict from column to value.

    SQL gives the rows of a query no fixed order, so a key orders them: a column of
    distinct integers. The first use reads all keys into memory, 8 bytes per row. The
    row itself is read when it is loaded. Each thread has its own read-only connection.

    Args:
        path: The database file.
        query: A SELECT statement without ORDER BY.
        key: Column of the query with distinct integers, such as the primary key.
        order_by: ORDER BY terms in SQL, over the columns of the query; the key breaks
            ties. None orders by the key alone.
        parameters: Values of the query's placeholders `?`.

    Raises:
        FileNotFoundError: `path` is not a file.
        sqlite3.OperationalError: At the first use, if the query lacks the key.
        ValueError: At the first use, if the key is not a column of distinct integers.
        LookupError: When a row is loaded that was deleted after the first use.

    Example:
        >>> with sqlite3.connect("rows.db") as database:
        ...     _ = database.execute("CREATE TABLE xs (id INTEGER PRIMARY KEY, x)")
        ...     _ = database.execute("INSERT INTO xs (x) VALUES (0.5), (1.5)")
        >>> SQLiteDataset("rows.db", "SELECT id, x FROM xs")[1]
        {'id': 2, 'x': 1.5}
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        query: str,
        key: str = "id",
        order_by: str | None = None,
        parameters: Sequence[Any] = (),
    ) -> None:
        self._path = expanded(path).absolute()
        if not self._path.is_file():
            raise FileNotFoundError(
                f"{path}: no database file at this path; check the path"
            )
        self._key = key
        self._query = query.strip().rstrip(";")
        # SQLite reads an unknown name in double quotes as text, but not in backticks.
        self._quoted_key = "`" + key.replace("`", "``") + "`"
        self._order = (
            f"{order_by}, {self._quoted_key}" if order_by else self._quoted_key
        )
        self._parameters = tuple(parameters)
        self._local = threading.local()

    def __len__(self) -> int:
        return len(self._keys)

    def _load(self, indices: list[int]) -> list[dict[str, Any]]:
        wanted: list[int] = self._keys[indices].tolist()
        found: dict[int, dict[str, Any]] = {}
        for at in range(0, len(wanted), MAX_VARIABLES):
            part = wanted[at : at + MAX_VARIABLES]
            marks = ", ".join("?" * len(part))
            # The query is the caller's code; values are bound as parameters.
            statement = (
                f"SELECT {self._quoted_key} AS roxxel_key, * FROM ({self._query}\n) "  # noqa: S608
                f"WHERE {self._quoted_key} IN ({marks})"
            )
            rows = self._connection().execute(statement, (*self._parameters, *part))
            names = [column[0] for column in rows.description[1:]]
            for row in rows:
                found[row[0]] = dict(zip(names, row[1:], strict=True))
        missing = [key for key in wanted if key not in found]
        if missing:
            raise LookupError(
                f"{self._path}: the row with {self._key} = {missing[0]} is missing; "
                "the database changed after its keys were read, so create a new dataset"
            )
        return [found[key] for key in wanted]

    def __getstate__(self) -> dict[str, object]:
        kept = vars(self).items()
        return {name: value for name, value in kept if name != "_local"}

    def __setstate__(self, state: dict[str, object]) -> None:
        vars(self).update(state, _local=threading.local())

    @cached_property
    def _keys(self) -> npt.NDArray[np.int64]:
        statement = (
            f"SELECT {self._quoted_key} FROM ({self._query}\n) "  # noqa: S608
            f"ORDER BY {self._order}"
        )
        rows = self._connection().execute(statement, self._parameters)
        values = [row[0] for row in rows]
        known = set[int]()
        for value in values:
            if not isinstance(value, int) or value in known:
                what = "more than once" if value in known else "which is no integer"
                raise ValueError(
                    f"{self._path}: column {self._key!r} contains {value!r}, {what}; "
                    "pass a column of distinct integers as key="
                )
            known.add(value)
        return np.array(values, np.int64)

    def _connection(self) -> sqlite3.Connection:
        holder: _Holder | None = getattr(self._local, "holder", None)
        if holder is None:
            holder = self._local.holder = _Holder(self._path)
        return holder.connection


class _Holder:
    """A thread's connection, closed when the thread ends or the dataset is freed."""

    def __init__(self, path: Path) -> None:
        # With `check_same_thread=False`, the garbage collector may close the connection
        # on any thread.
        self.connection = sqlite3.connect(
            f"{path.as_uri()}?mode=ro", uri=True, check_same_thread=False
        )

    def __del__(self) -> None:
        self.connection.close()
