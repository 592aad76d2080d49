"""Hold documents out of a corpus by their content."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class Side:
    """One of two corpora: the documents that are held out, or all others.

    Only the content of a document decides its side: the UTF-8 bytes of a text, or the
    values of tokens, whatever their dtype. The order and the number of inputs do not
    matter. `share` is the share of documents that are held out.
    """

    name: str
    share: float
    is_held_out: bool

    def has(self, *parts: object) -> bool:
        """Return whether a document, given as its parts, is on this side."""
        content = b"".join(map(_content, parts))
        digest = blake2b(content, digest_size=8).digest()
        held_out = int.from_bytes(digest, "little") < int(self.share * 2**64)
        return held_out == self.is_held_out

    def recorded(self) -> list[Any]:
        """Return the side for JSON."""
        return [self.name, self.share, self.is_held_out]


def _content(document: object) -> bytes:
    if isinstance(document, str):
        return document.encode("utf-8", "surrogatepass")
    if isinstance(document, (bytes, bytearray)):
        return bytes(document)
    items = np.asarray(document)
    # The same tokens may be a list in one file and an array of any dtype in another.
    return items.astype("<i8" if items.dtype.kind in "biu" else "<f8").tobytes()


def held_out_path(filepath: str, name: str) -> str:
    """Return the path of the corpus that is held out, such as `wiki_valid_*.rox`.

    The name is inserted before the star, the suffix `.rox`, or the slash at the end.
    """
    path = filepath.rstrip("/")
    head, slash, last = path.rpartition("/")
    prefix, star, suffix = last.partition("*")
    if star and not prefix:
        new = f"{name}_*{suffix}"
    elif star:
        end = "_" if prefix.endswith("_") else ""
        new = f"{prefix.removesuffix('_')}_{name}{end}*{suffix}"
    else:
        stem = last.removesuffix(".rox")
        new = f"{stem}_{name}{last[len(stem) :]}"
    return head + slash + new + filepath[len(path) :]
