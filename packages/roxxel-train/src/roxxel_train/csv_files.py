"""A sink of `Logger` that writes rows of metrics as CSV, for spreadsheets.

Example::

    Logger("run", sinks=[CsvFiles("run/csv")])
"""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING, Any

from roxxel_store.files import matches_in
from roxxel_store.output import replace_file
from roxxel_store.urls import expanded

from roxxel_train._log.values import drawn_values

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from typing import TextIO

_FIRST_COLUMNS = ("step", "time")
_RUN_FILE = "run.txt"


class CsvFiles:
    """Writes one file for each kind of rows: `train.csv` and `eval.csv`.

    The columns are `step`, `time` and the values of the rows by name, such as
    `tokens_by_source/self`. If a value has a new name, the file is written again with
    another column. A run that resumes writes some steps again. A new row of step k
    therefore removes the rows of step k and of later steps from the file.

    Args:
        log_dir: Folder of the files, created when the first row is written.
        run: Folder of the run, if `log_dir` is outside of it. The file `run.txt` in
            `log_dir` then names the run, so that another run cannot replace its rows.

    Raises:
        ValueError: `log_dir` holds the rows of another run.

    Example:
        >>> from pathlib import Path
        >>> sink = CsvFiles("run/csv")
        >>> sink({"kind": "train", "step": 1, "loss": 0.5})
        >>> sink.close()
        >>> print(Path("run/csv/train.csv").read_text(), end="")
        step,time,loss
        1,,0.5
    """

    def __init__(
        self,
        log_dir: str | os.PathLike[str],
        run: str | os.PathLike[str] | None = None,
    ) -> None:
        self._folder = expanded(log_dir).absolute()
        self._files: dict[str, _CsvFile] = {}
        self._run: str | None = None
        if run is not None:
            owner = expanded(run).resolve()
            if not self._folder.resolve().is_relative_to(owner):
                self._run = str(owner)
                self._check_owner(self._run)

    def __call__(self, row: Mapping[str, Any]) -> None:
        """Write one row, and flush the row to the operating system.

        Raises:
            OSError: The row cannot be written.
        """
        kind = str(row.get("kind", "rows"))
        if kind not in self._files:
            self._folder.mkdir(parents=True, exist_ok=True)
            if self._run is not None:
                (self._folder / _RUN_FILE).write_text(f"{self._run}\n", "utf-8")
            self._files[kind] = _CsvFile(self._folder / f"{kind}.csv")
        first = {name: row.get(name, "") for name in _FIRST_COLUMNS}
        self._files[kind].write({**first, **dict(drawn_values(row))})

    def cut(self, step: int) -> None:
        """Drop the rows after `step`, which the run writes again."""
        self.close()
        for path in matches_in(self._folder, "*.csv"):
            file = _CsvFile(path)
            file.cut(step)
            file.close()

    def close(self) -> None:
        """Close the files; a later row opens a file again."""
        files, self._files = self._files, {}
        for file in files.values():
            file.close()

    def _check_owner(self, run: str) -> None:
        path = self._folder / _RUN_FILE
        if path.exists() and (owner := path.read_text("utf-8").strip()) != run:
            raise ValueError(
                f"{self._folder} holds the rows of the run {owner}, and the run {run} "
                f"would replace them; give another log_dir, or remove {path} if the "
                "run was moved"
            )


class _CsvFile:
    """One file, whose rows have ascending steps."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._columns: list[str] = []
        self._last_step = -1
        rows = self._read()
        if rows:
            self._columns, self._last_step = list(rows[0]), _step(rows[-1])
        # A killed process may have left an incomplete last line.
        if path.exists() and not path.read_bytes().endswith(b"\n"):
            self._rewrite(rows[:-1])
        self._file: TextIO = path.open("a", encoding="utf-8", newline="")

    def write(self, row: Mapping[str, Any]) -> None:
        if _step(row) <= self._last_step:
            self.cut(_step(row) - 1)
        new = [name for name in row if name not in self._columns]
        if new:
            self._columns += new
            self._replace(self._read())
        self._writer(self._file).writerow(row)
        self._file.flush()
        self._last_step = _step(row)

    def cut(self, step: int) -> None:
        """Drop the rows after a step."""
        rows = self._read()
        kept = [row for row in rows if _step(row) <= step]
        if len(kept) < len(rows):
            self._replace(kept)

    def close(self) -> None:
        self._file.close()

    def _read(self) -> list[dict[str, str]]:
        if not self._path.exists():
            return []
        with self._path.open(encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file))

    def _writer(self, file: TextIO) -> csv.DictWriter[str]:
        return csv.DictWriter(file, self._columns, lineterminator="\n")

    def _replace(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write the file again and open it; the writer continues after these rows."""
        self._file.close()
        self._rewrite(rows)
        self._file = self._path.open("a", encoding="utf-8", newline="")

    def _rewrite(self, rows: Sequence[Mapping[str, Any]]) -> None:
        text = io.StringIO(newline="")
        writer = self._writer(text)
        writer.writeheader()
        writer.writerows(rows)
        path = self._path.resolve()  # The user may have linked the file elsewhere.
        draft = path.with_name(f"{path.name}.tmp")
        replace_file(path, text.getvalue().encode(), draft)
        self._last_step = _step(rows[-1]) if rows else -1


def _step(row: Mapping[str, Any]) -> int:
    try:
        return int(row["step"])
    except (KeyError, TypeError, ValueError):
        return -1
