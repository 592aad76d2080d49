"""What a write left on the disk, in numbers."""

from __future__ import annotations

from dataclasses import dataclass

from roxxel_format._read.contents import open_contents


@dataclass(frozen=True, slots=True)
class WriteSummary:
    """What a write left on the disk.

    Attributes:
        paths: The shards of this write, or of the corpus that was kept.
        num_documents: Documents in them.
        num_tokens: Tokens in them, separators included.
        num_bytes: Size of the files.
        dtype: Name of the item type.
        fingerprint: Of these shards in this order.
        kept: Whether a corpus was there already and was kept.
        duration_s: Seconds from the call to the return.
        sync_s: Seconds of them spent waiting for the disk to hold the files.
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


def summarize(
    paths: list[str],
    *,
    kept: bool,
    duration_s: float,
    sync_s: float = 0.0,
    num_documents: int | None = None,
) -> WriteSummary:
    """Return the summary of finished shards."""
    contents = open_contents(tuple(paths))
    return WriteSummary(
        paths=contents.paths,
        num_documents=(
            contents.num_documents if num_documents is None else num_documents
        ),
        num_tokens=contents.num_tokens,
        num_bytes=sum(contents.shards.num_bytes),
        dtype=contents.dtype_name,
        fingerprint=contents.fingerprint,
        kept=kept,
        duration_s=duration_s,
        sync_s=sync_s,
    )
