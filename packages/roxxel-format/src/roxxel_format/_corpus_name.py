"""Names of a corpus: which corpus a path means, and which files may be its own.

`dir/wiki_*.rox` is the corpus whose manifest is `dir/wiki_manifest.json`. In place of
the star, a new shard's name has a digest that is unique to its write, and two numbers.
The path of a folder names the corpus of the only manifest in the folder, and so does
`dir/*.rox`. A new corpus in a folder has the manifest `manifest.json` and the shards
`shard_*.rox`. `dir/corpus.rox` is a corpus of one file, without a manifest. So is
`dir/corpus` if no file or folder has this name; `dir/corpus/` is always a folder.
`meant` says when such a path means shards instead.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from roxxel_store import roxxel_command
from roxxel_store.files import MAX_BYTES, matches_in, matches_of, read_file, visible
from roxxel_store.urls import UrlError, absolute, is_pattern, url_of

from roxxel_format.errors import ShardError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

OnePath: TypeAlias = "str | os.PathLike[str]"
Filepath: TypeAlias = "OnePath | Sequence[OnePath]"

SUFFIX = ".rox"
_MANIFEST = "manifest"
_MANIFEST_SUFFIX = ".json"
_FOLDER_PREFIX = "shard_"
_SHARD_NUMBER = re.compile(r"[0-9]{5}|[1-9][0-9]{5,}")  # Of a user's `ShardWriter`.
_UNIT_SHARD = re.compile(r"([0-9a-f]{12})_[0-9]{5,}_[0-9]{3,}")
_UNIT_RECORD = re.compile(r"([0-9a-f]{12})_[0-9]{5,}\.unit")
_DIGEST = re.compile(r"[0-9a-f]{16}")
_COLUMN_FILE = re.compile(r"(.+)\.[A-Za-z_][A-Za-z0-9_]*\.[0-9a-f]{8}\.bin")
_TEXT = re.compile(rb'"(?:[^"\\]|\\.)*"')
_PATTERN = re.compile(r"([^*?\[\]]*)\*([^*?\[\]]*)")


@dataclass(frozen=True, slots=True)
class CorpusName:
    """The file names of one corpus in one folder.

    A shard's name is `prefix`, a unique part, and `suffix`. `manifest` is None for a
    corpus of one file; the name of this file is `prefix + suffix`.
    """

    folder: Path
    prefix: str
    suffix: str
    manifest: Path | None

    @property
    def pattern(self) -> str:
        """Path of the corpus, for error messages."""
        star = "*" if self.manifest else ""
        return str(self.folder / f"{self.prefix}{star}{self.suffix}")

    @property
    def is_folder(self) -> bool:
        """Whether the path of the folder names this corpus, if it is the only one."""
        return self.manifest is not None and self.prefix == _FOLDER_PREFIX

    @property
    def single(self) -> Path:
        """Path of the file of a corpus without a manifest."""
        return self.folder / f"{self.prefix}{self.suffix}"

    @property
    def head(self) -> Path:
        """Path of the file that makes a corpus: the manifest, or the only file."""
        return self.manifest or self.single

    @property
    def commit_lock(self) -> Path:
        """Path of the file to lock while comparing and replacing the manifest."""
        return self._beside("lock")

    @property
    def write_lock(self) -> Path:
        """Path of the lock file: writes share its lock, `clean` holds it alone."""
        return self._beside("writers")

    @property
    def plan(self) -> Path:
        """Path of the plan of a preparation, until the preparation is committed."""
        return self._beside("plan")

    def unit_record(self, job: str, unit: int) -> Path:
        """Return the path of the file that marks one unit of a preparation as done."""
        return self._beside(f"{job}_{unit:05d}.unit")

    def job_of(self, name: str) -> str | None:
        """Return the job that a unit's file has in its name; None for other names."""
        starred = (self._starred(shard) or "" for shard in shards_of(name))
        match = next(filter(None, map(_UNIT_SHARD.fullmatch, starred)), None)
        start = self._beside("").name
        if match is None and name.startswith(start):
            match = _UNIT_RECORD.fullmatch(name[len(start) :])
        return match[1] if match else None

    def _beside(self, ending: str) -> Path:
        """Return the path of a hidden file beside the manifest or the single file."""
        return self.folder / f".{self.head.name}.{ending}"

    def column(self, shard: str, column: str, unique: str) -> Path:
        """Return the path of a column's file; `unique` is 8 hexadecimal digits."""
        return self.folder / f"{shard.removesuffix(SUFFIX)}.{column}.{unique}.bin"

    def tokenizer(self, digest: str) -> Path:
        """Return the path of the file that keeps a tokenizer.

        `digest` has 16 hexadecimal digits.
        """
        before, after = self._around_tokenizer
        return self.folder / f"{before}{digest}{after}"

    def keeps_tokenizer(self, name: str) -> bool:
        """Return whether a file that keeps a tokenizer of this corpus has this name."""
        before, after = self._around_tokenizer
        digest = name.removeprefix(before).removesuffix(after)
        return _DIGEST.fullmatch(digest) is not None and (
            name == f"{before}{digest}{after}"
        )

    @property
    def _around_tokenizer(self) -> tuple[str, str]:
        if self.manifest is None:
            # Not `a.<digest>.tokenizer`, which the corpus `a.*.rox` may keep beside it.
            return f"{self.single.name}.tokenizer.", ""
        return self.prefix, f"{self.suffix.removesuffix(SUFFIX)}.tokenizer"

    def is_own(self, name: str) -> bool:
        """Return whether a shard or column file of this corpus could have this name."""
        return any(self.piece_of(shard) is not None for shard in shards_of(name))

    def unit_shard(self, job: str, unit: int, piece: int) -> Path:
        """Return the path of shard `piece` of one unit of a preparation.

        `job` is the digest of the preparation, 12 hexadecimal digits.
        """
        star = f"{job}_{unit:05d}_{piece:03d}"
        return self.folder / f"{self.prefix}{star}{self.suffix}"

    def piece_of(self, name: str) -> tuple[str, int] | None:
        """Return the number that counts pieces in a shard's name, after its beginning.

        `wiki_0123456789ab_00007_002.rox` is `("0123456789ab_00007_", 2)`, and
        `wiki_00002.rox` of a user's `ShardWriter` is `("", 2)`. None for other names.
        """
        star = self._starred(name) or ""
        if _UNIT_SHARD.fullmatch(star):
            start, _, piece = star.rpartition("_")
            return f"{start}_", int(piece)
        return ("", int(star)) if _SHARD_NUMBER.fullmatch(star) else None

    def piece(self, start: str, number: int) -> str:
        """Return the name of a shard from what `piece_of` returns of it."""
        return f"{self.prefix}{start}{number:0{3 if start else 5}d}{self.suffix}"

    def _starred(self, name: str) -> str | None:
        """Return a name's text in place of the star; None if it does not match."""
        if not (name.startswith(self.prefix) and name.endswith(self.suffix)):
            return None
        return name[len(self.prefix) : len(name) - len(self.suffix)]


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


def shards_of(name: str) -> tuple[str, ...]:
    """Return the possible names of the shard to which a file belongs.

    The file is a shard itself, or a column of a shard.
    """
    match = _COLUMN_FILE.fullmatch(name)
    return (match[1] + SUFFIX, match[1]) if match else (name,)


def corpus_name(filepath: str) -> CorpusName:
    """Return the file names of the corpus at a file, folder or pattern.

    Raises:
        ValueError: The path may name several corpora: a pattern has other wildcards
            than one `*` in its last part, or a folder has several manifests.
    """
    path = Path(filepath)
    if is_pattern(filepath):
        # `wiki_[0-9]*.rox` names the shards of `wiki_*.rox`.
        match = _PATTERN.fullmatch(path.name.replace("[0-9]*", "*"))
        if is_pattern(str(path.parent)) or match is None:
            raise ValueError(
                f"{filepath}: the path of a corpus may have one *, in its last part; "
                'use a pattern such as "wiki_*.rox", or a list of paths to read'
            )
        prefix, suffix = match[1], match[2] or SUFFIX
        if not prefix and suffix == SUFFIX:
            return _of_folder(path.parent)
        return _numbered(path.parent, prefix, suffix)
    if is_folder(filepath):
        return _of_folder(path)
    suffix = SUFFIX
    if path.suffix != SUFFIX and os.path.lexists(path):
        suffix = ""  # A shard that a user has renamed can be read, not written.
    return CorpusName(path.parent, path.name.removesuffix(SUFFIX), suffix, None)


def meant(filepath: str, *, sharded: bool = False) -> str:
    """Return the path or pattern that the path of a corpus means.

    A pattern, a file or folder that exists, and a path that ends with a slash mean
    themselves. Any other path is short for what exists: `t` for the file `t.rox`, and
    `t` or `t.rox` for the shards `t_*.rox` if they have a manifest. If none of these
    exists, it means the shards if the write is `sharded`, else itself.

    Raises:
        ShardError: Both the file and the manifest exist.
    """
    path = Path(filepath)
    if is_pattern(filepath) or is_folder(filepath) or os.path.lexists(path):
        return filepath
    single = path.with_name(path.name.removesuffix(SUFFIX) + SUFFIX)
    several = _numbered(path.parent, f"{single.stem}_", SUFFIX)
    has_several = several.manifest is not None and several.manifest.exists()
    if not single.exists():
        return several.pattern if has_several or sharded else filepath
    if has_several:
        raise ShardError(
            f'{filepath}: may mean the file "{single.name}" or the shards '
            f'"{Path(several.pattern).name}"; pass one of these names'
        )
    return str(single)


def name_to_write(filepath: str | tuple[str, ...]) -> CorpusName:
    """Return the file names of the corpus on a disk that a write to a path changes."""
    found = named_to_write(filepath)
    if isinstance(found, str):
        raise UrlError(
            f"{found}: this cannot be done in a bucket; do it on a disk, then copy the "
            f"corpus (`Roxxel.copy_to`, or `{roxxel_command('format copy')}`)"
        )
    return found


def named_to_write(target: Filepath, *, sharded: bool = False) -> CorpusName | str:
    """Return the file names of the corpus that a write changes, or its URL.

    `sharded` is whether the write may make several shards.
    """
    filepath = absolute(target)
    if isinstance(filepath, tuple):
        raise TypeError(
            f"a list of {len(filepath)} paths cannot be written to; "
            'use a file, a folder, or a pattern such as "wiki_*.rox"'
        )
    if url_of(filepath) is not None:
        return filepath
    name = corpus_name(meant(filepath, sharded=sharded))
    file = name.folder if name.suffix else name.single
    if file.exists() and not file.is_dir():
        raise NotADirectoryError(
            f"{file}: is no folder; name a corpus by a folder, by a file that "
            f'ends with {SUFFIX}, or by a pattern such as "wiki_*{SUFFIX}"'
        )
    if name.manifest is None:
        for pattern in owners_of([str(name.single)]).values():
            raise ValueError(
                f"{name.single}: is a shard of the corpus {pattern!r}; write to the "
                "pattern, in quotes so that the shell does not expand it"
            )
    return name


def owners_of(paths: Iterable[str]) -> dict[str, str]:
    """Return the pattern of the corpus to which each file belongs.

    Files that no manifest beside them names are left out. A file's name alone does not
    tell: `c_20240101.rox` may be a corpus of one file.
    """
    folders: dict[Path, list[tuple[CorpusName, set[bytes]]]] = {}
    found: dict[str, str] = {}
    for path in paths:
        file = Path(path)
        if file.parent not in folders:
            manifests = manifests_in(file.parent)
            folders[file.parent] = [(_of_manifest(m), _texts_in(m)) for m in manifests]
        for corpus, texts in folders[file.parent]:
            if quoted(file.name) in texts:
                found[path] = corpus.pattern
    return found


def quoted(name: str) -> bytes:
    """Return a name as a manifest holds it."""
    return json.dumps(name, ensure_ascii=False).encode("utf-8", "surrogateescape")


def _texts_in(manifest: Path) -> set[bytes]:
    """Return the quoted texts of a manifest.

    There are none if the manifest cannot be read; its readers get the error.
    """
    try:
        return {*_TEXT.findall(read_file(manifest, MAX_BYTES))}
    except (OSError, ValueError):
        return set()


def is_folder(filepath: str) -> bool:
    """Return whether a path is a folder that exists, or ends with a slash."""
    return filepath.endswith("/") or Path(filepath).is_dir()


def _numbered(folder: Path, prefix: str, suffix: str) -> CorpusName:
    ending = suffix.removesuffix(SUFFIX) + _MANIFEST_SUFFIX
    # A folder and the pattern `shard_*.rox` in it name the same corpus.
    prefix = prefix or _FOLDER_PREFIX
    start = "" if prefix == _FOLDER_PREFIX else prefix
    return CorpusName(folder, prefix, suffix, folder / f"{start}{_MANIFEST}{ending}")


def _of_folder(folder: Path) -> CorpusName:
    found = manifests_in(folder)
    if len(found) > 1:
        names = ", ".join(path.name for path in found)
        raise ValueError(
            f"{folder}: the folder holds {len(found)} corpora ({names}); pass the "
            'pattern of one corpus, such as "wiki_*.rox"'
        )
    if not found:
        return _numbered(folder, "", SUFFIX)
    return _of_manifest(found[0])


def _of_manifest(path: Path) -> CorpusName:
    prefix, _, ending = path.name.rpartition(_MANIFEST)
    suffix = ending.removesuffix(_MANIFEST_SUFFIX) + SUFFIX
    return CorpusName(path.parent, prefix or _FOLDER_PREFIX, suffix, path)


def manifest_urls(url: str) -> list[str]:
    """Return the URLs at which the manifest of a corpus in a bucket may be.

    Objects are not listed, so a folder and the pattern of its shards are both tried.

    Raises:
        ValueError: The URL has a star, but not the form of a pattern: one star in the
            last part, no other wildcard, and the ending `.rox`.
    """
    at, _, last = url.rpartition("/")
    match = _PATTERN.fullmatch(last)
    if match is not None and match[2].endswith(SUFFIX) and "*" not in at:
        manifest = _numbered(Path(), match[1], match[2]).manifest
        return [f"{at}/{manifest}"]
    if "*" in url:
        raise ValueError(
            f"{url}: in a bucket, a pattern has one star in its last part and ends "
            f'with {SUFFIX}, such as "wiki_*{SUFFIX}"'
        )
    name = f"{_MANIFEST}{_MANIFEST_SUFFIX}"
    several = f"{at}/{last.removesuffix(SUFFIX)}_{name}"
    return [several] if last.endswith(SUFFIX) else [f"{url}/{name}", several]


def name_in_bucket(url: str) -> tuple[str, CorpusName]:
    """Return the folder of a corpus in a bucket, and the names of its files in it.

    The URL is a pattern or a folder. The folder's URL ends with a slash.
    `CorpusName.folder` is not used.

    Raises:
        ValueError: The URL names one file, or is not a pattern that can be written to.
    """
    if url.endswith(SUFFIX) and "*" not in url:
        several = f"{url.removesuffix(SUFFIX)}_*{SUFFIX}"
        raise ValueError(
            f"{url}: a corpus in a bucket has a manifest, so a single file cannot be "
            f"written there; use a pattern such as {several}"
        )
    folder, _, _ = manifest_urls(url)[0].rpartition("/")
    match = _PATTERN.fullmatch(url.rpartition("/")[2])
    prefix, suffix = (match[1], match[2]) if match else ("", SUFFIX)
    return f"{folder}/", _numbered(Path(), prefix, suffix)


def manifests_in(folder: Path) -> list[Path]:
    """Return the manifests in a folder, sorted by name; [] without a folder."""
    if not folder.is_dir():
        return []
    pattern = f"*{_MANIFEST}*{_MANIFEST_SUFFIX}"
    return sorted(path for path in matches_in(folder, pattern) if path.name[0] != ".")


def matching_files(filepath: str) -> list[str]:
    """Return the files that a file, folder or pattern names, in natural order.

    The files of a folder are its visible `*.rox` files.

    Raises:
        FileNotFoundError: There is no such file.
    """
    path = Path(filepath)
    if path.is_dir():
        found = visible(matches_in(path, "*" + SUFFIX))
        if not found:
            raise FileNotFoundError(
                f"{path}: the folder holds no {SUFFIX} file; write a corpus there, "
                "or check the path"
            )
        return found
    if path.exists():
        return [filepath]
    if not is_pattern(filepath):
        raise FileNotFoundError(
            f"{path}: no such file or folder; write the corpus first, or check the path"
        )
    _, found = matches_of(filepath)
    if not found:
        raise FileNotFoundError(
            f"{path}: no file matches the pattern; write the corpus first, or "
            "check the path"
        )
    return found
