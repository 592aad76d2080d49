"""How the file of a column stores texts of any length.

The file holds the texts in UTF-8, one after another. Then it holds the end of each
text, a 64-bit integer that counts bytes from the start (docs/format.md, section 10.3).
A writer need not know the lengths in advance, and a reader locates a text by two
consecutive ends.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy.typing as npt

END_SIZE = 8


class TextPacker:
    """Packs the texts of one file."""

    def __init__(self) -> None:
        self._ends = array("Q")

    def pack(self, texts: Iterable[bytes]) -> bytes:
        """Return the bytes of further texts."""
        parts = [*texts]
        end = self._ends[-1] if self._ends else 0
        for part in parts:
            end += len(part)
            self._ends.append(end)
        return b"".join(parts)

    def close(self) -> bytes:
        """Return the last bytes of the file: the end of each text."""
        return np.array(self._ends, "<u8").tobytes()


def are_ends(ends: npt.NDArray[np.uint64], size: int) -> bool:
    """Return whether the ends ascend and are at most `size`."""
    return bool((ends[1:] >= ends[:-1]).all()) and int(ends.max(initial=0)) <= size
