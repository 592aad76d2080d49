"""Windows that are read again and again in parts: checked once, when they are named."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeAlias

from roxxel_format.errors import ShardError

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    import numpy.typing as npt

    from roxxel_format._read.reading import OpenCorpus
    from roxxel_format._spec.dtypes import Tokens

Empty: TypeAlias = "Callable[[tuple[int, int], np.dtype[Any]], Tokens]"
"""Makes the memory of a read, of a shape and a dtype."""

Read: TypeAlias = "Callable[[npt.NDArray[np.int64]], Tokens]"
"""Reads windows from where they start."""

_FIRST_AHEAD = 64
"""Windows asked for ahead at first; twice as many each time after, up to the most."""

_MOST_BYTES_AHEAD = 8 << 20
"""Most bytes of windows asked for ahead, if no read is of half as many."""

_MOST_AHEAD = 4096
"""The same in windows, for to ask for many takes long."""

_NOT_LOOKED_AT = 4
"""Times the most windows that are asked for ahead: so many are read without a look,
once those ahead were found in memory."""


class WindowReader:
    """Reads some windows of a corpus by their numbers; made by `Roxxel.window_reader`.

    It expects to be read in order, and asks the system for the next windows ahead; not
    for those before the last that were read. Where some of them are found in memory, it
    takes it that all are, and those of at most the next 32 MiB too.

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
        window_bytes = max(1, length * opened.index.dtype.itemsize)
        self._most_ahead = min(_MOST_BYTES_AHEAD // window_bytes, _MOST_AHEAD)
        self._num_ahead = min(_FIRST_AHEAD, self._most_ahead)
        # Threads that meet here ask twice, or for some windows not at all.
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
            self._ask(first, max(self._num_ahead, 2 * (stop - first)))
        return self._read(self._starts[first:stop])

    def _ask(self, first: int, num_ahead: int) -> None:
        """Ask for the windows from `first` on that were not asked for yet.

        Where they are in memory, put the next look off.
        """
        begin, self._asked = max(first, self._asked), first + num_ahead
        self._ask_at = first + max(1, num_ahead // 2)
        self._num_ahead = min(2 * self._num_ahead, self._most_ahead)
        # What is wrong with windows to come, who reads them is told.
        with suppress(OSError, ShardError):
            starts = self._starts[begin : self._asked]
            if not self._opened.read_ahead(starts, self._length):
                most = max(num_ahead, self._most_ahead)
                self._ask_at = first + _NOT_LOOKED_AT * most
