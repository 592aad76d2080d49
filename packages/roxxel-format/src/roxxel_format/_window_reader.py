"""Windows that are read again and again in parts: checked once, when they are named."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    import numpy.typing as npt

    from roxxel_format._dtypes import Tokens
    from roxxel_format._reading import OpenCorpus


class WindowReader:
    """Reads some windows of a corpus by their numbers; made by `Roxxel.window_reader`.

    Args:
        opened: The corpus as it was when the windows were checked.
        read: Of it: starts to windows.
        read_anew: The same of the corpus opened again, once this one is closed.
        starts: First token of each window, checked; shape `(n,)`.
    """

    def __init__(
        self,
        opened: OpenCorpus,
        read: Callable[[npt.NDArray[np.int64]], Tokens],
        read_anew: Callable[[npt.NDArray[np.int64]], Tokens],
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
            Shape `(stop - first, length)`; owned by the caller.

        Raises:
            ShardError: As for `Roxxel.read`.
        """
        read = self._read_anew if self._opened.is_closed else self._read
        return read(self._starts[first:stop])
