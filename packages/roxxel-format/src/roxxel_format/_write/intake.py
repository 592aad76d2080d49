"""What users hand over -> arrays: from arrays, lists, text, bytes, by a tokenizer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import numpy as np

from roxxel_format._spec import dtypes
from roxxel_format._write.tokenizers import Tokenizer, TokenizerInfo, encoded_ids

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from roxxel_format._spec.dtypes import Tokens


def separator_items(separator: object, name: str) -> tuple[int | float, ...]:
    """Return the items that end each document.

    Args:
        separator: One item; or bytes, read as little-endian items and filled up with
            zeros to a whole one; or None for no separator.
        name: Stored name of the corpus's dtype.

    Raises:
        TypeError: It is neither a number nor bytes.
        ValueError: It is empty, or longer than one item and no whole number of them.
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
        raise TypeError(f"separator {separator!r} is no integer, but {name} tokens are")
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
        raise ValueError(f"separator {separator!r} holds bytes that are no bool")
    return tuple(np.frombuffer(filled, dtype).tolist())


@dataclass(slots=True)
class Intake:
    """Turn documents into arrays, all of one kind.

    Args:
        dtype: Stored name asked for, or None to decide by the first document.
        vocab_size: Ids are below it; decides the dtype where `dtype` is None.
        tokenizer: Encodes `str` documents.
        info: What is known of the tokenizer.
    """

    dtype: str | None = None
    vocab_size: int | None = None
    tokenizer: Tokenizer | None = None
    info: TokenizerInfo | None = None
    _family: str | None = None

    def __post_init__(self) -> None:
        if self.dtype is None and self.vocab_size is not None:
            self.dtype = dtypes.vocabulary_name(self.vocab_size)

    def arrays(self, documents: Iterable[object]) -> Iterator[Tokens]:
        """Yield the items of each document; errors are those of `array`."""
        for number, document in enumerate(documents):
            # An array as those before it were: nothing is left to find out.
            if (
                type(document) is np.ndarray
                and document.ndim == 1
                and self._family == "tokens"
            ):
                yield document
            else:
                yield self.array(document, number)

    def array(self, document: object, number: int) -> Tokens:
        """Return the items of a document, shape `(n,)`.

        Raises:
            TypeError: It is no document, or not of the kind of those before it.
            ValueError: It is an array that is not flat.
        """
        if type(document) is np.ndarray:
            family, items = "tokens", document
        else:
            family, items = self._parsed(document, number)
        if family != self._family:
            self._begin(family, document, items, number)
        if items.ndim != 1:
            raise ValueError(
                f"document {number} has shape {items.shape}; pass a flat array for "
                "each document"
            )
        return items

    def _parsed(self, document: object, number: int) -> tuple[str, Tokens]:
        if isinstance(document, str):
            return "text", self._encoded(document, number)
        if isinstance(document, memoryview) and document.itemsize > 1:
            return "tokens", np.asarray(document)
        if isinstance(document, (bytes, bytearray, memoryview)):
            if self.tokenizer is not None:
                raise TypeError(
                    f"document {number} is bytes, which a tokenizer cannot encode; "
                    "decode it to str, or leave the tokenizer out"
                )
            return "text", np.frombuffer(cast("bytes", document), np.uint8)
        if isinstance(document, Sequence):
            return "tokens", _from_list(cast("Sequence[object]", document), number)
        if hasattr(document, "__array__"):
            return "tokens", np.asarray(document)
        raise TypeError(
            f"document {number} is a {type(document).__name__}; pass an array, a "
            "list of ints, str or bytes for each document"
        )

    def _begin(self, family: str, document: object, items: Tokens, number: int) -> None:
        """Take note of the kind of the first document; refuse another kind later."""
        if self._family is None:
            self._family = family
            self.dtype = self.dtype or self._first_dtype(document, items)
        elif self.tokenizer is None:
            raise TypeError(
                f"document {number} is {type(document).__name__}, but those before "
                f"it are {self._family}; write the two into different corpora"
            )

    def _encoded(self, text: str, number: int) -> Tokens:
        if self.tokenizer is None:
            try:
                return np.frombuffer(text.encode(), np.uint8)
            except UnicodeEncodeError as error:
                raise ValueError(
                    f"document {number} cannot be encoded as UTF-8 ({error.reason} at "
                    f"character {error.start}); mend the text"
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
        raise TypeError(
            f"document {number} is a list that is no array of numbers ({error}); "
            "pass a flat list of ints"
        ) from error
    if items.dtype.kind == "O" and all(isinstance(each, int) for each in document):
        raise ValueError(
            f"document {number} holds an integer of more than 64 bits; mend it"
        )
    if items.dtype.kind not in "biuf":
        raise TypeError(
            f"document {number} is a list of {type(document[0]).__name__}; "
            "pass a flat list of ints"
        )
    return items
