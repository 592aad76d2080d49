"""Windows that are read again and again in parts: checked once, when they are named."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    import numpy.typing as npt

    from roxxel_format._dtypes import Tokens


class WindowReader:
    """Reads some windows of a corpus by their numbers; made by `Roxxel.window_reader`.

    Args:
        read: Of the corpus: `(starts, length, dtype, out)` to windows.
        starts: First token of each window, checked; shape `(n,)`.
        length: Tokens of each, checked.
        dtype: Of what is read; the corpus is readable as it.
    """

    def __init__(
        self,
        read: Callable[..., Tokens],
        starts: npt.NDArray[np.int64],
        length: int,
        dtype: np.dtype[Any],
    ) -> None:
        self._read = read
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
        """
        return self._read(self._starts[first:stop], self._length, self._dtype, out)
