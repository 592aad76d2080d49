"""The manifest: the file that lists the shards of a corpus.

docs/format.md, section 10, is the specification. A manifest is one JSON object, with a
list for each field of the shards. The last member is a CRC-32 of all bytes before it.

`parse_manifest` checks the whole manifest before any part of it is used. The CRC-32
detects damage (`roxxel_store.records`). The other checks detect a faulty or hostile
writer: every field has its type and range, no file name points outside the folder, the
tokens of a shard fit into its file, and the fingerprints match the digests.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, cast

from roxxel_store.records import RecordKind, checksum_of

from roxxel_format._spec import dtypes
from roxxel_format._spec.layout import (
    FOOT_SIZE,
    HEAD_SIZE,
    check_block_size,
    shard_table,
)
from roxxel_format._spec.tables import (
    DIGEST_SIZE,
    EARLIER_COLUMNS,
    FIRST_IS_CONTINUED,
    LAST_CONTINUES,
    MIN_UNIT,
    SHARD_COLUMNS,
    BinTable,
    ColumnTable,
    EarlierTable,
    ShardTable,
    as_table,
    unit_of,
    unit_text,
)
from roxxel_format.errors import ManifestError, ShardError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from roxxel_format._spec.layout import Layout

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
    """One committed state of a corpus: its first `num_shards` shards.

    `fingerprint` covers these shards; it has 32 hexadecimal digits. `arguments` are the
    arguments of the write that committed this version. `encoder` names what encoded its
    texts, with versions; None if unknown. `tokenizer_file` is the name and size of the
    file that keeps their tokenizer; None if there is none.
    """

    num_shards: int
    fingerprint: str
    arguments: Mapping[str, Any] = field(default_factory=dict[str, Any])
    encoder: str | None = None
    tokenizer_file: tuple[str, int] | None = None


@dataclass(frozen=True, slots=True)
class Manifest:
    """A corpus: its shards, and the versions in which they were committed.

    The oldest version is first; the last version has all shards. A write of a new
    corpus begins from a manifest without versions, which is in no file: its
    `dtype_name` is None and its `block_size` is 0. Else `block_size` is the block size
    of the first shard. `separator` ends each
    document. `kind` is `"text"` if the writer encoded text, and `"tokens"` if the
    caller passed tokens. `kind` and `tokenizer` are None if unknown. `columns` are the
    columns of all versions: a version has the files of its own shards. `bins` is None
    unless the documents are packed. `earlier` are the versions whose shards were
    merged; they are older than `versions`.
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
    earlier: EarlierTable = field(default_factory=EarlierTable)

    @property
    def fingerprints(self) -> list[str]:
        """Fingerprints of all versions, oldest first."""
        mine = (version.fingerprint for version in self.versions)
        return [*self.earlier.fingerprints, *mine]

    @property
    def fingerprint(self) -> str | None:
        """Fingerprint of the current version; None before the first commit."""
        return self.versions[-1].fingerprint if self.versions else None

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of the writes that made this corpus.

        If they differ, those that all writes share, as `joined_arguments` returns them.
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

    def has_only(self, fingerprint: str | None) -> bool:
        """Return whether the corpus has the documents of a version, and no others.

        It then is this version, or a compaction gave its documents other shards.
        """
        if fingerprint == self.fingerprint:
            return True
        earlier = None if fingerprint is None else self.earlier.find(fingerprint)
        if earlier is None:
            return False
        documents = sum(self.shards.own_documents(unit_of(self.bins)))
        return (earlier.num_tokens, earlier.num_documents) == (
            sum(self.shards.num_tokens),
            documents,
        )

    def columns_of(self, num_shards: int) -> dict[str, ColumnTable]:
        """Return the columns, by name, of the version that has `num_shards` shards."""
        firsts = {name: t.first(num_shards) for name, t in self.columns.items()}
        return {name: table for name, table in firsts.items() if any(table.names)}

    def with_column(self, name: str, table: ColumnTable) -> Manifest:
        """Return this manifest with a new or replaced column.

        `table` covers the shards of one version.
        """
        table = table.followed_by(len(self.shards) - len(table))
        before, earlier = self.columns.get(name), self.earlier
        if before is not None and not table.extends(before):
            earlier = earlier.without_column(name)  # They have the new values too.
        columns = {**self.columns, name: table}
        return replace(self, columns=columns, earlier=earlier)

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
        table = {
            "dtype": self.dtype_name,
            "block_size": self.block_size,
            "separator": list(self.separator),
            "tokenizer": self.tokenizer,
            **({} if self.kind is None else {"kind": self.kind}),
            **({} if self.bins is None else _bin_members(self.bins)),
            "versions": [*_version_members(self.versions)],
            "shards": {
                key: list(getattr(self.shards, name))
                for name, key in SHARD_COLUMNS.items()
            },
            "columns": {
                name: _column_members(column) for name, column in self.columns.items()
            },
            **({"earlier": _earlier_members(self.earlier)} if self.earlier else {}),
        }
        return _KIND.pack(table)


def joined_arguments(writes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the arguments that writes share, and as `joined` how many writes they are.

    `exist="keep"` must not take what they made together for the result of one.
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
    if checksum_of(data) is None and f'"{_KIND.mark}"'.encode() not in data[:100]:
        raise ManifestError(
            f"{path}: not a manifest of a Roxxel corpus; move the file elsewhere, or "
            'name the corpus by its pattern, such as "wiki_*.rox"'
        )
    table = _KIND.parse(data, path)
    try:
        return _parsed(table)
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
    (fingerprint,) = table.fingerprints([len(table)])
    version = Version(
        len(table),
        fingerprint,
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
        bins=bins_of(zip(paths, every, strict=True)),
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


def _parsed(table: dict[str, Any]) -> Manifest:
    shards = _shard_table(_object(table.get("shards")))
    name = table.get("dtype")
    block_size = _integer(table.get("block_size"), "block_size")
    _check(type(name) is str and name in dtypes.NAMES, f"dtype {name!r:.100}")
    check_block_size(block_size)
    _check_sizes(shards, dtypes.item_size(str(name)))
    tokenizer = table.get("tokenizer")
    kind = table.get("kind")
    _check(kind is None or kind in ("text", "tokens"), f"kind {kind!r:.100}")
    versions = _versions(table.get("versions"), shards)
    manifest = Manifest(
        dtype_name=name,
        block_size=block_size,
        separator=_separator(table.get("separator")),
        tokenizer=None if tokenizer is None else _object(tokenizer),
        kind=kind,
        shards=shards,
        columns={
            name: _column(name, _object(column), len(shards))
            for name, column in _object(table.get("columns")).items()
        },
        versions=versions,
        bins=_bins(table, shards),
        earlier=_earlier(table.get("earlier"), shards),
    )
    _check_names(manifest)
    return manifest


def _shard_table(table: dict[str, Any]) -> ShardTable:
    columns = {name: _list(table.get(key), key) for name, key in SHARD_COLUMNS.items()}
    lengths = {len(column) for column in columns.values()}
    _check(len(lengths) == 1, f"lists of {sorted(lengths)} shards")
    for name in ("num_bytes", "num_tokens", "num_documents", "flags"):
        _check_integers(columns[name], name, 0)
    for name in ("min_values", "max_values"):
        _check_integers(columns[name], name, -(2**63))
    known = FIRST_IS_CONTINUED | LAST_CONTINUES
    _check(max(columns["flags"], default=0) <= known, "unknown flags")
    # Readers compute offsets in int64, so sums must stay below 2**63.
    for name in ("num_bytes", "num_tokens", "num_documents"):
        _check(sum(columns[name]) < 2**63, f"{name} of more than 2**63 in all")
    for name in ("content_digests", "digests"):
        _check_digests(columns[name], name)
    return ShardTable(**columns)


def _check_sizes(shards: ShardTable, item_size: int) -> None:
    """Check that the counts of each shard are consistent and fit its file size."""
    fixed = HEAD_SIZE + FOOT_SIZE
    counts = zip(
        shards.num_bytes,
        shards.num_tokens,
        shards.num_documents,
        shards.flags,
        strict=True,
    )
    for num_bytes, num_tokens, num_documents, flags in counts:
        least = fixed + num_tokens * item_size + num_documents * 8
        if num_bytes < least or (not num_documents and (num_tokens or flags)):
            raise _BadFieldError(
                f"{num_tokens} tokens in {num_documents} documents and {num_bytes} "
                "bytes"
            )


def _bins(table: dict[str, Any], shards: ShardTable) -> BinTable | None:
    """Return the bins of a packed corpus, of which each shard holds whole ones."""
    if "unit" not in table:
        return None
    _check_integers([table["unit"]], "unit", MIN_UNIT)
    found = BinTable(
        table["unit"],
        _list(table.get("padding"), "padding"),
        _list(table.get("cut"), "cut"),
    )
    lengths = {len(found.padding), len(found.cut), len(shards)}
    _check(len(lengths) == 1, f"padding of {sorted(lengths)} shards")
    _check_integers(found.padding, "padding", 0)
    _check_integers(found.cut, "cut", 0)
    sizes = zip(shards.num_tokens, shards.num_documents, strict=True)
    counts = zip(sizes, found.padding, shards.flags, strict=True)
    for (num_tokens, num_documents), padding, flags in counts:
        num_bins, left_over = divmod(num_tokens, found.unit)
        if left_over or num_documents < num_bins or padding > num_tokens or flags:
            raise _BadFieldError(
                f"{num_tokens} tokens in {num_documents} documents, {padding} of them "
                f"padding, in bins of {found.unit}"
            )
    return found


def _versions(value: object, shards: ShardTable) -> tuple[Version, ...]:
    tables = [_object(item) for item in _list(value, "versions")]
    counts: list[Any] = [table.get("num_shards") for table in tables]
    _check_integers(counts, "num_shards", 0)
    _check(
        all(one < other for one, other in pairwise([0, *counts])),
        f"versions of {counts!r:.100} shards",
    )
    _check(bool(counts), "no version")
    _check(counts[-1] == len(shards), f"{len(shards)} shards, {counts[-1]} in versions")
    versions: list[Version] = []
    expected = shards.fingerprints(counts)
    arguments: dict[str, Any] | None = None
    for table, count, fingerprint in zip(tables, counts, expected, strict=True):
        _check(
            table.get("fingerprint") == fingerprint,
            f"the fingerprint of the version of {count} shards",
        )
        if arguments is None or "arguments" in table:  # Else those before it.
            arguments = _object(table.get("arguments"))
        encoder = table.get("encoder")
        _check(encoder is None or type(encoder) is str, f"encoder {encoder!r:.100}")
        kept = _tokenizer_file(table.get("tokenizer_file"))
        versions.append(Version(count, fingerprint, arguments, encoder, kept))
    return tuple(versions)


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


def _earlier(value: object, shards: ShardTable) -> EarlierTable:
    """Return the versions whose shards were merged; each is a part of the corpus."""
    if value is None:
        return EarlierTable()
    table = _object(value)
    lists = {name: _list(table.get(key), key) for name, key in EARLIER_COLUMNS.items()}
    digests = {
        name: _list(column, f"digests of column {name!r:.100}")
        for name, column in _object(table.get("columns")).items()
    }
    lengths = {len(each) for each in (*lists.values(), *digests.values())}
    _check(len(lengths) == 1, f"lists of {sorted(lengths)} earlier versions")
    fingerprints = lists.pop("fingerprints")
    _check_digests(fingerprints, "fingerprints", _FINGERPRINT_DIGITS)
    for name, values in lists.items():
        is_value = name in {"min_values", "max_values"}
        _check_integers(values, name, -(2**63) if is_value else 0)
    for name, counts in (
        ("num_tokens", shards.num_tokens),
        ("num_documents", shards.num_documents),
    ):
        is_within = max(lists[name], default=0) <= sum(counts)
        _check(is_within, f"an earlier version of more {name} than the corpus")
    for column in digests.values():
        _check_digests([each for each in column if each], "digests")
    return EarlierTable(fingerprints, *lists.values(), columns=digests)


def _column(name: str, table: dict[str, Any], num_shards: int) -> ColumnTable:
    _check(is_column_name(name), f"the column name {name!r:.100}")
    per, dtype = table.get("per"), table.get("dtype")
    is_known = type(per) is str and per in {"token", "document"}
    _check(is_known, f"column {name!r:.100} per {per!r:.100}")
    _check(type(dtype) is str, f"column {name!r:.100} of dtype {dtype!r:.100}")
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
    return ColumnTable(cast("str", per), cast("str", dtype), names, sizes, digests)


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
    """Check that each value is a digest in hexadecimal digits."""
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


def _bin_members(bins: BinTable) -> dict[str, Any]:
    return {"unit": bins.unit, "padding": list(bins.padding), "cut": list(bins.cut)}


def _version_members(versions: Iterable[Version]) -> Iterator[dict[str, Any]]:
    """Yield the members of versions; equal arguments in a row only once."""
    before: Mapping[str, Any] | None = None
    for version in versions:
        members: dict[str, Any] = {
            "num_shards": version.num_shards,
            "fingerprint": version.fingerprint,
        }
        # Parsed versions share the object, so this is quick.
        if version.arguments is not before and version.arguments != before:
            members["arguments"] = dict(version.arguments)
        if version.encoder is not None:
            members["encoder"] = version.encoder
        if version.tokenizer_file is not None:
            name, size = version.tokenizer_file
            members["tokenizer_file"] = {"name": name, "bytes": size}
        before = version.arguments
        yield members


def _earlier_members(earlier: EarlierTable) -> dict[str, Any]:
    members = {
        key: list(getattr(earlier, name)) for name, key in EARLIER_COLUMNS.items()
    }
    columns = {name: list(each) for name, each in earlier.columns.items()}
    return {**members, "columns": columns}


def _column_members(column: ColumnTable) -> dict[str, Any]:
    return {
        "per": column.per,
        "dtype": column.dtype,
        "names": list(column.names),
        "bytes": list(column.num_bytes),
        "digests": list(column.digests),
    }
