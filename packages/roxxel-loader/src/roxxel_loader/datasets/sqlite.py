"""The rows of an SQLite query as a dataset; needs nothing but Python."""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ._dataset import check_index
from ._fluent import LazyDataset

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    import numpy.typing as npt

MAX_VARIABLES = 500
"""Rows fetched by one statement; SQLite limits the variables of a statement."""


class SQLiteDataset(LazyDataset[dict[str, Any]]):
    """The rows of a query, each a dict from column to value.

    A database has no order of its own, so a column of distinct integers gives it. The
    integers are read once, at the first use, and take 8 bytes a row; the rows are
    read when they are asked for, by a connection of each thread's own, read-only.

    Args:
        path: The database file.
        query: A SELECT statement, without ORDER BY.
        key: Its column of distinct integers, best the table's primary key.
        order_by: What rows are sorted by first, in SQL over the query's columns; rows
            that are equal in it, or all by default, are sorted by the key.
        parameters: Values for the question marks of the query.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: At the first use: the key is not a column of distinct integers.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        query: str,
        key: str = "id",
        order_by: str | None = None,
        parameters: Sequence[Any] = (),
    ) -> None:
        self._path = Path(path).absolute()
        if not self._path.is_file():
            raise FileNotFoundError(
                f"{path}: there is no such database; check the path"
            )
        self._query = query.strip().rstrip(";")
        self._key = '"' + key.replace('"', '""') + '"'
        self._order = f"{order_by}, {self._key}" if order_by else self._key
        self._parameters = tuple(parameters)
        self._known: npt.NDArray[np.int64] | None = None
        self._lock = threading.Lock()
        self._local = threading.local()

    def __len__(self) -> int:
        return len(self._keys())

    def __getitem__(self, index: int, /) -> dict[str, Any]:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """Return the rows at `indices`, read by as few statements as possible.

        Raises:
            LookupError: A row is gone since the keys were read.
        """
        keys = self._keys()
        wanted = [int(keys[check_index(index, len(keys))]) for index in indices]
        found: dict[int, dict[str, Any]] = {}
        for at in range(0, len(wanted), MAX_VARIABLES):
            part = wanted[at : at + MAX_VARIABLES]
            marks = ", ".join("?" * len(part))
            # The query is the caller's own program; values go in as parameters.
            statement = (
                f"SELECT {self._key} AS roxxel_key, * FROM ({self._query}\n) "  # noqa: S608
                f"WHERE {self._key} IN ({marks})"
            )
            rows = self._connection().execute(statement, (*self._parameters, *part))
            names = [column[0] for column in rows.description[1:]]
            for row in rows:
                found[row[0]] = dict(zip(names, row[1:], strict=True))
        missing = [key for key in wanted if key not in found]
        if missing:
            raise LookupError(
                f"{self._path}: the row with {self._key} = {missing[0]} is gone; the "
                "database was changed while it was read, so open it again"
            )
        return [found[key] for key in wanted]

    def __getstate__(self) -> dict[str, object]:
        kept = vars(self).items()
        return {name: value for name, value in kept if name not in {"_lock", "_local"}}

    def __setstate__(self, state: dict[str, object]) -> None:
        vars(self).update(state, _lock=threading.Lock(), _local=threading.local())

    def _keys(self) -> npt.NDArray[np.int64]:
        if self._known is None:
            with self._lock:
                if self._known is None:
                    self._known = self._read_keys()
        return self._known

    def _read_keys(self) -> npt.NDArray[np.int64]:
        # The query is the caller's own program; values go in as parameters.
        statement = f"SELECT {self._key} FROM ({self._query}\n) ORDER BY {self._order}"  # noqa: S608
        rows = self._connection().execute(statement, self._parameters)
        values = [row[0] for row in rows]
        odd = next((value for value in values if not isinstance(value, int)), None)
        if odd is not None or None in values:
            raise ValueError(
                f"{self._path}: column {self._key} holds {odd!r}, not an integer; name "
                "a column of distinct integers as key="
            )
        keys = np.array(values, np.int64)
        distinct, counts = np.unique(keys, return_counts=True)
        if len(distinct) != len(keys):
            raise ValueError(
                f"{self._path}: column {self._key} holds "
                f"{distinct[counts > 1][0]} more than once; name a column of distinct "
                "integers as key="
            )
        return keys

    def _connection(self) -> sqlite3.Connection:
        holder: _Holder | None = getattr(self._local, "holder", None)
        if holder is None:
            holder = self._local.holder = _Holder(self._path)
        return holder.connection


class _Holder:
    """One thread's connection, closed when the thread or the dataset goes."""

    def __init__(self, path: Path) -> None:
        # It is used by one thread but may be closed by the one that collects it.
        self.connection = sqlite3.connect(
            f"{path.as_uri()}?mode=ro", uri=True, check_same_thread=False
        )

    def __del__(self) -> None:
        self.connection.close()
