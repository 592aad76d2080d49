"""Find and remove the files that killed writers left."""

from __future__ import annotations

from typing import TYPE_CHECKING

from roxxel_format._store.corpus_name import own_names
from roxxel_format._store.local import draft_path, drafted_name, names_in
from roxxel_format._store.locks import alone
from roxxel_format._write.commit import read_committed, withdraw

if TYPE_CHECKING:
    from pathlib import Path

    from roxxel_format._store.corpus_name import CorpusName


def leftovers(name: CorpusName) -> list[Path]:
    """Return the files of a corpus that its manifest does not list.

    They are drafts, shards and columns that no write committed, and a manifest without
    versions. Some may belong to writes in progress, or to an interrupted preparation
    that the same command would continue.

    Raises:
        ManifestError: The manifest is damaged.
    """
    names = names_in(name.folder)
    if name.manifest is None:
        drafts = {draft_path(name.single).name}
        is_left = [each in drafts for each in names]
    else:
        found = read_committed(name)
        listed = found.file_names()
        if found.manifest.versions:
            listed.add(name.manifest.name)
        has_manifest = found.data is not None
        own = set(own_names(name))
        is_left = [
            _is_left(name, each, own, has_manifest=has_manifest) and each not in listed
            for each in names
        ]
    return [
        name.folder / each for each, left in zip(names, is_left, strict=True) if left
    ]


def remove_leftovers(name: CorpusName) -> list[Path]:
    """Remove the files of a corpus that its manifest does not list.

    Returns:
        The files that were removed.

    Raises:
        BlockingIOError: A write is in progress.
        OSError: A file cannot be removed, or the file system has no working `flock`.
    """
    if not leftovers(name):
        return []
    with alone(name):
        found = leftovers(name)
        for path in found:
            if path == name.manifest:
                continue
            path.unlink()
        if name.manifest in found:
            withdraw(name)
        # The lock of a single file is its draft, which `alone` may have created.
        draft_path(name.single).unlink(missing_ok=True)
    return found


def _is_left(
    name: CorpusName, file_name: str, own: set[str], *, has_manifest: bool
) -> bool:
    drafted = drafted_name(file_name)
    if drafted is not None:
        return file_name in own or _is_manifest(name, drafted)
    # Without a manifest, the shards are a corpus of version 1.
    return has_manifest and (file_name in own or _is_manifest(name, file_name))


def _is_manifest(name: CorpusName, file_name: str) -> bool:
    return name.manifest is not None and file_name == name.manifest.name
