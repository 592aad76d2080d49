"""Find the corpus that a write changes, from the path that the user passed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from roxxel_store.urls import is_url

from roxxel_format._store.corpus_name import corpus_name, meant

if TYPE_CHECKING:
    from roxxel_format._store.corpus_name import CorpusName


def name_to_write(
    filepath: str | tuple[str, ...], *, sharded: bool = False
) -> CorpusName:
    """Return the file names of the corpus that a write to a path changes.

    `sharded` is whether the write may make several shards.
    """
    if isinstance(filepath, tuple):
        raise TypeError(
            f"a list of {len(filepath)} paths cannot be written to; "
            'use a file, a folder, or a pattern such as "wiki_*.rox"'
        )
    if is_url(filepath):
        raise ValueError(
            f"{filepath}: this cannot be done in a bucket; do it on a disk, then copy "
            "the corpus (`Roxxel.copy_to`, or `roxxel-format copy`)"
        )
    name = corpus_name(meant(filepath, sharded=sharded))
    try:
        (name.prefix + name.suffix).encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{name.pattern!r}: the manifest cannot list names that are not UTF-8; use "
            "other names, or a locale such as LC_ALL=C.UTF-8"
        ) from error
    return name
