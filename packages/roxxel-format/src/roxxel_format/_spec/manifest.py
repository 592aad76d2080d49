"""What a manifest says of a corpus: its shards, columns and versions, as tables.

`manifest_file` reads and writes its file.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from itertools import accumulate, chain
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

MIN_UNIT = 2
"""Least number of tokens in a bin."""

DIGEST_SIZE = 32
"""Bytes of the BLAKE2b digest of a shard or a column."""

_FINGERPRINT_SIZE = 16


@dataclass(frozen=True, slots=True)
class ShardTable:
    """The shards of a manifest: one list for each field, one entry for each shard.

    `names` are file names without a folder. `num_tokens` includes separators.
    `min_values` and `max_values` are 0 for item types that are not integers, and for
    shards without items. The digests are copied from the shard's foot; each has 64
    hexadecimal digits.
    """

    names: Sequence[str] = ()
    num_bytes: Sequence[int] = ()
    num_tokens: Sequence[int] = ()
    num_documents: Sequence[int] = ()
    min_values: Sequence[int] = ()
    max_values: Sequence[int] = ()
    content_digests: Sequence[str] = ()
    digests: Sequence[str] = ()

    def __len__(self) -> int:
        return len(self.names)

    def without_padding(self, unit: int | None) -> Sequence[int]:
        """Return for each shard the number of its documents.

        `num_documents` has one more for each bin of `unit` tokens, its padding.
        """
        if unit is None:
            return self.num_documents
        pairs = zip(self.num_documents, self.num_tokens, strict=True)
        return [count - num_tokens // unit for count, num_tokens in pairs]

    def __add__(self, other: ShardTable) -> ShardTable:
        """Return a table of these shards, followed by the shards of `other`."""
        return ShardTable.chained([self, other])

    @classmethod
    def chained(cls, tables: Iterable[ShardTable]) -> ShardTable:
        """Return one table of the shards of all tables, in order."""
        columns = zip(*(table._all for table in tables), strict=True)  # noqa: SLF001
        return cls(*([*chain.from_iterable(column)] for column in columns))

    def first(self, num_shards: int) -> ShardTable:
        """Return the first `num_shards` shards."""
        return ShardTable(*(column[:num_shards] for column in self._all))

    def row(self, number: int) -> tuple[Any, ...]:
        """Return the fields of one shard."""
        return tuple(column[number] for column in self._all)

    def fingerprint(self, before: str = "") -> str:
        """Return the fingerprint of a corpus that ends with these shards.

        `before` is the fingerprint of the shards before them; docs/format.md, section
        8, defines both.
        """
        found = bytes.fromhex(before)
        for each in self.content_digests:
            shards = b"roxxel corpus 1" + found + bytes.fromhex(each)
            found = blake2b(shards, digest_size=_FINGERPRINT_SIZE).digest()
        return found.hex()

    def digest(self) -> str:
        """Return a digest of the content of all shards, in order: 32 digits."""
        contents = bytes.fromhex("".join(self.content_digests))
        return blake2b(contents, digest_size=_FINGERPRINT_SIZE).hexdigest()

    @property
    def _all(self) -> tuple[Sequence[Any], ...]:
        return tuple(getattr(self, name) for name in SHARD_COLUMNS)


SHARD_COLUMNS = {
    "names": "names",
    "num_bytes": "bytes",
    "num_tokens": "tokens",
    "num_documents": "documents",
    "min_values": "least",
    "max_values": "greatest",
    "content_digests": "content_digests",
    "digests": "digests",
}
"""Attributes of `ShardTable` in order, and their keys in the manifest's JSON."""


@dataclass(frozen=True, slots=True)
class BinTable:
    """The bins of a packed corpus: `unit` tokens in each, and two counts by shard.

    `padding` are the tokens of padding in each shard. `cut` are the documents longer
    than a bin whose first part is in the shard.
    """

    unit: int
    padding: Sequence[int] = ()
    cut: Sequence[int] = ()

    @property
    def num_padding(self) -> int:
        """Tokens of padding in all shards."""
        return sum(self.padding)

    @property
    def num_cut(self) -> int:
        """Documents longer than a bin in all shards."""
        return sum(self.cut)

    def __add__(self, other: BinTable) -> BinTable:
        """Return the bins of these shards, followed by those of more shards."""
        padding, cut = [*self.padding, *other.padding], [*self.cut, *other.cut]
        return BinTable(self.unit, padding, cut)

    def of(self, shards: Sequence[int]) -> BinTable:
        """Return the bins of some shards."""
        padding = [self.padding[number] for number in shards]
        return BinTable(self.unit, padding, [self.cut[number] for number in shards])


def unit_text(bins: BinTable | None) -> str:
    """Describe how the documents of a corpus are arranged, for a message."""
    if bins is None:
        return "documents that are not packed"
    return f"documents in bins of {bins.unit} tokens"


def unit_of(bins: BinTable | None) -> int | None:
    """Return the tokens of a bin; None unless the documents are packed."""
    return None if bins is None else bins.unit


@dataclass(frozen=True, slots=True)
class ColumnTable:
    """The files of one column, one for each shard.

    `per` is `"token"` or `"document"`. `dtype` is an item type such as `uint8`, or
    bytes of a fixed width such as `S36`. A shard without the column has the name None,
    0 bytes, and the digest "". Digests are BLAKE2b, 64 hexadecimal digits.
    """

    per: str
    dtype: str
    names: Sequence[str | None]
    num_bytes: Sequence[int]
    digests: Sequence[str]

    def __len__(self) -> int:
        return len(self.names)

    def __add__(self, other: ColumnTable) -> ColumnTable:
        """Return this column, followed by the same column of more shards."""
        return replace(
            self,
            names=[*self.names, *other.names],
            num_bytes=[*self.num_bytes, *other.num_bytes],
            digests=[*self.digests, *other.digests],
        )

    def first(self, num_shards: int) -> ColumnTable:
        """Return the part of this column in the first `num_shards` shards."""
        return replace(
            self,
            names=self.names[:num_shards],
            num_bytes=self.num_bytes[:num_shards],
            digests=self.digests[:num_shards],
        )

    def followed_by(self, num_shards: int) -> ColumnTable:
        """Return this column with `num_shards` more shards that lack the column."""
        missing = [None] * num_shards, [0] * num_shards, [""] * num_shards
        return self + ColumnTable(self.per, self.dtype, *missing)

    def extends(self, other: ColumnTable) -> bool:
        """Return whether this column has all values of `other`, at the same places."""
        pairs = zip(other.digests, self.digests, strict=True)
        is_same_type = (self.per, self.dtype) == (other.per, other.dtype)
        return is_same_type and all(old in {"", new} for old, new in pairs)

    def value_digests(self, counts: Sequence[int]) -> list[str]:
        """Return, for each count, the digest of the values in the first `count` shards.

        `counts` must ascend. The digest is "" if one of these shards lacks the column.
        """
        digest = blake2b(b"roxxel column 1", digest_size=DIGEST_SIZE)
        digest.update(f"{self.per} {self.dtype}".encode())
        found: list[str] = []
        before = 0
        for count in counts:
            if not all(self.names[before:count]):
                break
            digest.update(bytes.fromhex("".join(self.digests[before:count])))
            found.append(digest.hexdigest())
            before = count
        return found + [""] * (len(counts) - len(found))


def sizes_of(shards: ShardTable, columns: Mapping[str, ColumnTable]) -> dict[str, int]:
    """Return the size of each shard and of each file of a column, by name."""
    sizes = dict(zip(shards.names, shards.num_bytes, strict=True))
    for table in columns.values():
        pairs = zip(table.names, table.num_bytes, strict=True)
        sizes |= {name: size for name, size in pairs if name is not None}
    return sizes


def as_table(value: object) -> dict[str, Any]:
    """Return a JSON object unchanged, or {} for any other value."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def tokenizer_identity(recorded: object) -> str | None:
    """Return `name@hash` or `name` of a recorded tokenizer; None without a name."""
    table = as_table(recorded)
    name, digest = table.get("name"), table.get("hash")
    if not isinstance(name, str):
        return None
    return name if digest is None else f"{name}@{digest}"


@dataclass(frozen=True)
class NewShards:
    """Complete shards and their columns, as a manifest will list them.

    Without documents, there are no shards, and `dtype` and `kind` are None.

    Attributes:
        shards: The shards.
        columns: The columns of the shards, by name.
        dtype: Name of the item type.
        kind: `"text"` or `"tokens"`.
        bins: The bins of the shards; None unless the documents are packed.

    Example:
        >>> len(NewShards()), NewShards.joined([NewShards()]).sizes
        (0, {})
    """

    shards: ShardTable = field(default_factory=ShardTable)
    columns: Mapping[str, ColumnTable] = field(default_factory=dict[str, ColumnTable])
    dtype: str | None = None
    kind: str | None = None
    bins: BinTable | None = None

    def __len__(self) -> int:
        """Return the number of shards."""
        return len(self.shards)

    @property
    def num_tokens(self) -> int:
        """Number of tokens, separators included."""
        return sum(self.shards.num_tokens)

    @property
    def num_documents(self) -> int:
        """Number of documents."""
        return sum(self.shards.without_padding(unit_of(self.bins)))

    @property
    def sizes(self) -> dict[str, int]:
        """The size of each shard and of each file of a column, by name."""
        return sizes_of(self.shards, self.columns)

    @classmethod
    def joined(cls, parts: Iterable[NewShards]) -> NewShards:
        """Join consecutive groups of shards; skip groups without shards."""
        done = [part for part in parts if len(part)]
        if not done:
            return cls()
        columns: dict[str, ColumnTable] = {}
        for part in done:
            for name, table in part.columns.items():
                columns[name] = columns[name] + table if name in columns else table
        return cls(
            ShardTable.chained(part.shards for part in done),
            columns,
            done[0].dtype,
            done[0].kind,
            joined_bins([part.bins for part in done]),
        )

    @classmethod
    def parsed(cls, table: Mapping[str, Any]) -> NewShards:
        """Return the shards that `dataclasses.asdict` turned into `table`."""
        columns = {name: ColumnTable(**each) for name, each in table["columns"].items()}
        shards = ShardTable(**table["shards"])
        others: dict[str, Any] = {**table}
        del others["shards"], others["columns"]
        if others.get("bins") is not None:
            others["bins"] = BinTable(**others["bins"])
        return cls(shards, columns, **others)


def joined_bins(parts: Sequence[BinTable | None]) -> BinTable | None:
    """Join the bins of groups of shards, which are all packed or all not."""
    bins = [part for part in parts if part is not None]
    return sum(bins[1:], bins[0]) if bins else None


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

    @staticmethod
    def of_shard(metadata: Mapping[str, Any]) -> Manifest:
        """Return what a shard's metadata says of its corpus; see `Recipe.in_shards`."""
        return Manifest(
            separator=tuple(metadata.get("separator") or ()),
            tokenizer=as_table(metadata.get("tokenizer")) or None,
        )

    @property
    def appended(self) -> tuple[int | float, ...]:
        """The items that a shard's writer appends to each document.

        A bin holds the separators of its documents already.
        """
        return self.separator if self.bins is None else ()

    @property
    def alike(self) -> dict[str, Any]:
        """The facts in which all shards are alike, by their names in messages."""
        facts = {
            "dtype": self.dtype_name,
            "content": self.kind,
            "separator": [*self.separator],
            "pack": unit_of(self.bins),
        }
        if self.kind is None:
            del facts["content"]
        return facts

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
        found = (v for v in reversed(self.versions) if v.fingerprint == fingerprint)
        return next(found, None)

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

    def with_only(self, new: NewShards, version: Version) -> Manifest:
        """Return this manifest with only new shards, which a version commits."""
        return replace(
            self,
            shards=new.shards,
            columns=new.columns,
            versions=(version,),
            bins=new.bins,
        )

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
