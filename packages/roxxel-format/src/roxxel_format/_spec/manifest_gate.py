"""The gate: every check of a manifest, before anything in it is used.

The CRC-32 in the last bytes finds damage. The other checks find a manifest that was
written wrongly or to deceive: every field has its type and range, all names stay in the
folder, no shard holds more than its file can, and the fingerprints follow from the
digests.
"""

from __future__ import annotations

import json
import math
import re
import zlib
from itertools import pairwise
from typing import TYPE_CHECKING, Any, cast

from roxxel_format._spec import dtypes
from roxxel_format._spec.layout import (
    FIRST_IS_CONTINUED,
    FOOT_SIZE,
    HEAD_SIZE,
    LAST_CONTINUES,
    check_block_size,
)
from roxxel_format._spec.manifest import (
    FORMAT_NAME,
    MANIFEST_VERSION,
    SHARD_COLUMNS,
    ColumnTable,
    Manifest,
    ShardTable,
    Version,
)
from roxxel_format.errors import ManifestError

if TYPE_CHECKING:
    from collections.abc import Sequence

_DIGEST_DIGITS = 64
_TAIL = re.compile(rb',"crc32":"([0-9a-f]{8})"\}\n')
_TAIL_SIZE = len(b',"crc32":"00000000"}\n')
_HEX = re.compile(r"[0-9a-f]*")
_NOT_IN_NAMES = r"/\\:\x00-\x1f\x7f\ud800-\udfff"
_FILE_NAME = re.compile(rf"[^.{_NOT_IN_NAMES}][^{_NOT_IN_NAMES}]*")


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
        if type(version) is not int or version != MANIFEST_VERSION:
            raise ManifestError(
                f"{path}: manifest of version {version!r:.100}, but this reader knows "
                f"version {MANIFEST_VERSION}; install a newer roxxel-format"
            )
        _check(table.get("format") == FORMAT_NAME, "the format is missing")
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
    if f'"format":"{FORMAT_NAME}"'.encode() in data[:100]:
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
    block_size = _integer(table.get("block_size"), "block_size")
    if name is None:
        _check(not len(shards) and not block_size, "shards without a dtype")
    else:
        # Not `in`: a list or an object cannot be compared by its hash.
        _check(type(name) is str and name in dtypes.NAMES, f"dtype {name!r:.100}")
        check_block_size(block_size)
        _check_sizes(shards, dtypes.item_size(name))
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
        columns={
            name: _column(name, _object(column), len(shards))
            for name, column in _object(table.get("columns")).items()
        },
        versions=_versions(table.get("versions"), shards),
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
    # Sums stay inside 63 bits, as the positions that readers work with must.
    for name in ("num_bytes", "num_tokens", "num_documents"):
        _check(sum(columns[name]) < 2**63, f"{name} of more than 2**63 in all")
    for name in ("content_digests", "digests"):
        _check_digests(columns[name], name)
    return ShardTable(**columns)


def _check_sizes(shards: ShardTable, item_size: int) -> None:
    """Check that each shard's counts fit the size of its file, and one another."""
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


def _versions(value: object, shards: ShardTable) -> tuple[Version, ...]:
    tables = [_object(item) for item in _list(value, "versions")]
    counts = [_integer(table.get("num_shards"), "num_shards") for table in tables]
    _check(
        all(one < other for one, other in pairwise([0, *counts])),
        f"versions of {counts!r:.100} shards",
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
    """Check that every file is in the manifest's folder, and is listed once."""
    names: list[Any] = list(manifest.shards.names)
    for column in manifest.columns.values():
        names += [name for name in column.names if name is not None]
    _check({*map(type, names)} <= {str}, "a file name that is not a string")
    _check(len(set(names)) == len(names), "a file that is listed twice")
    for name in names:
        if not is_file_name(name):
            raise _BadFieldError(f"the file name {name!r:.100}")


def is_file_name(name: str) -> bool:
    """Return whether a text names a visible file of a folder, and nothing else."""
    return _FILE_NAME.fullmatch(name) is not None


def _check(is_right: bool, what: str) -> None:
    if not is_right:
        raise _BadFieldError(what)


def _check_integers(values: Sequence[Any], name: str, least: int) -> None:
    _check({*map(type, values)} <= {int}, f"{name} that are not integers")
    low, high = min(values, default=0), max(values, default=0)
    _check(least <= low and high < 2**64, f"{name} from {low!r:.30} to {high!r:.30}")


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
        is_item = type(item) is int and abs(item) < 2**64
        is_item = is_item or (type(item) is float and math.isfinite(item))
        _check(is_item or type(item) is bool, f"separator {item!r:.100}")
    return tuple(items)
