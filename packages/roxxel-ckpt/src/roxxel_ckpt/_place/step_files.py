"""The files of steps in a bucket: uploaded, downloaded by blocks, verified.

Each process uploads the files that it wrote, and downloads the files that its devices
need. A block is the part of a file that has a CRC-32 of its own. A sealed file is JSON
that holds its own CRC-32.
"""

from __future__ import annotations

import contextlib
import os
import zlib
from typing import TYPE_CHECKING

from roxxel_store.client import for_each
from roxxel_store.files import matches_in

from roxxel_ckpt._integrity import damaged_block, is_sealed, wrong_size
from roxxel_ckpt._place.copies import storing, write_copy
from roxxel_ckpt.errors import CheckpointWriteError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from roxxel_store.client import Bucket

    from roxxel_ckpt._integrity import FileDigest

# A process holds 256 MiB of files that are being uploaded: 16 threads, each with 2
# parts of 8 MiB.
_PARTS = 2


class StepFiles:
    """The files of all steps of a folder; the files of a step share a prefix.

    The prefix is the step's name in the manifest. A local directory with copies of the
    step has the same name.
    """

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket

    def url_of(self, name: str) -> str:
        """Return the URL of a file or of a step."""
        return self._bucket.url_of(name)

    def sizes(self, prefix: str) -> dict[str, int]:
        """Return the size of every file below a prefix; the names lack the prefix."""
        return self._bucket.sizes(prefix)

    def upload(self, directory: Path) -> None:
        """Upload all files of a local directory, several at a time."""
        names = [
            path.relative_to(directory).as_posix()
            for path in matches_in(directory, "**/*")
            if path.is_file()
        ]

        def upload(name: str) -> None:
            try:
                self._bucket.write_file(
                    f"{directory.name}/{name}", directory / name, _PARTS
                )
            except FileNotFoundError:
                raise CheckpointWriteError(
                    f"{directory / name}: was removed before its upload; let no "
                    "program clean this directory during a save"
                ) from None

        for_each(upload, names)

    def copy(self, directory: Path, name: str) -> None:
        """Download a sealed file of a step to the local directory of the step."""
        data = self._bucket.read(f"{directory.name}/{name}")
        if not is_sealed(data):  # it arrived damaged
            data = self._bucket.read(f"{directory.name}/{name}")
        write_copy(directory / name, data)

    def download(self, directory: Path, digests: Mapping[str, FileDigest]) -> None:
        """Download files by blocks; download a damaged block once more."""

        def prepare(name: str) -> None:
            path = directory / name
            with storing(path):
                path.parent.mkdir(parents=True, exist_ok=True)
                with path.open("wb") as file:
                    os.ftruncate(file.fileno(), digests[name].num_bytes)

        def download(block: tuple[str, int, int, int]) -> None:
            name, start, stop, crc = block
            data = self._block(directory.name, name, (start, stop), crc)
            if data is None:
                (directory / name).unlink(missing_ok=True)
                return
            with (
                storing(directory / name),
                contextlib.suppress(FileNotFoundError),
                (directory / name).open("r+b") as file,
            ):
                file.seek(start)
                file.write(data)

        for_each(prepare, digests)
        for_each(download, _blocks(digests))

    def find_missing(self, step: str, digests: Mapping[str, FileDigest]) -> str | None:
        """Describe the first file that is missing or has a wrong size."""
        sizes = self.sizes(f"{step}/")
        for name, digest in digests.items():
            problem = (
                wrong_size(name, sizes[name], digest)
                if name in sizes
                else f"{name} is missing"
            )
            if problem is not None:
                return problem
        return None

    def find_damage(self, step: str, digests: Mapping[str, FileDigest]) -> str | None:
        """Describe the first damaged file; downloads all files and stores none."""
        missing = self.find_missing(step, digests)
        if missing is not None:
            return missing
        damaged: list[str] = []

        def verify(block: tuple[str, int, int, int]) -> None:
            name, start, stop, crc = block
            data = self._block(step, name, (start, stop), crc)
            if data is None:
                damaged.append(f"{name} is missing")
            elif zlib.crc32(data) != crc:
                damaged.append(damaged_block(name, start, stop))

        for_each(verify, _blocks(digests))
        return min(damaged, default=None)

    def _block(
        self, step: str, name: str, span: tuple[int, int], crc: int
    ) -> bytes | None:
        """Download a block, twice if it arrives damaged; None if there is no object."""
        data = b""
        for _ in range(2):
            try:
                data = self._bucket.read(f"{step}/{name}", span)
            except FileNotFoundError:
                return None
            if zlib.crc32(data) == crc:
                break
        return data


def _blocks(digests: Mapping[str, FileDigest]) -> list[tuple[str, int, int, int]]:
    return [(name, *span) for name, d in digests.items() for span in d.spans()]
