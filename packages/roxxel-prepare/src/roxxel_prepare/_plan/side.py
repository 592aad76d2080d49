"""Hold documents out of a corpus by their content."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class Side:
    """One of two corpora: the documents that are held out, or all others.

    Only the tokens of a document decide its side, without its separator and whatever
    their dtype. So a write (`--split`) and a division of the written shards (`split`)
    hold out the same documents; the order and the number of inputs do not matter.
    `share` is the share of documents that are held out. Another `salt`, of at most 64
    bytes, holds out other documents.
    """

    name: str
    share: float
    is_held_out: bool
    salt: bytes = b""

    def has(self, tokens: npt.NDArray[Any]) -> bool:
        """Return whether a document is on this side."""
        # Tokens of any width, or of a list, are the same document.
        content = tokens.astype("<i8" if tokens.dtype.kind in "biu" else "<f8")
        digest = blake2b(content.data, digest_size=8, key=self.salt).digest()
        held_out = int.from_bytes(digest, "little") < int(self.share * 2**64)
        return held_out == self.is_held_out

    def recorded(self) -> list[Any]:
        """Return the side for JSON."""
        return [self.name, self.share, self.is_held_out]


def held_out_path(filepath: str, name: str) -> str:
    """Return the path of the corpus that is held out, such as `wiki_valid_*.rox`.

    The name is inserted before the star, the suffix `.rox`, or the slash at the end.
    Beside `out/*.rox`, which means the folder, it is a folder: `out/valid/*.rox`.
    """
    path = filepath.rstrip("/")
    head, slash, last = path.rpartition("/")
    prefix, star, suffix = last.partition("*")
    if last == "*.rox":  # the folder, which can hold one corpus
        new = f"{name}/*.rox"
    elif star and not prefix:
        new = f"{name}_*{suffix}"
    elif star:
        end = "_" if prefix.endswith("_") else ""
        new = f"{prefix.removesuffix('_')}_{name}{end}*{suffix}"
    else:
        stem = last.removesuffix(".rox")
        new = f"{stem}_{name}{last[len(stem) :]}"
    return head + slash + new + filepath[len(path) :]
