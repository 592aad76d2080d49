"""The result of a write, in numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from roxxel_format._spec.manifest import ShardTable


@dataclass(frozen=True, slots=True)
class WriteSummary:
    """The result of a write: the shards that it wrote or kept.

    Attributes:
        paths: The shards of this write, or of the corpus that was kept.
        num_documents: Documents in them.
        num_tokens: Tokens in them, separators included.
        num_bytes: Size of the files.
        dtype: Name of the item type.
        fingerprint: Fingerprint of these shards in this order.
        kept: Whether an existing corpus was kept.
        duration_s: Seconds from the call to the return.
        sync_s: Seconds of `duration_s` spent flushing shards to the disk.
    """

    paths: tuple[str, ...]
    num_documents: int
    num_tokens: int
    num_bytes: int
    dtype: str
    fingerprint: str
    kept: bool
    duration_s: float
    sync_s: float

    @property
    def num_shards(self) -> int:
        """Number of shards."""
        return len(self.paths)

    def __str__(self) -> str:
        verb = "kept" if self.kept else "wrote"
        return (
            f"{verb} {self.num_tokens} tokens ({self.dtype}) in {self.num_documents} "
            f"documents and {self.num_shards} shard{'s' * (self.num_shards != 1)}, "
            f"{self.num_bytes} bytes"
        )


def summary_of(
    shards: ShardTable,
    dtype: str,
    folder: Path,
    *,
    kept: bool,
    duration_s: float,
    sync_s: float = 0.0,
) -> WriteSummary:
    """Return the summary of finished shards in a folder."""
    (fingerprint,) = shards.fingerprints([len(shards)])
    return WriteSummary(
        paths=tuple(str(folder / name) for name in shards.names),
        num_documents=sum(shards.own_documents()),
        num_tokens=sum(shards.num_tokens),
        num_bytes=sum(shards.num_bytes),
        dtype=dtype,
        fingerprint=fingerprint,
        kept=kept,
        duration_s=duration_s,
        sync_s=sync_s,
    )
