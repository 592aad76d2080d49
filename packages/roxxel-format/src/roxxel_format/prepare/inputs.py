"""Documents in files: text, JSON lines, numpy arrays, Parquet; compressed or not."""

from __future__ import annotations

import contextlib
import gzip
import importlib
import io
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

FORMATS = ("text", "lines", "jsonl", "npy", "parquet")
_BY_SUFFIX = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".npy": "npy",
    ".parquet": "parquet",
}


def format_of(path: str) -> str:
    """Return the format that a file name implies; `text` for unknown names."""
    name = path.removesuffix(".gz").removesuffix(".zst")
    return _BY_SUFFIX.get(Path(name).suffix.lower(), "text")


def documents_in(path: str, form: str | None, field: str) -> Iterator[object]:
    """Yield the documents of one file.

    Args:
        path: The file; `-` is the standard input. Decompresses `.gz` and `.zst`.
        form: One of `FORMATS`: `text`, the file is one document; `lines`, each line is
            one; `jsonl`, each line is a JSON string, a list of tokens, or an object
            with such a value in `field`; `npy`, a flat array, or one document per row;
            `parquet`, a column of texts or of lists of tokens. None: inferred from the
            name.
        field: Name of the value in JSON objects, or of the column.

    Raises:
        ValueError: The file is not in that format; the message names the line or row.
    """
    form = form or format_of(path)
    if form == "parquet":
        yield from _parquet_rows(path, field)
        return
    with _opened(path) as file:
        if form == "npy":
            yield from _array_rows(path, file)
        elif form == "jsonl":
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield _json_document(f"{path}:{number}", line, field)
        elif form == "lines":
            for number, line in enumerate(file, 1):
                yield _text(f"{path}:{number}", line.rstrip(b"\r\n"))
        else:
            yield _text(path, file.read())


@contextlib.contextmanager
def _opened(path: str) -> Generator[BinaryIO]:
    """Open a file; decompress it if its name ends in .gz or .zst."""
    if path == "-":
        yield sys.stdin.buffer
    elif path.endswith(".gz"):
        with gzip.open(path) as file:
            yield cast("BinaryIO", file)
    elif path.endswith(".zst"):
        decompressor = _library("zstandard", "zstd", path).ZstdDecompressor()
        with Path(path).open("rb") as raw:
            reader = decompressor.stream_reader(raw, read_across_frames=True)
            yield cast("BinaryIO", io.BufferedReader(reader, 1 << 20))
    else:
        with Path(path).open("rb") as file:
            yield file


def _library(name: str, extra: str, path: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f'{path}: needs {name}: pip install "roxxel-format[{extra}]"', name=name
        ) from error


def _parquet_rows(path: str, field: str) -> Iterator[object]:
    parquet = _library("pyarrow.parquet", "parquet", path)
    with parquet.ParquetFile(sys.stdin.buffer if path == "-" else path) as file:
        names = list(file.schema_arrow.names)
        if field not in names:
            raise ValueError(
                f"{path}: has no column {field!r}, but {', '.join(names)}; "
                "name the column of the documents by --field"
            )
        row = 0
        for batch in file.iter_batches(columns=[field], batch_size=1024):
            for value in batch.column(0):
                yield _column_document(path, row, value)
                row += 1


def _column_document(path: str, row: int, value: Any) -> object:
    """Return a text, or the items of a list as an array."""
    items: Any = getattr(value, "values", None)
    what = "a null"
    if hasattr(items, "to_numpy"):
        if not items.null_count:
            array = items.to_numpy(zero_copy_only=False)
            if array.dtype.kind in "biuf":
                return array
            what = str(value.type)
        else:
            what = f"a list with {items.null_count} null"
    elif value.is_valid:
        text = value.as_py()
        if isinstance(text, str):
            return text
        what = str(value.type)
    raise ValueError(
        f"{path}: row {row} holds {what}; a document is a text or a list of tokens"
    )


def _text(where: str, data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{where}: not UTF-8 text ({error.reason} at byte {error.start}); "
            "convert it first"
        ) from error


def _json_document(where: str, line: bytes, field: str) -> object:
    try:
        value: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where}: not JSON ({error}); correct the line") from error
    if isinstance(value, dict):
        table = cast("dict[str, Any]", value)
        if field not in table:
            raise ValueError(
                f"{where}: has no field {field!r}, but {', '.join(sorted(table))}; "
                "name the field of the text by --field"
            )
        value = table[field]
    if not isinstance(value, (str, list)):
        raise ValueError(  # noqa: TRY004 - the file is wrong, not an argument
            f"{where}: {type(value).__name__} found; a document is a text or a list "
            "of tokens"
        )
    return cast("object", value)


def _array_rows(path: str, file: BinaryIO) -> Iterator[object]:
    data: io.IOBase | BinaryIO = file
    if not file.seekable():
        data = io.BytesIO(file.read())
    try:
        array = np.lib.format.read_array(data, allow_pickle=False)
    except ValueError as error:
        raise ValueError(
            f"{path}: not a .npy file ({error}); check the path"
        ) from error
    if array.ndim not in (1, 2):
        raise ValueError(
            f"{path}: has shape {array.shape}; a flat array is one document, and each "
            "row of a table is one"
        )
    yield from (array,) if array.ndim == 1 else array
