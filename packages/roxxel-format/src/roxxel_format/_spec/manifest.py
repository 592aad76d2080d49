"""The manifest: the one file that says which shards are a corpus.

docs/format.md, section 10, is the specification. A manifest is one JSON object, by
columns: a list for each field of a shard. Its last member is a CRC-32 of the bytes
before it. `manifest_gate` reads the bytes back. Nothing here touches a file.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from roxxel_format._spec.layout import FIRST_IS_CONTINUED, LAST_CONTINUES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from roxxel_format._spec.layout import Layout

MANIFEST_VERSION = 1
FORMAT_NAME = "roxxel manifest"
_FINGERPRINT_SIZE = 16


@dataclass(frozen=True, slots=True)
class ShardTable:
    """The shards of a manifest, by columns: lists of the same length, in order.

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
        pairs = zip(self.num_documents, self.joined(), strict=True)
        return [count - is_joined for count, is_joined in pairs]

    def joined(self) -> list[bool]:
        """Return for each shard whether its first document began in an earlier one."""
        continues = [False, *(bool(each & LAST_CONTINUES) for each in self.flags[:-1])]
        return [
            before and bool(flags & FIRST_IS_CONTINUED)
            for before, flags in zip(continues, self.flags, strict=False)
        ]

    def __add__(self, other: ShardTable) -> ShardTable:
        """Return these shards, then those of another table."""
        return ShardTable(
            *([*a, *b] for a, b in zip(self._all, other._all, strict=True))
        )

    def first(self, num_shards: int) -> ShardTable:
        """Return the first `num_shards` shards."""
        return ShardTable(*(column[:num_shards] for column in self._all))

    def row(self, number: int) -> tuple[Any, ...]:
        """Return one shard's item of each column."""
        return tuple(column[number] for column in self._all)

    def fingerprints(self, counts: Iterable[int]) -> list[str]:
        """Return the fingerprints (docs/format.md, section 8) of leading shards.

        Args:
            counts: Number of leading shards that each fingerprint covers; ascending.
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
        return tuple(getattr(self, name) for name in SHARD_COLUMNS)


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


SHARD_COLUMNS = {
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

    def followed_by(self, num_shards: int) -> ColumnTable:
        """Return this column in a corpus with more shards, which have no file of it."""
        return replace(
            self,
            names=[*self.names, *[None] * num_shards],
            num_bytes=[*self.num_bytes, *[0] * num_shards],
            digests=[*self.digests, *[""] * num_shards],
        )


@dataclass(frozen=True, slots=True)
class Version:
    """One committed state of a corpus: its first shards.

    Attributes:
        num_shards: Shards of this version, from the first on.
        fingerprint: Of these shards, 32 hexadecimal digits.
        arguments: The arguments of the write that made this version.
    """

    num_shards: int
    fingerprint: str
    arguments: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class Manifest:
    """A corpus: its shards, and the versions in which they were committed.

    Attributes:
        dtype_name: Item type of all shards; None before the first commit of shards.
        block_size: Bytes of a checksum block of the first shard; 0 before the first
            commit of shards.
        separator: Items that end each document.
        tokenizer: As in the metadata of the shards, None if unknown.
        kind: `"text"` if the documents were text when they were written, `"tokens"` if
            they were ready-made tokens; None if unknown.
        shards: All shards, in order.
        columns: Columns by name.
        versions: Oldest first; the last one is the current corpus, of all shards.
            Empty while the first write has not committed.
    """

    dtype_name: str | None = None
    block_size: int = 0
    separator: tuple[int | float, ...] = ()
    tokenizer: Mapping[str, Any] | None = None
    kind: str | None = None
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
            "format": FORMAT_NAME,
            "version": MANIFEST_VERSION,
            "dtype": self.dtype_name,
            "block_size": self.block_size,
            "separator": list(self.separator),
            "tokenizer": self.tokenizer,
            **({} if self.kind is None else {"kind": self.kind}),
            "versions": [
                {
                    "num_shards": version.num_shards,
                    "fingerprint": version.fingerprint,
                    "arguments": dict(version.arguments),
                }
                for version in self.versions
            ],
            "shards": {
                key: list(getattr(self.shards, name))
                for name, key in SHARD_COLUMNS.items()
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
