"""Errors of shards and corpora, as exceptions that a caller can catch alone."""

from __future__ import annotations


class ShardError(ValueError):
    """A shard is invalid, or a corpus is incomplete or was replaced.

    The message names the file, what is wrong with it, and what to do.
    """


class ManifestError(ShardError):
    """A manifest is damaged, of an unknown version, or not a manifest at all.

    The message names the file, what is wrong with it, and what to do.
    """


class ChecksumError(ShardError):
    """Bytes of a shard do not match their checksum.

    Attributes:
        path: Path of the shard.
        section: `"tokens"`, `"documents"`, `"checksums"` or `"metadata"`.
        block: Block of the section, from 0; None where the section has no blocks.
        byte_offset: Offset of the damaged block or section in the file.
    """

    def __init__(
        self,
        message: str,
        *,
        path: str,
        section: str,
        block: int | None,
        byte_offset: int,
    ) -> None:
        super().__init__(message)
        self.path = path
        self.section = section
        self.block = block
        self.byte_offset = byte_offset

    def __reduce__(self) -> tuple[object, ...]:
        return (
            _checksum_error,
            (str(self), self.path, self.section, self.block, self.byte_offset),
        )


def _checksum_error(
    message: str, path: str, section: str, block: int | None, byte_offset: int
) -> ChecksumError:
    return ChecksumError(
        message, path=path, section=section, block=block, byte_offset=byte_offset
    )
