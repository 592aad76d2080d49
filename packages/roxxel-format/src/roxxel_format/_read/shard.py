"""One shard, read by itself."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from roxxel_format._read.opening import open_file, read_layout, read_metadata
from roxxel_format._read.shard_map import ShardMap
from roxxel_format.errors import ShardError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from roxxel_format._spec.dtypes import Tokens
    from roxxel_format._spec.layout import Layout


class Shard:
    """One file of documents.

    The constructor reads the head and the foot, checks them against the size of the
    file, and closes the file again; `map()` opens it for reading.

    Args:
        path: The file.

    Attributes:
        path: The file.
        layout: What the head and foot say.

    Raises:
        ShardError: The file is not a shard, is damaged, or of an unknown version.
        OSError: The file cannot be read.
    """

    __slots__ = ("layout", "path")

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        fd = open_file(self.path)
        try:
            self.layout = read_layout(fd, self.path)
        finally:
            os.close(fd)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Item type, little-endian."""
        return self.layout.dtype

    @property
    def num_tokens(self) -> int:
        """Number of items, separators included."""
        return self.layout.num_tokens

    @property
    def num_documents(self) -> int:
        """Number of documents, parts of documents included."""
        return self.layout.num_documents

    @property
    def tokens(self) -> Tokens:
        """All items: a read-only view of the file, which keeps the file mapped."""
        return self.map().tokens

    @property
    def document_ends(self) -> npt.NDArray[np.int64]:
        """End of each document in items, separator included; checked, read-only."""
        return self.map().document_ends

    def map(self) -> ShardMap:
        """Map the file.

        Raises:
            ShardError: The file is not the one that the constructor read.
        """
        fd = self._open()
        return ShardMap(self.path, self.layout, fd)

    def read_metadata(self) -> dict[str, Any]:
        """Return the metadata.

        Raises:
            ShardError: The metadata is damaged or not a JSON object, or the file was
                replaced.
            OSError: The file cannot be opened.
        """
        fd = self._open()
        try:
            return read_metadata(fd, self.layout, self.path)
        finally:
            os.close(fd)

    def _open(self) -> int:
        fd = open_file(self.path)
        try:
            self._check_same(read_layout(fd, self.path))
        except BaseException:
            os.close(fd)
            raise
        return fd

    def _check_same(self, layout: Layout) -> None:
        if layout != self.layout:
            raise ShardError(
                f"{self.path}: the file was replaced after it was opened; open it again"
            )
