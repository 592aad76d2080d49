"""The file of a manifest: its bytes, and the checks of what they say.

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
import re
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any, cast

from roxxel_store.records import RecordKind, checksum_of, sealed, unsealed

from roxxel_format._spec.layout import (
    FOOT_SIZE,
    HEAD_SIZE,
    NAMES,
    check_block_size,
    item_size,
)
from roxxel_format._spec.manifest import (
    DIGEST_SIZE,
    MIN_UNIT,
    SHARD_COLUMNS,
    BinTable,
    ColumnTable,
    Manifest,
    ShardTable,
    Version,
    unit_of,
)
from roxxel_format.errors import ManifestError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

_AFTER_PARTS = b"\n]"
MAX_MANIFEST_SIZE = 1 << 28
"""Maximum size of a manifest; a manifest of 100 000 shards has 19 million bytes."""

_KIND = RecordKind(
    "manifest",
    version=1,
    remedy="restore it, or write the corpus again",
    error=ManifestError,
    mark="roxxel manifest",
    is_ascii=False,
)
_DIGEST_DIGITS = 2 * DIGEST_SIZE
_FINGERPRINT_DIGITS = 32
_HEX = re.compile(r"[0-9a-f]*")
_NOT_IN_NAMES = r"/\\:\x00-\x1f\x7f\ud800-\udfff"
_COLUMN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MAX_NAME_SIZE = 255
_FILE_NAME = re.compile(rf"[^.{_NOT_IN_NAMES}][^{_NOT_IN_NAMES}]*")

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


def pack_manifest(manifest: Manifest) -> bytes:
    """Return the bytes of a manifest's file."""
    members = {
        "dtype": manifest.dtype_name,
        "block_size": manifest.block_size,
        "separator": list(manifest.separator),
        "tokenizer": manifest.tokenizer,
        **({} if manifest.kind is None else {"kind": manifest.kind}),
        **({} if manifest.bins is None else {"unit": manifest.bins.unit}),
        "columns": {
            name: {"per": table.per, "dtype": table.dtype}
            for name, table in manifest.columns.items()
        },
        "parts": [],
    }
    before = unsealed(_KIND.to_bytes(members)).removesuffix(b"]")
    return sealed(before + b"\n" + _part(manifest) + _AFTER_PARTS)


def _part(manifest: Manifest) -> bytes:
    """Return the lists of all shards and versions, as one part."""
    bins = manifest.bins
    lists = {} if bins is None else {"padding": bins.padding, "cut": bins.cut}
    columns = {
        name: {
            "names": [*table.names],
            "bytes": [*table.num_bytes],
            "digests": [*table.digests],
        }
        for name, table in manifest.columns.items()
        if any(table.names)
    }
    shards = {
        key: [*getattr(manifest.shards, name)] for name, key in SHARD_COLUMNS.items()
    }
    part = {
        **_version_members(manifest.versions),
        "shards": shards | {key: [*each] for key, each in lists.items()},
        "digest": manifest.shards.digest(),
        "columns": columns,
    }
    return json.dumps(part, ensure_ascii=False, separators=(",", ":")).encode()


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
    return sealed(before + _part(new) + _AFTER_PARTS)


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
    """Return where the second line starts; where the last part starts and stops."""
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
    _check(type(name) is str and name in NAMES, f"dtype {name!r:.100}")
    check_block_size(block_size)
    _check_sizes(shards, item_size(str(name)))
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


def _columns(
    types: dict[str, Any],
    parts: Sequence[dict[str, Any]],
    shards: Sequence[dict[str, Any]],
) -> dict[str, ColumnTable]:
    """Return the columns; in a part that lacks a column, its shards have no file."""
    counts = [len(of_shards["names"]) for of_shards in shards]
    tables = [_object(part.get("columns")) for part in parts]
    _check({*chain(*tables)} <= {*types}, "a column without a type")
    return {
        name: _column(name, _object(members), [t.get(name) for t in tables], counts)
        for name, members in types.items()
    }


def _column(
    name: str, members: dict[str, Any], files: Sequence[Any], counts: Sequence[int]
) -> ColumnTable:
    _check(is_column_name(name), f"the column name {name!r:.100}")
    per, dtype = members.get("per"), members.get("dtype")
    is_known = type(per) is str and per in {"token", "document"}
    _check(is_known, f"column {name!r:.100} per {per!r:.100}")
    _check(type(dtype) is str, f"column {name!r:.100} of dtype {dtype!r:.100}")
    missing = {"names": None, "bytes": 0, "digests": ""}
    lists: dict[str, list[Any]] = {key: [] for key in missing}
    for table, count in zip(files, counts, strict=True):
        for key, values in lists.items():
            of_part = [missing[key]] * count
            if table is not None:
                of_part = _list(_object(table).get(key), key)
            _check(len(of_part) == count, f"column {name!r:.100} for other shards")
            values.extend(of_part)
    _check_integers(lists["bytes"], "bytes", 0)
    pairs = zip(lists["names"], lists["digests"], strict=True)
    _check_digests([digest for each, digest in pairs if each], "digests")
    return ColumnTable(cast("str", per), cast("str", dtype), *lists.values())


def _check_names(manifest: Manifest) -> None:
    """Check that every file is in the manifest's folder and is listed once."""
    names: list[Any] = [
        *manifest.shards.names,
        *manifest.column_files(),
        *manifest.tokenizer_files(),
    ]
    _check({*map(type, names)} <= {str}, "a file name that is not a string")
    _check(len(set(names)) == len(names), "a file that is listed twice")
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
    _check({*map(type, items)} <= {int, float, bool}, f"separator {items!r:.100}")
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
