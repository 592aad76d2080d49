"""Convert documents from users to flat arrays of one kind."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import numpy as np

from roxxel_format._spec import dtypes
from roxxel_format._write.casting import DocumentError, DocumentTypeError
from roxxel_format._write.tokenizers import Tokenizer, TokenizerInfo, encoded_ids

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from roxxel_format._spec.dtypes import Tokens


def separator_items(separator: object, name: str) -> tuple[int | float, ...]:
    """Return the items that end each document.

    Args:
        separator: One item; or bytes, read as little-endian items and padded with
            zeros to a whole item; or None for no separator.
        name: Stored name of the corpus's dtype.

    Raises:
        TypeError: The separator is neither a number nor bytes.
        ValueError: The separator is empty, not finite, or longer than one item and not
            a whole number of items.
    """
    if separator is None:
        return ()
    if isinstance(separator, bytes):
        return _separator_from_bytes(separator, name)
    if isinstance(separator, np.generic):
        separator = cast("object", separator.item())
    is_number = isinstance(separator, (int, float))
    if not is_number or (isinstance(separator, bool) and name != "bool"):
        raise TypeError(
            f"separator must be a token, bytes or None, got {separator!r}; "
            "encode a text first"
        )
    if isinstance(separator, float) and dtypes.value_range(name) is not None:
        raise TypeError(f"separator {separator!r} is not an integer, but {name} is")
    if not math.isfinite(separator):
        raise ValueError(f"separator is {separator!r}; use a finite number")
    return (separator,)


def _separator_from_bytes(separator: bytes, name: str) -> tuple[int | float, ...]:
    size = dtypes.item_size(name)
    if not separator or (len(separator) > size and len(separator) % size):
        raise ValueError(
            f"separator {separator!r} has {len(separator)} bytes; use up to {size} "
            f"bytes or whole items of {name} ({size} bytes each)"
        )
    filled = separator.ljust(-(-len(separator) // size) * size, b"\0")
    dtype = np.dtype("<u2") if name == dtypes.BFLOAT16 else dtypes.stored_dtype(name)
    if name == "bool" and set(filled) - {0, 1}:
        raise ValueError(
            f"separator {separator!r} holds bytes other than 0 and 1; use only these "
            "for bool"
        )
    return tuple(np.frombuffer(filled, dtype).tolist())


@dataclass(slots=True)
class Intake:
    """Turn documents into arrays, all of one kind: text, or ready-made tokens.

    Args:
        dtype: Stored name of the items. None: decided by `vocab_size`, or by the first
            document that has items.
        vocab_size: Ids are below this.
        tokenizer: Encodes `str` documents.
        info: Describes the tokenizer.

    Attributes:
        kind: `"text"` or `"tokens"`: what the corpus holds; None before the first
            document of a new corpus.
    """

    dtype: str | None = None
    vocab_size: int | None = None
    tokenizer: Tokenizer | None = None
    info: TokenizerInfo | None = None
    kind: str | None = None
    _dtype_if_empty: str | None = None

    def __post_init__(self) -> None:
        if self.dtype is None and self.vocab_size is not None:
            self.dtype = dtypes.vocabulary_name(self.vocab_size)

    def arrays(self, documents: Iterable[object]) -> Iterator[Tokens]:
        """Yield the items of each document, once `dtype` is known.

        Raises:
            TypeError: As for `array`.
            ValueError: As for `array`.
        """
        return self.with_dtype(self._arrays(documents))

    def with_dtype(self, arrays: Iterator[Tokens]) -> Iterator[Tokens]:
        """Yield what `array` returned, once `dtype` is known.

        Documents without items are held back until one with items decides the dtype. If
        there is none, the first empty array of integers decides, else it is uint32.
        """
        num_waiting = 0
        for items in arrays:
            if self.dtype is None:
                num_waiting += 1
                continue
            yield from [items[:0]] * num_waiting
            yield items
            yield from arrays
            return
        if num_waiting:
            self.dtype = self._dtype_if_empty or "uint32"
            yield from [np.empty(0, np.uint8)] * num_waiting

    def _arrays(self, documents: Iterable[object]) -> Iterator[Tokens]:
        for number, document in enumerate(documents):
            # The same result as `array`, without its cost, for arrays after the first.
            if (
                type(document) is np.ndarray
                and document.ndim == 1
                and self.dtype is not None
                and self.kind == "tokens"
            ):
                yield document
            else:
                yield self.array(document, number)

    def array(self, document: object, number: int) -> Tokens:
        """Return the items of a document, shape `(n,)`.

        Raises:
            DocumentTypeError: The document is of a wrong type, or not of the kind of
                the corpus.
            DocumentError: The document is an array that is not flat, or a text that is
                not UTF-8.
        """
        if type(document) is np.ndarray:
            kind, items = "tokens", document
        else:
            kind, items = self._parsed(document, number)
        if self.kind is None:
            self.kind = kind
        elif kind != self.kind:
            raise DocumentTypeError(
                number,
                f" is {type(document).__name__}, but the corpus holds {self.kind}; "
                "write text and ready-made tokens into different corpora",
            )
        if items.ndim != 1:
            raise DocumentError(
                number,
                f" has shape {items.shape}; pass a flat array for each document",
            )
        if self.dtype is None:
            dtype = self._first_dtype(document, items)
            if items.size or kind == "text":
                self.dtype = dtype
            elif items.dtype.kind in "biu":
                self._dtype_if_empty = self._dtype_if_empty or dtype
        return items

    def _parsed(self, document: object, number: int) -> tuple[str, Tokens]:
        if isinstance(document, str):
            return "text", self._encoded(document, number)
        if isinstance(document, memoryview) and document.itemsize > 1:
            return "tokens", np.asarray(document)
        if isinstance(document, (bytes, bytearray, memoryview)):
            if self.tokenizer is not None:
                raise DocumentTypeError(
                    number,
                    " is bytes, which a tokenizer cannot encode; decode it to str, or "
                    "leave the tokenizer out",
                )
            return "text", np.frombuffer(cast("bytes", document), np.uint8)
        if isinstance(document, Sequence):
            return "tokens", _from_list(cast("Sequence[object]", document), number)
        if hasattr(document, "__array__"):
            return "tokens", np.asarray(document)
        raise DocumentTypeError(
            number,
            f" is a {type(document).__name__}; pass an array, a list of ints, str or "
            "bytes for each document",
        )

    def _encoded(self, text: str, number: int) -> Tokens:
        if self.tokenizer is None:
            try:
                return np.frombuffer(text.encode(), np.uint8)
            except UnicodeEncodeError as error:
                raise DocumentError(
                    number,
                    f" cannot be encoded as UTF-8 ({error.reason} at character "
                    f"{error.start}); correct the text",
                ) from error
        return encoded_ids(self.tokenizer.encode(text))

    def _first_dtype(self, document: object, items: Tokens) -> str:
        if isinstance(document, str) and self.tokenizer is not None:
            size = self.info.vocab_size if self.info else None
            return dtypes.vocabulary_name(size) if size else "uint32"
        if isinstance(document, (list, tuple)) and items.dtype.kind in "iu":
            return "uint32"
        return dtypes.stored_name(items.dtype)


def _from_list(document: Sequence[object], number: int) -> Tokens:
    if not document:
        return np.empty(0, np.uint8)
    try:
        items = np.array(document)
    except (ValueError, OverflowError) as error:
        raise DocumentTypeError(
            number,
            f" is a list but not of numbers ({error}); pass a flat list of ints",
        ) from error
    if items.dtype.kind == "O" and all(isinstance(each, int) for each in document):
        raise DocumentError(
            number, " holds an integer of more than 64 bits; correct it"
        )
    if items.dtype.kind not in "biuf":
        raise DocumentTypeError(
            number,
            f" is a list of {type(document[0]).__name__}; pass a flat list of ints",
        )
    return items
