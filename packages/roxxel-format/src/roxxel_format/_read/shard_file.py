"""One shard as a file of documents, without the corpus around it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from roxxel_format._read.shard import open_shard
from roxxel_format.errors import ShardError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from roxxel_format._read.shard import ShardMap
    from roxxel_format._spec.dtypes import Tokens


class Shard:
    """A file of documents.

    The constructor reads the head and the foot (the first and last bytes), and checks
    both against the size of the file. The constructor closes the file; `map()` opens it
    again.

    Args:
        path: The file.

    Attributes:
        path: The file.
        layout: The fields of the head and foot.

    Raises:
        ShardError: The file is not a shard, is damaged, or has an unknown format
            version.
        OSError: The file cannot be read.

    Example:
        >>> written = Roxxel("shard.rox").write([[5, 6, 7], [8]], vocab_size=100)
        >>> shard = Shard("shard.rox")
        >>> shard.num_documents, shard.tokens.tolist()
        (2, [5, 6, 7, 8])
    """

    __slots__ = ("layout", "path")

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        self.layout = open_shard(self.path).layout

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
        """Number of documents; a part of a split document counts as a document."""
        return self.layout.num_documents

    @property
    def tokens(self) -> Tokens:
        """All items: a read-only view, which keeps the file mapped."""
        return self.map().tokens

    @property
    def document_ends(self) -> npt.NDArray[np.int64]:
        """End of each document, an index of items; verified, read-only."""
        return self.map().document_ends

    def map(self) -> ShardMap:
        """Map the file.

        Raises:
            ShardError: The file was replaced after the constructor read it.
        """
        shard = open_shard(self.path)
        if shard.layout != self.layout:
            raise ShardError(
                f"{self.path}: the file was replaced after it was opened; open it again"
            )
        return shard

    def read_metadata(self) -> dict[str, Any]:
        """Return the metadata.

        Raises:
            ShardError: The metadata is damaged or not a JSON object, or the file was
                replaced.
            OSError: The file cannot be opened.
        """
        return self.map().metadata()
