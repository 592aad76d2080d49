"""Cast items to the dtype of a shard; a value that would change is an error."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from roxxel_format._spec import dtypes

if TYPE_CHECKING:
    from roxxel_format._spec.dtypes import Tokens


class OutOfRangeError(ValueError):
    """An item is out of range: `index` in its array, and `value`."""

    def __init__(self, index: int, value: object) -> None:
        super().__init__(f"item {index} is {value}")
        self.index = index
        self.value = value


class DocumentError(ValueError):
    """A document cannot be stored.

    Attributes:
        document: Its number.
        problem: The text that follows the number in the message.
    """

    def __init__(self, document: int, problem: str) -> None:
        super().__init__(f"document {document}{problem}")
        self.document = document
        self.problem = problem


class DocumentTypeError(TypeError):
    """A document is of a wrong type; attributes as those of `DocumentError`."""

    def __init__(self, document: int, problem: str) -> None:
        super().__init__(f"document {document}{problem}")
        self.document = document
        self.problem = problem


class Caster:
    """Check and cast items, and record the least and the greatest.

    Args:
        name: Stored name of the dtype to cast to.
        vocab_size: Integers must be below it. Default: the range of the dtype.
    """

    def __init__(self, name: str, vocab_size: int | None = None) -> None:
        self._name = name
        self._dtype = dtypes.stored_dtype(name)
        self._limits = dtypes.value_range(name)
        self._is_limited_by_dtype = vocab_size is None
        if vocab_size is not None:
            if self._limits is None or not 1 <= vocab_size <= self._limits[1] + 1:
                raise ValueError(
                    f"vocab_size={vocab_size} does not fit dtype {name}; "
                    "choose a wider dtype, or leave one of the two out"
                )
            self._limits = (0, vocab_size - 1)
        self._seen: tuple[int, int] | None = None

    @property
    def seen(self) -> tuple[int, int]:
        """Least and greatest integer cast so far; zeros for other dtypes and none."""
        return self._seen or (0, 0)

    @property
    def limits_text(self) -> str:
        """The allowed range, for a message."""
        if self._limits is None:
            return f"the range of {self._name}"
        return f"[{self._limits[0]}, {self._limits[1]}] of {self._name}"

    @property
    def remedy(self) -> str:
        """What makes a value fit, for a message."""
        return (
            "choose a wider dtype" if self._is_limited_by_dtype else "raise vocab_size"
        )

    def separator(self, separator: tuple[int | float, ...]) -> Tokens:
        """Return a separator in the shard's dtype.

        Raises:
            ValueError: An item is out of range.
        """
        if not separator:
            return np.empty(0, self._dtype)
        try:
            items = np.array(separator)
            if self._name == dtypes.BFLOAT16:
                items = np.array(separator, np.uint16)
            elif self._limits is not None:
                _check_range(items, self._limits)
            return self._converted(items)
        except (OutOfRangeError, OverflowError):
            raise ValueError(
                f"separator {list(separator)} is outside {self.limits_text}; "
                f"{self.remedy}, or choose another separator"
            ) from None

    def check_source(
        self, dtype: np.dtype[Any], separator: Tokens, document: int
    ) -> Tokens | None:
        """Check that items of a dtype can be cast at all.

        Returns:
            The separator in that dtype, None if the dtype cannot hold it.

        Raises:
            DocumentTypeError: Items of that dtype cannot be stored.
        """
        integers = dtype.kind in "biu"
        if self._name == dtypes.BFLOAT16:
            possible = dtype.name in {dtypes.BFLOAT16, "uint16"}
        elif self._limits is not None:
            possible = integers
        else:
            possible = integers or dtype.kind == "f"
        if not possible:
            raise DocumentTypeError(
                document,
                f": dtype {dtype} cannot be stored as {self._name}; convert it, or "
                "write with a dtype that holds it",
            )
        with np.errstate(all="ignore"):
            converted = separator.astype(dtype)
            back = converted.astype(separator.dtype)
        return converted if np.array_equal(back, separator) else None

    def cast(self, tokens: Tokens) -> Tokens:
        """Return contiguous items in the shard's dtype, and record their range.

        Raises:
            OutOfRangeError: An item does not fit.
        """
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
        if self._name == dtypes.BFLOAT16:
            return np.ascontiguousarray(tokens).view(self._dtype)
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
    """Return the least and greatest of some integers, or raise OutOfRangeError."""
    low, high = items.min(), items.max()
    if low < limits[0] or high > limits[1]:
        wrong = (items < limits[0]) | (items > limits[1])
        index = int(np.argmax(wrong))
        raise OutOfRangeError(index, items[index])
    return int(low), int(high)
