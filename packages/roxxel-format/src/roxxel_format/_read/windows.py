"""Windows of a line of tokens: checked where they enter, gathered by one call."""

from __future__ import annotations

from mmap import PAGESIZE
from operator import index as as_index
from typing import TYPE_CHECKING, Any, cast

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    from roxxel_format._spec.dtypes import Tokens

_FEW_STARTS = 16
"""Of so many, Python's `min` and `max` are quicker than numpy's."""

_READ_BEFORE = 8
"""From so many windows on it pays to read a token of each before they are copied."""


def gather_rows(tokens: Tokens, starts: npt.NDArray[np.int64], length: int) -> Tokens:
    """Return copies of the windows of an array that begin at `starts`.

    Args:
        tokens: A contiguous array, shape `(m,)`.
        starts: First item of each window, shape `(n,)`; windows stay inside.
        length: Items of each.

    Returns:
        Shape `(n, length)`.
    """
    if not starts.size or not length:
        return np.empty((starts.size, length), tokens.dtype)
    return AllWindows(tokens, length).gather(starts)


class AllWindows:
    """All windows of one length of a contiguous array, to gather some of them.

    Copies nothing before that, and keeps the array alive.

    Args:
        tokens: Shape `(m,)`.
        length: Items of each, from 1 to m.

    Attributes:
        length: Items of each.
    """

    __slots__ = ("_firsts", "_lasts", "_rows", "length")

    def __init__(self, tokens: Tokens, length: int) -> None:
        self.length = length
        size = tokens.itemsize
        # Overlapping rows: as numpy's `sliding_window_view`, in a fifth of its time.
        shape = tokens.size - length + 1, length
        self._rows: Tokens = np.ndarray(shape, tokens.dtype, tokens, 0, (size, size))
        # `take` copies a whole array that is not aligned.
        self._firsts: Tokens | None = tokens if tokens.flags.aligned else None
        self._lasts: Tokens | None = None
        if self._firsts is not None and (length - 1) * size >= PAGESIZE:
            self._lasts = tokens[length - 1 :]

    def gather(self, starts: npt.NDArray[np.int64]) -> Tokens:
        """Return copies of the windows that begin at `starts`.

        To wait for memory once instead of window by window, it first reads one token of
        each, and the last too of windows longer than a page. The processor fetches many
        such single tokens at a time, and looks up their pages: of a corpus larger than
        its caches that saves up to a quarter of the time.

        Args:
            starts: First item of each, in `[0, m - length]`; shape `(n,)`.

        Returns:
            Shape `(n, length)`.
        """
        if self._firsts is not None and starts.size >= _READ_BEFORE:
            # What these return is of no use: it is in the caches then. An index in
            # brackets would hold Python's lock while it waits for pages that are not in
            # memory.
            self._firsts.take(starts)
            if self._lasts is not None:
                self._lasts.take(starts)
        return self._rows[starts]


def parse_windows(
    starts: npt.ArrayLike, length: int, num_tokens: int
) -> tuple[npt.NDArray[np.int64], int]:
    """Return `starts` as int64 and `length` as an int.

    Raises:
        IndexError: A window leaves `[0, num_tokens)`.
        TypeError: The starts are no integers.
        ValueError: They are not flat, or the length is negative.
    """
    length = as_index(length)
    begins = np.asarray(starts)
    if begins.ndim != 1:
        raise ValueError(
            f"starts has shape {begins.shape}; pass a flat array of first tokens"
        )
    if begins.dtype.kind not in "iu":
        if begins.size:
            raise TypeError(f"starts has dtype {begins.dtype}; pass integers")
        begins = begins.astype(np.int64)
    if length < 0:
        raise ValueError(f"length must not be negative, got {length}")
    if begins.size and not _are_inside(begins, num_tokens - length):
        low, high = int(begins.min()), int(begins.max())
        wrong = low if low < 0 else high
        raise IndexError(
            f"window [{wrong}, {wrong + length}) leaves the corpus of "
            f"{num_tokens} tokens"
        )
    return begins.astype(np.int64, copy=False), length


def _are_inside(starts: npt.NDArray[np.integer[Any]], last: int) -> bool:
    """Return whether all of some starts, at least one, are in `[0, last]`."""
    if starts.size <= _FEW_STARTS:
        few: list[int] = starts.tolist()
        return min(few) >= 0 and max(few) <= last
    if starts.dtype == np.int64:
        # As unsigned numbers, negative ones are greater than all others.
        return int(np.maximum.reduce(starts.view(np.uint64))) <= last
    return int(starts.min()) >= 0 and int(starts.max()) <= last


def result_dtype(
    shape: tuple[int, int],
    dtype: npt.DTypeLike | None,
    out: Tokens | None,
    stored: np.dtype[Any],
) -> np.dtype[Any]:
    """Return the dtype that a read of windows is to give.

    Args:
        shape: Of the result.
        dtype: What is asked for; None for that of `out`, else the stored one.
        out: To be filled, or None.
        stored: Of the corpus.

    Raises:
        TypeError: `out` is no array.
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
        IndexError: It leaves `[0, num_tokens]`.
    """
    if not 0 <= start <= stop <= num_tokens:
        raise IndexError(
            f"range [{start}, {stop}) leaves the corpus of {num_tokens} tokens"
        )
