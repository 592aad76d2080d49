"""The manifest: the file that lists the shards of a corpus.

docs/format.md, section 10, is the specification. A manifest is one JSON object, with a
list for each field of the shards and of the versions. The lists stand in parts, each on
a line: an append adds a part and reads only the last one (`parse_end`, `extended`), so
it costs the same however many versions there are. The last member is a CRC-32 of all
bytes before it.

`parse_manifest` checks the whole manifest before any of it is used. The CRC-32 detects
damage (`roxxel_store.records`). The other checks detect a faulty or hostile writer:
every field has its type and range, no file name points outside the folder, the tokens
of a shard fit into its file, and the last version has the tokens of all shards.
"""

from __future__ import annotations

import json
import math
import re
from bisect import bisect_left
from dataclasses import dataclass, field, replace
from itertools import accumulate, chain, pairwise
from typing import TYPE_CHECKING, Any, cast

from roxxel_store.records import RecordKind, checksum_of, sealed, unsealed

from roxxel_format._spec import dtypes
from roxxel_format._spec.layout import (
    FOOT_SIZE,
    HEAD_SIZE,
    check_block_size,
    shard_table,
)
from roxxel_format._spec.tables import (
    DIGEST_SIZE,
    MIN_UNIT,
    SHARD_COLUMNS,
    BinTable,
    ColumnTable,
    ShardTable,
    as_table,
    unit_of,
    unit_text,
)
from roxxel_format.errors import ManifestError, ShardError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from roxxel_format._spec.layout import Layout

_AFTER_PARTS = b"\n]"
MAX_MANIFEST_SIZE = 1 << 28
"""Maximum size of a manifest; a manifest of 100 000 shards has 19 million bytes."""

_KIND = RecordKind(
    "manifest",
    version=1,
    remedy="restore it, or write the corpus again",
    error=ManifestError,
    other_remedy="install a newer roxxel-format",
    mark="roxxel manifest",
    is_ascii=False,
)
_DIGEST_DIGITS = 2 * DIGEST_SIZE
_FINGERPRINT_DIGITS = 32
_HEX = re.compile(r"[0-9a-f]*")
_NOT_IN_NAMES = r"/\\:\x00-\x1f\x7f\ud800-\udfff"
_COLUMN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MAX_NAME_SIZE = 255
_FILE_NAMES = re.compile(
    rf"[^.{_NOT_IN_NAMES}](?:\n[^.{_NOT_IN_NAMES}]|[^{_NOT_IN_NAMES}])*"
)
_FILE_NAME = re.compile(rf"[^.{_NOT_IN_NAMES}][^{_NOT_IN_NAMES}]*")


@dataclass(frozen=True, slots=True)
class Version:
    """One committed state of a corpus: its first tokens and documents.

    A compaction moves documents to other shards but leaves versions alone, so a version
    may end inside a shard.

    Attributes:
        fingerprint: The fingerprint of the shards that the version was committed with,
            32 hexadecimal digits.
        num_tokens: Its tokens, separators and padding included.
        num_documents: Its documents, padding excluded.
        min_value: Its least item; 0 if it has no items or items that are no integers.
        max_value: Its greatest item; 0 as for `min_value`.
        num_padding: Its tokens of padding; 0 unless the documents are packed.
        num_cut: Its documents longer than a bin; 0 unless the documents are packed.
        arguments: The arguments of the write that committed it.
        encoder: What encoded its texts, with versions; None if unknown.
        tokenizer_file: Name and size of the file that keeps their tokenizer.
        columns: Digest of a column's values by its name, for columns whose files a
            compaction has merged. The digest of any other column follows from its
            files.
    """

    fingerprint: str = ""
    num_tokens: int = 0
    num_documents: int = 0
    min_value: int = 0
    max_value: int = 0
    num_padding: int = 0
    num_cut: int = 0
    arguments: Mapping[str, Any] = field(default_factory=dict[str, Any])
    encoder: str | None = None
    tokenizer_file: tuple[str, int] | None = None
    columns: Mapping[str, str] = field(default_factory=dict[str, str])

    def followed_by(
        self,
        shards: ShardTable,
        bins: BinTable | None,
        arguments: Mapping[str, Any],
        encoder: str | None = None,
        tokenizer_file: tuple[str, int] | None = None,
    ) -> Version:
        """Return the version that a write of more shards commits after this one."""
        rows = zip(shards.min_values, shards.max_values, shards.num_tokens, strict=True)
        ranges = [(least, greatest) for least, greatest, count in rows if count]
        if self.num_tokens:
            ranges.append((self.min_value, self.max_value))
        return Version(
            shards.fingerprint(self.fingerprint),
            self.num_tokens + sum(shards.num_tokens),
            self.num_documents + sum(shards.without_padding(unit_of(bins))),
            min((least for least, _ in ranges), default=0),
            max((greatest for _, greatest in ranges), default=0),
            self.num_padding + (0 if bins is None else bins.num_padding),
            self.num_cut + (0 if bins is None else bins.num_cut),
            arguments,
            encoder,
            tokenizer_file,
        )


_VERSION_LISTS = {
    "fingerprint": "fingerprints",
    "num_tokens": "tokens",
    "num_documents": "documents",
    "min_value": "least",
    "max_value": "greatest",
    "num_padding": "padding",
    "num_cut": "cut",
}
"""Attributes of `Version` in order, and their lists in the manifest's JSON."""

_PART_SIZE = 16
"""Number of shards, and of versions, up to which an append fills the last part. Readers
take 1.4 times as long as with a single part (600 appends, 3.7 ms).
"""


@dataclass(frozen=True, slots=True)
class Manifest:
    """A corpus: its shards, and the versions in which they were committed.

    The oldest version is first; the last version has all shards. A write of a new
    corpus begins from a manifest without versions, which is in no file: its
    `dtype_name` is None and its `block_size` is 0. In any other manifest, `block_size`
    is the block size of the first shard. `separator` ends each document. `kind` is
    `"text"` if the writer encoded text, and `"tokens"` if the caller passed tokens.
    `kind` and `tokenizer` are None if unknown. `columns` are the columns of all
    versions: a version has the files of its own shards. `bins` is None unless the
    documents are packed.
    """

    dtype_name: str | None = None
    block_size: int = 0
    separator: tuple[int | float, ...] = ()
    tokenizer: Mapping[str, Any] | None = None
    kind: str | None = None
    shards: ShardTable = field(default_factory=ShardTable)
    columns: Mapping[str, ColumnTable] = field(default_factory=dict[str, ColumnTable])
    versions: tuple[Version, ...] = ()
    bins: BinTable | None = None

    @property
    def last(self) -> Version:
        """The current version; before the first commit, an empty one."""
        return self.versions[-1] if self.versions else Version()

    @property
    def fingerprints(self) -> list[str]:
        """Fingerprints of all versions, oldest first."""
        return [version.fingerprint for version in self.versions]

    @property
    def fingerprint(self) -> str | None:
        """Fingerprint of the current version; None before the first commit."""
        return self.versions[-1].fingerprint if self.versions else None

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of the writes that made this corpus.

        If they differ, the arguments that all writes share, as `joined_arguments`
        returns them.
        """
        first, *others = (version.arguments for version in self.versions)
        if all(each == first for each in others):
            return dict(first)
        return joined_arguments([first, *others])

    def version(self, fingerprint: str) -> Version | None:
        """Return the version with a fingerprint, or None."""
        for version in reversed(self.versions):
            if version.fingerprint == fingerprint:
                return version
        return None

    def nums_shards(self, versions: Iterable[Version]) -> list[int]:
        """Return the number of shards that hold each version."""
        tokens = [*accumulate(self.shards.num_tokens)]
        documents = [*accumulate(self.shards.without_padding(unit_of(self.bins)))]
        return [
            len(self.shards)  # Shards at the end may be empty.
            if each is self.versions[-1]
            else 1
            + max(
                bisect_left(tokens, each.num_tokens),
                bisect_left(documents, each.num_documents),
            )
            for each in versions
        ]

    def columns_of(self, num_shards: int) -> dict[str, ColumnTable]:
        """Return the columns, by name, of the version that has `num_shards` shards."""
        firsts = {name: t.first(num_shards) for name, t in self.columns.items()}
        return {name: table for name, table in firsts.items() if any(table.names)}

    def column_digest(self, name: str, version: Version) -> str:
        """Return the digest of the values of a column in a version; "" if unknown."""
        (num_shards,) = self.nums_shards([version])
        known = version.columns.get(name)
        return known or self.columns[name].value_digests([num_shards])[0]

    def with_column(self, name: str, table: ColumnTable) -> Manifest:
        """Return this manifest with a new or replaced column.

        `table` covers the shards of one version.
        """
        table = table.followed_by(len(self.shards) - len(table))
        before, versions = self.columns.get(name), self.versions
        if before is not None and not table.extends(before):
            # All versions have the new values, and so the digests of the new files.
            kept = (each.columns.keys() - {name} for each in versions)
            versions = tuple(
                replace(each, columns={key: each.columns[key] for key in keys})
                for each, keys in zip(versions, kept, strict=True)
            )
        columns = {**self.columns, name: table}
        return replace(self, columns=columns, versions=versions)

    def file_names(self) -> set[str]:
        """Return the names of all files that the manifest lists."""
        return {*self.shards.names, *self.column_files(), *self.tokenizer_files()}

    def tokenizer_files(self) -> dict[str, int]:
        """Return the sizes of the files that keep tokenizers, by name."""
        files = (version.tokenizer_file for version in self.versions)
        return dict(filter(None, files))

    def column_files(self) -> list[str]:
        """Return the names of all column files."""
        tables = self.columns.values()
        return [name for table in tables for name in table.names if name is not None]

    def pack(self) -> bytes:
        """Return the bytes of the manifest's file."""
        members = {
            "dtype": self.dtype_name,
            "block_size": self.block_size,
            "separator": list(self.separator),
            "tokenizer": self.tokenizer,
            **({} if self.kind is None else {"kind": self.kind}),
            **({} if self.bins is None else {"unit": self.bins.unit}),
            "columns": {
                name: {"per": table.per, "dtype": table.dtype}
                for name, table in self.columns.items()
            },
            "parts": [],
        }
        before = unsealed(_KIND.pack(members)).removesuffix(b"]")
        return sealed(before + b"\n" + self.part() + _AFTER_PARTS)

    def part(self) -> bytes:
        """Return the lists of all shards and versions, as one part."""
        bins = self.bins
        lists = {} if bins is None else {"padding": bins.padding, "cut": bins.cut}
        columns = {
            name: {
                "names": [*table.names],
                "bytes": [*table.num_bytes],
                "digests": [*table.digests],
            }
            for name, table in self.columns.items()
            if any(table.names)
        }
        shards = {
            key: [*getattr(self.shards, name)] for name, key in SHARD_COLUMNS.items()
        }
        part = {
            **_version_members(self.versions),
            "shards": shards | {key: [*each] for key, each in lists.items()},
            "digest": self.shards.digest(),
            "columns": columns,
        }
        return json.dumps(part, ensure_ascii=False, separators=(",", ":")).encode()

    def followed_by(self, other: Manifest) -> Manifest:
        """Return the lists of this manifest, followed by those of `other`."""
        bins = self.bins
        return replace(
            self,
            shards=self.shards + other.shards,
            versions=self.versions + other.versions,
            columns={
                name: table + other.columns[name]
                if name in other.columns
                else table.followed_by(len(other.shards))
                for name, table in self.columns.items()
            },
            bins=bins if bins is None or other.bins is None else bins + other.bins,
        )


def extended(data: bytes, end: Manifest, new: Manifest) -> bytes:
    """Return the bytes of a manifest with the shards and versions of `new`.

    Args:
        data: The bytes of the manifest.
        end: What `parse_end` returned for these bytes.
        new: A manifest of only the new shards and versions.
    """
    _, start, stop = _lines(data)
    sizes = max(len(end.shards), len(end.versions)) + len(new.shards)
    if sizes <= _PART_SIZE:
        before, new = data[:start], end.followed_by(new)
    else:
        before = data[:stop] + b",\n"
    return sealed(before + new.part() + _AFTER_PARTS)


def joined_arguments(writes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the arguments that all writes share; `joined` counts the writes.

    By `joined`, `exist="keep"` sees that no single write made the corpus.
    """
    first, *others = writes
    common = {
        name: value
        for name, value in first.items()
        if all(name in each and each[name] == value for each in others)
    }
    return {**common, "joined": sum(each.get("joined", 1) for each in writes)}


def parse_manifest(data: bytes, path: str) -> Manifest:
    """Parse a manifest; raise ManifestError if any field is invalid."""
    return _checked(data, path, _whole)


def parse_end(data: bytes, path: str) -> Manifest:
    """Parse the first line and the last part of a manifest: all that an append needs.

    Raises:
        ManifestError: The manifest is damaged, or this part is invalid.
    """
    if checksum_of(data) is not None:
        stop_of_head, start, stop = _lines(data)
        if not data[:start].endswith((b"[\n", b",\n")):
            raise ManifestError(
                f"{path}: its parts do not stand on lines of their own, so nothing can "
                "be appended; copy the corpus, and append to the copy"
            )
        data = sealed(data[:stop_of_head] + data[start:stop] + _AFTER_PARTS)
    return _checked(data, path, _parsed)


def _lines(data: bytes) -> tuple[int, int, int]:
    """Return where the first line of a manifest ends, and where its last part is."""
    stop = len(unsealed(data)) - len(_AFTER_PARTS)
    after = data.find(b"\n") + 1
    return after, max(after, data.rfind(b"\n", 0, stop) + 1), stop


def _checked(
    data: bytes, path: str, parsed: Callable[[dict[str, Any]], Manifest]
) -> Manifest:
    if checksum_of(data) is None and f'"{_KIND.mark}"'.encode() not in data[:100]:
        raise ManifestError(
            f"{path}: not a manifest of a Roxxel corpus; move the file elsewhere, or "
            'name the corpus by its pattern, such as "wiki_*.rox"'
        )
    table = _KIND.parse(data, path)
    try:
        return parsed(table)
    except (_BadFieldError, ValueError, RecursionError) as error:
        raise ManifestError(
            f"{path}: the manifest contradicts itself ({error}); restore it, or write "
            "the corpus again"
        ) from None


def manifest_of(
    paths: Sequence[str], ends: Sequence[tuple[Layout, Mapping[str, Any]]]
) -> Manifest:
    """Make a manifest of one version from the layouts and metadata of its shards.

    What a manifest records once comes from the first shard.

    Raises:
        ShardError: The shards are packed into different bins.
    """
    layouts, every = [layout for layout, _ in ends], [each for _, each in ends]
    metadata = every[0]
    table = shard_table([path.rpartition("/")[2] for path in paths], layouts)
    head = layouts[0].head
    bins = bins_of(zip(paths, every, strict=True))
    version = Version().followed_by(
        table,
        bins,
        as_table(metadata.get("arguments")),
        tokenizer_file=_recorded_file(metadata),
    )
    return Manifest(
        dtype_name=head.dtype_name,
        block_size=head.block_size,
        separator=tuple(metadata.get("separator") or ()),
        tokenizer=as_table(metadata.get("tokenizer")) or None,
        shards=table,
        versions=(version,),
        bins=bins,
    )


def bins_of(shards: Iterable[tuple[str, Mapping[str, Any]]]) -> BinTable | None:
    """Return the bins that the metadata of shards records; None if none is packed.

    `shards` are the path and the metadata of each.

    Raises:
        ShardError: The shards differ in their unit.
    """
    found: list[BinTable | None] = []
    first = ""
    for path, metadata in shards:
        bins = None
        if "unit" in metadata:
            counts = [metadata.get(name) for name in ("unit", "padding", "cut")]
            unit, padding, cut = (c if type(c) is int else -1 for c in counts)
            if unit < MIN_UNIT or padding < 0 or cut < 0:
                raise ShardError(
                    f"{path}: records bins of {counts[0]!r:.50} tokens, padding "
                    f"{counts[1]!r:.50} and cut documents {counts[2]!r:.50}; write "
                    "this shard again"
                )
            bins = BinTable(unit, [padding], [cut])
        found.append(bins)
        first = first or path
        if unit_text(bins) != unit_text(found[0]):
            raise ShardError(
                f"{path}: holds {unit_text(bins)}, but {first} holds "
                f"{unit_text(found[0])}; open them as two corpora"
            )
    packed = [each for each in found if each is not None]
    return sum(packed[1:], packed[0]) if packed else None


class _BadFieldError(Exception):
    """A field of a manifest is invalid; the message names the field and the fault."""


def _whole(table: dict[str, Any]) -> Manifest:
    manifest = _parsed(table)
    shards, last = manifest.shards, manifest.last
    found = sum(shards.num_tokens), sum(shards.without_padding(unit_of(manifest.bins)))
    _check(
        (last.num_tokens, last.num_documents) == found,
        f"{found[0]} tokens in {found[1]} documents, but {last.num_tokens} in "
        f"{last.num_documents} in the last version",
    )
    return manifest


def _parsed(table: dict[str, Any]) -> Manifest:
    """Return the content of a manifest, or of its first line and some of its parts."""
    parts = [_object(part) for part in _list(table.get("parts"), "parts")]
    tables = [_object(part.get("shards")) for part in parts]
    shards = _shard_table(tables)
    _check_order(parts, shards)
    name = table.get("dtype")
    block_size = _integer(table.get("block_size"), "block_size")
    _check(type(name) is str and name in dtypes.NAMES, f"dtype {name!r:.100}")
    check_block_size(block_size)
    _check_sizes(shards, dtypes.item_size(str(name)))
    tokenizer = table.get("tokenizer")
    kind = table.get("kind")
    _check(kind is None or kind in ("text", "tokens"), f"kind {kind!r:.100}")
    manifest = Manifest(
        dtype_name=name,
        block_size=block_size,
        separator=_separator(table.get("separator")),
        tokenizer=None if tokenizer is None else _object(tokenizer),
        kind=kind,
        shards=shards,
        columns=_columns(_object(table.get("columns")), parts, tables),
        versions=_versions(parts),
        bins=_bins(table, tables, shards),
    )
    _check_names(manifest)
    return manifest


def _joined(tables: Iterable[dict[str, Any]], key: str) -> list[Any]:
    return [*chain.from_iterable(_list(each.get(key), key) for each in tables)]


def _shard_table(tables: Sequence[dict[str, Any]]) -> ShardTable:
    columns = {name: _joined(tables, key) for name, key in SHARD_COLUMNS.items()}
    lengths = {len(column) for column in columns.values()}
    _check(len(lengths) == 1, f"lists of {sorted(lengths)} shards")
    for name in ("num_bytes", "num_tokens", "num_documents"):
        _check_integers(columns[name], name, 0)
    for name in ("min_values", "max_values"):
        _check_integers(columns[name], name, -(2**63))
    # Readers compute offsets in int64, so sums must stay below 2**63.
    for name in ("num_bytes", "num_tokens", "num_documents"):
        _check(sum(columns[name]) < 2**63, f"{name} of more than 2**63 in all")
    for name in ("content_digests", "digests"):
        _check_digests(columns[name], name)
    return ShardTable(**columns)


def _check_order(parts: Sequence[dict[str, Any]], shards: ShardTable) -> None:
    """Check that the shards of each part are those that its writer listed, in order.

    Each shard may match its file although a faulty writer has swapped two of them.
    """
    start = 0
    for part in parts:
        stop = start + len(part["shards"]["names"])
        of_part = ShardTable(content_digests=shards.content_digests[start:stop])
        is_same = part.get("digest") == of_part.digest()
        _check(is_same, f"the digest of {stop - start} shards")
        start = stop


def _check_sizes(shards: ShardTable, item_size: int) -> None:
    """Check that the counts of each shard are consistent and fit its file size."""
    fixed = HEAD_SIZE + FOOT_SIZE
    counts = zip(shards.num_bytes, shards.num_tokens, shards.num_documents, strict=True)
    for num_bytes, num_tokens, num_documents in counts:
        least = fixed + num_tokens * item_size + num_documents * 8
        if num_bytes < least or (num_tokens and not num_documents):
            raise _BadFieldError(
                f"{num_tokens} tokens in {num_documents} documents and {num_bytes} "
                "bytes"
            )


def _bins(
    table: dict[str, Any], tables: Sequence[dict[str, Any]], shards: ShardTable
) -> BinTable | None:
    """Return the bins of a packed corpus; each shard holds whole bins."""
    if "unit" not in table:
        return None
    _check_integers([table["unit"]], "unit", MIN_UNIT)
    found = BinTable(table["unit"], _joined(tables, "padding"), _joined(tables, "cut"))
    lengths = {len(found.padding), len(found.cut), len(shards)}
    _check(len(lengths) == 1, f"padding of {sorted(lengths)} shards")
    _check_integers(found.padding, "padding", 0)
    _check_integers(found.cut, "cut", 0)
    counts = zip(shards.num_tokens, shards.num_documents, found.padding, strict=True)
    for num_tokens, num_documents, padding in counts:
        num_bins, left_over = divmod(num_tokens, found.unit)
        if left_over or num_documents < num_bins or padding > num_tokens:
            raise _BadFieldError(
                f"{num_tokens} tokens in {num_documents} documents, {padding} of them "
                f"padding, in bins of {found.unit}"
            )
    return found


def _versions(parts: Sequence[dict[str, Any]]) -> tuple[Version, ...]:
    found = [version for part in parts for version in _versions_of(part)]
    _check(bool(found), "no version")
    _check(
        all(
            one.num_tokens <= other.num_tokens
            and one.num_documents <= other.num_documents
            for one, other in pairwise(found)
        ),
        "a version with less than the version before",
    )
    return tuple(found)


def _versions_of(part: dict[str, Any]) -> list[Version]:
    table = _object(part.get("versions"))
    lists = {name: _list(table.get(key), key) for name, key in _VERSION_LISTS.items()}
    of_writes = _list(table.get("writes"), "writes")
    columns = {
        name: _list(digests, f"digests of column {name!r:.100}")
        for name, digests in _object(table.get("columns", {})).items()
    }
    every = (*lists.values(), of_writes, *columns.values())
    lengths = {len(each) for each in every}
    _check(len(lengths) == 1, f"lists of {sorted(lengths)} versions")
    for name, values in lists.items():
        if name == "fingerprint":
            _check_digests(values, "fingerprints", _FINGERPRINT_DIGITS)
        else:
            is_value = name in {"min_value", "max_value"}
            _check_integers(values, name, -(2**63) if is_value else 0)
    for digests in columns.values():
        _check_digests([each for each in digests if each], "digests")
    writes = [_write(each) for each in _list(part.get("writes"), "writes")]
    _check_integers(of_writes, "writes", 0)
    _check(max(of_writes, default=-1) < len(writes), f"{len(writes)} writes")
    found: list[Version] = []
    for at, write in enumerate(of_writes):
        facts: dict[str, Any] = {name: values[at] for name, values in lists.items()}
        facts |= writes[int(write)]
        facts["columns"] = {key: each[at] for key, each in columns.items() if each[at]}
        found.append(Version(**facts))
    return found


def _write(value: object) -> dict[str, Any]:
    """Return what a version says about the write that committed it."""
    table = _object(value)
    encoder = table.get("encoder")
    _check(encoder is None or type(encoder) is str, f"encoder {encoder!r:.100}")
    return {
        "arguments": _object(table.get("arguments")),
        "encoder": encoder,
        "tokenizer_file": _tokenizer_file(table.get("tokenizer_file")),
    }


def _tokenizer_file(value: object) -> tuple[str, int] | None:
    if value is None:
        return None
    table = _object(value)
    name, size = table.get("name"), _integer(table.get("bytes"), "bytes")
    _check(type(name) is str and is_file_name(name), f"the file name {name!r:.100}")
    return cast("str", name), size


def _recorded_file(metadata: Mapping[str, Any]) -> tuple[str, int] | None:
    """Return name and size of the file that keeps the tokenizer of a shard."""
    recorded = as_table(metadata.get("tokenizer_file"))
    name, size = recorded.get("name"), recorded.get("bytes")
    if type(name) is not str or type(size) is not int or not is_file_name(name):
        return None
    return name, size


def _columns(
    types: dict[str, Any],
    parts: Sequence[dict[str, Any]],
    shards: Sequence[dict[str, Any]],
) -> dict[str, ColumnTable]:
    """Return the columns; in a part that lacks a column, its shards have no file."""
    counts = [len(of_shards["names"]) for of_shards in shards]
    tables = [_object(part.get("columns")) for part in parts]
    _check({*chain(*tables)} <= {*types}, "a column without a type")
    found: dict[str, ColumnTable] = {}
    for name, members in types.items():
        column = _no_column(name, _object(members))
        files = [
            _column(name, column, _object(table[name]), count)
            if name in table
            else column.followed_by(count)
            for table, count in zip(tables, counts, strict=True)
        ]
        found[name] = ColumnTable(
            column.per,
            column.dtype,
            [*chain.from_iterable(each.names for each in files)],
            [*chain.from_iterable(each.num_bytes for each in files)],
            [*chain.from_iterable(each.digests for each in files)],
        )
    return found


def _no_column(name: str, table: dict[str, Any]) -> ColumnTable:
    """Return a column of no shards, of the type that the table describes."""
    _check(is_column_name(name), f"the column name {name!r:.100}")
    per, dtype = table.get("per"), table.get("dtype")
    is_known = type(per) is str and per in {"token", "document"}
    _check(is_known, f"column {name!r:.100} per {per!r:.100}")
    _check(type(dtype) is str, f"column {name!r:.100} of dtype {dtype!r:.100}")
    return ColumnTable(cast("str", per), cast("str", dtype), (), (), ())


def _column(
    name: str, of_type: ColumnTable, table: dict[str, Any], num_shards: int
) -> ColumnTable:
    names = _list(table.get("names"), "names")
    sizes = _list(table.get("bytes"), "bytes")
    digests = _list(table.get("digests"), "digests")
    _check(
        {len(names), len(sizes), len(digests)} == {num_shards},
        f"column {name!r:.100} for other shards",
    )
    _check_integers(sizes, "bytes", 0)
    present = [digest for each, digest in zip(names, digests, strict=True) if each]
    _check_digests(present, "digests")
    return ColumnTable(of_type.per, of_type.dtype, names, sizes, digests)


def _check_names(manifest: Manifest) -> None:
    """Check that every file is in the manifest's folder and is listed once."""
    names: list[Any] = [
        *manifest.shards.names,
        *manifest.column_files(),
        *manifest.tokenizer_files(),
    ]
    _check({*map(type, names)} <= {str}, "a file name that is not a string")
    _check(len(set(names)) == len(names), "a file that is listed twice")
    joined = "\n".join(names)
    # One match for all names, unless one has a line break itself.
    is_sure = joined.isascii() and joined.count("\n") == len(names) - 1
    if is_sure and _FILE_NAMES.fullmatch(joined):
        names = [name for name in names if len(name) > _MAX_NAME_SIZE]
    for name in names:
        if not is_file_name(name):
            raise _BadFieldError(f"the file name {name!r:.100}")


def is_column_name(name: str) -> bool:
    """Return whether a text can name a column."""
    return _COLUMN_NAME.fullmatch(name) is not None


def is_file_name(name: str) -> bool:
    """Return whether a text is the name of a visible file, without a folder."""
    is_name = _FILE_NAME.fullmatch(name) is not None
    return is_name and len(name.encode()) <= _MAX_NAME_SIZE


def _check(is_right: bool, what: str) -> None:
    if not is_right:
        raise _BadFieldError(what)


def _check_integers(values: Sequence[Any], name: str, least: int) -> None:
    _check({*map(type, values)} <= {int}, f"{name} that are not integers")
    low, high = min(values, default=0), max(values, default=0)
    _check(least <= low and high < 2**64, f"{name} from {low!r:.30} to {high!r:.30}")


def _check_digests(
    values: Sequence[Any], name: str, num_digits: int = _DIGEST_DIGITS
) -> None:
    _check({*map(type, values)} <= {str}, f"{name} that are not strings")
    _check({*map(len, values)} <= {num_digits}, f"{name} of a wrong length")
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
        is_item = type(item) is int and abs(item) < 2**64
        is_item = is_item or (type(item) is float and math.isfinite(item))
        _check(is_item or type(item) is bool, f"separator {item!r:.100}")
    return tuple(items)


def _version_members(versions: Sequence[Version]) -> dict[str, Any]:
    """Return the lists of versions and of their writes; equal neighbours stand once."""
    writes: list[tuple[Any, ...]] = []
    of_writes: list[int] = []
    for version in versions:
        write = version.arguments, version.encoder, version.tokenizer_file
        if not writes or write != writes[-1]:
            writes.append(write)
        of_writes.append(len(writes) - 1)
    names = sorted({name for version in versions for name in version.columns})
    columns = {
        name: [version.columns.get(name, "") for version in versions] for name in names
    }
    lists = {
        key: [getattr(version, name) for version in versions]
        for name, key in _VERSION_LISTS.items()
    }
    of_columns = {"columns": columns} if columns else {}
    return {
        "versions": {**lists, "writes": of_writes, **of_columns},
        "writes": [_write_members(*write) for write in writes],
    }


def _write_members(
    arguments: Mapping[str, Any],
    encoder: str | None,
    tokenizer_file: tuple[str, int] | None,
) -> dict[str, Any]:
    members: dict[str, Any] = {"arguments": dict(arguments)}
    if encoder is not None:
        members["encoder"] = encoder
    if tokenizer_file is not None:
        name, size = tokenizer_file
        members["tokenizer_file"] = {"name": name, "bytes": size}
    return members
