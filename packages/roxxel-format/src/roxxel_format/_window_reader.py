"""Windows that are read again and again in parts: checked once, when they are named."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from roxxel_format._windows import result_dtype

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    import numpy.typing as npt

    from roxxel_format._dtypes import Tokens
    from roxxel_format._reading import OpenCorpus

Read: TypeAlias = "Callable[[npt.NDArray[np.int64], Tokens | None], Tokens]"


class WindowReader:
    """Reads some windows of a corpus by their numbers; made by `Roxxel.window_reader`.

    Args:
        opened: The corpus as it was when the windows were checked.
        read: Of it: starts, and an array to fill or None, to windows.
        read_anew: The same of the corpus opened again, once this one is closed.
        starts: First token of each window, checked; shape `(n,)`.
        length: Tokens of each.
        dtype: Of what is read.
    """

    def __init__(
        self,
        opened: OpenCorpus,
        read: Read,
        read_anew: Read,
        starts: npt.NDArray[np.int64],
        length: int,
        dtype: np.dtype[Any],
    ) -> None:
        self._opened = opened
        self._read = read
        self._read_anew = read_anew
        self._starts = starts
        self._length = length
        self._dtype = dtype

    def read(self, first: int, stop: int, out: Tokens | None = None) -> Tokens:
        """Return the windows `[first, stop)`.

        Args:
            first: Number of the first window.
            stop: One past the last.
            out: Shape `(stop - first, length)`, of the reader's dtype; filled and
                returned.

        Returns:
            Shape `(stop - first, length)`; owned by the caller.

        Raises:
            ShardError: As for `Roxxel.read`.
            ValueError: `out` has another shape or dtype.
        """
        starts = self._starts[first:stop]
        if out is not None:
            result_dtype((starts.size, self._length), self._dtype, out, self._dtype)
        read = self._read_anew if self._opened.is_closed else self._read
        return read(starts, out)
