"""The folder of one run's checkpoints in a bucket.

    manifest.json                                        lists the steps
    <step>.<generation>-<number>-<token>/checkpoint.json describes a step
                                        /state/..., digests/...
    files/<generation>-<number>-<token>                  a piece of a file of the run

A step exists while the manifest lists it. A save uploads its files under a new name,
then replaces the manifest (`roxxel_store.swap`), so a kill never leaves half a step. If
several programs save here, the one that begins last wins: the swaps of the others fail.

Processes need not share a disk. Each process writes its files to a local directory and
uploads them from there. For a restore, each process downloads the files that its
devices need, by blocks: the parts of a file that have a CRC-32 of their own.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
from functools import partial
from typing import TYPE_CHECKING, Literal

from roxxel_store.client import checked_client
from roxxel_store.files import in_parallel
from roxxel_store.swap import (
    MANIFEST,
    Manifest,
    Writer,
    check_not_lost,
    read_manifest,
    writer_of,
)

from roxxel_ckpt._integrity import LocalFiles, find_missing, sizes_in
from roxxel_ckpt._place.copies import Copies, storing
from roxxel_ckpt._place.description import COMMIT_FILE, delivered
from roxxel_ckpt.activity import doing
from roxxel_ckpt.contents import SWAP_ERRORS, Contents, checkpoint_bucket
from roxxel_ckpt.errors import CheckpointWriteError, brief

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Generator, Mapping, Sequence
    from pathlib import Path
    from typing import Any

    from roxxel_store.client import Bucket

    from roxxel_ckpt._integrity import FileDigest
    from roxxel_ckpt._place.folder import Step
    from roxxel_ckpt.contents import Files

# A process holds 256 MiB of files that are being uploaded: 16 threads, each with 2
# parts of 8 MiB.
_PARTS = 2
_logger = logging.getLogger("roxxel_ckpt")


@dataclasses.dataclass(frozen=True)
class BucketStep:
    """The objects of a step; their names begin with the name of the step.

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
        """Finished, because a manifest lists only finished steps."""
        return "finished"

    def read(self, name: str) -> bytes:
        """Return the content of a sealed file."""
        return self.bucket.read(f"{self.name}/{name}")

    def sizes(self) -> dict[str, int]:
        """Return the number of bytes of every file, by its path in the step."""
        return self.bucket.sizes(f"{self.name}/")

    def opened(self) -> LocalFiles:
        """Return a directory of copies; it may have files of an earlier use."""
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
        """Download files by blocks; the digests decide later whether they are sound."""

        def prepare(name: str) -> None:
            path = directory / name
            with storing(path):
                path.parent.mkdir(parents=True, exist_ok=True)
                with path.open("wb") as file:
                    os.ftruncate(file.fileno(), digests[name].num_bytes)

        def download(block: tuple[str, int, int, int]) -> None:
            name, start, stop, _ = block
            path = directory / name
            try:
                with doing(f"read {self.bucket.url_of(self.name)}/{name}"):
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

        in_parallel(prepare, digests)
        blocks = [(name, *span) for name, d in digests.items() for span in d.spans()]
        in_parallel(download, blocks)


class BucketFolder:
    """The checkpoints of a run in a bucket.

    Args:
        url: A URL that `bucket_url` returned.
        local: Directory for local copies; the files of the newest checkpoint stay in
            it. None uses a temporary directory, which is removed at the end.
        timeout_s: Time limit in seconds. A failed request is repeated for about a third
            of it.

    Raises:
        ModuleNotFoundError: The client is not installed.
    """

    not_shared_remedy = "check that all processes use the same store and credentials"
    staging_remedy = (
        "give local= (else TMPDIR) a directory with room that this program can write"
    )

    def __init__(self, url: str, local: Path | None, timeout_s: float) -> None:
        self.described: dict[Step, Any] = {}
        self._url, self._timeout_s = url, timeout_s
        self._bucket = checkpoint_bucket(url, timeout_s)
        self._copies = Copies(local)
        checked_client()

    def __str__(self) -> str:
        return self._url

    def check_not_lost(self) -> None:
        """Raise CheckpointDamagedError if there are steps but no manifest."""
        check_not_lost(self._bucket, SWAP_ERRORS)

    def steps(self, only: Collection[int] | None = None) -> dict[int, Step]:
        """Return the steps that the manifest lists, oldest first."""
        return {
            number: self._step(number, name)
            for number, name in self._contents().names().items()
            if only is None or number in only
        }

    def _step(self, number: int, name: str) -> BucketStep:
        location = f"{self._url}/{number}"
        return BucketStep(number, name, location, self._bucket, self._copies)

    def turn(self) -> Manifest:
        """Return whose turn to save it is."""
        return read_manifest(self._bucket, SWAP_ERRORS)

    @contextlib.contextmanager
    def saving(self, seen: Manifest | None = None) -> Generator[str]:
        """Become the writer; wait until no other thread saves here.

        Leftovers are removed after the commit, in the background.

        Raises:
            CheckpointWriteError: A later program has begun.
            CheckpointTimeoutError: The save of another thread did not end in time.
        """
        with self._writer.alone(self._timeout_s):
            self._writer.ensure_begun(seen)
            yield self._writer.new_name()

    def sees(self, attempt: str) -> bool:
        """Return whether the program of `attempt` wrote the manifest."""
        return attempt.endswith(f"-{self.turn().writer}")

    @contextlib.contextmanager
    def staged(self, step: int, attempt: str, process: int) -> Generator[Path]:
        """Yield a local directory for the files of this process.

        At the end, the files stay in `local`, or are removed. What a failed save has
        uploaded, a later save removes, unless the manifest lists it: the failed commit
        may still have taken effect.
        """
        directory = self._copies.directory() / f"{step}.{attempt}"
        # Ignore an error here: this save then also fails to create its files in the
        # directory, and reports that error on all processes.
        with contextlib.suppress(OSError):
            self._copies.claim(directory)
        try:
            yield directory
        except BaseException:
            self._copies.drop(directory, keep=False)
            if process == 0:
                self._writer.drop([directory.name])
            raise
        self._copies.drop(directory, keep=True)

    def deliver(self, staging: Path) -> None:
        """Upload the files of this process, several at a time."""
        _upload(self._bucket, staging)

    def commit(
        self,
        staging: Path,
        step: int,
        text: str,
        *,
        digests: Sequence[int],
        damaged: Sequence[Step],
        drops: Collection[int],
        files: Files,
    ) -> list[str]:
        """Commit a step, mark damaged steps, and drop others, all in one swap.

        Raises:
            CheckpointWriteError: Another program has begun to save here, or an uploaded
                file is missing.
            CheckpointBucketError: The request failed; it may still take effect.
        """
        name = staging.name
        new = self._step(step, name)
        try:
            self._check_uploaded(new, digests)
        except CheckpointWriteError:
            self._writer.ensure_begun()  # a later program deletes what is not listed
            raise
        self._bucket.create(f"{name}/{COMMIT_FILE}", text.encode())
        names = [step.name for step in damaged if isinstance(step, BucketStep)]

        def add(contents: Contents) -> Contents:
            return contents.committed(name, files, drops=drops, damaged=names)

        self._swap(add)
        return [self._bucket.url_of(name) for name in names]

    def delete(self, step: int) -> None:
        """Delete a step; call it in `saving`.

        Raises:
            CheckpointWriteError: A later program has begun; nothing was changed.
            CheckpointBucketError: The request failed; it may still take effect.
        """
        self._swap(lambda contents: contents.without({step}))

    def _swap(self, change: Callable[[Contents], Contents]) -> None:
        """Replace the manifest's list, and delete what it no longer lists."""

        def changed(listed: Mapping[str, Any]) -> Mapping[str, Any]:
            contents = Contents.of(listed, self._bucket.url_of(MANIFEST))
            return change(contents).to_json()

        self._writer.swap(changed)
        try:
            self._writer.collect()
        except OSError as error:  # the next save tries again
            what = f"{self}: leftovers of earlier saves"
            _logger.warning("%s: cannot be deleted (%s)", what, brief(error))

    def _check_uploaded(self, new: BucketStep, digests: Sequence[int]) -> None:
        """Raise CheckpointWriteError unless all files of all processes are there."""
        problem = find_missing(new.sizes(), delivered(self, new, digests))
        if problem is not None:
            raise CheckpointWriteError(
                f"{self._bucket.url_of(new.name)}: {problem} after the upload; save "
                "again, and let no other program delete objects here"
            )

    @property
    def _writer(self) -> Writer:
        return writer_of(self._bucket, SWAP_ERRORS)

    def _contents(self) -> Contents:
        return Contents.of(self.turn().listed, self._bucket.url_of(MANIFEST))


def _upload(bucket: Bucket, directory: Path) -> None:
    """Upload all files of a local directory, several at a time."""

    def send(name: str) -> None:
        try:
            bucket.write_file(f"{directory.name}/{name}", directory / name, _PARTS)
        except FileNotFoundError:
            raise CheckpointWriteError(
                f"{directory / name}: was removed before its upload; let no "
                "program clean this directory during a save"
            ) from None

    in_parallel(send, sizes_in(directory))
