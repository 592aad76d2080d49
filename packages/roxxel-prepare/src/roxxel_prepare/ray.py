"""Write the output of a Ray Data pipeline to a corpus; needs the extra `ray`.

Ray runs a write task again if its worker died, so it may write rows twice. The sink
commits each row once: each attempt of a task writes whole shards under new names, and
the driver commits the shards of exactly one attempt of every task.
"""

from __future__ import annotations

import importlib
import os
import secrets
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, Unpack

import numpy as np
from roxxel_store import missing_extra

try:
    from ray.data import Datasink
except ModuleNotFoundError as error:
    raise missing_extra("roxxel_prepare.ray", "ray", "roxxel-prepare", "ray") from error


from roxxel_format.writing import (
    CorpusWrite,
    Fields,
    NewShards,
    Place,
    Recipe,
    WriteJob,
)

from roxxel_prepare._inputs.row_documents import column_document

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from roxxel_format import WriteArguments, WriteSummary

__all__ = ["RoxxelDatasink"]

DEFAULT_MIN_BYTES = 64 << 20
TaskShards: TypeAlias = tuple[int, NewShards]
"""The number of a task, and its complete shards."""


class RoxxelDatasink(Datasink[TaskShards]):
    """Writes the rows of a Ray Data set as the documents of a corpus.

    Each write task writes its rows as documents into one shard, or with
    `max_shard_bytes` into several. When all tasks are done, the driver commits the
    manifest. Until then, readers see the corpus before the write. If the pipeline
    fails, nothing is committed, and the driver deletes the new shards; `clean` deletes
    those that remain, such as the shards of a driver that was killed.

    Documents are in the order of the write tasks. Ray numbers the tasks in the order in
    which blocks arrive. To keep the order of the input, set
    `DataContext.get_current().execution_options.preserve_order = True`.

    Args:
        filepath: The corpus: a folder, or a pattern such as `wiki_*.rox`; a path on a
            disk that all nodes share, or with the extra `bucket` a URL. Nodes read the
            credentials of a bucket from their environment.
        column: The column of documents: strings, lists of integers, or flat arrays.
            Default: `text`, or the columns `prompt` and `completion`.
        prompt: Column of prompts; as for `Roxxel.write`.
        completion: Column of completions; needs `prompt`.
        chat: Whether the documents are chats, in the column `messages` by default; as
            for `Roxxel.write`.
        document_id: Column of ids, texts or integers, which documents keep in a column
            `id` of the corpus.
        exist: What to do if the corpus exists; see `Roxxel.write`. There is no
            `"keep"`, because Ray runs the pipeline before it calls the sink.
        min_bytes_per_write: Ray joins blocks until a task has this many bytes, so that
            shards are not small. None: one task for each block.
        **arguments: `WriteArguments`, as for `Roxxel.write`. `pack` packs the documents
            of each task by itself. int64, the type that Ray Data gives to Python
            integers, is stored as uint32 by default. A tokenizer's path or name is
            loaded in every task, so each node needs the same file; an object is
            pickled.

    Attributes:
        summary: The `WriteSummary` of the shards; set by the commit.

    Raises:
        ValueError: `exist` is unknown, or another argument is invalid.
        TypeError: An argument has the wrong type.

    Example:
        >>> rows = ray.data.from_items([{"text": "one"}, {"text": "two"}])
        >>> sink = RoxxelDatasink("pages_*.rox", tokenizer="bytes")
        >>> rows.write_datasink(sink)
        >>> sink.summary.num_tokens
        8
    """

    def __init__(
        self,
        filepath: str | os.PathLike[str],
        column: str | None = None,
        *,
        prompt: str | None = None,
        completion: str | None = None,
        chat: str | os.PathLike[str] | bool = False,
        document_id: str | None = None,
        exist: Literal["error", "replace", "append"] = "error",
        min_bytes_per_write: int | None = DEFAULT_MIN_BYTES,
        **arguments: Unpack[WriteArguments],
    ) -> None:
        if exist not in ("error", "replace", "append"):
            raise ValueError(
                f'exist must be "error", "replace" or "append", got {exist!r}; to keep '
                "a corpus, do not run the pipeline if the corpus exists"
            )
        self._filepath = os.fspath(filepath)
        fields = Fields(column or "", prompt, completion, document_id, chat=chat)
        self._recipe = Recipe(**arguments, exist=exist, fields=fields)
        self._min_bytes = min_bytes_per_write
        self._write: CorpusWrite | None = None
        self._job: WriteJob | None = None
        self._resources = ExitStack()
        self.summary: WriteSummary | None = None

    def __getstate__(self) -> dict[str, Any]:
        # The driver's part holds a lock of this process; tasks need only the job.
        return self.__dict__ | {"_write": None, "_resources": None}

    @property
    def min_bytes_per_write(self) -> int | None:
        """Bytes of blocks that Ray joins for one write task."""
        return self._min_bytes

    def on_write_start(self, schema: Any = None) -> None:
        """Check the columns and the corpus; called in the driver before the tasks."""
        kind, dtype = None, None
        if schema is not None:
            kind, dtype = _kind_and_dtype(self._recipe.fields, schema)
        write = CorpusWrite(self._filepath, self._recipe, is_several=True)
        with ExitStack() as resources:
            resources.enter_context(write)
            if self._recipe.exist == "error" and write.place.end.versions:
                raise FileExistsError(
                    f'{write.what}: the corpus exists already; use exist="replace" or '
                    'exist="append", or write elsewhere'
                )
            write.begin()
            write.recipe = write.recipe.decided(dtype, kind)
            self._recipe = write.recipe
            digest, target = secrets.token_hex(6), write.place.target
            self._job = WriteJob(digest, target, write.recipe, write.tokenizer)
            self._write, self._resources = write, resources.pop_all()

    def write(self, blocks: Iterable[Any], ctx: Any) -> TaskShards:
        """Write the rows of one task; called in a worker, perhaps more than once."""
        job = self._job
        assert job is not None  # noqa: S101 - `on_write_start` sets it
        names = " and ".join(map(repr, self._recipe.fields.contents))
        what = f"column {names} in write task {ctx.task_idx}"
        place = Place.of(job.target)
        with ExitStack() as resources:
            # While a task holds a place's lock, `clean` does not remove shards.
            place.enter(resources)
            rows = self._documents(blocks, what)
            return ctx.task_idx, job.attempt(place, ctx.task_idx, rows)

    def on_write_complete(self, write_result: Any) -> None:
        """Commit the shards that the tasks returned; called in the driver."""
        by_task: dict[int, NewShards] = {}
        for task, new in write_result.write_returns:
            by_task.setdefault(task, new)
        done = {task: by_task[task] for task in sorted(by_task) if len(by_task[task])}
        write, job = self._write, self._job
        if write is None or job is None or not done:
            raise ValueError(
                f"{self._filepath}: there are no documents to write; check the filters "
                "of the pipeline"
            )
        self._check_agreement(done)
        new = NewShards.joined(done.values())
        self.summary = write.commit(new)
        write.discard(job.digest, new.sizes)
        self._write = None
        self._resources.close()

    def on_write_failed(self, error: Exception) -> None:  # noqa: ARG002 - Ray's name
        """Delete the new shards; called in the driver after an error."""
        write, job, self._write = self._write, self._job, None
        if write is None or job is None:
            return
        with self._resources:
            write.discard(job.digest)

    def _check_agreement(self, done: Mapping[int, NewShards]) -> None:
        """Raise ValueError if tasks wrote documents that one corpus cannot hold."""
        first, *others = done
        for task in others:
            (one, other) = ((done[n].kind, done[n].dtype) for n in (first, task))
            if one != other:
                raise ValueError(
                    f"{self._filepath}: task {first} wrote {one[0]} as {one[1]}, but "
                    f"task {task} wrote {other[0]} as {other[1]}; pass dtype or "
                    "vocab_size, and write text and tokens into different corpora"
                )

    def _documents(self, blocks: Iterable[Any], what: str) -> Iterator[object]:
        accessors: Any = importlib.import_module("ray.data.block").BlockAccessor
        row = 0
        for block in blocks:
            table = accessors.for_block(block).to_arrow()
            if not table.num_rows:  # An empty block may have no columns.
                continue
            _kind_and_dtype(self._recipe.fields, table.schema)
            columns = [table.column(name) for name in self._recipe.fields.names]
            for values in zip(*columns, strict=True):
                document = _document(self._recipe.fields, values, what, row)
                yield self._recipe.fields.row(document, what, row)
                row += 1


def _document(fields: Fields, values: Sequence[Any], what: str, row: int) -> object:
    """Return the document of a row, whose values are those of `fields.names`."""
    found: dict[str, object] = {}
    for name, value in zip(fields.names, values, strict=True):
        is_plain = name not in fields.contents or fields.chat or _is_tensor(value.type)
        found[name] = value.as_py() if is_plain else column_document(what, row, value)
    try:
        return fields.document(found)
    except ValueError as error:
        raise ValueError(f"{what}: row {row}: {error}") from error


def _kind_and_dtype(fields: Fields, schema: Any) -> tuple[str | None, str | None]:
    """Return the kind of documents in columns, and their item type, if known.

    Raises:
        ValueError: A column is missing, or two columns have its name.
        TypeError: A column of documents holds neither texts nor lists of numbers.
    """
    for name in fields.names:
        _check_column(name, schema)
    if fields.chat:
        return "text", None
    found = [_of_column(name, schema) for name in fields.contents]
    kind = next((kind for kind, _ in found if kind is not None), None)
    dtypes = {dtype for _, dtype in found}
    return kind, dtypes.pop() if len(dtypes) == 1 else None


def _check_column(column: str, schema: Any) -> None:
    names: list[str] = list(schema.names)
    if names.count(column) != 1:
        number = names.count(column) or "no"
        raise ValueError(
            f"the data set has {number} columns {column!r}; pass one of its columns "
            f"({', '.join(sorted(set(names)))})"
        )


def _of_column(column: str, schema: Any) -> tuple[str | None, str | None]:
    """Return the kind of the documents in a column, and their item type."""
    types: Any = importlib.import_module("pyarrow.types")
    stored: Any = schema.types[list(schema.names).index(column)]
    if types.is_null(stored):
        return None, None
    text = stored.value_type if types.is_dictionary(stored) else stored
    if types.is_string(text) or types.is_large_string(text):
        return "text", None
    items = _items_of(types, stored)
    if items is None:
        raise TypeError(
            f"column {column!r} holds {stored}; a document is a text or a list of "
            "tokens"
        )
    if types.is_null(items):  # All lists are empty.
        return "tokens", None
    name = np.dtype(items.to_pandas_dtype()).name
    return "tokens", "uint32" if name == "int64" else name


def _items_of(types: Any, stored: Any) -> Any:
    """Return the item type of lists and arrays of numbers; None for other types."""
    if _is_tensor(stored):
        stored = stored.storage_type
        if types.is_struct(stored):  # Arrays of different shapes.
            stored = stored.field("data").type
    is_list = types.is_list(stored) or types.is_large_list(stored)
    if not (is_list or types.is_fixed_size_list(stored)):
        return None
    items = stored.value_type
    is_number = types.is_integer(items) or types.is_floating(items)
    return items if is_number or types.is_null(items) else None


def _is_tensor(stored: Any) -> bool:
    """Return whether an Arrow type is that of Ray's arrays."""
    return str(getattr(stored, "extension_name", "")).startswith("ray.data.")
