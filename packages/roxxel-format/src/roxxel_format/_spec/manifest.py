"""What a manifest says of a corpus: its shards, columns and versions.

`manifest_file` reads and writes its file. `in_memory` makes one of a shard
that none lists, so nothing else asks which of the two a corpus has.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from roxxel_format._spec.tables import (
    BinTable,
    ColumnTable,
    ShardTable,
    unit_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


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
