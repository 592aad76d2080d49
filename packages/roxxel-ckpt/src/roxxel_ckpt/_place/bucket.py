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
devices need.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from roxxel_store.client import checked_client, for_each
from roxxel_store.swap import (
    MANIFEST,
    Writer,
    check_not_lost,
    is_name,
    read_manifest,
    remove_folder,
    writer_of,
)

from roxxel_ckpt._integrity import (
    digests_file,
    digests_from_json,
    has_digests,
    unsealed,
)
from roxxel_ckpt._names import ABANDONED, COMMIT_FILE
from roxxel_ckpt._place.copies import Copies, storing, write_copy
from roxxel_ckpt._place.disk import LocalFolder, absolute
from roxxel_ckpt._place.folder import (
    cannot_hold_aside,
    not_delivered,
    not_set_aside,
    only_set_aside,
    try_to_delete,
)
from roxxel_ckpt._place.step_files import StepFiles
from roxxel_ckpt.buckets import (
    SCHEMES,
    SWAP_ERRORS,
    checked_url,
    checkpoint_bucket,
    is_url,
)
from roxxel_ckpt.contents import Contents
from roxxel_ckpt.errors import (
    CheckpointBucketError,
    CheckpointNotFoundError,
    CheckpointWriteError,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Generator, Mapping, Sequence
    from typing import Any

    from roxxel_ckpt._integrity import FileDigest
    from roxxel_ckpt._place.folder import Folder
    from roxxel_ckpt.contents import Files

_DIGESTS = "digests/"
# The files of a failed save are removed only if the bucket responds in this time.
_DISCARD_TIMEOUT_S = 15.0
_READ_TIMEOUT_S = 60.0


class BucketFolder:
    """The checkpoints of a run in a bucket.

    Args:
        url: A URL that `checked_url` returned.
        local: Directory for local copies; the files of the newest checkpoint stay in
            it. None uses a temporary directory, which is removed at the end.
        timeout_s: Time limit in seconds; a request is repeated for about a third of it.
    """

    not_shared_remedy = "check that all processes use the same store and credentials"
    staging_remedy = (
        "give local= (else TMPDIR) a directory with room that this program can write"
    )

    def __init__(self, url: str, local: Path | None, timeout_s: float) -> None:
        self._url, self._timeout_s = url, timeout_s
        self._is_aside = url.endswith(f"/{ABANDONED}")
        # The manifest of the folder also lists the steps that are set aside.
        self._bucket = checkpoint_bucket(url.removesuffix(f"/{ABANDONED}"), timeout_s)
        self._files = StepFiles(self._bucket)
        self._copies = Copies(local)
        self._opened: set[Path] = set()

    def __str__(self) -> str:
        return self._url

    def check_usable(self) -> None:
        """Raise ModuleNotFoundError if the client is not installed."""
        checked_client()

    def check_has_no_misplaced_step(self) -> None:
        """Raise CheckpointNotFoundError if the steps seem to be in another folder.

        If this folder has no steps, they may be set aside. Or the folder may be a run,
        with the steps in its subfolder `checkpoints`, or may itself be a step.

        Raises:
            CheckpointDamagedError: There are steps, and no manifest that lists them.
        """
        check_not_lost(self._bucket, SWAP_ERRORS)
        aside = [] if self._is_aside else self._contents().aside
        if aside:
            raise only_set_aside(self, sorted({entry.step for entry in aside}))
        inner = BucketFolder(
            f"{self._url}/checkpoints", self._copies.local, self._timeout_s
        )
        if inner.steps():
            raise CheckpointNotFoundError(
                f"{self}: holds no step, but {inner} does; give that folder"
            )
        parent, _, name = self._url.rpartition("/")
        step = re.fullmatch(r"([0-9]+)(\..*)?", name)
        above = BucketFolder(parent, self._copies.local, self._timeout_s)
        if step and "/" in parent.partition("://")[2] and int(step[1]) in above.steps():
            raise CheckpointNotFoundError(
                f"{self}: is a checkpoint and not a folder of checkpoints; give {above}"
            )

    def location(self, step: int) -> str:
        """Return the URL that names a step in messages and on the command line."""
        return f"{self._url}/{step}"

    def numbered(self) -> list[int]:
        """Return every step that the manifest lists, oldest first."""
        return list(self._names())

    def steps(self) -> list[int]:
        """Return every step that the manifest lists, oldest first."""
        return self.numbered()

    def is_checkpoint(self, step: int) -> bool:
        """Return True: the manifest lists only checkpoints."""
        del step
        return True

    def described(self) -> dict[int, Path]:
        """Return, for every step, a local directory with its description."""
        parent = self._copies.temporary() / "descriptions"
        directories = {step: parent / name for step, name in self._names().items()}
        unknown = [d for d in directories.values() if not (d / COMMIT_FILE).exists()]
        for_each(self._read_description, unknown)
        if all((d / COMMIT_FILE).exists() for d in unknown):
            return directories
        # Another program may have dropped the step after the manifest was read.
        now = self._names()
        return {s: d for s, d in directories.items() if now.get(s) == d.name}

    def step_path(self, step: int) -> Path:
        """Return a local directory with the description and the digests of a step.

        The directory may have other files from an earlier save or restore.
        """
        name = self._names().get(step)
        if name is None:
            return self._copies.directory() / str(step)
        directory = self._copies.directory() / name
        with storing(directory):
            if not self._copies.claim(directory):
                # Another process uploads from this directory, or downloads to it.
                directory = self._copies.temporary() / name
        if directory not in self._opened:
            # Do not trust a description that an earlier program downloaded.
            with storing(directory):
                (directory / COMMIT_FILE).unlink(missing_ok=True)
            self._read_description(directory)
            files = self._files.sizes(f"{name}/{_DIGESTS}")
            for_each(lambda n: self._files.copy(directory, f"{_DIGESTS}{n}"), files)
            self._opened.add(directory)
        return directory

    def fetch(self, directory: Path, digests: Mapping[str, FileDigest]) -> bool:
        """Download files into the directory that `step_path` returned.

        A block that arrives damaged is downloaded once more. The digests decide later
        whether the files are sound. A file whose name points outside the directory is
        not downloaded.
        """
        inner = {n: d for n, d in digests.items() if ".." not in Path(n).parts}
        digests = {n: d for n, d in inner.items() if not Path(n).is_absolute()}
        self._files.download(directory, digests)
        return True

    def find_missing(
        self, directory: Path, digests: Mapping[str, FileDigest]
    ) -> str | None:
        """Describe the first object that is missing or has a wrong size."""
        return self._files.find_missing(directory.name, digests)

    def find_damage(
        self, directory: Path, digests: Mapping[str, FileDigest]
    ) -> str | None:
        """Describe the first damaged object; downloads all objects and stores none."""
        return self._files.find_damage(directory.name, digests)

    def num_bytes(self, step: int) -> int:
        """Return the number of bytes of all objects of a step."""
        name = self._names().get(step)
        return sum(self._files.sizes(f"{name}/").values()) if name else 0

    def drop(self, directory: Path, *, keep: bool) -> None:
        """Remove the local copy `directory` of a step.

        With `keep`, a copy in `local` stays, and the copies of other steps are removed,
        except copies that another process uses.
        """
        if keep and directory.parent == self._copies.local:
            self._copies.remove(
                other
                for other in list(directory.parent.iterdir())
                if other != directory and is_name(other.name)
            )
        else:
            shutil.rmtree(directory, ignore_errors=True)
        self._opened.discard(directory)
        self._copies.release(directory)

    def tidy(self) -> None:
        """Do nothing: only a writer may remove objects."""

    @contextlib.contextmanager
    def saving(self) -> Generator[str]:
        """Become the writer; wait until no other thread saves here.

        Leftovers are removed after the commit, in the background.

        Raises:
            CheckpointWriteError: A later program has begun, or this is the folder of
                the steps that are set aside.
            CheckpointTimeoutError: The save of another thread did not end in time.
        """
        if self._is_aside:
            raise cannot_hold_aside(self)
        with self._writer.alone(self._timeout_s):
            self._writer.ensure_begun()
            yield self._writer.new_name()

    @contextlib.contextmanager
    def marked(self) -> Generator[str]:
        """Yield the name of this program, which the manifest holds."""
        yield self._writer.held.writer

    def sees(self, mark: str) -> bool:
        """Return whether this process sees the manifest of the program `mark`."""
        return read_manifest(self._bucket, SWAP_ERRORS).writer == mark

    def aside(self) -> BucketFolder:
        """Return the folder of the steps that were set aside."""
        return BucketFolder(
            f"{self._url}/{ABANDONED}", self._copies.local, self._timeout_s
        )

    def bring_back(self, step: int) -> list[int]:
        """Make a step that was set aside the newest, in one swap; call it in `saving`.

        Raises:
            CheckpointNotFoundError: No step with this number is set aside.
            CheckpointWriteError: A later program has begun; nothing was changed.
            CheckpointBucketError: The request failed; it may still take effect.
        """
        newer: list[int] = []

        def exchange(listed: Mapping[str, Any]) -> Mapping[str, Any]:
            contents = Contents.of(listed, self._bucket.url_of(MANIFEST))
            held = {entry.step for entry in contents.aside}
            if step not in held:
                raise not_set_aside(self, step, sorted(held))
            newer[:] = (e.step for e in contents.steps if e.step >= step)
            return contents.brought_back(step).to_json()

        self._writer.swap(exchange)
        return newer

    def staging(self, step: int, attempt: str, process: int) -> Path:
        """Return a local directory for the files of this process."""
        del process
        directory = self._copies.directory() / f"{step}.{attempt}"
        # Ignore an error here: this save then also fails to create its files in the
        # directory, and reports that error on all processes.
        with contextlib.suppress(OSError):
            self._copies.claim(directory)
        return directory

    def deliver(self, staging: Path) -> None:
        """Upload the files of this process, several at a time."""
        self._files.upload(staging)

    def commit(
        self,
        staging: Path,
        step: int,
        text: str,
        *,
        digests: Sequence[int],
        base: int,
        drops: Collection[int],
        files: Files,
    ) -> list[int]:
        """Commit a step, set newer steps aside and drop others, all in one swap.

        Raises:
            CheckpointWriteError: Another program has begun to save here, or an uploaded
                file is missing.
            CheckpointBucketError: The request failed; it may still take effect.
        """
        del step
        name = staging.name
        for process, crc in enumerate(digests):
            with contextlib.suppress(FileNotFoundError):
                self._files.copy(staging, digests_file(process))
            if not has_digests(staging, process, crc):
                raise not_delivered(self, process)
        self._check_uploaded(staging)
        self._bucket.create(f"{name}/{COMMIT_FILE}", text.encode())
        newer: list[int] = []

        def add(listed: Mapping[str, Any]) -> Mapping[str, Any]:
            contents = Contents.of(listed, self._bucket.url_of(MANIFEST))
            newer[:] = (e.step for e in contents.steps if e.step > base)
            return contents.committed(name, files, base=base, drops=drops).to_json()

        self._writer.swap(add)
        try_to_delete(f"{self}: leftovers of earlier saves", self._writer.collect)
        return newer

    def settle(self, staging: Path, *, is_saved: bool, is_first: bool) -> None:
        """Keep the local files of a save in `local`; remove those of a failed save.

        Without `local=`, all local files are removed. Files in the bucket stay if the
        bucket does not respond soon, if the step was committed before the failure, if
        the swap that commits it may still take effect, or if another program has begun.
        A later save removes those that the manifest does not list.
        """
        self.drop(staging, keep=is_saved)
        if is_saved or not is_first:
            return
        self._writer.drop([staging.name])
        is_listed = staging.name in self._writer.held.names()
        if self._writer.may_delete and not is_listed:
            with contextlib.suppress(CheckpointBucketError):
                remove_folder(self._bucket.hasty(_DISCARD_TIMEOUT_S), staging.name)

    def _check_uploaded(self, staging: Path) -> None:
        digests: dict[str, FileDigest] = {}
        for path in (staging / _DIGESTS).iterdir():
            body = unsealed(staging, f"{_DIGESTS}{path.name}")
            digests.update(digests_from_json(body))
        problem = self.find_missing(staging, digests)
        if problem is not None:
            self._writer.ensure_begun()  # a later program deletes what is not listed
            raise CheckpointWriteError(
                f"{self._files.url_of(staging.name)}: {problem} after the upload; save "
                "again, and let no other program delete objects here"
            )

    @property
    def _writer(self) -> Writer:
        return writer_of(self._bucket, SWAP_ERRORS)

    def _contents(self) -> Contents:
        listed = read_manifest(self._bucket, SWAP_ERRORS).listed
        return Contents.of(listed, self._bucket.url_of(MANIFEST))

    def _names(self) -> dict[int, str]:
        """Return the name of every step, oldest step first."""
        contents = self._contents()
        entries = contents.aside if self._is_aside else contents.steps
        newest = {entry.step: entry.name for entry in entries}
        return dict(sorted(newest.items()))

    def _read_description(self, directory: Path) -> None:
        """Download the description of a step, if it exists."""
        with contextlib.suppress(FileNotFoundError):
            self._files.copy(directory, COMMIT_FILE)


def open_folder(
    location: str | os.PathLike[str],
    local: str | os.PathLike[str] | None = None,
    timeout_s: float = _READ_TIMEOUT_S,
) -> Folder:
    """Return the folder of checkpoints that a path or a URL names.

    Raises:
        ValueError: The URL cannot be used, or `local` is given with a path.
    """
    text = os.fspath(location)
    if is_url(text):
        url = checked_url(text)
        # Several runs may share `local`.
        name = hashlib.sha256(url.encode()).hexdigest()[:16]
        directory = None if local is None else absolute(Path(local)) / name
        return BucketFolder(url, directory, timeout_s)
    scheme, _, rest = text.partition(":/")
    if scheme in SCHEMES:
        raise ValueError(
            f"{text}: is neither a path nor a URL; write {scheme}://{rest.lstrip('/')} "
            "as a string, because pathlib removes one slash of a URL"
        )
    if local is not None:
        raise ValueError(
            f"local={os.fspath(local)!r} is for checkpoints in a bucket; omit it, or "
            f"give checkpoint_path a URL instead of {text}"
        )
    return LocalFolder(text)


def fetch_descriptions(url: str, directory: str | os.PathLike[str]) -> list[int]:
    """Copy the description of every step of a bucket to `<directory>/<step>/`.

    `read_description` reads the copies. Copies of other steps in the directory are
    removed.

    Args:
        url: URL of a folder of checkpoints.
        directory: Local directory, which is created if there is a step.

    Returns:
        The steps, oldest first.

    Raises:
        ValueError: The URL cannot be used.
        CheckpointBucketError: The bucket cannot be read.
    """
    # Keep the folder object: its temporary directory is removed with it.
    folder = BucketFolder(checked_url(url), None, _READ_TIMEOUT_S)
    described = folder.described()
    target = Path(directory)
    for other in target.iterdir() if target.is_dir() else ():
        if other.name.isdecimal() and int(other.name) not in described:
            shutil.rmtree(other)
    for step, source in described.items():
        with contextlib.suppress(FileNotFoundError):  # the object is gone
            data = (source / COMMIT_FILE).read_bytes()
            write_copy(target / str(step) / COMMIT_FILE, data)
    return list(described)
