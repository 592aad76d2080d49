"""Which files may belong to a corpus, so that no other write takes or deletes them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from roxxel_store.urls import absolute, url_of

from roxxel_format._store.corpus_name import (
    corpus_name,
    meant,
    name_in_bucket,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from roxxel_format._store.corpus_name import OnePath


class CorpusFiles:
    """The files that belong to the corpus at a path, or that a write of it may make.

    Args:
        filepath: A file, a folder or a pattern; or a URL.
        sharded: Whether the write may make several shards.

    Raises:
        ValueError: No corpus can be written to the path.

    Example:
        >>> files = CorpusFiles("/data/wiki_*.rox")
        >>> files.has("/data/wiki_00007.rox"), files.has("/data/notes.txt")
        (True, False)
    """

    def __init__(self, filepath: OnePath, *, sharded: bool = False) -> None:
        url = url_of(filepath)
        self._is_in_bucket = url is not None
        if url is not None:
            folder, name = name_in_bucket(url)
            self._resolved: Callable[[str], str] = str
            self._named = [(folder.rstrip("/"), name)]
            return
        self._resolved = os.path.realpath
        names = [corpus_name(meant(absolute(filepath), sharded=sharded))]
        if names[0].manifest is None:  # The corpus may be one file, or become several.
            pattern = f"{names[0].prefix}_*{names[0].suffix}"
            names.append(corpus_name(str(names[0].folder / pattern)))
        self._named = [(self._resolved(str(name.folder)), name) for name in names]

    @property
    def filepath(self) -> str:
        """The path or URL to write to, even if other writes change the folder."""
        folder, name = self._named[0]
        return f"{folder}/{name.pattern}" if self._is_in_bucket else name.pattern

    def has(self, file: str) -> bool:
        """Return whether a file, by its path or URL, may belong to the corpus."""
        folder, _, name = file.rpartition("/")
        folder = self._resolved(folder or ".")
        return any(
            folder == of and (each.is_own(name) or name == each.head.name)
            for of, each in self._named
        )
