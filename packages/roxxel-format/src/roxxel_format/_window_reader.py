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


class WindowReader:
    """Reads some windows of a corpus by their numbers; made by `Roxxel.window_reader`.

    Args:
        opened: The corpus as it was when the windows were checked.
        read: Reads windows of it.
        read_anew: The same of the corpus opened again, once this one is closed.
        starts: First token of each window, checked; shape `(n,)`.
    """

    def __init__(
        self,
        opened: OpenCorpus,
        read: Read,
        read_anew: Read,
        starts: npt.NDArray[np.int64],
    ) -> None:
        self._opened = opened
        self._read = read
        self._read_anew = read_anew
        self._starts = starts

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
        read = self._read_anew if self._opened.is_closed else self._read
        return read(self._starts[first:stop])
