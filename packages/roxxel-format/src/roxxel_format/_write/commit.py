"""Commit a manifest: compare it with the one that the write began from, then replace.

Committing is what makes shards a corpus (docs/format.md, section 10). The comparison
and the replacement happen under the commit lock. So if two writes began from the same
manifest, one commits, and `commit` returns False to the other.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from roxxel_format._spec.manifest import Manifest
from roxxel_format._spec.manifest_gate import parse_manifest
from roxxel_format._store.local import replace_file, sync_folder
from roxxel_format._store.locks import committing
from roxxel_format.errors import ManifestError

if TYPE_CHECKING:
    from pathlib import Path

    from roxxel_format._store.corpus_name import CorpusName


@dataclass(frozen=True, slots=True)
class Committed:
    """The manifest that a write found.

    Attributes:
        manifest: The parsed manifest; without versions if there is no file.
        data: Bytes of the file, compared when the write commits; None if there is no
            file.
    """

    manifest: Manifest
    data: bytes | None

    @property
    def is_begun(self) -> bool:
        """Whether a first write is in progress, or was interrupted."""
        return self.data == BEGUN.data

    def file_names(self) -> set[str]:
        """Return the names of all files that the manifest lists."""
        names = set(self.manifest.shards.names)
        for column in self.manifest.columns.values():
            names.update(name for name in column.names if name is not None)
        return names


BEGUN = Committed(Manifest(), Manifest().pack())
"""The manifest that a first write commits before its first shard."""


def read_committed(name: CorpusName, *, replaces: bool = False) -> Committed:
    """Return the manifest of a corpus as it is now.

    Args:
        name: The corpus.
        replaces: Whether the write replaces the corpus. A damaged manifest then counts
            as one without versions.

    Raises:
        ManifestError: The file is damaged, or not a manifest. A file of other JSON is
            never replaced: somebody else's `manifest.json` may lie in the folder.
    """
    data = _read(_manifest_path(name))
    if data is None:
        return Committed(Manifest(), None)
    try:
        return Committed(parse_manifest(data, str(name.manifest)), data)
    except ManifestError:
        if replaces and not _is_other_json(data):
            return Committed(Manifest(), data)
        raise


def commit(name: CorpusName, found: Committed, manifest: Manifest) -> bool:
    """Replace the manifest, unless another write committed since it was read.

    Args:
        name: The corpus.
        found: What `read_committed` returned; the new manifest is built on it.
        manifest: The new manifest. All files that it lists are flushed to the disk.

    Returns:
        Whether the manifest was replaced. If so, it is flushed to the disk.

    Raises:
        OSError: The replacement failed. The file is the old manifest or the new one;
            `read_committed` returns which.
    """
    path = _manifest_path(name)
    with committing(name):
        if _read(path) != found.data:
            return False
        replace_file(path, manifest.pack())
    return True


def withdraw(name: CorpusName) -> None:
    """Remove a manifest without versions; a manifest with versions stays."""
    path = _manifest_path(name)
    with committing(name):
        if _read(path) == BEGUN.data:
            path.unlink()
            sync_folder(path.parent)


def _manifest_path(name: CorpusName) -> Path:
    assert name.manifest is not None, "a single file has no manifest"  # noqa: S101
    return name.manifest


def _is_other_json(data: bytes) -> bool:
    try:
        table = json.loads(data)
    except (ValueError, RecursionError):
        return False
    return not (isinstance(table, dict) and "format" in table and "crc32" in table)


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
