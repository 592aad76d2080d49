"""Seal JSON objects with a checksum, and open them: manifests, plans, unit records.

A sealed object is JSON whose last member, `crc32`, is the CRC-32 of all bytes before
it. docs/format.md, section 10.3, specifies the seal for the manifest; the records of a
preparation have the same. So one flipped bit in a file that decides what a corpus holds
is always found.
"""

from __future__ import annotations

import json
import re
import zlib
from typing import TYPE_CHECKING, Any, cast

from roxxel_format.errors import ManifestError

if TYPE_CHECKING:
    from collections.abc import Mapping

_VERSION = 1
_TAIL = re.compile(rb',"crc32":"([0-9a-f]{8})"\}\n')
_TAIL_SIZE = len(b',"crc32":"00000000"}\n')


class DamagedRecordError(ManifestError):
    """A record does not match its checksum."""


def sealed(table: Mapping[str, Any], *, ascii_only: bool = False) -> bytes:
    """Return a JSON object of at least one member with its checksum.

    With `ascii_only`, texts may hold what UTF-8 cannot encode, such as paths.
    """
    text = json.dumps(table, ensure_ascii=ascii_only, separators=(",", ":"))
    body = text[:-1].encode()
    return body + b',"crc32":"%08x"}\n' % zlib.crc32(body)


def is_whole(data: bytes) -> bool:
    """Return whether bytes end with the checksum of all bytes before it."""
    tail = _TAIL.fullmatch(data[-_TAIL_SIZE:])
    body = memoryview(data)[:-_TAIL_SIZE]
    return tail is not None and zlib.crc32(body) == int(tail[1], 16)


def pack_record(kind: str, members: Mapping[str, Any]) -> bytes:
    """Return the content of a file that holds a record of a preparation."""
    table = {"format": f"roxxel {kind}", "version": _VERSION, **members}
    return sealed(table, ascii_only=True)


def parse_record(kind: str, data: bytes, path: str) -> dict[str, Any]:
    """Return the members of a record that `pack_record` wrote.

    Raises:
        DamagedRecordError: The file is damaged, or is no record.
        ManifestError: Another release of Roxxel wrote the record.
    """
    if not is_whole(data):
        raise DamagedRecordError(
            f"{path}: the {kind} does not match its checksum, so it is damaged; delete "
            "this file and run the same command again, which keeps the finished units"
        )
    table = cast("dict[str, Any]", json.loads(data))
    del table["crc32"]
    found = table.pop("format", None), table.pop("version", None)
    if found != (f"roxxel {kind}", _VERSION):
        raise ManifestError(
            f"{path}: is {found[0]!r:.100} of version {found[1]!r:.100}, but this "
            f"release knows version {_VERSION} of a {kind}; finish the preparation "
            "with the release that began it, or give it up with `roxxel-format clean "
            "--abandon`"
        )
    return table
