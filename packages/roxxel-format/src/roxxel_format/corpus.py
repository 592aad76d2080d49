"""A corpus of many shards, read as one line of tokens: all documents in order."""

from __future__ import annotations

import copy
import os
import threading
from operator import index as as_index
from typing import TYPE_CHECKING, Any, Literal, Self, SupportsIndex, cast, overload

from roxxel_store.arguments import as_integer
from roxxel_store.urls import DEFAULT_TIMEOUT_S, absolute

from roxxel_format._corpus_name import Filepath, name_to_write
from roxxel_format._read.cached import CachedFiles, cache_path, cache_size, cached
from roxxel_format._read.columns import item_text
from roxxel_format._read.files import with_room
from roxxel_format._read.lengths import Lengths
from roxxel_format._read.line import each_at
from roxxel_format._read.opening import is_remote, open_corpus
from roxxel_format._read.reader import Check, CorpusReader
from roxxel_format._read.verify import verify_corpus
from roxxel_format._spec.input_totals import input_totals
from roxxel_format._spec.manifest import tokenizer_identity, unit_of
from roxxel_format._write.columns import write_column
from roxxel_format._write.compact import FULL_SHARD_BYTES, compact
from roxxel_format._write.driver import CorpusWrite
from roxxel_format._write.place import place_of
from roxxel_format._write.recipe import Fields, Recipe, Separator
from roxxel_format._write.rescue import adopt
from roxxel_format._write.transfer import copy_corpus
from roxxel_format.token_reader import TokenReader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import numpy as np
    import numpy.typing as npt

    from roxxel_format._read.cached import CacheStatus
    from roxxel_format._read.columns import Column
    from roxxel_format._read.verify import VerifyReport
    from roxxel_format._spec.input_totals import InputTotals
    from roxxel_format._spec.layout import Tokens
    from roxxel_format._write.compact import Compaction
    from roxxel_format._write.place import OneFile, Place
    from roxxel_format._write.recipe import TokenizerBackend
    from roxxel_format._write.summary import WriteSummary
    from roxxel_format.errors import ChecksumError


class Roxxel(TokenReader):
    """A corpus: the tokens of all shards at a path, one after another.

    The constructor opens no file. The first use opens the corpus: it reads the manifest
    (for a list of files, the head and the foot of each file), and fixes the version.
    The object, its copies and its pickles then read only this version. They ignore
    shards that are appended later, and raise ShardError if the corpus was replaced.
    Each shard is opened and mapped at its first read. All methods may be called from
    many threads.

    Args:
        filepath: A shard, a folder, a glob pattern, or a list of these: paths, or with
            the extra `bucket` URLs (`s3://`, `gs://`, `az://`, `https://`). A folder or
            a pattern means the shards in its manifest. Shards without a manifest are an
            error; see `adopt`. `t` and `t.rox` mean the shards `t_*.rox` if these have
            a manifest, and no file has exactly this name.
        check: With `"blocks"`, every read verifies the checksums of its blocks and
            returns copies, and the document index of a shard, once verified, stays in
            memory. With `"headers"`, reads verify only the head, the foot and
            the document index of each shard; `verify()` checks the tokens.
        version: Fingerprint of the version to read. Default: the current version.
        timeout_s: Seconds after which a request to a bucket fails.
        cache: A folder on a local disk. The shards of a corpus in a bucket are copied
            there in the background from the first read on; a shard that has arrived is
            read from the disk. Processes and corpora may share a folder; later runs use
            its copies.
        cache_bytes: Maximum size of this folder. Shards that do not fit are read from
            the bucket. Default: 5 % of the disk stays free.

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
        version: str | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        cache: str | os.PathLike[str] | None = None,
        cache_bytes: int | None = None,
    ) -> None:
        self._filepath = absolute(filepath)
        self._version, self._timeout_s = version, timeout_s
        if not timeout_s > 0:
            raise ValueError(f"timeout_s must be positive, got {timeout_s}")
        self._cache = None if cache is None else cache_path(cache)
        self._cache_bytes = None if cache_bytes is None else cache_size(cache_bytes)
        self._check_cache()
        self._check = _checked(check)
        self._pinned: str | None = None  # The version that was opened first.
        self._opened: CorpusReader | None = None
        # Locks for opening and closing, one for each process: a lock that another
        # thread holds during a fork stays locked in the child.
        self._locks: dict[int, threading.Lock] = {}

    def with_check(self, check: Check) -> Self:
        """Return the same corpus and version, read with another `check`.

        Args:
            check: As for the constructor.

        Raises:
            ValueError: `check` is neither `"headers"` nor `"blocks"`.
        """
        return self._copy(_check=_checked(check))

    def with_version(self, fingerprint: str) -> Self:
        """Return the same corpus at another version.

        Args:
            fingerprint: One of `versions`.

        Raises:
            ShardError: The corpus has no such version, or was replaced.
        """
        opened, pinned = self._opened, self._pinned
        same = opened if pinned == fingerprint else None
        other = self._copy(_version=fingerprint, _pinned=None, _opened=same)
        other._open()  # noqa: SLF001 - a copy
        return other

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
        """Number of documents."""
        return self._open().contents.num_documents

    @property
    def unit(self) -> int | None:
        """Number of tokens in a bin; None unless the documents are packed.

        Windows of whole bins hold whole documents; see `write` with `pack`.
        """
        return unit_of(self._open().contents.bins)

    @property
    def num_padding(self) -> int:
        """Number of padding tokens; 0 unless the documents are packed."""
        bins = self._open().contents.bins
        return 0 if bins is None else bins.num_padding

    @property
    def num_cut(self) -> int:
        """Number of documents longer than a bin; 0 unless the documents are packed."""
        bins = self._open().contents.bins
        return 0 if bins is None else bins.num_cut

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
        """Name of the item type; `bfloat16` even if ml_dtypes is not installed."""
        return self._open().contents.dtype_name

    @property
    def token_range_seen(self) -> tuple[int, int] | None:
        """Least and greatest token; None for floats."""
        return self._open().contents.token_range

    @property
    def block_size(self) -> int:
        """Number of bytes that one checksum covers in the first shard."""
        return self._open().contents.block_size

    @property
    def fingerprint(self) -> str:
        """Hex digest of the content of this version: 32 digits.

        The fingerprint depends on the tokens, the ends of the documents, and the order
        and sizes of the shards in which they were written. It does not depend on the
        paths, and `compact` does not change it.
        """
        return self._open().contents.fingerprint

    @property
    def shard_digests(self) -> list[str]:
        """Hex digest of each shard's tokens and documents; paths do not change it.

        If two corpora share a digest, they share the documents of that shard.
        """
        return [*self._open().contents.shards.content_digests]

    @property
    def versions(self) -> list[str]:
        """Fingerprints of the versions when the corpus was opened, oldest first.

        Each append adds a version, and `compact` adds none. A corpus without a manifest
        has one version.
        """
        return self._open().contents.versions

    @property
    def columns(self) -> list[str]:
        """Names of the columns that every shard of this version has, sorted."""
        columns = self._open().contents.columns
        return sorted(name for name, table in columns.items() if all(table.names))

    @property
    def partial_columns(self) -> list[str]:
        """Names of the columns that only some shards of this version have, sorted.

        `column(name)` raises an error that names a shard without the column.
        """
        columns = self._open().contents.columns
        return sorted(name for name, table in columns.items() if not all(table.names))

    @property
    def tokenizer(self) -> str | None:
        """Name and hash of the recorded tokenizer, or None."""
        return tokenizer_identity(self._open().contents.manifest.tokenizer)

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments with which this version was written, as recorded.

        Empty if unknown, as for shards that `adopt` made a corpus.
        """
        return dict(self._open().contents.version.arguments)

    @property
    def tokenizer_files(self) -> dict[str, str]:
        """The files of the tokenizer that is kept with the corpus, as texts by name.

        Among them are `tokenizer.json`, and `chat_template.jinja` if chats were
        written. Empty if no tokenizer with such a file wrote this version.

        Raises:
            FileNotFoundError: The file that keeps them is missing.
            ShardError: The file is damaged.
        """
        return self._open().contents.kept_tokenizer()

    @property
    def separator(self) -> tuple[int, ...]:
        """The tokens that end each document; empty if none do, or none are recorded."""
        return cast("tuple[int, ...]", self._open().contents.manifest.separator)

    @property
    def metadata(self) -> dict[str, Any]:
        """Metadata of the first shard: tokenizer, separator, source, user fields."""
        return self._open().metadata(0)

    def column(self, name: str) -> Column:
        """Return a column, which has a value for each token or each document.

        A replaced column has its new values in all versions. The first opening of a
        column's file verifies the digest of the file.

        Raises:
            ShardError: A shard lacks the column; the message names the shard.
        """
        return self._open().column(name)

    def document_name(self, document: int) -> str | None:
        """Return the id of a document, else its path or URL; None if it has no name.

        The name comes from the first of the columns `id`, `path` and `url` that has a
        value for every document.

        Raises:
            IndexError: There is no such document.
        """
        column = self._open().names
        return None if column is None else item_text(column[document])

    def find_documents(self, name: str) -> list[int]:
        """Return the numbers of all documents called `name`; see `document_name`.

        Reads all names, and returns the numbers in order. Several documents may have
        the same name, such as the path of a file of many documents.

        Raises:
            ShardError: Only some shards have document names; the message says which
                shard has none.
        """
        return self._open().find_documents(name)

    def __len__(self) -> int:
        """Return the number of blocks of `block_size` bytes; the last may be short."""
        size = self._open().contents.tokens_per_block
        return (self.num_tokens + size - 1) // size

    @overload
    def __getitem__(self, block: SupportsIndex) -> Tokens: ...
    @overload
    def __getitem__(self, block: slice) -> list[Tokens]: ...
    def __getitem__(self, block: SupportsIndex | slice) -> Tokens | list[Tokens]:
        """Return the tokens of a block; for a slice, a list of blocks."""
        size = self._open().contents.tokens_per_block
        return each_at(
            block, len(self), lambda n: self.tokens[n * size : (n + 1) * size], "block"
        )

    def read(
        self,
        starts: npt.ArrayLike,
        length: int,
        dtype: npt.DTypeLike | None = None,
        out: Tokens | None = None,
    ) -> Tokens:
        """Return the windows of `length` tokens that begin at `starts`.

        Args:
            starts: Index of the first token of each window; integers, shape `(n,)`.
                Windows may overlap, and may cross the ends of shards.
            length: Tokens of each window, at least 0.
            dtype: Type of the result. Default: the dtype of `out`, or else the stored
                dtype.
            out: Array of shape `(n, length)`, which this method fills and returns.

        Returns:
            Array of shape `(n, length)`, owned by the caller; C-contiguous, unless
            `out` is not.

        Raises:
            IndexError: A window leaves `[0, num_tokens)`.
            TypeError: Tokens of this corpus do not fit the dtype.
            ValueError: `out` has another shape or dtype.
            ShardError: The corpus was replaced; a file was truncated; or, with
                `check="blocks"`, a block is damaged.
        """
        return self._open().read(starts, length, dtype, out)

    def read_into(
        self,
        starts: npt.ArrayLike,
        out: Tokens,
        rows: Sequence[int] | None = None,
    ) -> None:
        """Fill rows of an array with windows; see `TokenReader.read_into`.

        To read a blend, call this for each corpus with the same `out`: each window is
        copied once, and nothing else is allocated.

        Raises:
            IndexError: A window leaves `[0, num_tokens)`.
            TypeError: Tokens of this corpus do not fit the dtype of `out`.
            ShardError: As for `read`.
        """
        self._open().read_into(starts, out, rows)

    def token_range(self, start: int, stop: int) -> Tokens:
        """Return tokens `[start, stop)`: a read-only view of one shard, or a copy.

        Raises:
            IndexError: The range leaves `[0, num_tokens]`.
        """
        return self._open().token_range(start, stop)

    def damaged_tokens(self, error: ChecksumError) -> tuple[int, int] | None:
        """Return the tokens `[start, stop)` of the damaged block that an error reports.

        Every read outside these tokens avoids the block. None if the error is not about
        a block of tokens of this corpus, such as damage in a document index.

        Args:
            error: Error of a read with `check="blocks"`.
        """
        return self._open().damaged_tokens(error)

    def document_range(self, document: int) -> tuple[int, int, int]:
        """Return `(first token, one past the last token, separator length)`.

        Raises:
            IndexError: There is no such document.
        """
        return self._open().document_range(document)

    def window_spans(
        self, starts: npt.ArrayLike, length: int
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return the documents of windows; see `TokenReader.window_spans`.

        One call for the windows of a batch costs far less than `document_spans` of
        each.
        """
        return self._open().window_spans(starts, length)

    def will_need(
        self, starts: npt.ArrayLike, length: int, *, documents: bool = False
    ) -> None:
        """Prefetch windows: advise the system to read their pages into its cache.

        Does nothing if the windows seem to be in the cache: on Linux it checks up to 16
        of them. Does not wait for the disk. Pass the windows of several batches in one
        call: windows near each other become one request. A call can take a millisecond,
        so call from a background thread. For a corpus in a bucket, this method begins
        to download the windows.

        Args:
            starts: Index of the first token of each window; integers, shape `(n,)`.
            length: Tokens of each window.
            documents: In a bucket, also request the document index of each shard, once;
                `document_spans` reads this index.

        Raises:
            IndexError: A window leaves `[0, num_tokens)`.
            ShardError: The corpus was replaced, or a file was truncated.
        """
        self._open().will_need(starts, length, documents=documents)

    def estimate_steps(self, seq_len: int, batch_size: int) -> int:
        """Return `num_tokens // (seq_len * batch_size)`, about the steps of an epoch.

        The plan of a curriculum has the exact number.
        """
        seq_len, batch_size = as_index(seq_len), as_index(batch_size)
        if seq_len < 1 or batch_size < 1:
            raise ValueError(
                f"seq_len and batch_size must be positive, got {seq_len}, {batch_size}"
            )
        return self.num_tokens // (seq_len * batch_size)

    def cache_status(self) -> CacheStatus | None:
        """Return how much of the corpus is in its cache folder; None without one."""
        files = self._open().contents.files
        return files.status if isinstance(files, CachedFiles) else None

    def document_lengths(self) -> Lengths:
        """Count the documents by length; reads the whole document index."""
        return Lengths.of(self._open().contents)

    def input_totals(self) -> list[InputTotals]:
        """Return the documents and tokens that came from each input file.

        Only shards that record their inputs count, such as those of `roxxel-prepare
        write`. Reads the metadata of every shard. A version that ends inside a shard,
        as can happen after a compaction, has no totals.
        """
        reader = self._open()
        if reader.contents.ends_inside:
            return []
        return input_totals(
            (write, reader.metadata(number).get("input_files"))
            for number, write in enumerate(reader.contents.writes)
        )

    def verify(
        self,
        *,
        progress: Callable[[int, int], None] | None = None,
    ) -> VerifyReport:
        """Compare every block of every shard with its checksum.

        With a manifest, also compare each shard with its entry in the manifest, and
        each file of a column with its digest. Compare the file that keeps the tokenizer
        with the digest in its name.

        Args:
            progress: Called with the number of bytes checked so far, and the number of
                all bytes.

        Returns:
            A report of the shards, with an error for each damaged part.
        """
        return verify_corpus(self._open().contents, progress=progress)

    def write(
        self,
        data: Iterable[object],
        separator: float | bytes | str | Separator | None = Separator.OF_TOKENIZER,
        block_size: int = 4096,
        max_shard_bytes: int | None = None,
        dtype: npt.DTypeLike | None = None,
        *,
        vocab_size: int | None = None,
        tokenizer: object | None = None,
        tokenizer_backend: TokenizerBackend = "auto",
        special_tokens: bool = False,
        pack: int | None = None,
        field: str | None = None,
        prompt: str | None = None,
        completion: str | None = None,
        chat: str | os.PathLike[str] | bool = False,
        document_id: str | None = None,
        without_columns: Sequence[str] = (),
        exist: Literal["keep", "replace", "append", "error"] = "keep",
        metadata: Mapping[str, Any] | None = None,
    ) -> WriteSummary:
        """Write documents into new shards, then commit them as the corpus.

        Until the commit, readers see the old corpus. A write that fails removes its
        shards. After a killed write, `remove_leftovers` removes them. Call `write` from
        one process of a program; with `exist="append"`, several processes may call it.

        Args:
            data: Documents: flat arrays, lists of ints, `str` or `bytes`. With
                `prompt`, `chat` or `document_id`, mappings with the fields that these
                name.
            separator: Appended to each document: a token (of bfloat16 its 16 bits);
                the name of one of the tokenizer's tokens; bytes of little-endian
                tokens, padded with zeros to a whole token; or None for no separator.
                Default: the tokenizer's end-of-text token; no separator if the
                tokenizer appends this token itself, or without a tokenizer.
            block_size: Bytes that one checksum covers: a power of two in [64, 2**24].
            max_shard_bytes: Maximum size of a shard. A larger document gets a shard of
                its own, because no document is split. The last shard may be larger by
                the list of input files in its metadata. If nothing is at the path `t`
                or `t.rox` yet, it means `t_*.rox` with this limit, and the file `t.rox`
                without it. `t/` is a folder.
            dtype: Item type. Default: uint16 or uint32, whichever holds `vocab_size` or
                the tokenizer's vocabulary; without these, the dtype of the first array,
                uint32 for lists of ints, uint8 for bytes and for `str` (UTF-8).
            vocab_size: Tokens must be below `vocab_size`.
            tokenizer: Encodes `str` documents: an object with `encode`; `"bytes"`, the
                UTF-8 bytes of a text and token 256 after it; or, if `roxxel-prepare` is
                installed with its extra `tokenizers`, the path of a `tokenizer.json`,
                the path of a folder with this file, or a name on the Hugging Face hub.
                An existing path is never read as a name. Special tokens are added if
                `encode` adds them. Random sampling in the tokenizer, such as a dropout,
                is switched off.
            tokenizer_backend: The library that encodes for the path or the name of a
                tokenizer: `"fastokens"`, `"tokenizers"`, or `"auto"`, which takes
                `fastokens` if it is installed (`roxxel-prepare`, extra `fast`) and
                supports the tokenizer. The ids are the same, and `fastokens` is 15 to
                30 times as fast.
            special_tokens: Encode the name of a special token in a text, such as
                `<|endoftext|>`, as this token and not as ordinary text. Only affects
                tokenizers of `tokenizers`, `transformers` and `tiktoken`.
            pack: Number of tokens in a bin: the sequence length of the training, or a
                divisor of it. Documents are put whole, with their separators, into bins
                of exactly this many tokens; only a longer document is cut, into whole
                bins and a rest. A bin ends in padding, tokens 0 that are no document.
                Choose it if sequences must not cut documents. All documents are held in
                memory; `roxxel-prepare write --pack` holds only the documents of one
                unit. Not for a corpus of one file. Default: documents stay in their
                order.
            field: Name of the field of documents, with `document_id` or `chat`.
                Default: `text`, and `messages` with `chat`.
            prompt: Name of the field of prompts. A document is the tokens of its
                prompt, then those of its completion; both are encoded separately. The
                column `loss_mask` is 0 on the prompt, and 1 on the completion and the
                separator. Tokens that the tokenizer puts before or after each text come
                before the prompt and after the completion. Not for a corpus of one
                file.
            completion: Name of the field of completions; needs `prompt`.
            chat: Whether documents are chats, lists of messages with `role` and
                `content`: True renders them by the chat template of the tokenizer, and
                the path of a file by the template in the file. The column `loss_mask`
                is 1 on what the assistant says: on what the template marks with `{%
                generation %}`, or else on each message of the role `assistant`. It is
                also 1 on the separator if the last message is the assistant's. A
                message that spells a special token is an error, unless `special_tokens`
                makes it this token. Needs `roxxel-prepare` with its extra `chat`. Not
                for a corpus of one file.
            document_id: Name of the field of ids, texts or integers. The column `id`
                keeps them as texts. Not for a corpus of one file.
            without_columns: Columns of the corpus for which an append brings no values.
                They cannot be read until `write_column(..., exist="append")` writes
                the values.
            exist: What to do if the corpus exists. If all writes of the corpus had the
                same arguments, `"keep"` keeps it, prints one line and does not read
                `data`. Otherwise it raises FileExistsError. `"replace"` commits only
                the new shards, then deletes the old shards; other files stay, even if
                they are named like shards. `"append"` commits the new shards after the
                old ones, as a new version; dtype, tokenizer, separator and `pack` must
                be the same, and the documents must bring the same columns. `"error"`
                raises FileExistsError. The shards of an interrupted write are not a
                corpus.
            metadata: JSON values to store, for example `{"source": "..."}`. The keys
                `arguments`, `created_by`, `cut`, `input_files`, `padding`, `separator`,
                `skipped`, `tokenizer`, `tokenizer_file` and `unit` belong to the write.

        Returns:
            A summary of the shards that were written or kept.

        Raises:
            FileExistsError: `exist` does not allow changing the corpus. Or another
                write (not a compaction) was committed first, and `exist` is not
                `"append"`.
            BlockingIOError: The corpus is one file, which another process is writing.
            TypeError: A document has the wrong type, or texts and arrays are mixed.
            ValueError: A value is out of range; there are no documents; the documents
                do not fit the corpus; the tokenizer does not have the separator; or the
                tokenizer's end-of-text token is unknown.
            OSError: The files cannot be written, or the disk has no working `flock`.
        """
        recipe = Recipe(
            separator,
            block_size,
            max_shard_bytes,
            dtype,
            vocab_size,
            tokenizer,
            tokenizer_backend,
            special_tokens,
            pack,
            without_columns,
            metadata,
            exist,
            Fields(field or "", prompt, completion, document_id, chat=chat),
        )
        try:
            write = CorpusWrite(self._filepath, recipe, timeout_s=self._timeout_s)
            return write.run(data)
        finally:
            self._use_current_version()

    def write_column(
        self,
        name: str,
        values: Iterable[object],
        per: Literal["token", "document"] = "token",
        dtype: npt.DTypeLike | None = None,
        *,
        exist: Literal["error", "replace", "append"] = "error",
    ) -> None:
        """Write a column: one item for each token, or for each document.

        The column covers the shards that exist when the write begins. An append must
        name it in `without_columns`; then its shards lack the column until a write with
        `exist="append"` adds it.

        Args:
            name: A letter or `_`, then letters, digits and `_` (ASCII).
            values: A flat array or list, or an iterable of flat arrays to concatenate.
                Strings are stored as UTF-8 of fixed width, or with dtype `"utf8"` at
                their own lengths.
            per: What each item belongs to. Tokens include separators.
            dtype: Item type, such as `uint8`, `S36` or `utf8`. Default: the dtype of
                the values. An iterable of arrays of strings needs `dtype`, and so does
                an empty list.
            exist: What to do if the column exists. `"append"` writes the column for the
                shards that lack it: `values` are the items of these shards, in order,
                and `per` and `dtype` must be those of the column. `"replace"` writes
                the column for all shards, and deletes its old files: earlier versions
                get the new values too, so a run that uses this column cannot resume.
                `"error"` raises FileExistsError.

        Raises:
            FileExistsError: The column exists, or another write of this column was
                committed first.
            FileNotFoundError: There is no corpus.
            TypeError: The values cannot be stored as `dtype`.
            ValueError: The name is invalid, a value is out of range, there are more or
                fewer values than tokens or documents, or the corpus is one file.
            ShardError: The corpus was replaced while its column was written.
            OSError: The files cannot be written.
        """
        corpus = name_to_write(self.filepath)
        write_column(corpus, name, values, per, dtype, exist)
        self._use_current_version()

    def copy_to(
        self,
        target: str | os.PathLike[str],
        *,
        exist: Literal["error", "replace"] = "error",
        progress: Callable[[int, int], None] | None = None,
    ) -> WriteSummary:
        """Copy the current version, with all earlier versions and columns.

        Source and target may each be on a disk or in a bucket. Every block is verified
        before it is added, and the manifest is committed last, so a copy that fails or
        is killed changes no corpus; the same call continues with the files that were
        copied. If the target is an earlier state of this corpus, only the files that it
        lacks are copied. A target whose column has other values counts as another
        corpus.

        Args:
            target: A folder or a pattern such as `wiki_*.rox`, as a path or a URL.
            exist: What to do if another corpus exists: raise FileExistsError, or
                replace the corpus and delete its files after the commit.
            progress: Called with the copied bytes and the bytes to copy.

        Returns:
            A summary of the copy; `kept` if the target had everything already.

        Raises:
            FileExistsError: `target` is another corpus, or another write to it was
                committed during the copy.
            ShardError: A file of this corpus is damaged, missing, or was replaced.
            ValueError: `target` names one file, or this corpus.
            OSError: A file cannot be read or written.
        """
        return copy_corpus(self._filepath, target, exist, self._timeout_s, progress)

    def adopt(
        self, *, progress: Callable[[int, int], None] | None = None
    ) -> VerifyReport:
        """Verify every byte of shards without a manifest, and make them a corpus.

        Call this if the manifest was lost, or if you wrote the shards yourself with
        `ShardWriter`. The corpus is a folder or a pattern on a disk. Its shards get the
        natural order of their names: 2 comes before 10. If the old corpus was
        compacted, or prepared and then appended to, its order may have been another. A
        shard that the manifest of another corpus in the folder lists is left out.
        Columns are lost with the manifest: a line on the standard error names them.

        Args:
            progress: Called with the number of bytes verified so far, and the number of
                all bytes.

        Returns:
            The number and the size of the shards.

        Raises:
            FileExistsError: The corpus has a manifest.
            FileNotFoundError: There is no shard without a manifest.
            ShardError: A shard is damaged or missing, or the shards differ in dtype,
                block size, separator or tokenizer. No manifest is written.
            ValueError: The corpus is one file, or in a bucket.

        Example:
            >>> for number in range(2):
            ...     with ShardWriter(f"mine_{number:05d}.rox", "uint16") as writer:
            ...         writer.extend([np.array([5, 6, 7])])
            >>> Roxxel("mine_*.rox").adopt().num_shards
            2
            >>> Roxxel("mine_*.rox").num_documents
            2
        """
        report = adopt(self._filepath, progress)
        self._use_current_version()
        return report

    def compact(
        self,
        *,
        max_shard_bytes: int = FULL_SHARD_BYTES,
        progress: Callable[[int, int], None] | None = None,
    ) -> Compaction:
        """Merge the small shards of a corpus that has grown by many appends.

        Tokens, documents and columns stay the same, and every block is verified before
        it is merged. Each earlier version stays readable under its own fingerprint, as
        the beginning of the corpus, so a run that began with it can resume. The merged
        shards are committed before the old files are deleted, so a compaction that is
        killed changes nothing. A reader that has the corpus open raises ShardError when
        it next opens one of the old files.

        Shards of at least half of `max_shard_bytes` stay as they are, and so do
        shards that lack a column which their neighbours have. A merged shard has the
        metadata of its first shard, and the input files of all.

        Args:
            max_shard_bytes: Maximum size of a merged shard.
            progress: Called with the bytes of tokens merged so far, and the bytes of
                all tokens.

        Returns:
            A summary of the merged shards; empty if no two small shards are neighbours.

        Raises:
            FileExistsError: Another write replaced the corpus or a column meanwhile.
            FileNotFoundError: There is no corpus.
            ShardError: A shard is damaged, or was replaced.
            ValueError: The corpus is one file, which has nothing to merge, or
                `max_shard_bytes` is below 1.
            OSError: A file cannot be read or written.
        """
        size = as_integer("max_shard_bytes", max_shard_bytes, 1)
        done = compact(self._filepath, size, self._timeout_s, progress)
        self._use_current_version()
        return done

    def leftovers(self) -> list[str]:
        """Return the uncommitted files of interrupted writes of this corpus.

        The list also has the files of writes in progress. In a bucket, it has only
        files that are older than a week.
        """
        return self._place().leftovers()

    def remove_leftovers(self, *, abandon: bool = False) -> list[str]:
        """Remove the files of interrupted writes, and return their paths.

        Removes the hidden drafts of the corpus. If the corpus has a manifest, also
        removes the shards and columns that a write made and the manifest does not list.
        Other files stay, even if they match the pattern.

        Args:
            abandon: Also remove what could still become a corpus: the plan and the
                finished units of an uncommitted preparation, and shards whose manifest
                is missing.

        Raises:
            BlockingIOError: A write is in progress.
            FileNotFoundError: The corpus has no files.
        """
        return self._place().clean(abandon=abandon)

    def close(self) -> None:
        """Close all files; the next use opens the same version again."""
        with self._lock():
            self._release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._filepath!r})"

    def __getstate__(self) -> dict[str, Any]:
        # A copy or an unpickled object is closed, and opens the same version.
        return vars(self) | {"_opened": None, "_locks": {}}

    def _copy(self, **changed: Any) -> Self:
        other = copy.copy(self)
        vars(other).update(changed)
        return other

    def _open(self) -> CorpusReader:
        opened = self._opened
        if opened is not None:
            return opened
        with self._lock():
            if self._opened is None:
                version = self._pinned or self._version
                contents = with_room(
                    lambda: open_corpus(self._filepath, version, self._timeout_s)
                )
                self._pinned = contents.fingerprint
                if self._cache is not None:
                    contents = cached(contents, self._cache, self._cache_bytes)
                self._opened = CorpusReader(contents, checked=self._check == "blocks")
            return self._opened

    def _check_cache(self) -> None:
        if self._cache is None:
            if self._cache_bytes is not None:
                raise ValueError("cache_bytes is given without cache; pass a folder")
            return
        if not is_remote(self._filepath):
            raise ValueError(
                f"{self._filepath}: is on a disk, where a cache has no use; leave "
                "cache out"
            )

    def _lock(self) -> threading.Lock:
        return self._locks.setdefault(os.getpid(), threading.Lock())

    def _release(self) -> None:
        if self._opened is not None:
            self._opened.release()
            self._opened = None

    def _place(self) -> Place | OneFile:
        return place_of(self._filepath, self._timeout_s)

    def _use_current_version(self) -> None:
        """Close the corpus, so that the next use chooses the version again.

        It then opens the version that the constructor was given, else the current
        version.
        """
        with self._lock():
            self._release()
            self._pinned = None


def _checked(check: Check) -> Check:
    if check not in ("headers", "blocks"):
        raise ValueError(f'check must be "headers" or "blocks", got {check!r}')
    return check
