"""Check and convert the arguments of reads."""

from __future__ import annotations

from operator import index as as_index
from typing import TYPE_CHECKING, Any, cast

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    from roxxel_format._spec.dtypes import Tokens


def parse_windows(
    starts: npt.ArrayLike, length: int, num_tokens: int
) -> tuple[list[int], int]:
    """Return the first tokens of windows, and their length.

    Raises:
        IndexError: A window leaves `[0, num_tokens)`.
        TypeError: The starts are not integers.
        ValueError: The starts are not flat, or the length is negative.
    """
    length = as_index(length)
    array = np.asarray(starts)
    if array.ndim != 1:
        raise ValueError(
            f"starts has shape {array.shape}; pass a flat array of first tokens"
        )
    if array.dtype.kind not in "iu" and array.size:
        raise TypeError(f"starts has dtype {array.dtype}; pass integers")
    if length < 0:
        raise ValueError(f"length must not be negative, got {length}")
    begins: list[int] = array.tolist()
    low, high = min(begins, default=0), max(begins, default=0)
    if begins and not 0 <= low <= high <= num_tokens - length:
        wrong = low if low < 0 else high
        raise IndexError(
            f"window [{wrong}, {wrong + length}) leaves the corpus of "
            f"{num_tokens} tokens"
        )
    return begins, length


def result_dtype(
    shape: tuple[int, int],
    dtype: npt.DTypeLike | None,
    out: Tokens | None,
    stored: np.dtype[Any],
) -> np.dtype[Any]:
    """Return the dtype that a read returns.

    Args:
        shape: Shape of the result.
        dtype: As the caller gave it; None for that of `out`, else the stored one.
        out: The caller's array, or None.
        stored: Dtype of the corpus.

    Raises:
        TypeError: `out` is not an array.
        ValueError: `out` has another shape or dtype.
    """
    if out is None:
        return stored if dtype is None else np.dtype(dtype)
    if not isinstance(cast("object", out), np.ndarray):
        raise TypeError(f"out is a {type(out).__name__}; pass a numpy array")
    if out.shape != shape:
        raise ValueError(f"out has shape {out.shape}; these windows need {shape}")
    if dtype is not None and np.dtype(dtype) != out.dtype:
        raise ValueError(f"out has dtype {out.dtype}, but dtype={dtype}")
    return out.dtype


def check_range(start: int, stop: int, num_tokens: int) -> None:
    """Check that a range lies inside the corpus.

    Raises:
        IndexError: The range leaves `[0, num_tokens]`.
    """
    if not 0 <= start <= stop <= num_tokens:
        raise IndexError(
            f"range [{start}, {stop}) leaves the corpus of {num_tokens} tokens"
        )


def parse_index(index: int, length: int, what: str) -> int:
    """Return an index from 0, where negative ones count from the end.

    Raises:
        IndexError: The index is out of range.
    """
    number = as_index(index)
    if not -length <= number < length:
        raise IndexError(f"{what} {number} is out of range; there are {length}")
    return number % length
