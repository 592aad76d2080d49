"""Read the manifest of a corpus on a disk, or describe what is there instead."""

from __future__ import annotations

from typing import TYPE_CHECKING

from roxxel_store import roxxel_command
from roxxel_store.files import read_file
from roxxel_store.urls import is_pattern

from roxxel_format._read.shard import open_shard
from roxxel_format._spec.manifest_file import MAX_MANIFEST_SIZE
from roxxel_format._store.corpus_name import matching_files
from roxxel_format.errors import ShardError

if TYPE_CHECKING:
    from roxxel_format._store.corpus_name import CorpusName


def read_manifest(name: CorpusName, filepath: str) -> bytes:
    """Return the bytes of the manifest of a corpus, which `filepath` names.

    Raises:
        FileNotFoundError: There is no such file or folder, or no shard in it.
        ShardError: There are shards without a manifest, or files that are no shards.
    """
    try:
        return read_file(name.head, MAX_MANIFEST_SIZE, ShardError)
    except (FileNotFoundError, NotADirectoryError):
        found = matching_files(filepath)
    open_shard(found[0])  # An error about a file that is no shard, or damaged.
    more = f" and {len(found) - 1:,} more" if len(found) > 1 else ""
    where = filepath if is_pattern(filepath) else f"{filepath.rstrip('/')}/"
    command = roxxel_command(f'format verify "{where}" --adopt')
    raise ShardError(
        f"{filepath}: has no manifest, so nothing says whether {found[0]}{more} are "
        "all of a corpus; open a corpus by its own pattern or folder, and other files "
        "by a list of them; if a write is in progress or was interrupted, wait for it "
        f"or repeat it; if the manifest was lost, `{command}` makes a new one"
    )


def is_whole(path: str) -> bool:
    """Return whether a file is a corpus of one file, by its metadata."""
    try:
        return "arguments" in open_shard(path).metadata()
    except ShardError:
        return False
