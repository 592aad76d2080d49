"""Find the corpus that a write changes, from the path that the user passed.

A plain name is a path without a star that does not exist, such as `wiki`. A write may
delete shards. So for a write, a plain name means numbered shards only if they have a
manifest, or if the metadata of each shard say that it was written under its number.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from roxxel_format._read.finding import resolved_to_read
from roxxel_format._read.shard import open_shard
from roxxel_format._spec.tables import says_number
from roxxel_format._store.corpus_name import corpus_name
from roxxel_format._store.plain_name import resolved
from roxxel_format._store.urls import is_url
from roxxel_format.errors import ShardError

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
    read = resolved_to_read(filepath)  # Raises if the path may mean two corpora.
    name = corpus_name(resolved(filepath, _says_number, sharded=sharded))
    is_other_name = name.manifest is None and name.single != Path(filepath)
    if is_other_name and read not in {filepath, str(name.single)}:
        # After a write of the file `t.rox`, the path `t` would mean two corpora.
        raise ShardError(
            f'{filepath}: may mean the file "{name.single.name}" or the shards '
            f'"{Path(read).name}"; pass one of these names'
        )
    try:
        (name.prefix + name.suffix).encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{name.pattern!r}: the manifest cannot list names that are not UTF-8; use "
            "other names, or a locale such as LC_ALL=C.UTF-8"
        ) from error
    return name


def _says_number(path: Path, several: CorpusName) -> bool:
    """Return whether a shard records that it was written under its number."""
    try:
        metadata = open_shard(str(path)).metadata()
    except ShardError:
        return False
    return says_number(metadata, several.number(path.name))
