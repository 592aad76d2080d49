"""Read the manifest of a corpus on a disk, or describe what is there instead."""

from __future__ import annotations

from typing import TYPE_CHECKING

from roxxel_store import roxxel_command
from roxxel_store.files import read_file
from roxxel_store.urls import is_pattern

from roxxel_format._read.shard import open_shard
from roxxel_format._spec.manifest_file import MAX_MANIFEST_SIZE
from roxxel_format._store.corpus_name import matching_files, owners_of
from roxxel_format.errors import ShardError

if TYPE_CHECKING:
    from pathlib import Path

    from roxxel_format._store.corpus_name import CorpusName


def read_manifest(name: CorpusName, filepath: str) -> bytes:
    """Return the bytes of the manifest of a corpus, which `filepath` names.

    Raises:
        FileNotFoundError: There is no such file or folder, or no shard in it.
        ShardError: There are shards without a manifest.
    """
    data = _read(name.head)
    if data is None:
        bare = matching_files(filepath)
        data = _read(name.head)  # A first write may have been committed meanwhile.
        if data is None:
            raise bare_shards(filepath, bare)
    return data


def bare_shards(filepath: str, found: list[str]) -> ShardError:
    """Return the error about files that should be shards, and have no manifest.

    Raises:
        ShardError: The first file is no shard, or damaged.
    """
    open_shard(found[0])
    whole = [path for path in found if is_whole(path)]
    if whole:
        return ShardError(
            f"{filepath}: has no manifest, and {whole[0]} is a corpus of one file; "
            "open this file, or pass a list of the files to read them as one corpus"
        )
    owners = owners_of(found)
    bare = [path for path in found if path not in owners]
    if not bare:
        patterns = [*dict.fromkeys(owners.values())]
        return ShardError(
            f"{filepath}: has no manifest, and {found[0]} belongs to the corpus "
            f"{patterns[0]}{_and_more(patterns)}; open a corpus by its own pattern"
        )
    more = _and_more(bare)
    where = filepath if is_pattern(filepath) else f"{filepath.rstrip('/')}/"
    command = roxxel_command(f'format verify "{where}" --adopt')
    return ShardError(
        f"{filepath}: has no manifest, so nothing says whether {bare[0]}{more} are "
        "all of it; if a write is in progress or was interrupted, wait for it or "
        f"repeat it; else run `{command}`, which verifies them and writes one, or pass "
        "a list of the files to read"
    )


def _and_more(items: list[str]) -> str:
    return f" and {len(items) - 1:,} more" if len(items) > 1 else ""


def is_whole(path: str) -> bool:
    """Return whether a file is a corpus of one file, by its metadata."""
    try:
        return "arguments" in open_shard(path).metadata()
    except ShardError:
        return False


def _read(path: Path) -> bytes | None:
    try:
        return read_file(path, MAX_MANIFEST_SIZE, ShardError)
    except (FileNotFoundError, NotADirectoryError):
        return None
