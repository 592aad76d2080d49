"""Find the files of a corpus on a disk, and check that they are one complete corpus.

Older versions wrote numbered shards without a manifest. They recorded the write in the
metadata (`write`), left a lock file if several writers could append, and kept a marker
file during a replacement.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roxxel_format._read.shard import open_shard
from roxxel_format._spec.manifest import MAX_MANIFEST_SIZE, parse_manifest
from roxxel_format._spec.tables import are_complete, as_table, is_of_one_file
from roxxel_format._store.corpus_name import (
    SUFFIX,
    CorpusName,
    corpora_in,
    corpus_name,
    is_pattern,
    matching_files,
    spellings,
    visible,
)
from roxxel_format._store.plain_name import resolved
from roxxel_format._store.reading import read_file
from roxxel_format.errors import OldShardError, ShardError

if TYPE_CHECKING:
    from collections.abc import Sequence

_NUMBERED = re.compile(r"(.*?)([0-9]{5,})([^0-9]*)")


def resolved_to_read(filepath: str) -> str:
    """Return the path or pattern that a reader of `filepath` opens.

    Raises:
        ShardError: The name may mean either a file or numbered shards.
    """
    return resolved(filepath, _may_be_shard)


def _may_be_shard(path: Path, several: CorpusName) -> bool:
    """Return whether a file may be a numbered shard; True for a damaged shard."""
    number = several.number(path.name)
    try:
        metadata = open_shard(str(path)).metadata()
    except OldShardError:
        return True
    except (OSError, ShardError):
        return number is not None
    return number is not None and not is_of_one_file(metadata, number)


def read_manifest(filepath: str) -> tuple[Path, bytes] | None:
    """Return path and bytes of a corpus's manifest; None without a manifest."""
    try:
        path = corpus_name(filepath).manifest
    except ValueError as error:
        if is_pattern(filepath):
            return None
        raise ShardError(str(error)) from error
    if path is None:
        return None
    try:
        return path, read_file(path, MAX_MANIFEST_SIZE)
    except (FileNotFoundError, NotADirectoryError):
        return None


def find_shards(filepath: str) -> list[str]:
    """Return the shards of a file, folder or pattern, in natural order."""
    found = matching_files(filepath)
    if found == [filepath]:
        return found
    _check_one_corpus(filepath, found)
    _check_manifests(filepath, found)
    return found


def check_only_corpus(name: CorpusName, listed: Sequence[str]) -> None:
    """Check that every shard in the folder belongs to the corpus `name`."""
    found = visible(name.folder.glob("*" + SUFFIX))
    own = spellings(name, listed)
    others = [
        path for path in found if not any(each.is_own(Path(path).name) for each in own)
    ]
    if others:
        raise ShardError(
            f"{name.folder}: holds {Path(others[0]).name} and {len(others) - 1} more "
            f'shards that do not belong to "{Path(name.pattern).name}", the corpus of '
            "its manifest; open each corpus by its pattern, or keep each in a folder "
            "of its own"
        )


def check_writes(filepath: str, paths: Sequence[str]) -> None:
    """Check that no write of these shards, which have no manifest, was interrupted."""
    named = _numbered_name(filepath)
    if paths[0] == filepath or named is None:
        return
    # The path of a folder names all corpora in the folder.
    prefix = "" if str(named.folder) == filepath else named.prefix
    corpora: dict[CorpusName, list[str]] = {}
    for path in paths:
        name = _name_of(path)
        if name is not None and name.prefix.startswith(prefix):
            corpora.setdefault(name, []).append(path)
    for name, group in corpora.items():
        marker = name.replacement_marker
        if marker.exists():
            raise ShardError(
                f"{name.pattern}: a replacement of this corpus is in progress or was "
                "interrupted, so its shards belong to two corpora; wait for it, or "
                "write the corpus again"
            )
        # If a lock file exists, several writers may have appended at once and left
        # gaps, so check every shard. Otherwise check the last shard.
        if marker.with_suffix(".lock").exists():
            is_complete = are_complete([w for w in map(_write_of, group) if w])
        else:
            is_complete = _write_of(group[-1]).get("last") is not False
        if not is_complete:
            raise ShardError(
                f"{name.pattern}: a write of its {len(group)} shards was interrupted "
                "or is still in progress; write the corpus again, or pass a list of "
                "the shards to read them anyway"
            )


def _check_one_corpus(filepath: str, found: Sequence[str]) -> None:
    """Check that a path matches shards of only one corpus.

    For example, `wiki_*.rox` also matches `wiki_en_00000.rox`.
    """
    named = _numbered_name(filepath)
    if named is None:
        return
    names = [Path(path).name for path in found]
    ours = [name for name in names if named.number(name) is not None]
    others = [name for name in names if named.number(name) is None]
    if ours and others and "[0-9]*" not in filepath:
        raise ShardError(
            f"{filepath}: matches {len(ours)} shards of this corpus (such as "
            f"{ours[0]}) and {len(others)} other shards (such as {others[0]}); "
            f'pass "{named.prefix}[0-9]*{named.suffix}" for only this corpus, or a '
            "list of patterns for both, or keep each corpus in its own folder"
        )


def _check_manifests(filepath: str, found: Sequence[str]) -> None:
    """Check that the shards are of one corpus, and that its manifest lists them."""
    corpora = {folder: corpora_in(folder) for folder in {Path(p).parent for p in found}}
    owners: dict[CorpusName | None, list[str]] = {}
    for path in map(Path, found):
        owner = next((c for c in corpora[path.parent] if c.is_own(path.name)), None)
        owners.setdefault(owner, []).append(path.name)
    manifests = {name: each for name, each in owners.items() if name is not None}
    if len(owners) > 1 and manifests:
        known = ", ".join(sorted(name.pattern for name in manifests))
        raise ShardError(
            f"{filepath}: matches shards of several corpora ({known}); open each "
            "corpus by its own pattern, or pass a list of patterns"
        )
    named = _numbered_name(filepath)
    for name, shards in manifests.items():
        path = name.manifest
        if path is None or name == named:  # Just committed: the caller reads it.
            continue
        listed = parse_manifest(
            read_file(path, MAX_MANIFEST_SIZE), str(path)
        ).shards.names
        unlisted = sorted(set(shards).difference(listed))
        if unlisted:
            raise ShardError(
                f"{filepath}: matches {unlisted[0]}, which {path.name} does not list: "
                "its write was interrupted, is in progress, or was replaced; open the "
                f'corpus by its pattern, "{Path(name.pattern).name}"'
            )


def _numbered_name(filepath: str) -> CorpusName | None:
    """Return the corpus of numbered shards that a path names, or None."""
    try:
        name = corpus_name(filepath)
    except ValueError:
        return None
    return None if name.manifest is None else name


def _name_of(path: str) -> CorpusName | None:
    """Return the corpus that a numbered shard belongs to, or None."""
    folder, file_name = os.path.split(path)
    match = _NUMBERED.fullmatch(file_name)
    if match is None:
        return None
    name = CorpusName(Path(folder), match[1], match[3], Path(folder))
    return None if name.number(file_name) is None else name


def _write_of(path: str) -> dict[str, Any]:
    """Return the `write` field of a shard's metadata, or {}."""
    try:
        metadata = open_shard(path).metadata()
    except ShardError:
        return {}  # `verify` reports damaged metadata.
    return as_table(metadata.get("write"))
