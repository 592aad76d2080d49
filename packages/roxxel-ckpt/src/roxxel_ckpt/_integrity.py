"""Digests of a checkpoint's files: written with the files, verified before use.

Neither Orbax nor zarr verifies the numbers in a file, so a flipped bit would restore as
a wrong number. Every process digests the files that it writes, and verifies the files
that it reads. The digest of a file is its size and one CRC-32 for each block. A CRC-32
detects any one or two flipped bits in a block, and misses about one in four billion
blocks with other damage.
"""

from __future__ import annotations

import os
import stat
import zlib
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from roxxel_store.files import in_parallel, matches_in

from roxxel_ckpt.activity import doing
from roxxel_ckpt.errors import CheckpointDamagedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

_BLOCK_BYTES = 1 << 24


class FileDigest(NamedTuple):
    """Size of a file, and CRC-32 of each block; the last block may be shorter."""

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
    sizes = sizes_in(directory)
    checksums = _checksums(directory, dict.fromkeys(sizes, _BLOCK_BYTES))
    files = {name: [size, *checksums[name]] for name, size in sizes.items()}
    return {"block_bytes": _BLOCK_BYTES, "files": files}


def sizes_in(directory: Path) -> dict[str, int]:
    """Return the bytes of every file below a directory, by its path there, sorted."""
    return {
        path.relative_to(directory).as_posix(): path.stat().st_size
        for path in sorted(matches_in(directory, "**/*"))
        if path.is_file()
    }


def digests_from_json(body: Mapping[str, Any]) -> dict[str, FileDigest]:
    """Parse the JSON of `digest_files` into digests by file name.

    Raises:
        ValueError: A name leads out of the step, or the numbers contradict each other.
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


def problem_of(error: CheckpointDamagedError, *places: object) -> str:
    """Return what is damaged, without place and remedy."""
    text = str(error).removesuffix("; restore another step")
    for place in places:
        text = text.removeprefix(f"{place}: ")
    return text


def find_missing(
    sizes: Mapping[str, int], digests: Mapping[str, FileDigest]
) -> str | None:
    """Describe the first file that is missing or has a wrong size; None if none."""
    for name, digest in digests.items():
        problem = (
            _wrong_size(name, sizes[name], digest)
            if name in sizes
            else f"{name} is missing"
        )
        if problem is not None:
            return problem
    return None


def _wrong_size(name: str, num_bytes: int, digest: FileDigest) -> str | None:
    """Describe a wrong size of a file; None if the size is right."""
    if num_bytes == digest.num_bytes:
        return None
    return f"{name} has {num_bytes} bytes instead of {digest.num_bytes}"


def _absence(path: Path, name: str, digest: FileDigest) -> str | None:
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return f"{name} is missing"
    if not stat.S_ISREG(status.st_mode):
        return f"{name} is not a regular file"
    return _wrong_size(name, status.st_size, digest)


class LocalFiles:
    """Files of a step on this machine: the step itself, or copies of its files.

    A file is compared with its digest before use. A sound file is read again only if
    its inode, size or times change.

    Args:
        directory: Directory of the files.
        fetch: Copies files of the step into the directory; None if the directory is the
            step itself.
        close: Ends the use of a directory of copies; see `close`.
    """

    def __init__(
        self,
        directory: Path,
        fetch: Callable[[Mapping[str, FileDigest]], None] | None = None,
        close: Callable[[bool], None] | None = None,
    ) -> None:
        self.directory = directory
        self._fetch, self._close = fetch, close
        # What `identity_of` returned for each file when its bytes had their digest.
        self._sound: dict[str, tuple[int, ...] | None] = {}

    def close(self, *, keep: bool) -> None:
        """End the use of copies; remove them unless the place may `keep` them."""
        self._sound.clear()
        if self._close is not None:
            self._close(keep)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close(keep=False)

    def check(self, digests: Mapping[str, FileDigest], names: Iterable[str]) -> None:
        """Raise a CheckpointDamagedError if a file is damaged, or has no digest."""
        names = list(names)
        problems = [f"{name} has no digest" for name in names if name not in digests]
        if not problems:
            damages = self.damages({name: digests[name] for name in names})
            problems = [*damages.values()]
        if problems:
            raise self.error(problems[0])

    def error(self, problem: str) -> CheckpointDamagedError:
        """Return the error for a problem, which `problem_of` finds in it."""
        return CheckpointDamagedError(
            f"{self.directory}: {problem}; restore another step"
        )

    def damages(self, digests: Mapping[str, FileDigest]) -> dict[str, str]:
        """Describe the damage of every file that is not sound, by name.

        Files that are missing or have a wrong size come first. Fetches copies of files
        that are not here.
        """
        found = self._damages(digests)
        if found and self._fetch is not None:
            absent = {name: digests[name] for name in found}
            self._fetch(absent)
            found = self._damages(absent)
        return found

    def forget(self) -> None:
        """Forget which files are sound."""
        self._sound.clear()

    def _damages(self, digests: Mapping[str, FileDigest]) -> dict[str, str]:
        directory, found = self.directory, dict[str, str]()
        for name, digest in digests.items():
            absence = _absence(directory / name, name, digest)
            if absence is not None:
                found[name] = absence
        present = [name for name in digests if name not in found]
        identities = {name: identity_of(directory / name) for name in present}
        # A file that has just vanished is unknown too, so reading it raises an error.
        unknown = [n for n in present if self._sound.get(n, ()) != identities[n]]
        checksums = _checksums(directory, {n: digests[n].block_bytes for n in unknown})
        for name in unknown:
            wrong = (
                f"{name} is damaged between its bytes {start} and {stop}"
                for index, (start, stop, crc) in enumerate(digests[name].spans())
                if checksums[name][index : index + 1] != [crc]
            )
            damage = next(wrong, None)
            if damage is None:
                self._sound[name] = identities[name]
            else:
                found[name] = damage
        return found


def identity_of(path: Path) -> tuple[int, ...] | None:
    """Return numbers that change whenever a file is written to or replaced.

    Returns None if there is no file.
    """
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return status.st_size, status.st_ino, status.st_mtime_ns, status.st_ctime_ns


def _checksums(directory: Path, block_bytes: Mapping[str, int]) -> dict[str, list[int]]:
    """Return each file's CRC-32s; `block_bytes` maps file names to block sizes."""

    def checksum(block: tuple[str, int]) -> int:
        name, start = block
        path = directory / name
        with doing(f"read {path}"), path.open("rb") as file:
            file.seek(start)
            return zlib.crc32(file.read(block_bytes[name]))

    blocks = [
        (name, start)
        for name, size in block_bytes.items()
        for start in range(0, (directory / name).stat().st_size, size)
    ]
    threads = min(8, os.cpu_count() or 1)
    found: dict[str, list[int]] = {name: [] for name in block_bytes}
    for (name, _), crc in zip(
        blocks, in_parallel(checksum, blocks, threads), strict=True
    ):
        found[name].append(crc)
    return found
