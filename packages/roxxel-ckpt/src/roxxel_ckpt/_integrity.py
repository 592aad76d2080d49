"""Digests of a checkpoint's files: written when it is whole, checked before use.

Orbax's files carry no checksum of the bulk of their bytes, so a flipped bit restores as
a wrong number without a word. `digests.json` holds the size of every file and one
CRC-32 for each block of it, and a CRC-32 of itself. A CRC-32 finds every flip of up to
three bits in a block, and misses other damage once in four billion blocks.
"""

from __future__ import annotations

import json
import os
import zlib
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

from roxxel_ckpt import _files
from roxxel_ckpt._folder import DIGESTS_FILE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from etils import epath

_FORMAT = 1
_BLOCK_BYTES = 1 << 24
# Below this, starting threads costs more than they save.
_THREADS_FROM_BYTES = 1 << 26


class FileDigest(NamedTuple):
    """Size of one file in bytes, and the CRC-32 of each of its blocks in order."""

    num_bytes: int
    blocks: tuple[int, ...]


def write_digests(directory: epath.Path) -> int:
    """Write the digests of every file below a directory into it.

    Returns:
        Bytes of all files together, without the digests.
    """
    names = sorted(_names(directory))
    digests = dict(zip(names, _digests(directory, names, _BLOCK_BYTES), strict=True))
    body = {
        "format": _FORMAT,
        "block_bytes": _BLOCK_BYTES,
        "files": {name: [d.num_bytes, *d.blocks] for name, d in digests.items()},
    }
    text = json.dumps({"body": body, "crc32": _crc_of(body)}, indent=0)
    _files.write_whole(directory / DIGESTS_FILE, text)
    return sum(digest.num_bytes for digest in digests.values())


def has_digests(directory: epath.Path) -> bool:
    """Return whether the digests of this directory were written."""
    return (directory / DIGESTS_FILE).exists()


def find_damage(directory: epath.Path) -> str | None:
    """Compare every file below a directory with its digests.

    Returns:
        What differs, naming file and byte offset, or None when nothing does. Files
        that came later are not looked at.
    """
    try:
        record: dict[str, Any] = json.loads((directory / DIGESTS_FILE).read_text())
        body = record["body"]
        if record["crc32"] != _crc_of(body):
            return f"{DIGESTS_FILE} is damaged"
        block_bytes = int(body["block_bytes"])
        expected = {
            name: FileDigest(numbers[0], tuple(numbers[1:]))
            for name, numbers in body["files"].items()
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return f"{DIGESTS_FILE} is damaged"
    sizes = {name: _size(directory / name) for name in expected}
    for name, digest in expected.items():
        if sizes[name] is None:
            return f"{name} is missing"
        if sizes[name] != digest.num_bytes:
            return f"{name} has {sizes[name]} bytes instead of {digest.num_bytes}"
    found = _digests(directory, list(expected), block_bytes)
    for (name, digest), actual in zip(expected.items(), found, strict=True):
        pairs = zip(digest.blocks, actual.blocks, strict=True)
        for index, (wanted, got) in enumerate(pairs):
            if wanted != got:
                start = index * block_bytes
                stop = min(start + block_bytes, digest.num_bytes)
                return f"{name} is damaged between its bytes {start} and {stop}"
    return None


def stamp(directory: epath.Path) -> dict[str, tuple[int, ...]] | None:
    """Return what changes when a file below a directory is written to, by file.

    Returns:
        `_files.identity` of every file; None where the file system tells too little.
    """
    found: dict[str, tuple[int, ...]] = {}
    for name in (*_names(directory), DIGESTS_FILE):
        numbers = _files.identity(directory / name)
        if numbers is None:
            return None
        found[name] = numbers
    return found


def _names(directory: epath.Path, prefix: str = "") -> Iterator[str]:
    for entry in directory.iterdir():
        if entry.is_dir():
            yield from _names(entry, f"{prefix}{entry.name}/")
        elif not entry.name.startswith(DIGESTS_FILE):
            yield prefix + entry.name


def _size(path: epath.Path) -> int | None:
    return path.stat().length if path.exists() else None


def _digests(
    directory: epath.Path, names: list[str], block_bytes: int
) -> list[FileDigest]:
    sizes = [path.stat().length for path in (directory / name for name in names)]
    tasks = [
        (directory / name, start, block_bytes)
        for name, size in zip(names, sizes, strict=True)
        for start in range(0, size, block_bytes)
    ]
    checksums = iter(_map_blocks(tasks, sum(sizes)))
    return [
        FileDigest(size, tuple(next(checksums) for _ in range(0, size, block_bytes)))
        for size in sizes
    ]


def _map_blocks(
    tasks: list[tuple[epath.Path, int, int]], num_bytes: int
) -> Iterable[int]:
    if num_bytes < _THREADS_FROM_BYTES:
        return [_crc_of_block(task) for task in tasks]
    try:
        with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
            return list(pool.map(_crc_of_block, tasks))
    except RuntimeError:  # the interpreter ends and starts no threads any more
        return [_crc_of_block(task) for task in tasks]


def _crc_of_block(task: tuple[epath.Path, int, int]) -> int:
    path, start, num_bytes = task
    with path.open("rb") as file:
        file.seek(start)
        return zlib.crc32(file.read(num_bytes))


def _crc_of(body: Any) -> int:
    return zlib.crc32(json.dumps(body, sort_keys=True).encode())
