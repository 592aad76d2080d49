"""Small corpora for the tests, and the commands that write and read them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np
from roxxel_format import Roxxel

from .extras.commands import main

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

__all__ = ["corpus_of", "documents_of", "main", "names_in", "short"]


def documents_of(*lengths: int, seed: int = 0) -> list[np.ndarray[Any, Any]]:
    """Return uint16 documents of these lengths."""
    rng = np.random.default_rng(seed)
    return [rng.integers(0, 2**16, n, np.uint16) for n in lengths]


def names_in(folder: Path) -> list[str]:
    """Return the names of the files in a folder, but for the lock files."""
    locks = ".lock", ".writers"
    return sorted(path.name for path in folder.iterdir() if path.suffix not in locks)


def short(names: Iterable[str]) -> list[str]:
    """Return names without what only one write has in them, and sorted.

    `c_0123456789ab_00000_001.rox` is `c_001.rox`.
    """
    return sorted(re.sub(r"[0-9a-f]{12}_00000_", "", name) for name in names)


def corpus_of(folder: Path, documents: Iterable[Any], **options: Any) -> Roxxel:
    """Write a corpus in shards of 1000 or so tokens, and return it."""
    corpus = Roxxel(folder / "c_*.rox")
    arguments: dict[str, Any] = {"block_size": 512, "max_shard_bytes": 12_000}
    corpus.write(documents, **(arguments | options))
    return corpus
