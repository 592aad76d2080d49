"""The manifest: the one file that says which shards are a corpus.

docs/format.md, section 10, is the specification. A manifest is one JSON object, by
columns: a list for each field of a shard. Its last member is a CRC-32 of the bytes
before it, so a damaged manifest is an error before any other check. Nothing here
touches a file.
"""

from __future__ import annotations

import json
import re
import zlib
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import pairwise
from typing import TYPE_CHECKING, Any, cast

from roxxel_format._spec import dtypes
from roxxel_format._spec.layout import FIRST_IS_CONTINUED, LAST_CONTINUES
from roxxel_format.errors import ManifestError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from roxxel_format._spec.layout import Layout

MANIFEST_VERSION = 1
_FORMAT = "roxxel manifest"
_DIGEST_DIGITS = 64
_FINGERPRINT_SIZE = 16
_TAIL = re.compile(rb',"crc32":"([0-9a-f]{8})"\}\n')
_TAIL_SIZE = len(b',"crc32":"00000000"}\n')
_HEX = re.compile(r"[0-9a-f]*")
_FILE_NAME = re.compile(r"[^./\\:\0][^/\\:\0]*")


@dataclass(frozen=True, slots=True)
class ShardTable:
    """What a manifest says of its shards: lists of the same length, in order.

    Attributes:
        names: File names, without a folder.
        num_bytes: Size of each file.
        num_tokens: Tokens, separators included.
        num_documents: Documents, parts of documents included.
        min_values: Least item of integer types; 0 for other types and no items.
        max_values: Greatest item, likewise.
        flags: `FIRST_IS_CONTINUED`, `LAST_CONTINUES`, as in the foot.
        content_digests: As in the foot, 64 hexadecimal digits.
        digests: As in the foot, 64 hexadecimal digits.
    """

    names: Sequence[str] = ()
    num_bytes: Sequence[int] = ()
    num_tokens: Sequence[int] = ()
    num_documents: Sequence[int] = ()
    min_values: Sequence[int] = ()
    max_values: Sequence[int] = ()
    flags: Sequence[int] = ()
    content_digests: Sequence[str] = ()
    digests: Sequence[str] = ()

    @classmethod
    def of(cls, names: Sequence[str], layouts: Sequence[Layout]) -> ShardTable:
        """Return the table of shards whose heads and feet are known.

        Args:
            names: File names, in order.
            layouts: What the head and foot of each say.
        """
        rows = [row_of(*each) for each in zip(names, layouts, strict=True)]
        return cls(*map(list, zip(*rows, strict=True))) if rows else cls()

    def __len__(self) -> int:
        return len(self.names)

    def own_documents(self) -> list[int]:
        """Return for each shard how many documents begin in it."""
        counts: list[int] = []
        goes_on = False
        for count, flags in zip(self.num_documents, self.flags, strict=True):
            counts.append(count - (goes_on and bool(flags & FIRST_IS_CONTINUED)))
            goes_on = bool(flags & LAST_CONTINUES)
        return counts

    def __add__(self, other: ShardTable) -> ShardTable:
        """Return these shards, then those of another table."""
        return ShardTable(
            *([*a, *b] for a, b in zip(self._all, other._all, strict=True))
        )

    def first(self, num_shards: int) -> ShardTable:
        """Return the first `num_shards` shards."""
        return ShardTable(*(column[:num_shards] for column in self._all))

    def row(self, number: int) -> tuple[Any, ...]:
        """Return what is said of one shard: the columns' items, in order."""
        return tuple(column[number] for column in self._all)

    def fingerprints(self, counts: Iterable[int]) -> list[str]:
        """Return the fingerprints (docs/format.md, section 8) of some first shards.

        Args:
            counts: How many first shards each fingerprint covers, ascending.
        """
        digest = blake2b(b"roxxel corpus 1", digest_size=_FINGERPRINT_SIZE)
        found: list[str] = []
        before = 0
        for count in counts:
            digest.update(bytes.fromhex("".join(self.content_digests[before:count])))
            found.append(digest.hexdigest())
            before = count
        return found

    @property
    def _all(self) -> tuple[Sequence[Any], ...]:
        return tuple(getattr(self, name) for name in _COLUMNS)


def row_of(name: str, layout: Layout) -> tuple[Any, ...]:
    """Return a shard's row of a `ShardTable`, from its head and foot."""
    return (
        name,
        layout.sections.stop,
        layout.num_tokens,
        layout.num_documents,
        layout.min_value,
        layout.max_value,
        layout.flags,
        layout.content_digest.hex(),
        layout.digest.hex(),
    )


_COLUMNS = {
    "names": "names",
    "num_bytes": "bytes",
    "num_tokens": "tokens",
    "num_documents": "documents",
    "min_values": "least",
    "max_values": "greatest",
    "flags": "flags",
    "content_digests": "content_digests",
    "digests": "digests",
}
"""Attributes of `ShardTable`, in order, and their names in the JSON."""


@dataclass(frozen=True, slots=True)
class ColumnTable:
    """The files of one column, one for each shard.

    Attributes:
        per: `"token"` or `"document"`: what an item of the column belongs to.
        dtype: numpy's name of the item type, such as `uint8` or `S36`.
        names: File names; None for a shard that has no such column.
        num_bytes: Sizes of the files; 0 where there is none.
        digests: BLAKE2b of each file, 64 hexadecimal digits; "" where there is none.
    """

    per: str
    dtype: str
    names: Sequence[str | None]
    num_bytes: Sequence[int]
    digests: Sequence[str]


@dataclass(frozen=True, slots=True)
class Version:
    """One committed state of a corpus: its first shards.

    Attributes:
        num_shards: Shards of this version, from the first on.
        fingerprint: Of these shards, 32 hexadecimal digits.
        arguments: What the write of this version was asked for.
    """

    num_shards: int
    fingerprint: str
    arguments: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class Manifest:
    """A corpus: its shards, and the versions in which they were committed.

    Attributes:
        dtype_name: Item type of all shards; None before the first commit of shards.
        block_size: Bytes of a checksum block of the first shard; 0 likewise.
        separator: Items that end each document.
        tokenizer: As in the metadata of the shards, None if unknown.
        shards: All shards, in order.
        columns: Columns by name.
        versions: Oldest first; the last one is the current corpus, of all shards.
            Empty while the first write has not committed.
    """

    dtype_name: str | None = None
    block_size: int = 0
    separator: tuple[int | float, ...] = ()
    tokenizer: Mapping[str, Any] | None = None
    shards: ShardTable = field(default_factory=ShardTable)
    columns: Mapping[str, ColumnTable] = field(default_factory=dict[str, ColumnTable])
    versions: tuple[Version, ...] = ()

    @property
    def fingerprint(self) -> str | None:
        """Fingerprint of the current version, None before the first commit."""
        return self.versions[-1].fingerprint if self.versions else None

    def version(self, fingerprint: str) -> Version | None:
        """Return the version with a fingerprint, None if there is none."""
        for version in reversed(self.versions):
            if version.fingerprint == fingerprint:
                return version
        return None

    def pack(self) -> bytes:
        """Return the bytes of the file."""
        table = {
            "format": _FORMAT,
            "version": MANIFEST_VERSION,
            "dtype": self.dtype_name,
            "block_size": self.block_size,
            "separator": list(self.separator),
            "tokenizer": self.tokenizer,
            "versions": [
                {
                    "num_shards": version.num_shards,
                    "fingerprint": version.fingerprint,
                    "arguments": dict(version.arguments),
                }
                for version in self.versions
            ],
            "shards": {
                key: list(getattr(self.shards, name)) for name, key in _COLUMNS.items()
            },
            "columns": {
                name: {
                    "per": column.per,
                    "dtype": column.dtype,
                    "names": list(column.names),
                    "bytes": list(column.num_bytes),
                    "digests": list(column.digests),
                }
                for name, column in self.columns.items()
            },
        }
        text = json.dumps(table, ensure_ascii=False, separators=(",", ":"))
        body = text[:-1].encode()
        return body + b',"crc32":"%08x"}\n' % zlib.crc32(body)


def corpus_fingerprint(content_digests: Iterable[bytes]) -> str:
    """Return the fingerprint of shards, 32 hexadecimal digits.

    Args:
        content_digests: Of each shard, in order, 32 bytes each.
    """
    digest = blake2b(b"roxxel corpus 1", digest_size=_FINGERPRINT_SIZE)
    for each in content_digests:
        digest.update(each)
    return digest.hexdigest()


def parse_manifest(data: bytes, path: str) -> Manifest:
    """Return what a manifest says, checked in every field.

    Args:
        data: The whole file.
        path: Names the file in errors.

    Raises:
        ManifestError: The file is not a manifest, is damaged, of an unknown version, or
            contradicts itself.
    """
    tail = _TAIL.fullmatch(data[-_TAIL_SIZE:])
    body = memoryview(data)[:-_TAIL_SIZE]
    if tail is None or zlib.crc32(body) != int(tail[1], 16):
        raise _unusable(data, path)
    try:
        table = _object(json.loads(data))
        version = table.get("version")
        if table.get("format") != _FORMAT or version != MANIFEST_VERSION:
            raise ManifestError(
                f"{path}: manifest of version {version!r}, but this reader knows "
                f"version {MANIFEST_VERSION}; install a newer roxxel-format"
            )
        return _parsed(table)
    except _BadFieldError as error:
        raise ManifestError(
            f"{path}: the manifest contradicts itself ({error}); restore it, or write "
            "the corpus again"
        ) from None
    except (ValueError, RecursionError) as error:
        if isinstance(error, ManifestError):
            raise
        raise ManifestError(
            f"{path}: the manifest is not JSON ({error}); restore it, or write the "
            "corpus again"
        ) from error


class _BadFieldError(Exception):
    """A field of a manifest is wrong; the text says which and how."""


def _unusable(data: bytes, path: str) -> ManifestError:
    if f'"format":"{_FORMAT}"'.encode() in data[:100]:
        return ManifestError(
            f"{path}: the manifest does not match its checksum; it was damaged or "
            "edited, so restore it, or write the corpus again"
        )
    return ManifestError(
        f"{path}: not a manifest of a Roxxel corpus; move the file elsewhere, or name "
        'the corpus by its pattern, such as "wiki_*.rox"'
    )


def _parsed(table: dict[str, Any]) -> Manifest:
    shards = _shard_table(_object(table.get("shards")))
    name = table.get("dtype")
    if name is None:
        _check(not len(shards), "shards without a dtype")
    else:
        _check(name in dtypes.NAMES, f"dtype {name!r}")
    block_size = _integer(table.get("block_size"), "block_size")
    tokenizer = table.get("tokenizer")
    manifest = Manifest(
        dtype_name=name,
        block_size=block_size,
        separator=_separator(table.get("separator")),
        tokenizer=None if tokenizer is None else _object(tokenizer),
        shards=shards,
        columns={
            name: _column(name, _object(column), len(shards))
            for name, column in _object(table.get("columns")).items()
        },
        versions=_versions(table.get("versions"), shards),
    )
    _check_names(manifest)
    return manifest


def _shard_table(table: dict[str, Any]) -> ShardTable:
    columns = {name: _list(table.get(key), key) for name, key in _COLUMNS.items()}
    lengths = {len(column) for column in columns.values()}
    _check(len(lengths) == 1, f"lists of {sorted(lengths)} shards")
    for name in ("num_bytes", "num_tokens", "num_documents", "flags"):
        _check_integers(columns[name], name, 0)
    for name in ("min_values", "max_values"):
        _check_integers(columns[name], name, -(2**63))
    known = FIRST_IS_CONTINUED | LAST_CONTINUES
    _check(max(columns["flags"], default=0) <= known, "unknown flags")
    # Sums stay inside 63 bits, as the positions that readers work with must.
    for name in ("num_bytes", "num_tokens", "num_documents"):
        _check(sum(columns[name]) < 2**63, f"{name} of more than 2**63 in all")
    for name in ("content_digests", "digests"):
        _check_digests(columns[name], name)
    return ShardTable(**columns)


def _versions(value: object, shards: ShardTable) -> tuple[Version, ...]:
    tables = [_object(item) for item in _list(value, "versions")]
    counts = [_integer(table.get("num_shards"), "num_shards") for table in tables]
    _check(
        all(one < other for one, other in pairwise([0, *counts])),
        f"versions of {counts} shards",
    )
    covered = counts[-1] if counts else 0
    _check(covered == len(shards), f"{len(shards)} shards, {covered} in versions")
    versions: list[Version] = []
    expected = shards.fingerprints(counts)
    for table, count, fingerprint in zip(tables, counts, expected, strict=True):
        _check(
            table.get("fingerprint") == fingerprint,
            f"the fingerprint of the version of {count} shards",
        )
        arguments = _object(table.get("arguments"))
        versions.append(Version(count, fingerprint, arguments))
    return tuple(versions)


def _column(name: str, table: dict[str, Any], num_shards: int) -> ColumnTable:
    per, dtype = table.get("per"), table.get("dtype")
    _check(per in {"token", "document"}, f"column {name!r} per {per!r}")
    _check(isinstance(dtype, str), f"column {name!r} of dtype {dtype!r}")
    names = _list(table.get("names"), "names")
    sizes = _list(table.get("bytes"), "bytes")
    digests = _list(table.get("digests"), "digests")
    _check(
        {len(names), len(sizes), len(digests)} == {num_shards},
        f"column {name!r} for other shards",
    )
    _check_integers(sizes, "bytes", 0)
    there = [digest for each, digest in zip(names, digests, strict=True) if each]
    _check_digests(there, "digests")
    return ColumnTable(cast("str", per), cast("str", dtype), names, sizes, digests)


def _check_names(manifest: Manifest) -> None:
    """Check that every file is in the manifest's folder, and is listed once."""
    names: list[Any] = list(manifest.shards.names)
    for column in manifest.columns.values():
        names += [name for name in column.names if name is not None]
    _check({*map(type, names)} <= {str}, "a file name that is not a string")
    _check(len(set(names)) == len(names), "a file that is listed twice")
    for name in names:
        if not is_file_name(name):
            raise _BadFieldError(f"the file name {name!r}")


def is_file_name(name: str) -> bool:
    """Return whether a text names a visible file of a folder, and nothing else."""
    return _FILE_NAME.fullmatch(name) is not None


def _check(is_right: bool, what: str) -> None:
    if not is_right:
        raise _BadFieldError(what)


def _check_integers(values: Sequence[Any], name: str, least: int) -> None:
    _check({*map(type, values)} <= {int}, f"{name} that are not integers")
    low, high = min(values, default=0), max(values, default=0)
    _check(least <= low and high < 2**64, f"{name} from {low} to {high}")


def _check_digests(values: Sequence[Any], name: str) -> None:
    """Check that each value is a digest in hexadecimal digits."""
    _check({*map(type, values)} <= {str}, f"{name} that are not strings")
    _check({*map(len, values)} <= {_DIGEST_DIGITS}, f"{name} of a wrong length")
    _check(_HEX.fullmatch("".join(values)) is not None, f"{name} that are not hex")


def _integer(value: Any, name: str) -> int:
    _check_integers([value], name, 0)
    return value


def _list(value: Any, name: str) -> list[Any]:
    _check(isinstance(value, list), f"{name} is not a list")
    return cast("list[Any]", value)


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _BadFieldError(f"{value!r:.100} is not an object")
    return cast("dict[str, Any]", value)


def _separator(value: Any) -> tuple[int | float, ...]:
    items = _list(value, "separator")
    for item in items:
        _check(isinstance(item, int | float), f"separator {item!r}")
    return tuple(items)
