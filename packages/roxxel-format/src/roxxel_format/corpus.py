"""Roxxel: many shards as one line of tokens."""

from __future__ import annotations

import errno
import threading
from operator import index as as_index
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np

from roxxel_format._read.index import CorpusIndex
from roxxel_format._read.maps import with_room
from roxxel_format._read.reading import OpenCorpus
from roxxel_format._read.shard import Shard
from roxxel_format._read.views import Documents, TokenLine
from roxxel_format._read.window_reader import WindowReader
from roxxel_format._read.windows import check_range, parse_windows, result_dtype
from roxxel_format._spec import dtypes
from roxxel_format._store.names import Filepath, absolute, find_shards
from roxxel_format._write.columns import write_column
from roxxel_format._write.commit import committed_paths
from roxxel_format._write.corpus_writer import write_corpus
from roxxel_format._write.leftovers import leftovers, remove_leftovers
from roxxel_format._write.options import WriteOptions, name_to_write
from roxxel_format.errors import ShardError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from types import TracebackType

    import numpy.typing as npt

    from roxxel_format._read.lengths import Lengths
    from roxxel_format._read.shard_map import ShardMap
    from roxxel_format._read.verify import VerifyReport
    from roxxel_format._read.window_reader import Empty
    from roxxel_format._spec.dtypes import Tokens
    from roxxel_format._write.summary import WriteSummary


class Roxxel:
    """A corpus: the shards that a path names, as one line of tokens.

    Constructing one touches no file: the shards are opened when they are first needed
    (head and foot only; a lone one is mapped with that), mapped when they are first
    read, and may not exist yet when the corpus is going to be written. All methods may
    be called from many threads. A pickled corpus opens the same shards by path.

    Args:
        filepath: A shard, a folder of `*.rox`, a glob pattern, or a list of these.
            Shards of a folder or a pattern come in natural order of their names, and
            are an error where one is missing because a write of them was interrupted.
        check: `"blocks"` compares every block that is read with its checksum, each
            time it is read, and hands out copies. `"headers"` checks heads, feet and
            indexes only; `verify()` then checks the tokens.
        max_maps: Shards to keep mapped at a time. Default: as many as take an eighth of
            the descriptors that the process may have, less where many corpora are open.

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
        check: Literal["headers", "blocks"] = "headers",
        max_maps: int | None = None,
    ) -> None:
        if check not in ("headers", "blocks"):
            raise ValueError(f'check must be "headers" or "blocks", got {check!r}')
        if max_maps is not None and max_maps < 1:
            raise ValueError(f"max_maps must be at least 1, got {max_maps}")
        self._filepath = absolute(filepath)
        self._check = check
        self._max_maps = max_maps
        self._opened: OpenCorpus | None = None
        self._lock = threading.Lock()

    def with_check(self, check: Literal["headers", "blocks"]) -> Roxxel:
        """Return the same corpus, to be read with another check; opened when used.

        Args:
            check: As for the constructor.

        Raises:
            ValueError: It is neither of the two.
        """
        plain = Roxxel(self._filepath, check=check, max_maps=self._max_maps)
        # Of a subclass, with all that it holds.
        other = object.__new__(type(self))
        vars(other).update(vars(self) | vars(plain))
        return other

    # What the corpus is.

    @property
    def filepath(self) -> str | tuple[str, ...]:
        """The absolute path, pattern or paths this corpus was named by."""
        return self._filepath

    @property
    def paths(self) -> list[str]:
        """The shards, in order."""
        return [shard.path for shard in self._open().index.shards]

    @property
    def num_tokens(self) -> int:
        """Tokens, separators included."""
        return self._open().index.num_tokens

    @property
    def num_documents(self) -> int:
        """Documents; one that was split over shards counts once."""
        return self._open().index.num_documents

    @property
    def num_shards(self) -> int:
        """Shards."""
        return len(self._open().index.shards)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of a stored token, little-endian."""
        return self._open().index.dtype

    @property
    def dtype_name(self) -> str:
        """Name of the stored item type; `bfloat16` whether numpy knows it or not."""
        return self._open().index.shards[0].layout.head.dtype_name

    @property
    def token_range_seen(self) -> tuple[int, int] | None:
        """Least and greatest token, None for floats; a vocabulary must hold them."""
        return self._open().index.value_range

    @property
    def block_size(self) -> int:
        """Bytes of a block (of the first shard): what one checksum covers."""
        return self._open().index.shards[0].layout.head.block_size

    @property
    def fingerprint(self) -> str:
        """Hex digest of the content: 32 digits, from the feet of the shards.

        Equal wherever the files lie and whatever they are called; different when a
        token, a document's end, the order or the division into shards differs.
        """
        return self._open().fingerprint

    @property
    def tokenizer(self) -> str | None:
        """Name and hash of the tokenizer as recorded in the shards, else None.

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

    def __len__(self) -> int:
        """Return the number of blocks; the last may be short."""
        per_block = self._tokens_per_block
        return (self.num_tokens + per_block - 1) // per_block

    def __getitem__(self, block: int) -> Tokens:
        """Return the tokens of one block of `block_size` bytes."""
        count = len(self)
        block = as_index(block)
        if not -count <= block < count:
            raise IndexError(f"block {block} is out of range; there are {count}")
        start = block % count * self._tokens_per_block
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
            dtype: Of the result. Default: `out`'s, else the stored one.
            out: Shape `(n, length)`; filled and returned.

        Returns:
            Shape `(n, length)`, C-contiguous unless `out` is not; owned by the caller.

        Raises:
            IndexError: A window leaves `[0, num_tokens)`.
            TypeError: Tokens of this corpus do not fit the dtype.
            ValueError: `out` has another shape or dtype.
            ShardError: A file was replaced before it was mapped; with one shard, was
                cut short since; with `check="blocks"`, a block is damaged or missing.
                Or a token does not fit the dtype, though the shards say that all do.
        """
        opened = self._open()
        begins, length = parse_windows(starts, length, opened.index.num_tokens)
        result = result_dtype((begins.size, length), dtype, out, opened.index.dtype)
        opened.check_readable_as(result)
        if out is None:
            return opened.read(begins, length, result)
        return opened.read(begins, length, result, lambda _shape, _dtype: out)

    def window_reader(
        self,
        starts: npt.ArrayLike,
        length: int,
        dtype: npt.DTypeLike | None = None,
        empty: Empty | None = None,
    ) -> WindowReader:
        """Check windows now, to read them in parts.

        `window_reader(starts, length).read(a, b)` is `read(starts[a:b], length)`, in
        less time where the windows are few and short. Reads in order, `a` no less than
        before, ask the system for the pages of the next windows ahead.

        Args:
            starts: First token of each window; integers, shape `(n,)`.
            length: Tokens of each window, at least 0.
            dtype: Of what is read. Default: the stored one.
            empty: Makes the memory of each read, as `numpy.empty` (the default) does: a
                new array, of the shape `(n, length)` and the dtype that it is called
                with, perhaps from many threads.

        Raises:
            IndexError: A window leaves `[0, num_tokens)`.
            TypeError: Tokens of this corpus do not fit the dtype.
            ShardError: The corpus cannot be opened.
        """
        opened = self._open()
        begins, length = parse_windows(starts, length, opened.index.num_tokens)
        if begins.flags.writeable:  # or the windows could change after they are checked
            begins = begins.copy()
        result = opened.index.dtype if dtype is None else np.dtype(dtype)
        opened.check_readable_as(result)

        def read_anew(starts: npt.NDArray[np.int64]) -> Tokens:
            now = self._open()
            if now.fingerprint != opened.fingerprint:
                raise ShardError(
                    f"{self._filepath}: another corpus lies there than when these "
                    "windows were named; name them anew, by a new sampler say"
                )
            out = None if empty is None else empty((starts.size, length), result)
            return self.read(starts, length, result, out)

        # What a subclass makes of a read holds here too.
        is_plain = type(self).read is Roxxel.read
        read = opened.reader(length, result, empty) if is_plain else read_anew
        return WindowReader(opened, read, read_anew, begins, length)

    def token_range(self, start: int, stop: int) -> Tokens:
        """Return tokens `[start, stop)`: a read-only view inside one shard.

        Raises:
            IndexError: The range leaves `[0, num_tokens]`.
        """
        opened = self._open()
        check_range(start, stop, opened.index.num_tokens)
        return opened.token_range(start, stop)

    def document_range(self, document: int) -> tuple[int, int, int]:
        """Return first token, one past the last, and length of the separator.

        Raises:
            IndexError: There is no such document.
        """
        opened = self._open()
        if not 0 <= document < opened.index.num_documents:
            raise IndexError(
                f"document {document} is out of range; there are "
                f"{opened.index.num_documents}"
            )
        return opened.document_range(document)

    def document_spans(self, start: int, stop: int) -> npt.NDArray[np.int64]:
        """Return the documents that have tokens in `[start, stop)`.

        Returns:
            Rows of document, first token and one past the last, clipped to
            `[start, stop)` and in order; int64, shape `(n, 3)`. A separator belongs
            to the document before it; a document without tokens has no row.

        Raises:
            IndexError: The range leaves `[0, num_tokens]`.
        """
        opened = self._open()
        start, stop = as_index(start), as_index(stop)
        check_range(start, stop, opened.index.num_tokens)
        return opened.document_spans(start, stop)

    def will_need(self, starts: npt.ArrayLike, length: int) -> None:
        """Ask the system to read the pages of these windows ahead.

        Windows near each other are asked for together; of a corpus of at most a
        sixteenth of the memory, some 100 KiB around each too. Nothing is asked where a
        sample of the windows is in memory already; give many windows in one call.

        Args:
            starts: First token of each window; integers, shape `(n,)`.
            length: Tokens of each window.

        Raises:
            IndexError: A window leaves `[0, num_tokens)`.
            ShardError: A file of them was cut short after it was mapped.
        """
        opened = self._open()
        begins, length = parse_windows(starts, length, opened.index.num_tokens)
        opened.will_need(begins, length)

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
        from roxxel_format._read.lengths import Lengths

        return Lengths.of(self._open().index)

    def verify(
        self,
        *,
        threads: int | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> VerifyReport:
        """Compare every block of every shard with its checksum.

        Args:
            threads: How many read at a time. Default: one a processor, up to 16.
            progress: Called with bytes done and bytes in all.

        Returns:
            What was checked, and every damage found; `report.ok` when there is none.
        """
        from roxxel_format._read.verify import verify_shards

        return verify_shards(self._open().index, threads=threads, progress=progress)

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
                says so in one line; other arguments are an error. `"replace"` commits
                the new shards alone, then deletes the old ones. `"append"` commits
                them behind the old ones, as a new version; dtype, tokenizer and
                separator must be the same. `"error"` raises FileExistsError. A write
                that was interrupted is not a corpus.
            metadata: JSON-able values to store, for example `{"source": "..."}`.

        Returns:
            What was written or kept.

        Raises:
            FileExistsError: There is a corpus that must not be touched, or another
                write was committed while this one, not an append, went on.
            BlockingIOError: Another process writes the same file, or is at the first
                write of this corpus.
            TypeError: A document is of the wrong type, or text among ready-made tokens.
            ValueError: A value is out of range, there are no documents, or they do not
                fit the corpus that they are appended to.
            OSError: The files cannot be written, or the file system has no working
                `flock`.
        """
        options = WriteOptions(
            separator=separator,
            block_size=_integer("block_size", block_size),
            max_shard_bytes=_integer_or_none("max_shard_bytes", max_shard_bytes),
            dtype=None if dtype is None else dtypes.stored_name(dtype),
            vocab_size=_integer_or_none("vocab_size", vocab_size),
            tokenizer=tokenizer,
            metadata=dict(metadata or {}),
        )
        try:
            return write_corpus(self._filepath, data, options, exist)
        finally:
            self.close()

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
            exist: What to do if there is a column of this name. The files of a replaced
                column are deleted after the commit.

        Raises:
            FileExistsError: There is a column of this name.
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
        self.close()

    def leftovers(self) -> list[str]:
        """Return the files that interrupted writes of this corpus left.

        Also those that a write which is going on has not committed yet.
        """
        return [str(path) for path in leftovers(name_to_write(self._filepath))]

    def remove_leftovers(self) -> list[str]:
        """Remove the files that interrupted writes left, and return their paths.

        In a folder with a manifest, files named like its shards and columns belong to
        the corpus: those that the manifest does not list are removed.

        Raises:
            BlockingIOError: A write is going on.
        """
        return [str(path) for path in remove_leftovers(name_to_write(self._filepath))]

    # Opening and closing.

    def close(self) -> None:
        """Let go of maps and descriptors; using the corpus again opens it again."""
        with self._lock:
            if self._opened is not None:
                self._opened.close()
                self._opened = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __reduce__(self) -> tuple[object, ...]:
        return _reopened, (self._filepath, self._check, self._max_maps)

    def __repr__(self) -> str:
        return f"Roxxel({self._filepath!r})"

    @property
    def _tokens_per_block(self) -> int:
        return self.block_size // self._open().index.shards[0].layout.head.item_size

    def _open(self) -> OpenCorpus:
        opened = self._opened
        if opened is not None:
            return opened
        with self._lock:
            if self._opened is None:
                checked = self._check == "blocks"
                paths = committed_paths(self._filepath) or find_shards(self._filepath)
                shards, first = _opened(paths, checked=checked)
                index = CorpusIndex.of(shards)
                self._opened = OpenCorpus(index, checked, self._max_maps, first)
            return self._opened


def _integer(name: str, value: int) -> int:
    try:
        return as_index(value)
    except TypeError:
        raise TypeError(f"{name} must be an integer, got {value!r}") from None


def _integer_or_none(name: str, value: int | None) -> int | None:
    return None if value is None else _integer(name, value)


def _opened(paths: list[str], *, checked: bool) -> tuple[list[Shard], ShardMap | None]:
    """Open shards; a lone one is mapped at once, so that it is opened only once."""
    if len(paths) == 1:
        try:
            shard, first = with_room(lambda: Shard.mapped(paths[0], checked=checked))
        except OSError as error:
            if error.errno != errno.ENOMEM:
                raise
            return [Shard(paths[0])], None  # more than may be mapped: it can be asked
        return [shard], first
    return with_room(lambda: [Shard(path) for path in paths]), None


def _reopened(
    filepath: Filepath, check: Literal["headers", "blocks"], max_maps: int | None
) -> Roxxel:
    return Roxxel(filepath, check=check, max_maps=max_maps)
