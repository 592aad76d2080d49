"""Digests of a checkpoint's files: written with the files, verified before use.

Neither Orbax nor zarr checks the numbers in a file, so a flipped bit would restore as a
wrong number. Every process digests the files that it writes, and verifies the files
that it reads. The digest of a file is its size and one CRC-32 for each block. A CRC-32
finds every flip of up to three bits in a block, and misses other damage once in four
billion blocks.
"""

from __future__ import annotations

import json
import os
import zlib
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

from roxxel_ckpt.errors import CheckpointDamagedError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

_BLOCK_BYTES = 1 << 24
# Below this size, starting threads costs more than they save.
_THREADS_FROM_BYTES = 1 << 26


class FileDigest(NamedTuple):
    """The digest of one file.

    Attributes:
        num_bytes: Size of the file.
        block_bytes: Size of a block; the last block may be shorter.
        blocks: CRC-32 of each block, in order.
    """

    num_bytes: int
    block_bytes: int
    blocks: tuple[int, ...]


def digest_files(directory: Path) -> dict[str, Any]:
    """Return the digests of all files below a directory, as a JSON object."""
    names = sorted(_names(directory))
    tasks = _tasks(directory, [(name, _BLOCK_BYTES) for name in names])
    checksums = iter(_checksums(tasks))
    files: dict[str, list[int]] = {}
    for name in names:
        size = (directory / name).stat().st_size
        files[name] = [size, *(next(checksums) for _ in range(0, size, _BLOCK_BYTES))]
    return {"block_bytes": _BLOCK_BYTES, "files": files}


def digests_from_json(body: Mapping[str, Any]) -> dict[str, FileDigest]:
    """Return the digests by file name from their JSON object."""
    block_bytes = int(body["block_bytes"])
    return {
        name: FileDigest(numbers[0], block_bytes, tuple(numbers[1:]))
        for name, numbers in body["files"].items()
    }


def sealed(body: Any) -> str:
    """Return a JSON value as text that carries its own CRC-32."""
    return json.dumps({"body": body, "crc32": crc_of(body)}, indent=0)


def unsealed(path: Path, name: str) -> Any:
    """Return the JSON value of a file that `sealed` made.

    Args:
        path: Directory of the step.
        name: Name of the file in it.

    Raises:
        CheckpointDamagedError: The file is missing or differs from what was written.
    """
    try:
        record = json.loads((path / name).read_text())
        if record["crc32"] == crc_of(record["body"]):
            return record["body"]
    except FileNotFoundError as error:
        raise CheckpointDamagedError(
            f"{path}: {name} is missing; restore another step"
        ) from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointDamagedError(
            f"{path}: {name} is damaged; restore another step"
        ) from error
    raise CheckpointDamagedError(f"{path}: {name} is damaged; restore another step")


class Verifier:
    """Compares files with their digests, and remembers which files are sound.

    A file is verified again when its inode, size or times have changed.
    """

    def __init__(self) -> None:
        self._sound: dict[Path, tuple[int, ...]] = {}

    def find_damage(
        self, directory: Path, digests: Mapping[str, FileDigest]
    ) -> str | None:
        """Return the first difference, with file and byte offset; None for none.

        Args:
            directory: Directory of the step.
            digests: Of the files to verify, by name.
        """
        identities: dict[str, tuple[int, ...]] = {}
        for name, digest in digests.items():
            try:
                identity = identities[name] = _identity(directory / name)
            except FileNotFoundError:
                return f"{name} is missing"
            if identity[0] != digest.num_bytes:
                return f"{name} has {identity[0]} bytes instead of {digest.num_bytes}"
        unknown = [
            name
            for name in digests
            if self._sound.get(directory / name) != identities[name]
        ]
        tasks = _tasks(
            directory, [(name, digests[name].block_bytes) for name in unknown]
        )
        checksums = iter(_checksums(tasks))
        for name in unknown:
            num_bytes, block_bytes, blocks = digests[name]
            for index, wanted in enumerate(blocks):
                if next(checksums, None) != wanted:
                    start = index * block_bytes
                    stop = min(start + block_bytes, num_bytes)
                    return f"{name} is damaged between its bytes {start} and {stop}"
            self._sound[directory / name] = identities[name]
        return None

    def forget(self) -> None:
        """Verify every file again from now on."""
        self._sound.clear()


def _identity(path: Path) -> tuple[int, ...]:
    """Return numbers that change whenever a file is written to or replaced."""
    stat = path.stat()
    return stat.st_size, stat.st_ino, stat.st_mtime_ns, stat.st_ctime_ns


def _names(directory: Path, prefix: str = "") -> Iterator[str]:
    for entry in directory.iterdir():
        if entry.is_dir():
            yield from _names(entry, f"{prefix}{entry.name}/")
        else:
            yield prefix + entry.name


def _tasks(
    directory: Path, files: Iterable[tuple[str, int]]
) -> list[tuple[Path, int, int]]:
    """Return path, start and length of every block of some files."""
    tasks: list[tuple[Path, int, int]] = []
    for name, block_bytes in files:
        path = directory / name
        size = path.stat().st_size
        tasks += [
            (path, start, min(block_bytes, size - start))
            for start in range(0, size, block_bytes)
        ]
    return tasks


def _checksums(tasks: list[tuple[Path, int, int]]) -> list[int]:
    if sum(num_bytes for _, _, num_bytes in tasks) >= _THREADS_FROM_BYTES:
        try:
            with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
                return list(pool.map(_crc_of_block, tasks))
        except RuntimeError:
            pass  # the interpreter is ending and starts no threads
    return [_crc_of_block(task) for task in tasks]


def _crc_of_block(task: tuple[Path, int, int]) -> int:
    path, start, num_bytes = task
    with path.open("rb") as file:
        file.seek(start)
        return zlib.crc32(file.read(num_bytes))


def crc_of(body: Any) -> int:
    """Return the CRC-32 of a JSON value."""
    return zlib.crc32(json.dumps(body, sort_keys=True).encode())
