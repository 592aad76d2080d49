"""Windows that are read again and again in parts: checked once, when they are named."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    import numpy.typing as npt

    from roxxel_format._dtypes import Tokens
    from roxxel_format._reading import OpenCorpus

Empty: TypeAlias = "Callable[[tuple[int, int], np.dtype[Any]], Tokens]"
"""Makes the memory of a read, of a shape and a dtype."""

Read: TypeAlias = "Callable[[npt.NDArray[np.int64]], Tokens]"
"""Reads windows from where they start."""

_ASKED_BYTES = 8 << 20
"""Stored tokens that are asked for ahead; the next are when half of them were read."""


class WindowReader:
    """Reads some windows of a corpus by their numbers; made by `Roxxel.window_reader`.

    They are read in order most often, so the system is asked for the next ones ahead.

    Args:
        opened: The corpus as it was when the windows were checked.
        read: Reads windows of it.
        read_anew: The same of the corpus opened again, once this one is closed.
        starts: First token of each window, checked; shape `(n,)`.
        length: Tokens of each.
    """

    def __init__(
        self,
        opened: OpenCorpus,
        read: Read,
        read_anew: Read,
        starts: npt.NDArray[np.int64],
        length: int,
    ) -> None:
        self._opened = opened
        self._read = read
        self._read_anew = read_anew
        self._starts = starts
        self._length = length
        window_bytes = length * opened.index.dtype.itemsize
        self._num_ahead = max(2, _ASKED_BYTES // max(window_bytes, 1))
        self._asked = 0
        self._ask_at = 0

    def read(self, first: int, stop: int) -> Tokens:
        """Return the windows `[first, stop)`.

        Args:
            first: Number of the first window.
            stop: One past the last.

        Returns:
            Shape `(stop - first, length)`, of the length and dtype that the reader was
            made for, in memory that its `empty` made; owned by the caller.

        Raises:
            ShardError: As for `Roxxel.read`; or the corpus was closed, and another lies
                there now.
        """
        if self._opened.is_closed:
            return self._read_anew(self._starts[first:stop])
        if first >= self._ask_at:
            self._ask(first)
        return self._read(self._starts[first:stop])

    def _ask(self, first: int) -> None:
        """Ask for the windows from `first` on that were not asked for yet."""
        begin, stop = max(first, self._asked), first + self._num_ahead
        self._asked = stop
        self._ask_at = first + self._num_ahead // 2
        self._opened.will_need(self._starts[begin:stop], self._length)
