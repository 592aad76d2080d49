"""The quickstart's corpora as shards on disk."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from roxxel_format import Roxxel

from roxxel.quickstart.corpus import docstrings
from roxxel.quickstart.folder import QuickstartError
from roxxel.quickstart.settings import SEPARATOR, VOCAB_SIZE

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from roxxel.quickstart.corpus import Library

_NAMES = ("library", "docstrings", "held_out")


@dataclass(frozen=True)
class Corpora:
    """What a run reads.

    Attributes:
        library: Sources of the standard library, one document a file.
        docstrings: The docstrings of the same files, one document a file.
        held_out: Sources that are in neither.
    """

    library: Roxxel
    docstrings: Roxxel
    held_out: Roxxel


def write_corpora(folder: Path, library: Library) -> None:
    """Write the three corpora into a folder, in place of what it holds.

    Args:
        folder: Made when missing, and emptied.
        library: The documents.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    prose = (docstrings(document) for document in library.train)
    contents: tuple[Iterable[bytes], ...] = (
        (document.content for document in library.train),
        (text for text in prose if text),
        (document.content for document in library.held_out),
    )
    for name, documents in zip(_NAMES, contents, strict=True):
        tokens = (np.frombuffer(d, np.uint8).astype(np.uint16) for d in documents)
        Roxxel(folder / f"{name}.rox").write(
            tokens, separator=SEPARATOR, vocab_size=VOCAB_SIZE, exist="error"
        )


def open_corpora(folder: Path) -> Corpora:
    """Open the corpora that `write_corpora` left in a folder.

    Raises:
        QuickstartError: One of them is missing.
        ShardError: A shard is damaged.
    """
    paths = [folder / f"{name}.rox" for name in _NAMES]
    for path in paths:
        if not path.is_file():
            raise QuickstartError(
                f"{path}: the run was trained on it and it is missing; "
                "put it back, or start over with --fresh"
            )
    return Corpora(*map(Roxxel, paths))
