"""Digests of a checkpoint's files: written with the files, verified before use.

Neither Orbax nor zarr verifies the numbers in a file, so a flipped bit would restore as
a wrong number. Every process digests the files that it writes, and verifies the files
that it reads. The digest of a file is its size and one CRC-32 for each block. A CRC-32
detects any one or two flipped bits in a block, and misses about one in four billion
blocks with other damage.
"""

from __future__ import annotations

import json
import os
import re
import stat
import zlib
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

from roxxel_store.files import matches_in
from roxxel_store.records import parse_value

from roxxel_ckpt._names import COMMIT_FILE
from roxxel_ckpt.errors import CheckpointDamagedError, CheckpointUnreadableError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

_BLOCK_BYTES = 1 << 24


class FileDigest(NamedTuple):
    """Size of a file and CRC-32 of each block; the last block may be shorter."""

    num_bytes: int
    block_bytes: int
    blocks: tuple[int, ...]

    def spans(self) -> list[tuple[int, int, int]]:
        """Return start, stop and CRC-32 of every block."""
        starts = range(0, self.num_bytes, self.block_bytes)
        return [
            (start, min(start + self.block_bytes, self.num_bytes), crc)
            for start, crc in zip(starts, self.blocks, strict=True)
        ]


def digest_files(directory: Path) -> dict[str, Any]:
    """Return the digests of all files below a directory, as a JSON object."""
    sizes = {
        path.relative_to(directory).as_posix(): path.stat().st_size
        for path in sorted(matches_in(directory, "**/*"))
        if path.is_file()
    }
    checksums = _checksums(directory, dict.fromkeys(sizes, _BLOCK_BYTES))
    files = {name: [size, *checksums[name]] for name, size in sizes.items()}
    return {"block_bytes": _BLOCK_BYTES, "files": files}


def digests_from_json(body: Mapping[str, Any]) -> dict[str, FileDigest]:
    """Parse the JSON of `digest_files` into digests by file name.

    Raises:
        ValueError: A name leads out of the step, or numbers do not fit each other.
    """
    block_bytes = int(body["block_bytes"])
    found: dict[str, FileDigest] = {}
    for name, (num_bytes, *blocks) in body["files"].items():
        if name.startswith("/") or not {"", ".", ".."}.isdisjoint(name.split("/")):
            raise ValueError(f"{name!r} is no file of a step")
        if num_bytes < 0 or len(blocks) != -(-num_bytes // block_bytes):
            raise ValueError(f"{name} has {num_bytes} bytes and {len(blocks)} blocks")
        found[name] = FileDigest(num_bytes, block_bytes, tuple(blocks))
    return found


def sealed(body: Any) -> str:
    """Return a JSON text that holds a value and the CRC-32 of the value."""
    return json.dumps({"body": body, "crc32": crc_of(body)}, indent=0)


def is_sealed(text: bytes) -> bool:
    """Return whether a text holds a value and the value's correct CRC-32."""
    try:
        record = parse_value(text, "", "")
        return record["crc32"] == crc_of(record["body"])
    except (ValueError, KeyError, TypeError):
        return False


def mode_of(path: Path) -> int | None:
    """Return type and permissions of a path; None if there is nothing.

    `Path.exists` and `Path.is_dir` hide some errors of the disk, so a step would seem
    to be absent.
    """
    try:
        return path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None


def text_of(path: Path) -> str:
    """Return the text of a regular file.

    Raises:
        FileNotFoundError: There is no such file.
        OSError: The file cannot be read.
        ValueError: The file is not text, or not a regular file; opening a named pipe
            would block until a program writes to the pipe.
    """
    mode = mode_of(path)
    if mode is not None and not stat.S_ISREG(mode):
        raise ValueError(f"{path} is not a regular file")
    return path.read_text("utf-8")


def unsealed(path: Path, name: str) -> Any:
    """Return the value sealed in `path / name`.

    Raises:
        CheckpointDamagedError: The file is missing or damaged.
        CheckpointUnreadableError: The file cannot be read for another reason.
    """
    try:
        record = parse_value(text_of(path / name), name, "restore another step")
        if record["crc32"] == crc_of(record["body"]):
            return record["body"]
    except (FileNotFoundError, NotADirectoryError) as error:
        raise CheckpointDamagedError(
            f"{path}: {name} is missing; restore another step"
        ) from error
    except (OSError, MemoryError) as error:
        raise CheckpointUnreadableError.because(path, error) from error
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointDamagedError(
            f"{path}: {name} is damaged; restore another step"
        ) from error
    raise CheckpointDamagedError(f"{path}: {name} is damaged; restore another step")


def find_missing(directory: Path, digests: Mapping[str, FileDigest]) -> str | None:
    """Describe the first file that is missing or has a wrong size; None if none."""
    problems = (_absence(directory / n, n, digest) for n, digest in digests.items())
    return next(filter(None, problems), None)


def find_undigested(
    names: Iterable[str], digests: Mapping[str, FileDigest]
) -> str | None:
    """Describe the first file that must have a digest and has none; None if none."""
    missing = next((name for name in names if name not in digests), None)
    return None if missing is None else f"{missing} has no digest"


def wrong_size(name: str, num_bytes: int, digest: FileDigest) -> str | None:
    """Describe a wrong size of a file; None if the size is right."""
    if num_bytes == digest.num_bytes:
        return None
    return f"{name} has {num_bytes} bytes instead of {digest.num_bytes}"


def damaged_block(name: str, start: int, stop: int) -> str:
    """Describe a block whose CRC-32 is wrong."""
    return f"{name} is damaged between its bytes {start} and {stop}"


def _absence(path: Path, name: str, digest: FileDigest) -> str | None:
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return f"{name} is missing"
    if not stat.S_ISREG(status.st_mode):
        return f"{name} is not a regular file"
    return wrong_size(name, status.st_size, digest)


class Verifier:
    """Compares files with their digests, and remembers which files are sound.

    The verifier reads a sound file again only if its inode, size or times change.
    """

    def __init__(self) -> None:
        self._sound: dict[Path, tuple[int, ...]] = {}

    def find_damage(
        self, directory: Path, digests: Mapping[str, FileDigest]
    ) -> str | None:
        """Describe the first damage by file and byte offset; None if all are sound."""
        return next(iter(self.damages(directory, digests).values()), None)

    def damages(
        self, directory: Path, digests: Mapping[str, FileDigest]
    ) -> dict[str, str]:
        """Describe the damage of every file that is not sound, by name.

        Files that are missing or have a wrong size come first.
        """
        found: dict[str, str] = {}
        for name, digest in digests.items():
            absence = _absence(directory / name, name, digest)
            if absence is not None:
                found[name] = absence
        present = [name for name in digests if name not in found]
        identities = {name: _identity(directory / name) for name in present}
        unknown = [
            name
            for name in present
            if self._sound.get(directory / name) != identities[name]
        ]
        checksums = _checksums(directory, {n: digests[n].block_bytes for n in unknown})
        for name in unknown:
            wrong = (
                damaged_block(name, start, stop)
                for index, (start, stop, crc) in enumerate(digests[name].spans())
                if checksums[name][index : index + 1] != [crc]
            )
            damage = next(wrong, None)
            if damage is None:
                self._sound[directory / name] = identities[name]
            else:
                found[name] = damage
        return found

    def forget(self) -> None:
        """Forget which files are sound."""
        self._sound.clear()


def _identity(path: Path) -> tuple[int, ...]:
    """Return numbers that change whenever a file is written to or replaced."""
    status = path.stat()
    return status.st_size, status.st_ino, status.st_mtime_ns, status.st_ctime_ns


def _checksums(directory: Path, block_bytes: Mapping[str, int]) -> dict[str, list[int]]:
    """Return each file's CRC-32s; `block_bytes` maps file names to block sizes."""

    def checksum(block: tuple[str, int]) -> int:
        name, start = block
        with (directory / name).open("rb") as file:
            file.seek(start)
            return zlib.crc32(file.read(block_bytes[name]))

    blocks = [
        (name, start)
        for name, size in block_bytes.items()
        for start in range(0, (directory / name).stat().st_size, size)
    ]
    try:
        with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
            checksums = list(pool.map(checksum, blocks))
    except RuntimeError:  # an interpreter that is shutting down starts no threads
        checksums = list(map(checksum, blocks))
    found: dict[str, list[int]] = {name: [] for name in block_bytes}
    for (name, _), crc in zip(blocks, checksums, strict=True):
        found[name].append(crc)
    return found


def crc_of(body: Any) -> int:
    """Return the CRC-32 of a JSON value."""
    return zlib.crc32(json.dumps(body, sort_keys=True).encode())


def is_finished(directory: Path) -> bool:
    """Return whether a directory of any name holds a step, which may be damaged."""
    return mode_of(directory / COMMIT_FILE) is not None


def digests_file(process: int) -> str:
    """Return the path of a process's file of digests, relative to the step."""
    return f"digests/{process}.json"


def has_digests(directory: Path, process: int, crc: int) -> bool:
    """Return whether a directory holds the file of digests of a process."""
    try:
        return crc_of(unsealed(directory, digests_file(process))) == crc
    except CheckpointDamagedError:
        return False


def escaped(text: str) -> str:
    """Escape one part of a leaf's name, which also names a directory.

    Slashes separate the parts, and no directory can be named with an empty text, with
    `.` or `..`, or with characters that no file name can hold.
    """
    if text in {"", ".", ".."}:
        return "%2E" * len(text) or "%"
    return re.sub(r"[%/\x00-\x1f\x7f\ud800-\udfff]", _escape, text)


def _escape(found: re.Match[str]) -> str:
    return f"%{ord(found[0]):02X}"
