"""Divide documents over several corpora, by their content or their length."""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, cast

from roxxel_store.arguments import as_integer

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class Side:
    """One of two corpora: the documents that are held out, or all others.

    Only a document's tokens decide its side, not its separator or dtype. So a write
    with `--split`, and a later `split` of the written shards, hold out the same
    documents. The order and the number of inputs do not matter. `share` is the share of
    documents that are held out.
    """

    name: str
    share: float
    is_held_out: bool

    def has(self, tokens: npt.NDArray[Any]) -> bool:
        """Return whether a document is on this side."""
        # Tokens of any width, or of a list, are the same document.
        content = tokens.astype("<i8" if tokens.dtype.kind in "biu" else "<f8")
        digest = blake2b(content.data, digest_size=8).digest()
        held_out = int.from_bytes(digest, "little") < int(self.share * 2**64)
        return held_out == self.is_held_out

    def recorded(self) -> list[Any]:
        """Return the side for JSON."""
        return [self.name, self.share, self.is_held_out]


@dataclass(frozen=True, slots=True)
class Target:
    """One of the corpora of a command.

    `side` is its side of a split. With `lengths`, it has the documents whose number of
    tokens, with the separator, is in this range, packed into bins of `pack`.
    """

    path: str
    side: Side | None = None
    lengths: tuple[int, int | None] | None = None
    pack: int | None = None


def outputs_of(
    filepath: str, split: tuple[str, float] | None, buckets: Sequence[int] | None
) -> list[Target]:
    """Return the corpora of a command in the order in which they are written.

    Held-out documents come first, so that no corpus exists without them.

    Args:
        filepath: Path of the corpus.
        split: Name and share of the held-out documents.
        buckets: Tokens of a bin for each range of lengths, ascending.
    """
    found = [Target(filepath)]
    if buckets is not None:
        tops = [*buckets[:-1], None]
        least = [0, *(each + 1 for each in buckets[:-1])]
        found = [
            Target(held_out_path(filepath, str(pack)), None, (low, high), pack)
            for low, high, pack in zip(least, tops, buckets, strict=True)
        ]
    if split is None:
        return found
    return [
        replace(
            each,
            path=held_out_path(each.path, split[0]) if is_held_out else each.path,
            side=Side(*split, is_held_out=is_held_out),
        )
        for each in found
        for is_held_out in (True, False)
    ]


def checked_buckets(lengths: Sequence[int], pack: int | None = None) -> list[int]:
    """Return the lengths of `bucket_by_length`, which must ascend from 2.

    Raises ValueError for other lengths, and if `pack` is given too.
    """
    found = [as_integer("bucket_by_length", each, 2) for each in lengths]
    if not found or found != sorted({*found}):
        raise ValueError(
            f"bucket_by_length={found} must be lengths that ascend, such as "
            "[513, 1025, 4097]"
        )
    if pack is not None:
        raise ValueError(
            f"pack={pack} and bucket_by_length={found}: each length is packed by "
            "itself; pass only one"
        )
    return found


def checked_split(name: object, share: object) -> tuple[str, float]:
    """Return a split; raise ValueError unless it is a plain name and a share."""
    with contextlib.suppress(TypeError, ValueError):
        number = float(cast("Any", share))
        if re.fullmatch("[A-Za-z0-9-]+", cast("Any", name)) and 0 < number < 1:
            return str(name), number
    raise ValueError(
        f"split={(name, share)!r} must be a name of letters, digits and -, and a share "
        'between 0 and 1, such as ("valid", 0.001)'
    )


def held_out_path(filepath: str, name: str) -> str:
    """Return the path of the corpus that is held out, such as `wiki_valid_*.rox`.

    The name is inserted before the star, the suffix `.rox`, or the slash at the end.
    `out/*.rox` has no name before the star, so its held-out corpus is a folder in
    `out`: `out/valid/*.rox`.
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
