"""The files of new columns, one beside each shard.

`NewColumns` makes those of one write, from its documents. A `ColumnOutput` is one file,
whoever has the values, and a `TextPacker` makes its bytes if they are texts.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array
from contextlib import ExitStack
from hashlib import blake2b
from typing import TYPE_CHECKING, Self

import numpy as np
from roxxel_store.files import Output, sync_folder

from roxxel_format._spec.manifest import DIGEST_SIZE, ColumnTable
from roxxel_format._write.recipe import LOSS_MASK

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from roxxel_format._corpus_name import CorpusName
    from roxxel_format._write.recipe import EncodedRow

_BUFFER_BYTES = 1 << 20


class NewColumns:
    """The columns of one write's shards: one file per column and shard.

    A file's name and bytes depend only on the name and the documents of its shard.

    Args:
        columns: The columns by name: per token or document, and item type.
        name: The names of the corpus's files.
        on_closed: Called with the path of each complete file.

    Attributes:
        paths: The files, including those that are just being renamed.
    """

    def __init__(
        self,
        columns: Mapping[str, tuple[str, str]],
        name: CorpusName,
        on_closed: Callable[[Path], object] = lambda _: None,
    ) -> None:
        self._columns = columns
        self._name = name
        self._on_closed = on_closed
        self._files: dict[str, _ColumnFile] = {}
        self._drafts = ExitStack()
        self._tables = {
            column: ColumnTable(per, dtype, (), (), ())
            for column, (per, dtype) in self._columns.items()
        }
        self.paths: list[Path] = []

    @property
    def tables(self) -> dict[str, ColumnTable]:
        """The columns of the finished shards, as a manifest lists them."""
        return dict(self._tables)

    def begin(self, shard: Path) -> None:
        """Begin the files of a new shard."""
        for column in self._columns:
            # The shard's name is new, so this name is too.
            unique = blake2b(f"{shard.name} {column}".encode(), digest_size=4)
            name = self._name.column(shard.name, column, unique.hexdigest()).name
            path = shard.with_name(name)
            output = self._drafts.enter_context(ColumnOutput(path))
            kind = _MaskFile if column == LOSS_MASK else _TextFile
            self._files[column] = kind(column, output)

    def add(self, row: EncodedRow, num_tokens: int) -> None:
        """Add a document; `num_tokens` includes its ending."""
        for file in self._files.values():
            file.add_items(file.data_of(row, num_tokens))

    def add_padding(self, num_tokens: int) -> None:
        """Add the padding of a bin, which is no document."""
        for column, file in self._files.items():
            if self._columns[column][0] == "token":
                file.add_items(bytes(num_tokens))

    def close(self) -> None:
        """Rename the files of a shard that is complete."""
        for column, file in self._files.items():
            self.paths.append(file.path)
            size, digest = file.close()
            sync_folder(file.path.parent)
            self._on_closed(file.path)
            per, dtype = self._columns[column]
            row = ColumnTable(per, dtype, [file.path.name], [size], [digest])
            self._tables[column] += row
        self._files = {}
        self._drafts.close()

    def abort(self) -> None:
        """Remove the drafts of the unfinished shard."""
        self._drafts.close()


class _ColumnFile(ABC):
    """A column of one shard."""

    def __init__(self, column: str, output: ColumnOutput) -> None:
        self.column = column
        self.path = output.path
        self._output = output
        self._buffer = bytearray()

    @abstractmethod
    def data_of(self, row: EncodedRow, num_tokens: int) -> bytes:
        """Return the bytes of a document; `num_tokens` includes its ending."""

    def end(self) -> bytes:
        """Return the bytes that follow the last document."""
        return b""

    def add_items(self, data: bytes) -> None:
        self._buffer += data
        if len(self._buffer) >= _BUFFER_BYTES:
            self._flush()

    def close(self) -> tuple[int, str]:
        """Rename the file; return its size and its digest."""
        self._buffer += self.end()
        self._flush()
        return self._output.rename()

    def _flush(self) -> None:
        self._output.write(bytes(self._buffer))
        self._buffer.clear()


class _MaskFile(_ColumnFile):
    """A column `loss_mask`: 1 for tokens that the loss counts."""

    def data_of(self, row: EncodedRow, num_tokens: int) -> bytes:
        return row.mask(num_tokens)


class _TextFile(_ColumnFile):
    """A column of texts: one for each document."""

    def __init__(self, column: str, output: ColumnOutput) -> None:
        super().__init__(column, output)
        self._packer = TextPacker()

    def data_of(self, row: EncodedRow, num_tokens: int) -> bytes:
        del num_tokens
        text = str(getattr(row.row, self.column))
        return self._packer.add([text.encode(errors="replace")])

    def end(self) -> bytes:
        """Return the end offsets of the texts."""
        return self._packer.close()


class ColumnOutput:
    """A new file of a column; without `rename`, the end of a `with` block removes it.

    Attributes:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._output = Output(path)
        self._digest = blake2b(digest_size=DIGEST_SIZE)
        self._num_bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._output.abort()

    def write(self, data: bytes | memoryview) -> None:
        """Append bytes."""
        self._digest.update(data)
        self._output.write(data)
        self._num_bytes += len(data)

    def rename(self) -> tuple[int, str]:
        """Rename the complete file to its final name; return its size and digest."""
        self._output.rename()
        return self._num_bytes, self._digest.hexdigest()


class TextPacker:
    """Packs the texts of one file.

    The file holds the texts in UTF-8, one after another. Then it holds the end of each
    text, a 64-bit integer that counts bytes from the start (docs/format.md, section
    10.3). A writer need not know the lengths in advance, and a reader locates a text by
    two consecutive ends.
    """

    def __init__(self) -> None:
        self._ends = array("Q")

    def add(self, texts: Iterable[bytes]) -> bytes:
        """Return the bytes of further texts."""
        parts = [*texts]
        end = self._ends[-1] if self._ends else 0
        for part in parts:
            end += len(part)
            self._ends.append(end)
        return b"".join(parts)

    def close(self) -> bytes:
        """Return the last bytes of the file: the end of each text."""
        return np.array(self._ends, "<u8").tobytes()
