"""What a write returns: the shards that it wrote or kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from roxxel_store.screen import counted, printable, short_size

if TYPE_CHECKING:
    from collections.abc import Sequence

_MAX_NAMED = 3


@dataclass(frozen=True, slots=True)
class WriteSummary:
    """The result of a write: the shards that it wrote or kept.

    Attributes:
        paths: The shards of this write, or of the corpus that was kept.
        num_documents: Documents in these shards.
        num_tokens: Tokens in these shards, separators included.
        num_bytes: Size of these shards.
        dtype: Name of the item type.
        fingerprint: Fingerprint of these shards in this order.
        kept: Whether an existing corpus was kept.
        left_out: Files in the given folders and patterns that are not data, such as
            `README.md`.
        unit: Tokens of a bin; None unless the documents are packed.
        num_padding: Tokens that are padding of bins.
        num_cut: Documents longer than a bin, which were cut.
        switched_off: What was random in the tokenizer, such as `dropout 0.1`, and was
            switched off, so that equal texts have equal tokens.

    Example:
        >>> summary = Roxxel("ids_*.rox").write([[5, 6, 7], [8]])
        >>> summary.num_tokens, summary.dtype, summary.kept
        (4, 'uint32', False)
    """

    paths: tuple[str, ...]
    num_documents: int
    num_tokens: int
    num_bytes: int
    dtype: str
    fingerprint: str
    kept: bool
    left_out: tuple[str, ...] = ()
    unit: int | None = None
    num_padding: int = 0
    num_cut: int = 0
    switched_off: str = ""

    @property
    def num_shards(self) -> int:
        """Number of shards."""
        return len(self.paths)

    def __str__(self) -> str:
        verb = "kept" if self.kept else "wrote"
        return (
            f"{verb} {counted(self.num_tokens, 'token')} ({self.dtype}) in "
            f"{counted(self.num_documents, 'document')} and "
            f"{counted(self.num_shards, 'shard')}, {short_size(self.num_bytes)}"
            f"{self._packed_note()}"
            f"{self.switched_off_note(self.switched_off)}"
            f"{self.left_out_note(self.left_out)}"
        )

    def _packed_note(self) -> str:
        """Return the summary's sentence about bins."""
        if self.unit is None:
            return ""
        share = 100 * self.num_padding / max(1, self.num_tokens)
        num_bins = self.num_tokens // self.unit
        return (
            f"; packed into {counted(num_bins, 'bin')} of {self.unit:,} tokens "
            f"({share:.3f} % padding); {counted(self.num_cut, 'longer document')} cut"
        )

    @staticmethod
    def switched_off_note(what: str) -> str:
        """Return the summary's sentence about a tokenizer that sampled."""
        if not what:
            return ""
        return (
            f"; the tokenizer's {what} was switched off, so that equal texts have "
            "equal tokens"
        )

    @staticmethod
    def left_out_note(files: Sequence[str]) -> str:
        """Return the end of a summary that counts the files that are no data."""
        if not files:
            return ""
        # Hidden files come last: the others may be missed.
        named = sorted(files, key=lambda file: "/." in f"/{file}")[:_MAX_NAMED]
        shown = ", ".join(printable(file.rpartition("/")[2]) for file in named)
        what = "file that is" if len(files) == 1 else "files that are"
        more = ", ..." if len(files) > _MAX_NAMED else ""
        return f"; left out {len(files):,} {what} no data ({shown}{more})"
