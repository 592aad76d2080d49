"""The files of a step in a bucket: uploaded, downloaded by blocks, verified.

Each process uploads the files that it wrote, and downloads the files that its devices
need. A block is the part of a file that has a CRC-32 of its own. A sealed file is JSON
that holds its own CRC-32.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import zlib
from functools import partial
from typing import TYPE_CHECKING, Literal

from roxxel_store.client import for_each
from roxxel_store.files import matches_in

from roxxel_ckpt._integrity import LocalFiles, is_sealed
from roxxel_ckpt._names import COMMIT_FILE
from roxxel_ckpt._place.copies import storing
from roxxel_ckpt.errors import CheckpointWriteError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from roxxel_store.client import Bucket

    from roxxel_ckpt._integrity import FileDigest
    from roxxel_ckpt._place.copies import Copies

# A process holds 256 MiB of files that are being uploaded: 16 threads, each with 2
# parts of 8 MiB.
_PARTS = 2


@dataclasses.dataclass(frozen=True)
class BucketStep:
    """The objects of a step, whose names begin with the name of the step.

    Attributes:
        number: Number of updates done.
        name: Name of the step in the manifest, which no other save has. The directory
            of local copies has the same name.
        location: URL of the step for messages.
        bucket: The folder of the step.
        copies: The local directories of this program.
    """

    number: int
    name: str
    location: str
    bucket: Bucket = dataclasses.field(compare=False)
    copies: Copies = dataclasses.field(compare=False)

    @property
    def state(self) -> Literal["finished", "unfinished", "foreign"]:
        """Finished, because a manifest lists no other steps."""
        return "finished"

    def read(self, name: str) -> bytes:
        """Return the content of a sealed file; read it twice if it arrives damaged.

        The description is read at every save and by every look at the folder, so this
        program keeps a copy.
        """
        kept = self.copies.descriptions
        if name == COMMIT_FILE and self.name in kept:
            return kept[self.name]
        data = self.bucket.read(f"{self.name}/{name}")
        if not is_sealed(data):  # it arrived damaged
            data = self.bucket.read(f"{self.name}/{name}")
        if name == COMMIT_FILE:
            kept[self.name] = data
        return data

    def sizes(self) -> dict[str, int]:
        """Return the number of bytes of every file, by its path in the step."""
        return self.bucket.sizes(f"{self.name}/")

    def opened(self) -> LocalFiles:
        """Return a directory of copies, which may have files of an earlier use."""
        directory = self.copies.directory() / self.name
        with storing(directory):
            if not self.copies.claim(directory):
                # Another process uploads from this directory, or downloads to it.
                directory = self.copies.temporary() / self.name
        return LocalFiles(
            directory,
            partial(self._download, directory),
            lambda keep: self.copies.drop(directory, keep=keep),
        )

    def _download(self, directory: Path, digests: Mapping[str, FileDigest]) -> None:
        """Download files by blocks; download a damaged block once more.

        The digests decide later whether the files are sound.
        """

        def prepare(name: str) -> None:
            path = directory / name
            with storing(path):
                path.parent.mkdir(parents=True, exist_ok=True)
                with path.open("wb") as file:
                    os.ftruncate(file.fileno(), digests[name].num_bytes)

        def download(block: tuple[str, int, int, int]) -> None:
            name, start, stop, crc = block
            path = directory / name
            try:
                data = self.bucket.read(f"{self.name}/{name}", (start, stop))
                if zlib.crc32(data) != crc:
                    data = self.bucket.read(f"{self.name}/{name}", (start, stop))
            except FileNotFoundError:
                path.unlink(missing_ok=True)
                return
            with (
                storing(path),
                contextlib.suppress(FileNotFoundError),
                path.open("r+b") as file,
            ):
                file.seek(start)
                file.write(data)

        for_each(prepare, digests)
        blocks = [(name, *span) for name, d in digests.items() for span in d.spans()]
        for_each(download, blocks)


def upload(bucket: Bucket, directory: Path) -> None:
    """Upload all files of a local directory, several at a time."""
    names = [
        path.relative_to(directory).as_posix()
        for path in matches_in(directory, "**/*")
        if path.is_file()
    ]

    def send(name: str) -> None:
        try:
            bucket.write_file(f"{directory.name}/{name}", directory / name, _PARTS)
        except FileNotFoundError:
            raise CheckpointWriteError(
                f"{directory / name}: was removed before its upload; let no "
                "program clean this directory during a save"
            ) from None

    for_each(send, names)
