"""The files of a corpus without a manifest, and whether their writes are complete.

Shards of version 1 have no manifest. Their metadata records the write that made them
(`write`). A lock file is beside them while they are written, and a marker file while
they are replaced.
"""

from __future__ import annotations

import glob
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roxxel_format._spec.manifest_gate import parse_manifest
from roxxel_format._store.corpus_name import (
    SUFFIX,
    CorpusName,
    corpora_in,
    corpus_name,
)
from roxxel_format.errors import ShardError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

_DIGITS = re.compile(r"([0-9]+)")
_NUMBERED = re.compile(r"(.*?)([0-9]{5,})([^0-9]*)")


def find_shards(filepath: str) -> list[str]:
    """Return the shards that a path names, in natural order of their names.

    Args:
        filepath: A file, a folder (its `*.rox`), or a pattern.

    Raises:
        FileNotFoundError: The path names no file.
        ShardError: The path names shards of two corpora.
    """
    path = Path(filepath)
    if path.is_dir():
        found = _visible(path.glob("*" + SUFFIX))
        if not found:
            raise FileNotFoundError(
                f"{path}: the folder holds no {SUFFIX} file; write a corpus there, "
                "or check the path"
            )
    elif path.exists():
        return [filepath]
    elif not glob.has_magic(filepath):
        raise FileNotFoundError(
            f"{path}: no such file or folder; write the corpus first, or check the path"
        )
    else:
        # Brackets in the name of a folder that exists are not a pattern.
        base = path.parent
        while not base.is_dir():
            base = base.parent
        found = _visible(base.glob(str(path.relative_to(base))))
        if not found:
            raise FileNotFoundError(
                f"{path}: no file matches the pattern; write the corpus first, or "
                "check the path"
            )
    _check_one_corpus(filepath, found)
    _check_manifests(filepath, found)
    return found


def check_only_corpus(folder: Path, name: CorpusName) -> None:
    """Check that a folder with a manifest holds no shards of another corpus.

    Raises:
        ShardError: There are others, which the manifest of the folder does not list.
    """
    found = _visible(folder.glob("*" + SUFFIX))
    others = [path for path in found if not name.is_own(Path(path).name)]
    if others:
        raise ShardError(
            f"{folder}: holds {Path(others[0]).name} and {len(others) - 1} more shards "
            f'that do not belong to "{Path(name.pattern).name}", the corpus of its '
            "manifest; open each corpus by its pattern, or keep each in a folder of "
            "its own"
        )


def check_writes(
    filepath: str, paths: Sequence[str], write_of: Callable[[str], dict[str, Any]]
) -> None:
    """Check that the writes which made some shards of version 1 are complete.

    Args:
        filepath: A file, a folder or a pattern.
        paths: The shards that `filepath` names.
        write_of: Returns the `write` field of a shard's metadata.

    Raises:
        ShardError: A write was interrupted, or is in progress.
    """
    named = _numbered_name(filepath)
    if paths[0] == filepath or named is None:
        return
    # A folder means all corpora in it.
    prefix = "" if str(named.folder) == filepath else named.prefix
    corpora: dict[CorpusName, list[str]] = {}
    for path in paths:
        name = _name_of(path)
        if name is not None and name.prefix.startswith(prefix):
            corpora.setdefault(name, []).append(path)
    for name, group in corpora.items():
        marker = replacement_marker(name)
        if marker.exists():
            raise ShardError(
                f"{name.pattern}: a replacement of this corpus is in progress or was "
                "interrupted, so its shards belong to two corpora; wait for it, or "
                "write the corpus again"
            )
        # A lock file means that several writers may have appended at once and left
        # gaps, so every shard is checked. Otherwise the last shard is enough.
        if marker.with_suffix(".lock").exists():
            is_complete = are_complete([w for w in map(write_of, group) if w])
        else:
            is_complete = write_of(group[-1]).get("last") is not False
        if not is_complete:
            raise ShardError(
                f"{name.pattern}: a write of its {len(group)} shards was interrupted "
                "or is still in progress; write it again, or pass a list of the "
                "shards to read them as they are"
            )


def are_complete(writes: Iterable[Mapping[str, Any]]) -> bool:
    """Return whether all writes that `write` fields record are complete."""
    by_first: dict[object, list[Mapping[str, Any]]] = {}
    for write in writes:
        by_first.setdefault(write.get("first"), []).append(write)
    for group in by_first.values():
        found = [(write.get("position"), bool(write.get("last"))) for write in group]
        last = len(group) - 1
        expected = [(position, position == last) for position in range(len(group))]
        if sorted(found, key=str) != sorted(expected, key=str):
            return False
    return True


def replacement_marker(name: CorpusName) -> Path:
    """Return the marker file of version 1: it exists while a corpus is replaced."""
    return name.folder / f".{name.prefix}%{name.suffix}.replacing"


def natural_key(path: str) -> list[tuple[int, int, str]]:
    """Return a sort key by which runs of digits compare as numbers."""
    # Every second part is a run of digits.
    return [
        (1, int(part), part) if index % 2 else (0, 0, part)
        for index, part in enumerate(_DIGITS.split(path))
    ]


def _check_one_corpus(filepath: str, found: Sequence[str]) -> None:
    """Check that a path matches the shards of one corpus only.

    `wiki_*.rox` also matches `wiki_en_00000.rox`, and a folder matches all its shards.
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
            f"{ours[0]}) and {len(others)} shards of others (such as {others[0]}); "
            f'pass "{named.prefix}[0-9]*{named.suffix}" for this corpus alone, a '
            "list of patterns for both, or keep each corpus in a folder of its own"
        )


def _check_manifests(filepath: str, found: Sequence[str]) -> None:
    """Check that shards are of one corpus, and listed if it has a manifest.

    Raises:
        ShardError: The shards are of several corpora, or their manifest does not list
            all of them.
    """
    corpora = {folder: corpora_in(folder) for folder in {Path(p).parent for p in found}}
    owners: dict[CorpusName | None, list[str]] = {}
    for path in map(Path, found):
        owner = next((c for c in corpora[path.parent] if c.is_own(path.name)), None)
        owners.setdefault(owner, []).append(path.name)
    manifests = {name: each for name, each in owners.items() if name is not None}
    if len(owners) > 1 and manifests:
        known = ", ".join(sorted(name.pattern for name in manifests))
        raise ShardError(
            f"{filepath}: matches shards of several corpora ({known}); open each by "
            "its own pattern, or pass a list of patterns"
        )
    named = _numbered_name(filepath)
    for name, shards in manifests.items():
        path = name.manifest
        if path is None or name == named:  # made a moment ago: the caller looks again
            continue
        listed = parse_manifest(path.read_bytes(), str(path)).shards.names
        unlisted = sorted(set(shards).difference(listed))
        if unlisted:
            raise ShardError(
                f"{filepath}: matches {unlisted[0]}, which {path.name} does not list: "
                "its write was interrupted, is in progress, or was replaced; open the "
                f'corpus by its pattern, "{Path(name.pattern).name}"'
            )


def _numbered_name(filepath: str) -> CorpusName | None:
    """Return the numbered names that a path is written to, None for other paths."""
    try:
        name = corpus_name(filepath)
    except ValueError:
        return None
    return None if name.manifest is None else name


def _name_of(path: str) -> CorpusName | None:
    """Return the corpus that a numbered shard belongs to, None for other names."""
    folder, file_name = os.path.split(path)
    match = _NUMBERED.fullmatch(file_name)
    if match is None:
        return None
    name = CorpusName(Path(folder), match[1], match[3], Path(folder))
    return None if name.number(file_name) is None else name


def _visible(paths: Iterable[Path]) -> list[str]:
    """Return the paths in natural order, without hidden files."""
    found = [str(path) for path in paths if not path.name.startswith(".")]
    return sorted(found, key=natural_key)
