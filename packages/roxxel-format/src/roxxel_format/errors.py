"""Exceptions for invalid shards, manifests and corpora."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class ShardError(ValueError):
    """A shard is invalid, or a corpus is incomplete or was replaced.

    The message names the file and the fault, and says what to do.

    Example:
        >>> np.frombuffer(b"some text", np.uint8).tofile("text.rox")
        >>> try:
        ...     Roxxel("text.rox").num_tokens
        ... except ShardError as error:
        ...     print(str(error).rpartition("/")[2].split(", ")[0])
        text.rox: not a Roxxel shard
    """


class NotAShardError(ShardError):
    """A file is not a shard."""


class ManifestError(ShardError):
    """A manifest is damaged or has an unknown version, or a file is not a manifest."""


class ChecksumError(ShardError):
    """Bytes of a shard do not match their checksum.

    Attributes:
        reason: What is damaged, and where.
        remedy: What to do.
        path: Path of the shard.
        section: `"tokens"`, `"documents"`, `"checksums"` or `"metadata"`.
        block: Index of the block in the section; None if the section has no blocks.
        byte_offset: Offset of the damaged block or section in the file.

    Example:
        >>> written = Roxxel("damaged.rox").write([[5, 6, 7]])
        >>> data = np.fromfile("damaged.rox", np.uint8)
        >>> data[4096] = 255
        >>> data.tofile("damaged.rox")
        >>> (error,) = Roxxel("damaged.rox").verify().errors
        >>> error.section, error.block, error.byte_offset
        ('tokens', 0, 4096)
    """

    def __init__(
        self,
        reason: str,
        remedy: str,
        *,
        path: str,
        section: str,
        block: int | None,
        byte_offset: int,
    ) -> None:
        super().__init__(f"{reason}; {remedy}")
        self.reason = reason
        self.remedy = remedy
        self.path = path
        self.section = section
        self.block = block
        self.byte_offset = byte_offset

    def reworded(self, reason: str, remedy: str) -> ChecksumError:
        """Return an error about the same bytes, in other words."""
        return self._of_these_bytes()(reason, remedy)

    def __reduce__(self) -> tuple[object, ...]:
        return self._of_these_bytes(), (self.reason, self.remedy)

    def _of_these_bytes(self) -> Callable[[str, str], ChecksumError]:
        return partial(
            ChecksumError,
            path=self.path,
            section=self.section,
            block=self.block,
            byte_offset=self.byte_offset,
        )
