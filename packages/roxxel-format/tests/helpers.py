"""Small corpora for the tests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from roxxel_format import Roxxel

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


def documents_of(*lengths: int, seed: int = 0) -> list[np.ndarray[Any, Any]]:
    """Return uint16 documents of these lengths."""
    rng = np.random.default_rng(seed)
    return [rng.integers(0, 2**16, n, np.uint16) for n in lengths]


def line_of(documents: list[Any], separator: list[int] | None = None) -> Any:
    """Return the token line these documents make."""
    end = np.array(separator or [], np.uint16)
    if not documents:
        return end[:0]
    return np.concatenate([part for each in documents for part in (each, end)])


def names_in(folder: Path) -> list[str]:
    """Return the names of the files in a folder, but for the permanent lock files."""
    locks = ".lock", ".writers"
    return sorted(path.name for path in folder.iterdir() if path.suffix not in locks)


def corpus_of(folder: Path, documents: Iterable[Any], **options: Any) -> Roxxel:
    """Write a corpus in shards of 1000 or so tokens, and return it."""
    corpus = Roxxel(folder / "c_*.rox")
    arguments: dict[str, Any] = {"block_size": 512, "max_shard_bytes": 12_000}
    corpus.write(documents, **(arguments | options))
    return corpus
