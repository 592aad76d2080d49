"""One shard: its head and foot when it is opened, its sections when they are used."""

from __future__ import annotations

import json
import os
import zlib
from typing import TYPE_CHECKING, Any, Self, cast

from roxxel_format._read.opening import open_checked, open_file, read_layout
from roxxel_format._read.shard_map import ShardMap
from roxxel_format.errors import ChecksumError, ShardError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from roxxel_format._spec.dtypes import Tokens


class Shard:
    """One file of documents.

    Opening reads the head and the foot, checks them against the size of the file, and
    closes the file again; `map()` opens it for reading, and `mapped()` does both at
    once.

    Args:
        path: The file.

    Raises:
        ShardError: It is no shard, is damaged, or of an unknown version.
        OSError: It cannot be read.
    """

    __slots__ = ("layout", "path")

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        fd = open_file(self.path)
        try:
            self.layout = read_layout(fd, self.path)
        finally:
            os.close(fd)

    @classmethod
    def mapped(
        cls, path: str | os.PathLike[str], *, checked: bool
    ) -> tuple[Self, ShardMap]:
        """Open a shard and map it, by one descriptor.

        Args:
            path: The file.
            checked: As for `ShardMap`.

        Raises:
            ShardError: As for opening.
            OSError: It cannot be read or mapped.
        """
        shard = cls.__new__(cls)
        shard.path = os.fspath(path)
        fd = open_file(shard.path)
        try:
            shard.layout = read_layout(fd, shard.path)
        except BaseException:
            os.close(fd)
            raise
        return shard, ShardMap(shard.path, shard.layout, fd, checked=checked)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Item type, little-endian."""
        return self.layout.dtype

    @property
    def num_tokens(self) -> int:
        """Items, separators included."""
        return self.layout.num_tokens

    @property
    def num_documents(self) -> int:
        """Documents, parts of documents included."""
        return self.layout.num_documents

    @property
    def tokens(self) -> Tokens:
        """All items: a read-only view of the file, which it keeps open."""
        return self.map().tokens

    @property
    def document_ends(self) -> npt.NDArray[np.int64]:
        """End of each document in items, separator included; checked, read-only."""
        return self.map().document_ends

    def map(self, *, checked: bool = False) -> ShardMap:
        """Map the file.

        Args:
            checked: As for `ShardMap`.

        Raises:
            ShardError: The file is not the one that was opened.
        """
        fd = open_checked(self.path, self.layout)
        return ShardMap(self.path, self.layout, fd, checked=checked)

    def read_metadata(self, mapped: ShardMap | None = None) -> dict[str, Any]:
        """Return the metadata.

        Args:
            mapped: A map of the shard, to read the file that it holds open. Default:
                the file is opened by its path.

        Raises:
            ShardError: It is damaged, or no JSON object; or the mapped file has another
                size than when it was opened.
            OSError: It cannot be opened.
        """
        at = self.layout.sections.metadata
        if mapped is not None:
            data = mapped.metadata_bytes()
        else:
            fd = open_file(self.path)
            try:
                data = os.pread(fd, self.layout.metadata_size, at)
            finally:
                os.close(fd)
        if zlib.crc32(data) != self.layout.metadata_crc:
            raise ChecksumError(
                f"{self.path}: the metadata (byte {at} on) does not match its "
                "checksum; fetch or write this shard again",
                path=self.path,
                section="metadata",
                block=None,
                byte_offset=at,
            )
        try:
            metadata = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise ShardError(
                f"{self.path}: the metadata is no JSON ({error}); write it again"
            ) from error
        if not isinstance(metadata, dict):
            raise ShardError(
                f"{self.path}: the metadata is no JSON object; write it again"
            )
        return cast("dict[str, Any]", metadata)


def as_table(value: object) -> dict[str, Any]:
    """Return a JSON object as it is, and an empty one for anything else."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}
