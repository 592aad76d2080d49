"""Cast items to the dtype of a shard; raise an error if a value would change."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np

from roxxel_format._spec.layout import (
    BFLOAT16,
    check_float,
    stored_dtype,
    value_range,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from roxxel_format._spec.layout import Tokens


class OutOfRangeError(ValueError):
    """An item of an array is out of range: `value`, at `index`."""

    def __init__(self, index: int, value: object) -> None:
        super().__init__(f"item {index} is {value}")
        self.index = index
        self.value = value


def number_array(numbers: Sequence[object]) -> np.ndarray[Any, Any]:
    """Convert a list to an array like `np.array`, but never round an integer.

    For integers above and below 2**63, numpy returns float64, which rounds those above
    2**53.

    Raises:
        ValueError: The list is ragged.
        OverflowError: No dtype stores all integers.
    """
    array = np.array(numbers)
    if array.dtype.kind == "f" and all(
        isinstance(each, int | np.integer) for each in numbers
    ):
        # NumPy would wrap its own negative scalars.
        return np.array([int(cast("int", each)) for each in numbers], np.uint64)
    return array


class _OfDocumentError(Exception):
    """Base of errors about a document; in the message `problem` follows its number."""

    def __init__(self, document: int, problem: str) -> None:
        super().__init__(f"document {document}{problem}")
        self.document = document
        self.problem = problem

    def of(self, origin: object | None) -> Exception:
        """Return the error that names the document by its origin, if it has one."""
        return self if origin is None else ValueError(f"{origin}{self.problem}")


class DocumentError(_OfDocumentError, ValueError):
    """A document cannot be stored."""


class DocumentTypeError(_OfDocumentError, TypeError):
    """A document has the wrong type."""


class NoDocumentsError(ValueError):
    """The data of a write has no documents."""

    def __init__(self, corpus: str) -> None:
        super().__init__(
            f"{corpus}: there are no documents to write; check the iterator (a "
            "generator can be used only once)"
        )


class Caster:
    """Checks items against dtype and `vocab_size`, casts them, records their range.

    `separator` are the items that end each document, and `ending` the same in the dtype
    of the shard.
    """

    def __init__(
        self,
        name: str,
        vocab_size: int | None = None,
        separator: tuple[int | float, ...] = (),
    ) -> None:
        self._name = name
        self._dtype = stored_dtype(name)
        self._limits = value_range(name)
        self._is_limited_by_dtype = vocab_size is None
        if vocab_size is not None:
            if self._limits is None or not 1 <= vocab_size <= self._limits[1] + 1:
                raise ValueError(
                    f"vocab_size={vocab_size} does not fit dtype {name}; "
                    "choose a wider dtype, or pass only one of the two"
                )
            self._limits = (0, vocab_size - 1)
        self._seen: tuple[int, int] | None = None
        self.ending = self._ending(separator)

    @property
    def seen(self) -> tuple[int, int]:
        """Least and greatest integer cast so far; (0, 0) before the first."""
        return self._seen or (0, 0)

    @property
    def limits_text(self) -> str:
        """The allowed range, for an error message."""
        if self._limits is None:
            return f"the range of {self._name}"
        return f"[{self._limits[0]}, {self._limits[1]}] of {self._name}"

    @property
    def remedy(self) -> str:
        """How to fix a value out of range, for an error message."""
        return (
            "choose a wider dtype" if self._is_limited_by_dtype else "raise vocab_size"
        )

    def _ending(self, separator: tuple[int | float, ...]) -> Tokens:
        for item in separator:
            if isinstance(item, float):
                check_float("separator", item, self._name)
        if not separator:
            return np.empty(0, self._dtype)
        try:
            items = np.array(separator)
            if self._name == BFLOAT16:
                items = np.array(separator, np.uint16)
            elif self._limits is not None:
                _check_range(items, self._limits)
            return self._converted(items)
        except (OutOfRangeError, OverflowError):
            raise ValueError(
                f"separator {list(separator)} is outside {self.limits_text}; "
                f"{self.remedy}, or choose another separator"
            ) from None

    def check_source(self, dtype: np.dtype[Any], document: int) -> Tokens | None:
        """Check that items of `dtype` can be stored in the shard.

        Returns:
            The ending in `dtype`; None if `dtype` cannot hold it exactly.
        """
        integers, ending = dtype.kind in "biu", self.ending
        if self._name == BFLOAT16:
            possible = dtype.name in {BFLOAT16, "uint16"}
        elif self._limits is not None:
            possible = integers
        else:
            possible = integers or dtype.kind == "f"
        if not possible:
            raise DocumentTypeError(
                document,
                f": dtype {dtype} cannot be stored as {self._name}; convert the "
                "items, or write with a wider dtype",
            )
        if self._name == BFLOAT16:
            is_stored = dtype == self._dtype
            return ending if is_stored else ending.view(np.uint16).astype(dtype)
        with np.errstate(all="ignore"):
            converted = ending.astype(dtype)
            back = converted.astype(ending.dtype)
        is_same = np.array_equal(back, ending)
        # An integer of as many bytes, but with a sign, holds the bits of any other.
        is_same = is_same and np.array_equal(converted < 0, ending < 0)
        return converted if is_same else None

    def cast(self, tokens: Tokens) -> Tokens:
        """Return contiguous items in the shard's dtype, or raise OutOfRangeError."""
        if self._limits is not None and tokens.size:
            low, high = _check_range(tokens, self._limits)
            if self._seen is not None:
                low, high = min(low, self._seen[0]), max(high, self._seen[1])
            self._seen = low, high
        return self._converted(tokens)

    def _converted(self, tokens: Tokens) -> Tokens:
        if tokens.dtype == self._dtype:
            return np.ascontiguousarray(tokens)
        if self._limits is not None:
            return tokens.astype(self._dtype)
        if self._name == BFLOAT16:
            return np.ascontiguousarray(tokens, "<u2").view(self._dtype)
        with np.errstate(over="ignore"):
            result = tokens.astype(self._dtype)
        if tokens.dtype.kind == "f":
            wrong = np.isinf(result) & ~np.isinf(tokens)
        else:
            wrong = result.astype(tokens.dtype) != tokens
        if wrong.any():
            index = int(np.argmax(wrong))
            raise OutOfRangeError(index, tokens[index])
        return result


def _check_range(items: Tokens, limits: tuple[int, int]) -> tuple[int, int]:
    """Return the least and greatest of `items`, or raise OutOfRangeError."""
    low, high = items.min(), items.max()
    if low < limits[0] or high > limits[1]:
        wrong = (items < limits[0]) | (items > limits[1])
        index = int(np.argmax(wrong))
        raise OutOfRangeError(index, items[index])
    return int(low), int(high)
