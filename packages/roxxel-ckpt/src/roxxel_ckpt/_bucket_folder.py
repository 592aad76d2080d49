"""The folder of one run's checkpoints in a bucket: names, commits, who may write.

    writer-<generation>.json                       made by each program that saves here
    <step>.<attempt>/state/..., digests/...        the files of a save
    <step>.<attempt>.json                          commits the save; describes the step
    abandoned/<step>.<attempt>.json                the same, for an abandoned step

A step exists while its commit exists. A save creates its commit last, and a deletion
removes the commit first, so a kill never leaves half a step. No commit is ever
overwritten. An attempt is `<generation>-<number>-<token>`. If a step has two commits,
the later attempt counts.

Processes need not share a disk. Each process writes its files to a local directory and
uploads them from there. For a restore, each process downloads the files that its
devices need.

If several programs save here, the one that begins last wins (`roxxel_ckpt.writers`).
Every program checks for a later writer before and after it creates a commit. If there
is a later writer, the earlier writer deletes its own commit and fails.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from roxxel_ckpt._commits import (
    Attempt,
    Commits,
    commits_in,
    is_attempt,
    parsed,
)
from roxxel_ckpt._copies import Copies, storing, write_copy
from roxxel_ckpt._integrity import digests_from_json, unsealed
from roxxel_ckpt._local_folder import LocalFolder, absolute
from roxxel_ckpt._names import ABANDONED, COMMIT_FILE
from roxxel_ckpt._step_files import StepFiles, read_sealed
from roxxel_ckpt.buckets import (
    SCHEMES,
    Bucket,
    checked_client,
    checked_url,
    for_each,
    is_url,
)
from roxxel_ckpt.errors import (
    CheckpointBucketError,
    CheckpointNotFoundError,
    CheckpointWriteError,
)
from roxxel_ckpt.writers import writer_name

if TYPE_CHECKING:
    from collections.abc import Collection, Generator, Mapping

    from roxxel_ckpt._folder import Folder
    from roxxel_ckpt._integrity import FileDigest

_DIGESTS = "digests/"
# The files of a failed save are removed only if the bucket responds in this time.
_DISCARD_TIMEOUT_S = 30.0
_READ_TIMEOUT_S = 60.0
# Saves of this program whose commit request got no response: the store may still
# execute the request. A later program removes their files.
_in_doubt: set[Attempt] = set()


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
        self._bucket = Bucket(url, timeout_s)
        self._is_abandoned = url.endswith(f"/{ABANDONED}")
        # The commits in `abandoned/` describe files in the parent folder.
        files = Bucket(url.removesuffix(f"/{ABANDONED}"), timeout_s)
        self._files = StepFiles(files)
        self._commits = Commits(self._bucket, files)
        self._copies = Copies(local)
        self._opened: set[Path] = set()

    def __str__(self) -> str:
        return self._url

    def check_usable(self) -> None:
        """Raise ModuleNotFoundError if the client is not installed."""
        checked_client()

    def check_has_no_misplaced_step(self) -> None:
        """Raise CheckpointNotFoundError if the steps seem to be in another folder.

        If this folder has no steps, it may be a run, with the steps in its subfolder
        `checkpoints`, or may itself be a step.
        """
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
        """Return every step with a commit, oldest first."""
        return list(self._commits.contents().newest())

    def steps(self) -> list[int]:
        """Return every step with a commit, oldest first."""
        return self.numbered()

    def is_checkpoint(self, step: int) -> bool:
        """Return True: other programs make no commits here."""
        del step
        return True

    def described(self) -> dict[int, Path]:
        """Return, for every step, a local directory with its description."""
        newest = self._commits.contents().newest()
        parent = self._copies.temporary() / "descriptions"
        directories = {step: parent / str(a) for step, a in newest.items()}
        unknown = [d for d in directories.values() if not (d / COMMIT_FILE).exists()]
        # A step is left out if its commit was deleted after `contents` listed the step.
        for_each(self._read_commit, unknown)
        return {s: d for s, d in directories.items() if (d / COMMIT_FILE).exists()}

    def step_path(self, step: int) -> Path:
        """Return a local directory with the description and the digests of a step.

        The directory may have other files from an earlier save or restore.
        """
        attempt = self._commits.contents().newest().get(step)
        if attempt is None:
            return self._copies.directory() / str(step)
        directory = self._copies.directory() / str(attempt)
        with storing(directory):
            if not self._copies.claim(directory):
                # Another process uploads from this directory, or downloads to it.
                directory = self._copies.temporary() / str(attempt)
        if directory not in self._opened:
            # Do not trust a description that an earlier program downloaded.
            with storing(directory):
                (directory / COMMIT_FILE).unlink(missing_ok=True)
            self._read_commit(directory)
            prefix = f"{attempt}/{_DIGESTS}"
            names = self._files.sizes(prefix)
            for_each(lambda n: self._files.copy(directory, f"{_DIGESTS}{n}"), names)
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
        attempt = self._commits.contents().newest().get(step)
        return sum(self._files.sizes(f"{attempt}/").values()) if attempt else 0

    def drop(self, directory: Path, *, keep: bool) -> None:
        """Remove the local copy `directory` of a step.

        With `keep`, a copy in `local` stays, and the copies of other steps are removed,
        except copies that another process uses.
        """
        if keep and directory.parent == self._copies.local:
            self._copies.remove(
                other
                for other in list(directory.parent.iterdir())
                if other != directory and is_attempt(other.name)
            )
        else:
            shutil.rmtree(directory, ignore_errors=True)
        self._opened.discard(directory)
        self._copies.release(directory)

    def tidy(self) -> None:
        """Do nothing: only a writer may remove objects."""

    @contextlib.contextmanager
    def lock(self) -> Generator[bool]:
        """Become the writer; wait until no other thread saves here.

        Raises:
            CheckpointWriteError: A later writer exists, or this is the folder of
                abandoned steps.
            CheckpointTimeoutError: The save of another thread did not end in time.
        """
        if self._is_abandoned:
            raise CheckpointWriteError(
                f"{self}: holds the steps that a run abandoned, so nothing is saved "
                "here; restore a step from here, and give checkpoint_path another "
                "folder to save"
            )
        with self._commits.one_save(self._timeout_s):
            self._commits.become_writer()
            yield True

    def take_over(self) -> None:
        """Become the writer, or raise CheckpointWriteError if a later one exists.

        The folder of abandoned steps has no writer.
        """
        if not self._is_abandoned:
            self._commits.become_writer()

    def mark(self) -> str:
        """Return the name of the object that made this program the writer."""
        return writer_name(self._commits.generation())

    def sees(self, mark: str) -> bool:
        """Return whether this process sees the object `mark`."""
        return mark in self._bucket.names().objects

    def unmark(self, mark: str) -> None:
        """Do nothing: the object of the writer stays."""
        del mark

    def clean(self) -> None:
        """Do nothing: `sweep` removes leftovers in the background, after the commit."""

    def abandon(self, step: int) -> None:
        """Move the commits of a step into `abandoned/`; its files stay."""
        for attempt in self._commits.contents().committed:
            if attempt.step == step:
                text = self._bucket.read(f"{attempt}.json")
                with contextlib.suppress(FileExistsError):
                    self._bucket.create(f"{ABANDONED}/{attempt}.json", text)
                self._bucket.delete([f"{attempt}.json"])

    def new_attempt(self) -> str:
        """Return a unique name for a save, ordered after the names of earlier saves."""
        return self._commits.new_attempt()

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

    def delivered(self, staging: Path, process: int) -> Path:
        """Download the digests of a process, and return the local directory."""
        with contextlib.suppress(FileNotFoundError):
            self._files.copy(staging, f"{_DIGESTS}{process}.json")
        return staging

    def commit(self, staging: Path, step: int, text: str) -> None:
        """Create the commit of a step; `sweep` deletes earlier commits of the step.

        Raises:
            CheckpointWriteError: Another program has become the writer, or an uploaded
                file is missing.
        """
        del step
        commit = f"{staging.name}.json"
        self._commits.check_writer(self._commits.contents())
        self._check_uploaded(staging)
        try:
            self._bucket.create(commit, text.encode())
        except CheckpointBucketError:
            # The commit request may still arrive, so the files of the step must stay.
            _in_doubt.add(parsed(staging.name))
            raise
        now = self._commits.contents()
        try:
            self._commits.check_writer(now)
        except CheckpointWriteError:
            self._bucket.delete([commit])
            raise

    def delete(self, step: int) -> None:
        """Delete the commits of a step, and then its files."""
        contents = self._commits.contents()
        self._commits.check_writer(contents)
        self._remove([a for a in contents.committed if a.step == step])

    def sweep(self) -> None:
        """Delete replaced saves, and the files that killed saves and deletions left."""
        contents = self._commits.contents()
        self._commits.check_writer(contents)
        self._remove(set(contents.committed) - set(contents.newest().values()))
        lost = set(contents.uploaded) - set(contents.committed)
        if lost:
            abandoned = self._bucket.names(f"{ABANDONED}/").objects
            lost -= set(commits_in(abandoned))
        self._files.remove(
            a for a in lost - _in_doubt if a.generation <= self._commits.generation()
        )
        self._commits.remove_earlier_writers(contents)

    def settle(self, staging: Path) -> None:
        """Remove the local files that need not stay after a save.

        With `local=`, the files of this save stay, and those of other saves are
        removed. Without `local=`, the files of this save are removed.
        """
        self.drop(staging, keep=True)

    def discard(self, staging: Path, *, is_first: bool) -> None:
        """Remove the files of a failed save, if the bucket responds soon.

        If the request that commits the step may still arrive, the files stay in the
        bucket.
        """
        self.drop(staging, keep=False)
        if is_first and parsed(staging.name) not in _in_doubt:
            timeout_s = min(self._timeout_s / 8, _DISCARD_TIMEOUT_S)
            hasty = BucketFolder(self._url, None, timeout_s)
            with contextlib.suppress(CheckpointBucketError):
                attempt = parsed(staging.name)
                if attempt not in hasty._commits.contents().committed:
                    hasty._files.remove([attempt])

    def _check_uploaded(self, staging: Path) -> None:
        digests: dict[str, FileDigest] = {}
        for path in (staging / _DIGESTS).iterdir():
            body = unsealed(staging, f"{_DIGESTS}{path.name}")
            digests.update(digests_from_json(body))
        problem = self.find_missing(staging, digests)
        if problem is not None:
            raise CheckpointWriteError(
                f"{self._files.url_of(staging.name)}: {problem} after the upload; save "
                "again, and let no other program delete objects here"
            )

    def _remove(self, attempts: Collection[Attempt]) -> None:
        self._bucket.delete(f"{attempt}.json" for attempt in attempts)
        self._files.remove(attempts)

    def _read_commit(self, directory: Path) -> None:
        """Download a step's commit, which is its description, if the commit exists."""
        with contextlib.suppress(FileNotFoundError):
            text = read_sealed(self._bucket, f"{directory.name}.json")
            write_copy(directory / COMMIT_FILE, text)


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
        write_copy(
            target / str(step) / COMMIT_FILE, (source / COMMIT_FILE).read_bytes()
        )
    return list(described)
