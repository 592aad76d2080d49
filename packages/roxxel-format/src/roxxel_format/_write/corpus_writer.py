"""Write a corpus: documents into shards, and what to do where one stands already.

Every shard records which write made it (`write` in its metadata): the arguments, the
number of the write's first shard, the shard's place in the write, and whether it is
the last. So a corpus whose write was interrupted is told from a whole one.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, cast

from roxxel_format._spec.layout import check_block_size
from roxxel_format._store.lock import WriteLock
from roxxel_format._store.names import Place, place_to_write
from roxxel_format._version import __version__
from roxxel_format._write import tokenizers
from roxxel_format._write.intake import Intake, separator_items
from roxxel_format._write.shard_writer import ShardWriter, shard_size_bound, sync_folder
from roxxel_format._write.standing import keep, match, refuse, remove_partials, tidy
from roxxel_format._write.summary import WriteSummary, summarize

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from roxxel_format._spec.dtypes import Tokens

Exist = Literal["keep", "replace", "append", "error"]


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """The arguments of a write; see `Roxxel.write`.

    `inputs` identifies the documents, where that is known before they are read.
    """

    separator: float | bytes | None = None
    block_size: int = 4096
    max_shard_bytes: int | None = None
    dtype: str | None = None
    vocab_size: int | None = None
    tokenizer: object | None = None
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])
    inputs: str | None = None

    def recorded(self, info: tokenizers.TokenizerInfo | None) -> dict[str, Any]:
        """Return the arguments that decide what the shards hold, as JSON."""
        separator: Any = self.separator
        if isinstance(separator, bytes):
            separator = {"bytes": separator.hex()}
        elif separator is not None:
            separator = getattr(separator, "item", lambda: self.separator)()
        recorded = {
            "separator": separator,
            "block_size": self.block_size,
            "max_shard_bytes": self.max_shard_bytes,
            "dtype": self.dtype,
            "vocab_size": self.vocab_size,
            "tokenizer": info.identity if info else None,
        }
        # Only a caller that knows its documents before they are read can tell.
        return recorded if self.inputs is None else recorded | {"inputs": self.inputs}


def write_corpus(
    filepath: str | tuple[str, ...],
    data: Iterable[object],
    options: WriteOptions,
    exist: Exist,
) -> WriteSummary:
    """Write documents where a path says; see `Roxxel.write`."""
    started = time.perf_counter()
    place = place_to_write(filepath)
    tokenizer, info = _checked(options, place, exist, data)
    arguments = options.recorded(info)
    place.folder.mkdir(parents=True, exist_ok=True)
    if exist == "keep":
        # A corpus in a folder that cannot be written to can still be kept.
        kept = keep(place, arguments, started, alone=False)
        if kept is not None:
            tidy(place)
            return kept
    intake = Intake(options.dtype, options.vocab_size, tokenizer, info)
    with WriteLock(place.lock).held(shared=exist == "append") as lock:
        if exist == "keep":
            kept = keep(place, arguments, started, alone=True)
            if kept is not None:
                return kept
        elif exist == "error":
            refuse(place)
        elif exist == "append":
            match(place, intake, info)
        if lock.alone:
            remove_partials(place)
            if exist == "append":
                lock.share()
        job = _Job(place, options, intake, arguments, replace=exist != "append")
        return job.run(data, started)


class _Job:
    """One write, from the first document to the last shard."""

    def __init__(
        self,
        place: Place,
        options: WriteOptions,
        intake: Intake,
        arguments: dict[str, Any],
        *,
        replace: bool,
    ) -> None:
        self._place = place
        self._options = options
        self._intake = intake
        self._arguments = arguments
        self._old = place.shards() if replace else {}
        # What stands must outlive a write that fails: publish when all is there.
        self._at_the_end = bool(self._old)
        self._next_number = 0
        self._first_number = 0
        self._finished: list[ShardWriter] = []
        self._published: list[Path] = []
        self._claimed: Path | None = None
        self._writer: ShardWriter | None = None
        self._num_documents = 0

    def run(self, data: Iterable[object], started: float) -> WriteSummary:
        try:
            self._add_all(data)
            self._close_shard(last=True)
            self._publish_all()
        except BaseException:
            self._undo()
            raise
        sync_s = sum(writer.sync_s for writer in self._finished)
        return summarize(
            [str(w.path) for w in self._finished],
            kept=False,
            duration_s=time.perf_counter() - started,
            sync_s=sync_s,
            num_documents=self._num_documents,
        )

    def _add_all(self, data: Iterable[object]) -> None:
        # A generator, which is not asked again after its end, as the data must not be.
        arrays = self._intake.arrays(_documents(data))
        for document in arrays:
            self._add(document)
            self._num_documents += 1
            if self._options.max_shard_bytes is None and self._writer is not None:
                self._writer.extend(arrays)  # one shard: nothing is to be decided
                self._num_documents = self._writer.num_documents
                break
        if self._writer is None:
            raise ValueError(
                f"{self._place.shard(0)}: there are no documents to write; "
                "check the iterator (a generator can be used only once)"
            )

    def _add(self, document: Tokens) -> None:
        if self._writer is None:
            self._writer = self._new_shard()
        limit = self._options.max_shard_bytes
        if limit is None:
            self._writer.append(document)
            return
        length = document.size + self._writer.separator_length
        if self._writer.size_with(length) <= limit:
            self._writer.append(document)
            return
        if self._writer.num_documents:
            self._close_shard(last=False)
            self._writer = self._new_shard()
            if self._writer.size_with(length) <= limit:
                self._writer.append(document)
                return
        self._add_in_parts(document, limit)

    def _add_in_parts(self, document: Tokens, limit: int) -> None:
        """Split a document that is larger than a shard."""
        writer = self._writer
        assert writer is not None  # noqa: S101 - _add made one
        separator = writer.separator_length
        spare = limit - writer.size_with(0)
        # Four bytes of checksum a block come with the tokens.
        block_size = self._options.block_size
        capacity = spare * block_size // (block_size + 4) // writer.item_size
        if capacity <= separator:
            raise ValueError(
                f"max_shard_bytes={limit} leaves no room for a token; use at least "
                f"{limit - spare + 2 * block_size}"
            )
        at = 0
        while document.size - at + separator > capacity:
            step = min(capacity, document.size - at)
            writer.append(document[at : at + step], ends=False)
            at += step
            self._close_shard(last=False)
            self._writer = writer = self._new_shard()
            writer.mark_first_as_continued()
        writer.append(document[at:])

    def _new_shard(self) -> ShardWriter:
        name = self._intake.dtype
        assert name is not None  # noqa: S101 - the intake has seen a document
        number = self._claim()
        if not self._finished:
            self._first_number = number
        separator = separator_items(self._options.separator, name)
        metadata = dict(self._options.metadata)
        metadata["created_by"] = f"roxxel-format {__version__}"
        metadata["separator"] = list(separator)
        if self._intake.info is not None:
            metadata["tokenizer"] = self._intake.info.to_dict()
        writer = ShardWriter(
            self._place.shard(number),
            name,
            block_size=self._options.block_size,
            separator=separator,
            vocab_size=self._options.vocab_size,
            metadata=metadata,
            first_document=self._num_documents,
        )
        self._next_number = number + 1
        return writer

    def _claim(self) -> int:
        """Take the next free number; its partial file says that it is taken."""
        if self._place.single:
            return 0
        number = self._next_number
        if not self._at_the_end and not self._finished:
            taken = [*self._place.shards(), *self._place.partials()]
            number = max([number, *(each + 1 for each in taken)])
        while True:
            partial = self._place.partial(number)
            try:
                os.close(os.open(partial, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
            except FileExistsError:
                number += 1
                continue
            if self._at_the_end or not self._place.shard(number).exists():
                self._claimed = partial
                return number
            partial.unlink()
            number += 1

    def _close_shard(self, *, last: bool) -> None:
        writer = self._writer
        assert writer is not None  # noqa: S101 - called with a shard open
        writer.metadata["write"] = {
            "arguments": self._arguments,
            "first": self._first_number,
            "position": len(self._finished),
            "last": last,
        }
        if self._at_the_end:
            writer.finish()
        else:
            # Before it is there: closing may be interrupted when it is.
            self._published.append(writer.path)
            writer.close()
        self._finished.append(writer)
        self._writer = None

    def _publish_all(self) -> None:
        if not self._at_the_end:
            return
        new = {writer.path for writer in self._finished}
        # From here on a crash leaves shards of both corpora, known as such.
        self._place.replacing.touch()
        sync_folder(self._place.folder)
        for path in self._old.values():
            if path not in new:
                path.unlink(missing_ok=True)
        for writer in reversed(self._finished):
            writer.close()
        sync_folder(self._place.folder)
        self._place.replacing.unlink(missing_ok=True)

    def _undo(self) -> None:
        if self._writer is not None:
            self._writer.abort()
        elif self._claimed is not None:
            self._claimed.unlink(missing_ok=True)
        for writer in self._finished:
            writer.abort()
        for path in self._published:
            with contextlib.suppress(OSError):
                path.unlink()


def _checked(
    options: WriteOptions, place: Place, exist: str, data: object
) -> tuple[tokenizers.Tokenizer | None, tokenizers.TokenizerInfo | None]:
    """Check what can be checked before anything is touched."""
    if exist not in ("keep", "replace", "append", "error"):
        raise ValueError(
            f'exist must be "keep", "replace", "append" or "error", got {exist!r}'
        )
    if isinstance(data, (str, bytes, bytearray, Mapping)):
        kind = type(cast("object", data)).__name__
        raise TypeError(
            f"data is one {kind}; pass an iterable of documents, such as a list with it"
        )
    check_block_size(options.block_size)
    limit = options.max_shard_bytes
    if limit is not None:
        least = shard_size_bound(8, options.block_size) + 2 * options.block_size
        if limit < least:
            raise ValueError(
                f"max_shard_bytes={limit} is too small for one document; use at "
                f"least {least}"
            )
    if place.single and (limit is not None or exist == "append"):
        raise ValueError(
            f"{place.shard(0)}: one file holds one shard; for max_shard_bytes or "
            f'exist="append" use a pattern such as "{place.prefix}_*.rox", or a folder'
        )
    if options.dtype is not None:
        separator_items(options.separator, options.dtype)
    if options.tokenizer is None:
        return None, None
    return tokenizers.load(options.tokenizer)


def _documents(data: Iterable[object]) -> Iterator[object]:
    try:
        return iter(data)
    except TypeError as error:
        raise TypeError(
            f"data is a {type(data).__name__}; pass an iterable of documents"
        ) from error
