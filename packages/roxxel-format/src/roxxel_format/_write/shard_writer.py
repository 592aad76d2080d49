"""Write documents into one shard.

The writer collects documents in a buffer of 4 MiB, the stage. It checks, casts and
writes a full stage at once: with a stage of 2 KiB, the speed in
`tests-integration/benchmarks/format_write.py` falls from 1.1 times to 0.33 times the
speed of a plain `file.write`. The file has a hidden name until it is complete and
flushed to the disk.
"""

from __future__ import annotations

import zlib
from array import array
from bisect import bisect_right
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast

import numpy as np
from roxxel_store.arguments import as_integer
from roxxel_store.files import Output

from roxxel_format._spec.layout import (
    DEFAULT_BLOCK_SIZE,
    MAX_SEPARATOR_LENGTH,
    Head,
    Layout,
    check_block_size,
    digests,
    metadata_json,
    shard_size_bound,
    stored_dtype,
    stored_name,
)
from roxxel_format._write import casting

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Mapping
    from types import TracebackType

    import numpy.typing as npt

    from roxxel_format._spec.layout import Tokens

_STAGE_SIZE = 1 << 22


class ShardWriter:
    """Write one shard. The file has a hidden name until it is complete.

    At the end of a `with` block, the writer closes the shard. If the block raises, the
    writer removes the shard. The writer needs about 12 MiB of memory, whatever the
    length of a document, plus 8 bytes for each document and 4 for each block.

    Args:
        path: The shard to write; `close` replaces an existing file of this name.
        dtype: Item type: an integer, float or bool dtype of numpy, or `"bfloat16"`.
        separator: Items that end each document, appended by this writer.
        block_size: Bytes that one checksum covers: a power of two in [64, 2**24].
        vocab_size: Items must be below `vocab_size`. Default: any value of the dtype.
        metadata: JSON values stored with the shard, at most 1 MiB as JSON.
        first_document: Number of the first document, for error messages.
        draft: A file that the caller created for this shard alone; removed if the
            writer cannot begin. Default: a new file with a hidden name beside the
            shard.

    Example:
        >>> with ShardWriter("written.rox", "uint16", separator=(0,)) as writer:
        ...     writer.extend([np.array([5, 6]), np.array([7])])
        >>> Roxxel("written.rox").tokens[:].tolist()
        [5, 6, 0, 7, 0]
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        dtype: Any,
        separator: tuple[int | float, ...] = (),
        *,
        block_size: int = DEFAULT_BLOCK_SIZE,
        vocab_size: int | None = None,
        metadata: Mapping[str, Any] | None = None,
        first_document: int = 0,
        draft: Path | None = None,
    ) -> None:
        self.path = Path(path)
        self._output = Output(self.path, draft)
        with ExitStack() as failed:
            failed.callback(self._output.abort)
            check_block_size(block_size)
            if not isinstance(cast("object", separator), tuple | list):
                raise TypeError(
                    f"separator is {separator!r:.50}; pass its items, such as (0,)"
                )
            if type(vocab_size) not in (int, type(None)):  # A recipe's is checked.
                vocab_size = as_integer("vocab_size", vocab_size)
            if len(separator) > MAX_SEPARATOR_LENGTH:
                raise ValueError(
                    f"separator has {len(separator)} items, more than "
                    f"{MAX_SEPARATOR_LENGTH}; use a shorter separator"
                )
            name = stored_name(dtype)
            self.metadata: dict[str, Any] = dict(metadata or {})
            self._metadata_size = len(metadata_json(self.metadata))
            self._head = Head(name, block_size, len(separator))
            self._dtype = stored_dtype(name)
            self._caster = casting.Caster(name, vocab_size, separator)
            self._first_document = first_document
            self._ends = array("Q")
            self._num_flushed = 0
            self._checksums = array("I")
            self._carry = bytearray()
            self._staged = self._dtype
            self._stage: Tokens = np.empty(0, self._dtype)
            self._stage_ending = self._caster.ending
            self._layout: Layout | None = None
            self._output.write(self._head.to_bytes())
            failed.pop_all()

    @property
    def num_documents(self) -> int:
        """Number of documents appended so far."""
        return len(self._ends)

    @property
    def num_tokens(self) -> int:
        """Number of items appended so far, separators included."""
        return self._ends[-1] if self._ends else 0

    @property
    def separator_length(self) -> int:
        """Number of items that end each document."""
        return self._head.separator_length

    @property
    def item_size(self) -> int:
        """Bytes of one item."""
        return self._head.item_size

    def size_with(self, num_tokens: int, num_documents: int = 1) -> int:
        """Return an upper bound of the shard's size after more documents.

        `num_tokens` are the tokens of all of them together, without separators.
        """
        num_tokens += num_documents * self._head.separator_length
        data = (self.num_tokens + num_tokens) * self._head.item_size
        data += (len(self._ends) + num_documents) * 8
        return shard_size_bound(data, self._head.block_size, self._metadata_size)

    def append(self, document: Tokens) -> None:
        """Add one document.

        Args:
            document: Items, shape `(n,)`; copied, so the caller may reuse the array.
                The shard's dtype must hold the values.

        Raises:
            TypeError: The document's dtype cannot be converted to the shard's dtype.
            ValueError: A value is out of range. A later `append` or `close` may raise
                this error; the message names the document and the value.
            OSError: The file cannot be written.
        """
        try:
            is_flat = document.ndim == 1
        except AttributeError:
            raise TypeError(
                f"document {self._document_number()} is a {type(document).__name__}; "
                "pass an array, as of np.array"
            ) from None
        if not is_flat:
            raise ValueError(
                f"document {self._document_number()} has shape {document.shape}; "
                "pass a flat array for each document"
            )
        length = document.size
        separator_length = self._head.separator_length
        dtype, staged = document.dtype, self._staged
        if (
            dtype is not staged and dtype != staged
        ) or self._used + length + separator_length >= self._stage.size:
            document = self._make_room(document)
            if length + separator_length >= self._stage.size:
                self._append_large(document)
                return
            if document.dtype != self._stage.dtype:
                document = self._cast(document, self._document_number())
        used = self._used
        stop: int = used + length
        self._stage[used:stop] = document
        if separator_length:
            self._stage[stop : stop + separator_length] = self._stage_ending
            stop += separator_length
        self._ends.append(self._num_flushed + stop)

    def extend(self, documents: Iterable[Tokens]) -> None:
        """Append documents.

        Args:
            documents: Arrays of shape `(n,)`, each copied before the next is requested.

        Raises:
            TypeError: As for `append`.
            ValueError: As for `append`.
            OSError: As for `append`.
        """
        for document in documents:
            self.append(document)

    def extend_stored(
        self, chunks: Iterable[Tokens], ends: npt.NDArray[np.int64]
    ) -> None:
        """Append documents as another shard stores them, with their separators.

        Do not mix with `append`, which adds separators itself.

        Args:
            chunks: The items, in the shard's dtype; each of shape `(n,)`.
            ends: Ends of the documents, counted from the first of these items.

        Raises:
            OSError: The file cannot be written.
        """
        first = self.num_tokens
        for chunk in chunks:
            items = self._caster.cast(chunk)
            with self._output.unless_broken():
                self._write_tokens(items)
        self._ends.frombytes((ends + first).astype(np.uint64).tobytes())
        self._num_flushed = self.num_tokens

    def finish(self) -> Layout:
        """Complete the hidden file and flush it to the disk.

        Returns:
            The values of the shard's head and foot.
        """
        if self._layout is not None:
            return self._layout
        metadata = metadata_json(self.metadata)
        with self._output.unless_broken():
            layout = self._write_rest(metadata)
            self._output.finish()
        self._layout = layout
        return layout

    def _write_rest(self, metadata: bytes) -> Layout:
        self._close_stage()
        block_size = self._head.block_size
        if self._carry:
            self._write_blocks(memoryview(self._carry.ljust(block_size, b"\0")))
        document_bytes = np.array(self._ends, "<u8").view(np.uint8).data
        self._write_blocks(document_bytes)
        checksums = np.array(self._checksums, "<u4").tobytes()
        low, high = self._caster.seen
        layout = Layout(
            head=self._head,
            num_tokens=self.num_tokens,
            num_documents=len(self._ends),
            min_value=low,
            max_value=high,
            metadata_size=len(metadata),
            checksums_crc=zlib.crc32(checksums),
            metadata_crc=zlib.crc32(metadata),
        )
        head = self._head.to_bytes()
        content, whole = digests(layout, head, [document_bytes], checksums, metadata)
        layout = replace(layout, content_digest=content, digest=whole)
        self._output.write(checksums)
        self._output.write(metadata)
        self._output.write(layout.pack_foot(head))
        return layout

    def close(self) -> Layout:
        """Finish the shard and rename it to its path.

        Returns:
            The values of the shard's head and foot.
        """
        try:
            layout = self.finish()
            self._output.publish()
        except BaseException:
            self.abort()
            raise
        return layout

    def abort(self) -> None:
        """Discard the shard and remove the hidden file."""
        self._output.abort()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()

    @property
    def _used(self) -> int:
        """Number of items in the stage."""
        return self.num_tokens - self._num_flushed

    def _document_number(self) -> int:
        return self._first_document + len(self._ends)

    def _make_room(self, document: Tokens) -> Tokens:
        """Flush the stage, and give it the document's dtype, or else the shard's.

        The document's dtype may not hold what ends it. Returns the document.
        """
        if not document.size:
            # An empty document may have any dtype, such as numpy's default, float64.
            document = self._stage[:0]
        self._flush()
        if self._layout is not None:
            raise ValueError(
                f"{self.path}: this shard is complete; write further "
                "documents into another shard"
            )
        if document.dtype != self._stage.dtype or not self._stage.size:
            ending = self._caster.check_source(document.dtype, self._document_number())
            staged = self._dtype if ending is None else document.dtype
            self._stage_ending = self._caster.ending if ending is None else ending
            if staged != self._stage.dtype or not self._stage.size:
                self._staged = staged
                self._stage = np.empty(_STAGE_SIZE // staged.itemsize, staged)
        return document

    def _append_large(self, document: Tokens) -> None:
        """Write a document that is larger than the stage, a stage at a time."""
        number, step = self._document_number(), self._stage.size
        # An error leaves a part of the document in the file, which takes no more then.
        with self._output.unless_broken():
            for start in range(0, document.size, step):
                items = self._cast(document[start : start + step], number)
                self._write_tokens(items)
            self._write_tokens(self._cast(self._stage_ending, number))
        self._ends.append(self._num_flushed + document.size + self._stage_ending.size)
        self._num_flushed = self.num_tokens

    def _close_stage(self) -> None:
        """Flush the stage and drop it, so that the next `append` calls `_make_room`."""
        self._flush()
        self._staged = self._dtype
        self._stage = np.empty(0, self._dtype)

    def _flush(self) -> None:
        """Check, cast and write the documents in the stage."""
        used = self._used
        if not used:
            return
        tokens = self._cast(self._stage[:used])
        with self._output.unless_broken():
            self._num_flushed += used
            self._write_tokens(tokens)

    def _write_tokens(self, tokens: Tokens) -> None:
        """Write whole blocks; keep the remaining bytes for the next call."""
        data = tokens.view(np.uint8).data
        if self._carry:
            missing = self._head.block_size - len(self._carry)
            self._carry += data[:missing]
            data = data[missing:]
            if len(self._carry) < self._head.block_size:
                return
            self._write_blocks(memoryview(bytes(self._carry)))
            self._carry.clear()
        whole = len(data) - len(data) % self._head.block_size
        self._carry += data[whole:]
        self._write_blocks(data[:whole])

    def _cast(self, tokens: Tokens, document: int | None = None) -> Tokens:
        """Cast the stage, or one document if its number is given."""
        try:
            return self._caster.cast(tokens)
        except casting.OutOfRangeError as error:
            if document is None:
                # The first document with a greater end holds the item.
                item = self._num_flushed + error.index
                document = self._first_document + bisect_right(self._ends, item)
            raise casting.DocumentError(
                document,
                f": value {error.value} is outside {self._caster.limits_text}; "
                f"{self._caster.remedy}, or correct the document",
            ) from None

    def _write_blocks(self, data: memoryview) -> None:
        size = self._head.block_size
        crc32 = zlib.crc32
        self._checksums.extend(
            [crc32(data[at : at + size]) for at in range(0, len(data), size)]
        )
        self._output.write(data)
