"""A second reader, written from docs/format.md alone."""

from __future__ import annotations

import json
import struct
import zlib
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from pathlib import Path

CODES = {
    **{
        f"{kind}{8 * n}": f"<{kind[0]}{n}"
        for kind in ("uint", "int")
        for n in (1, 2, 4, 8)
    },
    **{f"float{8 * n}": f"<f{n}" for n in (2, 4, 8)},
    "bool": "?",
    "bfloat16": "<u2",
}


MISSING: dict[str, Any] = {"names": None, "bytes": 0, "digests": ""}
"""What the lists of a column say about a shard without a file of it."""

NO_FILES: dict[str, list[Any]] = {key: [] for key in MISSING}


def read_shard(path: Path) -> tuple[np.ndarray[Any, Any], list[Any], dict[str, Any]]:
    """Return items, documents without separators, and metadata."""
    data = path.read_bytes()
    head, foot = data[:4096], data[-256:]
    magic, version, head_size, name, size, block, separator = struct.unpack_from(
        "<8sII16sIII", head
    )
    assert magic == b"\x89ROX\r\n\x1a\n"
    assert (version, head_size, head[44:4092]) == (1, 4096, bytes(4048))
    assert zlib.crc32(head[:4092]) == struct.unpack_from("<I", head, 4092)[0]
    assert foot[248:] == b"ROXfoot\n"
    assert zlib.crc32(foot[:244]) == struct.unpack_from("<I", foot, 244)[0]
    version, head_crc, n, d, _, _, zeros = struct.unpack_from("<II4QQ", foot)
    assert (version, zeros, foot[192:244]) == (1, 0, bytes(52))
    assert head_crc == zlib.crc32(head[:4092])
    *spans, file_size, checksums_crc, metadata_crc = struct.unpack_from(
        "<9QII", foot, 48
    )
    assert file_size == len(data)
    at = 4096
    sections: list[bytes] = []
    blocks = -(-n * size // block), -(-8 * d // block)
    for start, length in zip(
        spans[::2], (blocks[0] * block, 8 * d, 4 * sum(blocks), spans[7]), strict=True
    ):
        assert start == at
        sections.append(data[at : at + length])
        at += length
    assert at + 256 == len(data)
    tokens, documents, checksums, metadata = sections
    assert zlib.crc32(checksums) == checksums_crc
    assert zlib.crc32(metadata) == metadata_crc
    computed = [
        zlib.crc32(section[i : i + block])
        for section in (tokens, documents)
        for i in range(0, len(section), block)
    ]
    assert checksums == struct.pack(f"<{len(computed)}I", *computed)
    content = blake2b(head[16:44] + foot[8:44] + documents + checksums, digest_size=32)
    assert content.digest() == foot[128:160]
    whole = head + documents + checksums + metadata + foot[:128] + foot[128:160]
    assert blake2b(whole, digest_size=32).digest() == foot[160:192]
    assert not any(tokens[n * size :])
    items = np.frombuffer(tokens, CODES[name.rstrip(b"\0").decode()], n)
    ends = np.frombuffer(documents, "<u8").tolist()
    stops = [end - separator for end in ends]
    starts = [0, *ends[:-1]]
    found = [items[a:b] for a, b in zip(starts, stops, strict=True)]
    return items, found, json.loads(metadata)


def read_corpus(path: Path, version: int) -> tuple[np.ndarray[Any, Any], list[Any]]:
    """Return items and documents of a version of the corpus with a manifest."""
    table = lists_of(_manifest(path))
    shards, versions = table["shards"], table["versions"]
    stop, num_documents = versions["tokens"][version], versions["documents"][version]
    fingerprint = b""
    items: list[np.ndarray[Any, Any]] = []
    documents: list[Any] = []
    for number, name in enumerate(shards["names"]):
        if sum(map(len, items)) == stop and len(documents) == num_documents:
            break
        file = path.with_name(name)
        data = file.read_bytes()
        assert len(data) == shards["bytes"][number]
        counts = [shards[name][number] for name in ("tokens", "documents")]
        limits = [shards[name][number] for name in ("least", "greatest")]
        assert [*struct.unpack_from("<QQqq", data, len(data) - 248)] == [
            *counts,
            *limits,
        ]
        digests = [shards[name][number] for name in ("content_digests", "digests")]
        assert data[-128:-64].hex() == "".join(digests)
        digest = b"roxxel corpus 1" + fingerprint + bytes.fromhex(digests[0])
        fingerprint = blake2b(digest, digest_size=16).digest()
        tokens, of_shard, _ = read_shard(file)
        assert tokens.size == counts[0]
        items.append(tokens)
        documents += of_shard
    assert fingerprint.hex() == versions["fingerprints"][version]
    return np.concatenate(items), documents


def read_column(path: Path, name: str) -> np.ndarray[Any, Any]:
    """Return all items of a column, of the last version."""
    table = lists_of(_manifest(path))
    column = table["columns"][name]
    parts: list[np.ndarray[Any, Any]] = []
    for number, file in enumerate(column["names"]):
        data = path.with_name(file).read_bytes()
        digest = blake2b(data, digest_size=32).hexdigest()
        assert digest == column["digests"][number]
        assert len(data) == column["bytes"][number]
        code = CODES.get(column["dtype"], column["dtype"])
        parts.append(np.frombuffer(data, code))
    return np.concatenate(parts)


def lists_of(table: dict[str, Any]) -> dict[str, Any]:
    """Return a manifest with its lists joined: members as in a part, and the others."""
    head = {key: value for key, value in table.items() if key != "parts"}
    found: dict[str, Any] = {"shards": {}, "versions": {}, "writes": []}
    types: dict[str, Any] = head.pop("columns")
    columns = {name: {**each, **NO_FILES} for name, each in types.items()}
    for part in table["parts"]:
        num_writes, num_shards = len(found["writes"]), len(part["shards"]["names"])
        found["writes"] += part["writes"]
        of_writes = [number + num_writes for number in part["versions"]["writes"]]
        for of, lists in (
            ("shards", part["shards"]),
            ("versions", {**part["versions"], "writes": of_writes}),
        ):
            for key, values in lists.items():
                if key != "columns":
                    found[of][key] = found[of].get(key, []) + values
        for name, column in columns.items():
            nothing = {key: [value] * num_shards for key, value in MISSING.items()}
            for key, values in part["columns"].get(name, nothing).items():
                column[key] = column[key] + values
    return {**head, **found, "columns": columns}


def seal(table: dict[str, Any]) -> bytes:
    """Return the bytes of a manifest, with the right checksum.

    Takes the members of a file, or what `lists_of` returns.
    """
    members = {key: value for key, value in table.items() if key != "crc32"}
    if "parts" in members:
        parts = members.pop("parts")
    else:
        part = {key: members.pop(key, None) for key in ("shards", "versions", "writes")}
        columns: dict[str, Any] = members.pop("columns", {})
        types = {
            name: {key: value for key, value in each.items() if key not in MISSING}
            for name, each in columns.items()
        }
        files = {
            name: {key: value for key, value in each.items() if key in MISSING}
            for name, each in columns.items()
        }
        contents = bytes.fromhex("".join(part["shards"]["content_digests"]))
        digest = blake2b(contents, digest_size=16).hexdigest()
        part |= {"digest": digest, "columns": files}
        members["columns"], parts = types, [part]
    head, *rows = (
        json.dumps(each, separators=(",", ":")).encode() for each in (members, *parts)
    )
    body = head[:-1] + b',"parts":[\n' + b",\n".join(rows) + b"\n]"
    return body + b',"crc32":"%08x"}\n' % zlib.crc32(body)


def _manifest(path: Path) -> dict[str, Any]:
    data = path.read_bytes()
    assert (data[-21:-11], data[-3:]) == (b',"crc32":"', b'"}\n')
    assert int(data[-11:-3], 16) == zlib.crc32(data[:-21])
    table: dict[str, Any] = json.loads(data)
    assert (table["format"], table["version"]) == ("roxxel manifest", 1)
    return table
