"""Roxxel: a corpus of many shards as one line of tokens."""

from __future__ import annotations

import threading
from operator import index as as_index
from typing import TYPE_CHECKING, Any, Literal, Self

from roxxel_format._read.columns import Column
from roxxel_format._read.contents import open_contents
from roxxel_format._read.lengths import Lengths
from roxxel_format._read.maps import with_room
from roxxel_format._read.reader import CorpusReader
from roxxel_format._read.verify import verify_corpus
from roxxel_format._read.views import Documents, TokenLine
from roxxel_format._read.windows import parse_index
from roxxel_format._store.corpus_name import Filepath, absolute
from roxxel_format._write.columns import write_column
from roxxel_format._write.corpus_writer import write_corpus
from roxxel_format._write.leftovers import leftovers, remove_leftovers
from roxxel_format._write.options import name_to_write, parse_options

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from types import TracebackType

    import numpy as np
    import numpy.typing as npt

    from roxxel_format._read.verify import VerifyReport
    from roxxel_format._spec.dtypes import Tokens
    from roxxel_format._write.summary import WriteSummary

Check = Literal["headers", "blocks"]


class Roxxel:
    """A corpus: the shards that a path names, as one line of tokens.

    The constructor touches no file. The first use opens the corpus: it reads the
    manifest, or else the head and foot of every shard, and fixes the version. From then
    on this object, and every copy and pickle of it, reads that version: shards that are
    appended later are not seen, and a corpus that was replaced is a ShardError. Shards
    are opened and mapped when they are first read. All methods may be called from many
    threads.

    Args:
        filepath: A shard, a folder, a glob pattern, or a list of these. A folder or a
            pattern with a manifest is what its manifest lists; without one, it is the
            matching `*.rox` files in natural order of their names, and an error if
            their write was interrupted.
        check: `"blocks"` verifies the checksum of every block that is read, each time
            it is read, and returns copies. `"headers"` verifies heads, feet and indexes
            only; `verify()` then checks the tokens.
        max_maps: Shards to keep mapped. Default: as many as take an eighth of the
            descriptors that the process may have, fewer if many corpora are open.
        version: Fingerprint of the version to read. Default: the current one.

    Example:
        >>> corpus = Roxxel("wiki_*.rox")
        >>> written = corpus.write([[5, 6, 7]] * 2000, separator=0, vocab_size=50_000)
        >>> corpus.read([0, 4096], 1025, dtype="int32").shape
        (2, 1025)
    """

    def __init__(
        self,
        filepath: Filepath,
        *,
        check: Check = "headers",
        max_maps: int | None = None,
        version: str | None = None,
    ) -> None:
        if max_maps is not None and max_maps < 1:
            raise ValueError(f"max_maps must be at least 1, got {max_maps}")
        self._filepath = absolute(filepath)
        self._check = _parse_check(check)
        self._max_maps = max_maps
        self._version = version
        # The version to read: the given one, or the one that the first use found.
        self._pinned = version
        self._reader: CorpusReader | None = None
        self._lock = threading.Lock()

    def with_check(self, check: Check) -> Self:
        """Return the same corpus and version, read with another check.

        Args:
            check: As for the constructor.

        Raises:
            ValueError: The check is neither of the two.
        """
        return self._copy(_check=_parse_check(check))

    def with_version(self, fingerprint: str) -> Self:
        """Return the same corpus as it was at another version.

        Args:
            fingerprint: One of `versions`.

        Raises:
            ShardError: The corpus has no such version, or it was replaced.
        """
        pinned = {"_version": fingerprint, "_pinned": fingerprint}
        reader = self._reader
        if reader is not None and reader.contents.fingerprint == fingerprint:
            return self._copy(**pinned, _reader=reader)
        other = self._copy(**pinned)
        other._open()  # noqa: SLF001 - a copy of this object
        return other

    # What the corpus is.

    @property
    def filepath(self) -> str | tuple[str, ...]:
        """The absolute path, pattern or paths that name this corpus."""
        return self._filepath

    @property
    def paths(self) -> list[str]:
        """The shards, in order."""
        return list(self._open().contents.paths)

    @property
    def num_tokens(self) -> int:
        """Number of tokens, separators included."""
        return self._open().contents.num_tokens

    @property
    def num_documents(self) -> int:
        """Number of documents; a document that was split over shards counts once."""
        return self._open().contents.num_documents

    @property
    def num_shards(self) -> int:
        """Number of shards."""
        return len(self._open().contents.paths)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of a stored token, little-endian."""
        return self._open().contents.dtype

    @property
    def dtype_name(self) -> str:
        """Name of the stored item type; `bfloat16` whether numpy knows it or not."""
        return self._open().contents.dtype_name

    @property
    def token_range_seen(self) -> tuple[int, int] | None:
        """Least and greatest token; None for floats."""
        return self._open().contents.token_range

    @property
    def block_size(self) -> int:
        """Bytes that one checksum covers, in the first shard."""
        return self._open().contents.block_size

    @property
    def fingerprint(self) -> str:
        """Hex digest of the content of this version: 32 digits.

        Equal wherever the files are and whatever they are called; different when a
        token, a document's end, the order or the division into shards differs.
        """
        return self._open().contents.fingerprint

    @property
    def versions(self) -> list[str]:
        """Fingerprints of the versions, oldest first, as of the opening.

        Each append adds one. Without a manifest there is one version.
        """
        return self._open().contents.versions

    @property
    def tokenizer(self) -> str | None:
        """Name and hash of the tokenizer as recorded in the corpus, else None.

        Raises:
            ShardError: The shards were written with different tokenizers.
        """
        return self._open().tokenizer

    @property
    def metadata(self) -> dict[str, Any]:
        """Metadata of the first shard: tokenizer, separator, source, free fields."""
        return self._open().metadata(0)

    # Reading.

    @property
    def tokens(self) -> TokenLine:
        """The line of tokens: `tokens[a:b]`."""
        return TokenLine(self)

    @property
    def documents(self) -> Documents:
        """The documents: `documents[i]`, `documents.with_separator[i]`."""
        return Documents(self)

    def column(self, name: str) -> Column:
        """Return a column: one value for each token or each document.

        Raises:
            ShardError: A shard has no such column; the message names it.
        """
        return Column(name, self._open().contents)

    def __len__(self) -> int:
        """Return the number of blocks; the last may be short."""
        per_block = self._tokens_per_block
        return (self.num_tokens + per_block - 1) // per_block

    def __getitem__(self, block: int) -> Tokens:
        """Return the tokens of one block of `block_size` bytes."""
        start = parse_index(block, len(self), "block") * self._tokens_per_block
        return self.tokens[start : start + self._tokens_per_block]

    def read(
        self,
        starts: npt.ArrayLike,
        length: int,
        dtype: npt.DTypeLike | None = None,
        out: Tokens | None = None,
    ) -> Tokens:
        """Return the windows of `length` tokens that begin at `starts`.

        Args:
            starts: First token of each window; integers, shape `(n,)`. Windows may
                overlap and may cross from shard to shard.
            length: Tokens of each window, at least 0.
            dtype: Type of the result. Default: `out`'s, else the stored one.
            out: Shape `(n, length)`; filled and returned.

        Returns:
            Shape `(n, length)`, C-contiguous unless `out` is not; owned by the caller.

        Raises:
            IndexError: A window leaves `[0, num_tokens)`.
            TypeError: Tokens of this corpus do not fit the dtype.
            ValueError: `out` has another shape or dtype.
            ShardError: The corpus was replaced; a file was truncated; with
                `check="blocks"`, a block is damaged; or a token does not fit the dtype,
                though the shards declare that all do.
        """
        return self._open().read(starts, length, dtype, out)

    def token_range(self, start: int, stop: int) -> Tokens:
        """Return tokens `[start, stop)`: a read-only view inside one shard.

        Raises:
            IndexError: The range leaves `[0, num_tokens]`.
        """
        return self._open().token_range(start, stop)

    def document_range(self, document: int) -> tuple[int, int, int]:
        """Return first token, one past the last, and length of the separator.

        Raises:
            IndexError: There is no such document.
        """
        return self._open().document_range(document)

    def document_spans(self, start: int, stop: int) -> npt.NDArray[np.int64]:
        """Return the documents that have tokens in `[start, stop)`.

        Returns:
            Rows of document, first token and one past the last, clipped to
            `[start, stop)` and in order; int64, shape `(n, 3)`. A separator belongs
            to the document before it; a document without tokens has no row.

        Raises:
            IndexError: The range leaves `[0, num_tokens]`.
        """
        return self._open().document_spans(as_index(start), as_index(stop))

    def will_need(self, starts: npt.ArrayLike, length: int) -> None:
        """Prefetch windows: advise the system to read their pages into its cache.

        Returns at once. Windows near each other are merged, so pass many in one call,
        some batches ahead, from a thread that may wait a millisecond.

        Raises:
            IndexError: A window leaves `[0, num_tokens)`.
            ShardError: The corpus was replaced, or a file was truncated.
        """
        self._open().will_need(starts, length)

    def estimate_steps(self, seq_len: int, batch_size: int) -> int:
        """Return `num_tokens // (seq_len * batch_size)`, an upper bound.

        The plan of a curriculum gives the exact figure.
        """
        seq_len, batch_size = as_index(seq_len), as_index(batch_size)
        if seq_len < 1 or batch_size < 1:
            raise ValueError(
                f"seq_len and batch_size must be positive, got {seq_len}, {batch_size}"
            )
        return self.num_tokens // (seq_len * batch_size)

    def document_lengths(self) -> Lengths:
        """Count the documents by length; reads the whole document index."""
        return Lengths.of(self._open().contents)

    def verify(
        self,
        *,
        threads: int | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> VerifyReport:
        """Compare every block of every shard with its checksum.

        With a manifest, also compare each shard with its entry, and each file of a
        column with its digest.

        Args:
            threads: Number of threads. Default: one per processor, up to 16.
            progress: Called with bytes done and bytes in all.

        Returns:
            What was checked, and every damage found; `report.ok` when there is none.
        """
        return verify_corpus(self._open().contents, threads=threads, progress=progress)

    # Writing.

    def write(
        self,
        data: Iterable[object],
        separator: float | bytes | None = None,
        block_size: int = 4096,
        max_shard_bytes: int | None = None,
        dtype: npt.DTypeLike | None = None,
        *,
        vocab_size: int | None = None,
        tokenizer: object | None = None,
        exist: Literal["keep", "replace", "append", "error"] = "keep",
        metadata: Mapping[str, Any] | None = None,
    ) -> WriteSummary:
        """Write documents into new shards, then commit them as the corpus.

        Until the commit, readers see the corpus as it was before; a write that fails
        removes its shards, and one that is killed leaves them for `remove_leftovers`.
        Run it from one process of a program, or with `exist="append"` from several.

        Args:
            data: Documents: flat arrays, lists of ints, `str` or `bytes`.
            separator: Appended to each document: a token, or bytes, which are read
                as little-endian tokens (a shorter byte string is filled with zeros).
            block_size: Bytes that one checksum covers: a power of two in
                [512, 2**24].
            max_shard_bytes: Largest size of a shard. Needs a pattern or a folder.
                Documents are kept whole unless one is larger than a shard.
            dtype: Item type. Default: uint16 or uint32 by `vocab_size` or the
                tokenizer's, else that of the first array, uint32 for lists of ints,
                uint8 for bytes and for `str` without a tokenizer (UTF-8).
            vocab_size: Tokens must be below it.
            tokenizer: For `str` documents: an object with `encode`, the path of a
                `tokenizer.json`, or a name on the Hugging Face hub (the last two by the
                extra `tokenizers`). Special tokens are added where its `encode` does.
            exist: What to do if there is a corpus already. `"keep"` keeps the corpus
                if its last write had the same arguments, without touching `data`, and
                prints one line; other arguments are an error. `"replace"` commits
                the new shards alone, then deletes the old ones. `"append"` commits
                them behind the old ones, as a new version; dtype, tokenizer and
                separator must be the same. `"error"` raises FileExistsError. A write
                that was interrupted is not a corpus.
            metadata: JSON-able values to store, for example `{"source": "..."}`.

        Returns:
            What was written or kept.

        Raises:
            FileExistsError: `exist` does not allow changing the corpus; or this is not
                an append, and another write was committed during this one.
            BlockingIOError: Another process is writing the same file, or the first
                version of this corpus.
            TypeError: A document is of the wrong type, or text among ready-made tokens.
            ValueError: A value is out of range, there are no documents, or they do not
                fit the corpus that they are appended to.
            OSError: The files cannot be written, or the file system has no working
                `flock`.
        """
        options = parse_options(
            separator=separator,
            block_size=block_size,
            max_shard_bytes=max_shard_bytes,
            dtype=dtype,
            vocab_size=vocab_size,
            tokenizer=tokenizer,
            metadata=metadata,
        )
        try:
            return write_corpus(self._filepath, data, options, exist)
        finally:
            self._use_current_version()

    def write_column(
        self,
        name: str,
        values: Iterable[object],
        per: Literal["token", "document"] = "token",
        dtype: npt.DTypeLike | None = None,
        *,
        exist: Literal["error", "replace"] = "error",
    ) -> None:
        """Write a column: one item for each token, or for each document.

        The column covers the corpus as it is when the write begins. Shards that are
        appended later have no items of it.

        Args:
            name: A letter or `_`, then letters, digits and `_` (ASCII).
            values: A flat array or list; or flat arrays (an iterable of them), one
                after the other. Strings are stored as UTF-8 of fixed width.
            per: What an item belongs to. Tokens include separators; a document that
                was split over shards counts once.
            dtype: Item type, such as `uint8` or `S36`. Default: that of the values;
                for strings from an iterable it must be given.
            exist: What to do if the column exists. The files of a replaced column are
                deleted after the commit.

        Raises:
            FileExistsError: The column exists.
            FileNotFoundError: There is no corpus.
            TypeError: The values cannot be stored as `dtype`.
            ValueError: The name is wrong, a value is out of range, there are more or
                fewer values than tokens or documents, or the corpus is one file.
            ShardError: The corpus was replaced while its column was written.
            OSError: The files cannot be written.
        """
        write_column(
            name_to_write(self._filepath),
            name,
            values,
            per,
            dtype,
            replace_old=exist == "replace",
        )
        self._use_current_version()

    def leftovers(self) -> list[str]:
        """Return the files that interrupted writes of this corpus left.

        Files that a write in progress has not committed yet are listed too.
        """
        return [str(path) for path in leftovers(name_to_write(self._filepath))]

    def remove_leftovers(self) -> list[str]:
        """Remove the files that interrupted writes left, and return their paths.

        In a folder with a manifest, files named like its shards and columns belong to
        the corpus: those that the manifest does not list are removed.

        Raises:
            BlockingIOError: A write is in progress.
        """
        return [str(path) for path in remove_leftovers(name_to_write(self._filepath))]

    # Opening and closing.

    def close(self) -> None:
        """Close all files; the next use opens the same version again."""
        with self._lock:
            if self._reader is not None:
                self._reader.release()
                self._reader = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes, those of a subclass included, without open files."""
        return vars(self) | {"_reader": None, "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._filepath!r})"

    @property
    def _tokens_per_block(self) -> int:
        contents = self._open().contents
        return contents.block_size // contents.dtype.itemsize

    def _open(self) -> CorpusReader:
        reader = self._reader
        if reader is not None:
            return reader
        with self._lock:
            if self._reader is None:
                contents = with_room(
                    lambda: open_contents(self._filepath, self._pinned)
                )
                self._pinned = contents.fingerprint
                self._reader = CorpusReader(
                    contents, checked=self._check == "blocks", max_maps=self._max_maps
                )
            return self._reader

    def _copy(self, **changed: Any) -> Self:
        """Return a copy of the same class, with some attributes changed.

        The copy opens the corpus itself, unless it is given an open reader.
        """
        other = object.__new__(type(self))
        other.__setstate__(self.__getstate__() | changed)
        return other

    def _use_current_version(self) -> None:
        """Close; the next use opens the given version, else the current one."""
        self.close()
        self._pinned = self._version


def _parse_check(check: Check) -> Check:
    if check not in ("headers", "blocks"):
        raise ValueError(f'check must be "headers" or "blocks", got {check!r}')
    return check
