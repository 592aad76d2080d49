"""The reader of an open corpus: windows, ranges, documents and hints.

All tokens come from `Line`. This module adds what a corpus knows beyond a line of
items: which dtypes hold its tokens, its documents, and its open files.
"""

from __future__ import annotations

from bisect import bisect_right
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from roxxel_format._read.contents import tokenizer_identity
from roxxel_format._read.documents import DocumentIndex
from roxxel_format._read.line import Line
from roxxel_format._read.maps import MapCache, register, shared_max_maps
from roxxel_format._read.prefetch import stretches
from roxxel_format._read.windows import (
    check_range,
    parse_index,
    parse_windows,
    result_dtype,
)
from roxxel_format._spec import dtypes
from roxxel_format.errors import ShardError

if TYPE_CHECKING:
    import numpy.typing as npt

    from roxxel_format._read.contents import Contents
    from roxxel_format._read.line import Piece
    from roxxel_format._spec.dtypes import Tokens


class CorpusReader:
    """Reads one version of a corpus. Safe to use from many threads.

    Args:
        contents: The version.
        checked: Whether to verify the checksum of every block that is read.
        max_maps: Number of shards to keep mapped. Default: this corpus's share of the
            process's descriptors.

    Attributes:
        contents: As given.
        documents: Where the documents begin and end.
    """

    def __init__(
        self, contents: Contents, *, checked: bool, max_maps: int | None
    ) -> None:
        def limit() -> int:
            return shared_max_maps() if max_maps is None else max_maps

        shards = MapCache(contents.open_shard, limit)

        def piece(number: int) -> Piece:
            return shards[number].piece(checked=checked)

        self.contents = contents
        self.documents = DocumentIndex(contents, shards, checked=checked)
        self._shards = shards
        self._line = Line(contents.bounds, contents.dtype, piece, limit)
        # For each dtype read so far: the limits to compare tokens with.
        self._limits: dict[np.dtype[Any], tuple[int, int] | None] = {}
        register(self)

    def release(self) -> None:
        """Release all maps; the next read opens them again."""
        self._line.forget()
        self._shards.clear()

    def read(
        self,
        starts: npt.ArrayLike,
        length: int,
        dtype: npt.DTypeLike | None,
        out: Tokens | None,
    ) -> Tokens:
        """Return windows; see `Roxxel.read`."""
        begins, length = parse_windows(starts, length, len(self._line))
        wanted = result_dtype((len(begins), length), dtype, out, self._line.dtype)
        limits = self._limits_of(wanted)
        if limits is None:
            return self._line.read(begins, length, wanted, out)

        def check(rows: Tokens) -> None:
            self._check_values(rows, begins, limits)

        return self._line.read(begins, length, wanted, out, check)

    def token_range(self, start: int, stop: int) -> Tokens:
        """Return tokens `[start, stop)`: a view inside one shard, else a copy."""
        check_range(start, stop, len(self._line))
        return self._line.range(start, stop)

    def document_range(self, document: int) -> tuple[int, int, int]:
        """Return first token, one past the last, and length of the separator."""
        if document < 0:
            raise IndexError(f"document {document} is out of range; count from 0")
        parse_index(document, self.contents.num_documents, "document")
        return self.documents.range(document)

    def document_spans(self, start: int, stop: int) -> npt.NDArray[np.int64]:
        """Return the documents of a range; see `Roxxel.document_spans`."""
        check_range(start, stop, len(self._line))
        return self.documents.spans(start, stop)

    def will_need(self, starts: npt.ArrayLike, length: int) -> None:
        """Prefetch windows; see `Roxxel.will_need`."""
        begins, length = parse_windows(starts, length, len(self._line))
        bounds = self.contents.bounds
        for start, stop in stretches(begins, length, self._line.dtype.itemsize):
            at, number = start, bisect_right(bounds, start) - 1
            while at < stop:
                first, until = bounds[number], min(stop, bounds[number + 1])
                if at < until:
                    self._shards[number].will_need(at - first, until - first)
                at, number = until, number + 1

    def metadata(self, number: int) -> dict[str, Any]:
        """Return the metadata of a shard."""
        return self._shards[number].metadata()

    @cached_property
    def tokenizer(self) -> str | None:
        """Name and hash of the tokenizer, None if none is recorded.

        Raises:
            ShardError: The shards were written with different tokenizers.
        """
        contents = self.contents
        if contents.manifest is not None:
            return tokenizer_identity(contents.manifest.tokenizer)
        found: dict[str | None, str] = {}
        for number, path in enumerate(contents.paths):
            recorded = self.metadata(number).get("tokenizer")
            found.setdefault(tokenizer_identity(recorded), path)
        if len(found) > 1:
            (one, first), (other, second), *_ = found.items()
            raise ShardError(
                f"{second}: written with tokenizer {other}, but {first} with {one}; "
                "open them as two corpora"
            )
        return next(iter(found))

    def _limits_of(self, wanted: np.dtype[Any]) -> tuple[int, int] | None:
        """Return the limits to check tokens against when they are read as a dtype.

        Decided once for each dtype, from the range that the shards declare. Limits are
        None where the dtype holds every value of the stored type.

        Raises:
            TypeError: The declared tokens do not fit.
        """
        if wanted not in self._limits:
            name, values = self.contents.dtype_name, self.contents.token_range
            dtypes.check_readable_as(name, values, wanted)
            is_narrow = values is not None and not dtypes.holds_all(name, wanted)
            self._limits[wanted] = dtypes.exact_range(wanted) if is_narrow else None
        return self._limits[wanted]

    def _check_values(
        self, rows: Tokens, starts: list[int], limits: tuple[int, int]
    ) -> None:
        """Check that tokens are inside the limits.

        Raises:
            ShardError: A token is outside the range that its shard declares.
        """
        low, high = limits
        if not rows.size or (low <= int(rows.min()) and int(rows.max()) <= high):
            return
        wrong = np.argwhere((rows < low) | (rows > high))
        row, column = int(wrong[0, 0]), int(wrong[0, 1])
        number = self.contents.shard_of(starts[row] + column)
        table = self.contents.shards
        raise ShardError(
            f"{self.contents.paths[number]}: holds token {rows[row, column]}, but its "
            f"foot declares tokens from {table.min_values[number]} to "
            f"{table.max_values[number]}; the bytes are damaged, so fetch or write "
            "this shard again"
        )
