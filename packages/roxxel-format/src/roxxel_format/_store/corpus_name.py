"""The names of a corpus on a disk: its path, its manifest, and its shards.

`dir/wiki_*.rox` is the corpus whose manifest is `dir/wiki_manifest.json`; the star of
a new shard becomes a number. A folder uses the one manifest in it, whatever its name;
a new corpus in a folder has `manifest.json` and shards `shard_00000.rox` and so on.
`dir/corpus.rox` is one file, which needs no manifest.
"""

from __future__ import annotations

import glob
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from roxxel_format._store.local import drafted_name, names_in

if TYPE_CHECKING:
    from collections.abc import Sequence

OnePath: TypeAlias = "str | os.PathLike[str]"
Filepath: TypeAlias = "OnePath | Sequence[OnePath]"

SUFFIX = ".rox"
_MANIFEST = "manifest"
_MANIFEST_SUFFIX = ".json"
_FOLDER_PREFIX = "shard_"
_UNIT_SHARD = re.compile(r"[0-9a-f]{12}_[0-9]{5,}_[0-9]{3,}")
_COLUMN_FILE = re.compile(r"(.+)\.[A-Za-z_][A-Za-z0-9_]*\.[0-9a-f]{8}\.bin")
_PATTERN = re.compile(r"([^*?\[\]]*)\*([^*?\[\]]*)")


@dataclass(frozen=True, slots=True)
class CorpusName:
    """The file names of one corpus in one folder.

    Attributes:
        folder: Holds the shards and the manifest.
        prefix: Text before the number in each shard's name.
        suffix: Text after the number in each shard's name.
        manifest: The manifest; None for a corpus of one file without a number,
            `prefix + suffix`.
    """

    folder: Path
    prefix: str
    suffix: str
    manifest: Path | None

    @property
    def pattern(self) -> str:
        """The corpus as messages name it."""
        star = "*" if self.manifest else ""
        return str(self.folder / f"{self.prefix}{star}{self.suffix}")

    @property
    def single(self) -> Path:
        """The file of a corpus without a manifest."""
        return self.folder / f"{self.prefix}{self.suffix}"

    @property
    def commit_lock(self) -> Path:
        """The file that is locked while the manifest is compared and replaced."""
        return self._beside("lock")

    @property
    def write_lock(self) -> Path:
        """The file that every write locks shared, and `clean` locks exclusively."""
        return self._beside("writers")

    def _beside(self, ending: str) -> Path:
        """Return the path of a hidden file beside the manifest or the single file."""
        return self.folder / f".{(self.manifest or self.single).name}.{ending}"

    def column(self, shard: str, column: str, unique: str) -> Path:
        """Return the path of a column's file.

        Args:
            shard: File name of the shard.
            column: Name of the column.
            unique: Eight hexadecimal digits, different for every write.
        """
        return self.folder / f"{shard.removesuffix(SUFFIX)}.{column}.{unique}.bin"

    def is_own(self, name: str) -> bool:
        """Return whether a file name is that of a new shard or of its column."""
        match = _COLUMN_FILE.fullmatch(name)
        shards = (match[1] + SUFFIX, match[1]) if match else (name,)
        return any(
            self.number(shard) is not None
            or _UNIT_SHARD.fullmatch(self._starred(shard) or "")
            for shard in shards
        )

    def shard(self, number: int) -> Path:
        """Return the path of a numbered shard."""
        return self.folder / f"{self.prefix}{number:05d}{self.suffix}"

    def unit_shard(self, job: str, unit: int, piece: int) -> Path:
        """Return the path of a shard that a unit of a preparation writes.

        Args:
            job: Digest of the job, 12 hexadecimal digits.
            unit: Number of the unit in its job.
            piece: Number of the shard in its unit.
        """
        star = f"{job}_{unit:05d}_{piece:03d}"
        return self.folder / f"{self.prefix}{star}{self.suffix}"

    def number(self, name: str) -> int | None:
        """Return the number in a shard's file name, None for other names."""
        digits = self._starred(name)
        if digits is None or not re.fullmatch("[0-9]{5,}", digits):
            return None
        return int(digits) if self.shard(int(digits)).name == name else None

    def _starred(self, name: str) -> str | None:
        """Return the part of a file name that stands for the star, None if it lacks."""
        if not (name.startswith(self.prefix) and name.endswith(self.suffix)):
            return None
        return name[len(self.prefix) : len(name) - len(self.suffix)]


def corpus_name(filepath: str) -> CorpusName:
    """Return the file names of the corpus that a path names.

    Args:
        filepath: A file, a folder, or a pattern with one `*` in its last part.

    Raises:
        ValueError: The path names several corpora: a pattern with other wildcards, or
            a folder of several manifests.
    """
    path = Path(filepath)
    if glob.has_magic(filepath) and not path.exists():
        in_folder = glob.has_magic(str(path.parent)) and not path.parent.is_dir()
        match = _PATTERN.fullmatch(path.name.replace("[0-9]*", "*"))
        if in_folder or match is None:
            raise ValueError(
                f"{filepath}: only one * in the last part of the path can be written "
                'to; use a pattern such as "wiki_*.rox"'
            )
        return _numbered(path.parent, match[1], match[2] or SUFFIX)
    if path.suffix == SUFFIX and not path.is_dir():
        return CorpusName(path.parent, path.name.removesuffix(SUFFIX), SUFFIX, None)
    return _of_folder(path)


def _numbered(folder: Path, prefix: str, suffix: str) -> CorpusName:
    ending = suffix.removesuffix(SUFFIX) + _MANIFEST_SUFFIX
    # A folder and the pattern of the shards that are written there are one corpus.
    start = "" if prefix == _FOLDER_PREFIX else prefix
    return CorpusName(folder, prefix, suffix, folder / f"{start}{_MANIFEST}{ending}")


def _of_folder(folder: Path) -> CorpusName:
    found = manifests_in(folder)
    if len(found) > 1:
        names = ", ".join(path.name for path in found)
        raise ValueError(
            f"{folder}: the folder holds {len(found)} corpora ({names}); name one by "
            'its pattern, such as "wiki_*.rox"'
        )
    if not found:
        return _numbered(folder, _FOLDER_PREFIX, SUFFIX)
    return _of_manifest(found[0])


def _of_manifest(path: Path) -> CorpusName:
    prefix, _, ending = path.name.rpartition(_MANIFEST)
    suffix = ending.removesuffix(_MANIFEST_SUFFIX) + SUFFIX
    return CorpusName(path.parent, prefix or _FOLDER_PREFIX, suffix, path)


def own_names(name: CorpusName) -> list[str]:
    """Return the names of a corpus's shards, columns and their drafts, sorted.

    `wiki_202400000.rox` fits `wiki_*.rox` and `wiki_2024*.rox`. It belongs to the
    corpus with the longer name, if that has a manifest.
    """
    size = len(name.prefix) + len(name.suffix)
    others = corpora_in(name.folder)
    longer = [each for each in others if len(each.prefix) + len(each.suffix) > size]
    owned: list[str] = []
    for each in names_in(name.folder):
        file_name = drafted_name(each) or each
        is_own = name.is_own(file_name)
        if is_own and not any(other.is_own(file_name) for other in longer):
            owned.append(each)
    return owned


def corpora_in(folder: Path) -> list[CorpusName]:
    """Return the corpora of a folder that have a manifest, the longest name first."""
    found = [_of_manifest(path) for path in manifests_in(folder)]
    return sorted(found, key=lambda each: -len(each.prefix) - len(each.suffix))


def manifests_in(folder: Path) -> list[Path]:
    """Return the manifests of a folder, sorted by name; [] if there is no folder."""
    if not folder.is_dir():
        return []
    pattern = f"*{_MANIFEST}*{_MANIFEST_SUFFIX}"
    return sorted(path for path in folder.glob(pattern) if path.name[0] != ".")


def absolute(filepath: Filepath) -> str | tuple[str, ...]:
    """Return a path or paths as absolute paths, without touching any file.

    Raises:
        TypeError: `filepath` is neither a path nor a list of paths.
        ValueError: A path is empty.
    """
    if isinstance(filepath, (str, os.PathLike)):
        return _absolute_path(filepath)
    try:
        return tuple(map(_absolute_path, filepath))
    except TypeError:
        raise TypeError(
            f"filepath is {filepath!r}; pass a path, a pattern, or a list of them"
        ) from None


def _absolute_path(path: OnePath) -> str:
    text = os.fspath(path)
    if not text:
        raise ValueError('filepath is empty; pass "." for this folder')
    return str(Path(text).absolute())
