"""Read corpora of other formats in place, each as a `TokenReader`.

Nobody has to tokenize again to try a curriculum: Megatron's `.bin` with its `.idx`, and
flat `.npy` or `.bin` files, are mapped and read where they lie. They hold no checksums,
so damage is not found, and their fingerprint is that of a sample of the content.
Pickled, they open their files again by path.
"""

from __future__ import annotations

import struct
from functools import cached_property, partial
from hashlib import blake2b
from operator import index as as_index
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from roxxel_format._read.views import Documents, TokenLine
from roxxel_format._read.windows import (
    check_range,
    gather_rows,
    parse_windows,
    result_dtype,
)
from roxxel_format._spec import dtypes
from roxxel_format.errors import ShardError

if TYPE_CHECKING:
    import os

    import numpy.typing as npt

    from roxxel_format._spec.dtypes import Tokens

_MEGATRON_MAGIC = b"MMIDIDX\x00\x00"
_MEGATRON_DTYPES = {
    1: "uint8",
    2: "int8",
    3: "int16",
    4: "int32",
    5: "int64",
    6: "float64",
    7: "float32",
    8: "uint16",
}
_SAMPLED_BLOCKS = 1024
_SAMPLE_SIZE = 4096


class MappedTokens:
    """Tokens and documents of mapped arrays: what the readers below share.

    Args:
        tokens: The items, shape `(num_tokens,)`; read-only.
        ends: End of each document, in tokens and in order; the last is the number of
            tokens. Shape `(num_documents,)`.
        tokenizer: Name and hash of the tokenizer, if it is known.
    """

    def __init__(
        self, tokens: Tokens, ends: npt.NDArray[np.int64], tokenizer: str | None
    ) -> None:
        self._tokens = tokens
        self._ends = ends
        self._tokenizer = tokenizer

    @property
    def num_tokens(self) -> int:
        """Number of tokens."""
        return self._tokens.size

    @property
    def num_documents(self) -> int:
        """Number of documents."""
        return self._ends.size

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of a stored token."""
        return self._tokens.dtype

    @property
    def tokenizer(self) -> str | None:
        """Name and hash of the tokenizer as given at construction."""
        return self._tokenizer

    @property
    def fingerprint(self) -> str:
        """Hex digest of the sizes, the documents, and 1024 blocks of the tokens."""
        return self._fingerprint

    @cached_property
    def _fingerprint(self) -> str:
        digest = blake2b(b"roxxel foreign 1", digest_size=16)
        digest.update(f"{self.dtype.str} {self.num_tokens}".encode())
        for start in range(0, self._ends.size, 1 << 16):
            digest.update(self._ends[start : start + (1 << 16)].astype("<i8").tobytes())
        step = max(_SAMPLE_SIZE, self.num_tokens // _SAMPLED_BLOCKS)
        for start in range(0, self.num_tokens, step):
            digest.update(self._tokens[start : start + _SAMPLE_SIZE].tobytes())
        digest.update(self._tokens[-_SAMPLE_SIZE:].tobytes())
        return digest.hexdigest()

    @property
    def tokens(self) -> TokenLine:
        """The line of tokens: `tokens[a:b]`, a read-only view."""
        return TokenLine(self)

    @property
    def documents(self) -> Documents:
        """The documents: `documents[i]`, with whatever separates them."""
        return Documents(self)

    def token_range(self, start: int, stop: int) -> Tokens:
        """Return tokens `[start, stop)`, a read-only view."""
        check_range(start, stop, self.num_tokens)
        return self._tokens[start:stop]

    def document_range(self, document: int) -> tuple[int, int, int]:
        """Return first token, one past the last, and 0: no separator is known."""
        start = int(self._ends[document - 1]) if document else 0
        return start, int(self._ends[document]), 0

    def read(
        self,
        starts: npt.ArrayLike,
        length: int,
        dtype: npt.DTypeLike | None = None,
        out: Tokens | None = None,
    ) -> Tokens:
        """Return the windows of `length` tokens that begin at `starts`.

        Args, result and errors are those of `Roxxel.read`. The greatest token is not
        known here, so a dtype must hold every value of the stored one, or the values
        that are read are checked.
        """
        begins, length = parse_windows(starts, length, self.num_tokens)
        wanted = result_dtype((begins.size, length), dtype, out, self.dtype)
        rows = gather_rows(self._tokens, begins, length)
        name = dtypes.stored_name(self.dtype)
        values = (int(rows.min()), int(rows.max())) if rows.size else (0, 0)
        known = values if self.dtype.kind in "biu" else None
        dtypes.check_readable_as(name, known, wanted)
        if out is None:
            return rows.astype(wanted, copy=False)
        out[...] = rows
        return out

    def document_spans(self, start: int, stop: int) -> npt.NDArray[np.int64]:
        """Return rows of document, first token and one past the last, clipped."""
        start, stop = as_index(start), as_index(stop)
        check_range(start, stop, self.num_tokens)
        if start == stop:
            return np.empty((0, 3), np.int64)
        low = int(np.searchsorted(self._ends, start, "right"))
        high = int(np.searchsorted(self._ends, stop, "left")) + 1
        rows = np.empty((high - low, 3), np.int64)
        rows[:, 0] = np.arange(low, high)
        rows[:, 2] = self._ends[low:high]
        rows[-1, 2] = stop
        rows[1:, 1] = rows[:-1, 2]
        rows[0, 1] = start
        return rows[rows[:, 1] < rows[:, 2]]

    def will_need(self, starts: npt.ArrayLike, length: int) -> None:
        """Do nothing: a hint may be ignored."""
        parse_windows(starts, length, self.num_tokens)


class FlatTokens(MappedTokens):
    """A flat `.npy` or `.bin` file of tokens; it counts as one document.

    Args:
        path: The file. A `.npy` file holds one flat array.
        dtype: Item type of a file without a header, such as `.bin`.
        tokenizer: Name and hash of the tokenizer, if it is known.

    Raises:
        ShardError: The file does not hold whole items of a known type.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        dtype: npt.DTypeLike | None = None,
        *,
        tokenizer: str | None = None,
    ) -> None:
        path = Path(path)
        if path.suffix == ".npy":
            tokens = _map_npy(path)
        elif dtype is None:
            raise ValueError(
                f'{path}: a file without a header needs dtype, for example "uint16"'
            )
        else:
            tokens = _map_items(path, np.dtype(dtype))
        _check_dtype(path, tokens)
        super().__init__(tokens, np.array([tokens.size], np.int64), tokenizer)
        self._opened = str(path.absolute()), dtype

    def __reduce__(self) -> tuple[object, ...]:
        return partial(FlatTokens, tokenizer=self._tokenizer), self._opened


class MegatronTokens(MappedTokens):
    """A Megatron `.bin` file with its `.idx`, as `indexed_dataset.py` writes them.

    Args:
        path: Either file, or their path without the ending.
        tokenizer: Name and hash of the tokenizer, if it is known.

    Raises:
        ShardError: The index is of another version, or does not fit the tokens.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, tokenizer: str | None = None
    ) -> None:
        path = Path(path)
        stem = path.with_suffix("") if path.suffix in {".bin", ".idx"} else path
        index_path = stem.with_name(stem.name + ".idx")
        name, ends = _read_megatron_index(index_path)
        tokens = _map_items(stem.with_name(stem.name + ".bin"), np.dtype(name))
        last = int(ends[-1]) if ends.size else 0
        if last != tokens.size:
            raise ShardError(
                f"{index_path}: describes {last} tokens, but the .bin file holds "
                f"{tokens.size}; the two do not belong together"
            )
        super().__init__(tokens, ends, tokenizer)
        self._opened = (str(stem.absolute()),)

    def __reduce__(self) -> tuple[object, ...]:
        return partial(MegatronTokens, tokenizer=self._tokenizer), self._opened


def _read_megatron_index(path: Path) -> tuple[str, npt.NDArray[np.int64]]:
    """Return the item type, and the end of each document in tokens."""
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(34)
    if not head.startswith(_MEGATRON_MAGIC) or len(head) < 34:
        raise ShardError(
            f"{path}: no Megatron index, it begins with {head[:9]!r}; check the path"
        )
    version, code, num_sequences, num_bounds = struct.unpack_from("<QBQQ", head, 9)
    if version != 1 or code not in _MEGATRON_DTYPES:
        raise ShardError(
            f"{path}: index version {version} with item type {code} is not known; "
            "only version 1 is"
        )
    # Some writers append a mode (one byte) for each sequence.
    needed = 34 + 12 * num_sequences + 8 * num_bounds
    if size not in (needed, needed + num_sequences):
        raise ShardError(
            f"{path}: has {size} bytes, but {num_sequences} sequences and {num_bounds} "
            f"document bounds need {needed}; it was cut short or is damaged"
        )
    data = np.memmap(path, np.uint8, "r")
    at = 34
    lengths = np.asarray(data[at : at + 4 * num_sequences]).view("<i4")
    at += 4 * num_sequences
    pointers = np.asarray(data[at : at + 8 * num_sequences]).view("<i8")
    at += 8 * num_sequences
    bounds = np.asarray(data[at : at + 8 * num_bounds]).view("<i8")
    if num_bounds == 0 or bounds[0] != 0 or bounds[-1] != num_sequences:
        raise ShardError(f"{path}: its documents do not cover its sequences")
    if (lengths < 0).any() or (bounds[1:] < bounds[:-1]).any():
        raise ShardError(f"{path}: its lengths or bounds are out of order")
    ends = np.zeros(num_sequences + 1, np.int64)
    np.cumsum(lengths, out=ends[1:])
    name = _MEGATRON_DTYPES[code]
    if (pointers != ends[:-1] * dtypes.item_size(name)).any():
        raise ShardError(
            f"{path}: its sequences do not follow one another in the .bin file; "
            "only such files can be read in place"
        )
    return name, ends[bounds[1:]]


def _map_items(path: Path, dtype: np.dtype[Any]) -> Tokens:
    size = path.stat().st_size
    if size % dtype.itemsize:
        raise ShardError(
            f"{path}: has {size} bytes, no whole number of {dtype} items; "
            "check the dtype"
        )
    if not size:
        return np.empty(0, dtype)
    return np.asarray(np.memmap(path, dtype, "r"))


def _map_npy(path: Path) -> Tokens:
    try:
        array = np.lib.format.open_memmap(path, mode="r")
    except ValueError as error:
        raise ShardError(f"{path}: no .npy file ({error}); check the path") from error
    if array.ndim != 1:
        raise ShardError(
            f"{path}: holds an array of shape {array.shape}; a flat one is needed"
        )
    return np.asarray(array)


def _check_dtype(path: Path, tokens: Tokens) -> None:
    try:
        dtypes.stored_name(tokens.dtype)
    except TypeError as error:
        raise ShardError(f"{path}: {error}") from error
