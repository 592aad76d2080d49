"""The folder of one run's checkpoints in a bucket: names, commits, who may write.

    writer-<generation>.json                       made by each program that saves here
    <step>.<attempt>/state/..., digests/...        the files of a save
    <step>.<attempt>.json                          commits it: the description of a step
    abandoned/<step>.<attempt>.json                the same, of a step that was left

A step exists while its commit exists. A commit is created once and never overwritten,
and it is created last and deleted first, so a kill leaves no half of a step. An
attempt is `<generation>-<number>-<token>`. Of two commits of one step, the later
attempt counts.

Processes need not share a disk. Each process writes its files to a local directory and
uploads them from there. For a restore, each process downloads the files that its
devices need.

A program that saves becomes the writer by creating the next generation. The writer with
the highest generation wins: an earlier one finds it before and after its next commit,
takes back that commit, and fails.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import secrets
import shutil
import socket
import tempfile
import threading
import time
import weakref
import zlib
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from roxxel_ckpt._integrity import (
    damaged_block,
    digests_from_json,
    is_sealed,
    unsealed,
    wrong_size,
)
from roxxel_ckpt._local_folder import LocalFolder, absolute
from roxxel_ckpt._names import ABANDONED, COMMIT_FILE
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
    CheckpointTimeoutError,
    CheckpointWriteError,
    brief,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Generator, Iterable, Mapping

    from roxxel_ckpt._folder import Folder
    from roxxel_ckpt._integrity import FileDigest

try:
    import fcntl
except ModuleNotFoundError:  # Windows has no `fcntl`
    fcntl = None

_DIGESTS = "digests/"
_NAME = re.compile(r"(0|[1-9][0-9]*)\.([0-9]+)-([0-9]+)-([0-9a-f]+)")
_WRITER = re.compile(r"writer-([0-9]+)\.json")
# After a failed save, its files are removed only if the bucket answers soon.
_DISCARD_TIMEOUT_S = 30.0
_READ_TIMEOUT_S = 60.0
# The generation of this program in each folder, and the number of its saves there.
_generations: dict[tuple[str, int], int] = {}
_num_attempts: dict[str, int] = {}
# Held while a save of this process into the folder lasts: the sweep of a second save
# would delete the files of the first.
_saving: defaultdict[tuple[str, int], threading.Lock] = defaultdict(threading.Lock)


class _Attempt(NamedTuple):
    """A save of a step; attempts are ordered by step, then by time."""

    step: int
    generation: int
    number: int
    token: str

    def __str__(self) -> str:
        return f"{self.step}.{self.generation}-{self.number}-{self.token}"


class _Contents(NamedTuple):
    """What is in the folder.

    Attributes:
        committed: The attempts with a commit, in order.
        uploaded: The attempts with files.
        writers: The generations of all writers.
    """

    committed: list[_Attempt]
    uploaded: list[_Attempt]
    writers: list[int]

    def newest(self) -> dict[int, _Attempt]:
        """Return the attempt that counts of every step, oldest step first."""
        return {attempt.step: attempt for attempt in self.committed}


class BucketFolder:
    """The checkpoints of a run in a bucket.

    Args:
        url: A URL that `checked_url` returned.
        local: Directory for local copies; the files of the newest checkpoint stay in
            it. None uses a temporary directory, in which nothing stays.
        timeout_s: About the longest time that a request is repeated, in seconds.
    """

    not_shared_remedy = "check that all processes use the same store and credentials"

    def __init__(self, url: str, local: Path | None, timeout_s: float) -> None:
        self._url, self._local, self._timeout_s = url, local, timeout_s
        self._bucket = Bucket(url, timeout_s)
        # Commits in `abandoned/` are of files beside `abandoned/`.
        self._files = Bucket(url.removesuffix(f"/{ABANDONED}"), timeout_s)
        self._temporary: Path | None = None
        self._opened: set[Path] = set()
        # Descriptors whose locks keep other processes from the copies in a directory.
        self._claimed: dict[Path, int] = {}
        weakref.finalize(self, _close_all, self._claimed)

    def __str__(self) -> str:
        return self._url

    def check_usable(self) -> None:
        """Raise ModuleNotFoundError if the client is not installed."""
        checked_client()

    def check_has_no_misplaced_step(self) -> None:
        """Raise CheckpointNotFoundError if this folder without steps is the wrong one.

        The folder may be a run, whose subfolder `checkpoints` has steps, or a step.
        """
        inner = BucketFolder(f"{self._url}/checkpoints", self._local, self._timeout_s)
        if inner.steps():
            raise CheckpointNotFoundError(
                f"{self}: holds no step, but {inner} does; give that folder"
            )
        parent, _, name = self._url.rpartition("/")
        step = re.fullmatch(r"([0-9]+)(\..*)?", name)
        above = BucketFolder(parent, self._local, self._timeout_s)
        if step and "/" in parent.partition("://")[2] and int(step[1]) in above.steps():
            raise CheckpointNotFoundError(
                f"{self}: is a checkpoint and not a folder of checkpoints; give {above}"
            )

    def location(self, step: int) -> str:
        """Return the URL that names a step in messages and on the command line."""
        return f"{self._url}/{step}"

    def numbered(self) -> list[int]:
        """Return every step with a commit, oldest first."""
        return list(self._contents().newest())

    def steps(self) -> list[int]:
        """Return every step with a commit, oldest first."""
        return self.numbered()

    def is_checkpoint(self, step: int) -> bool:
        """Return True: other programs make no commits here."""
        del step
        return True

    def described(self) -> dict[int, Path]:
        """Return, for every step, a local directory with its description."""
        newest = self._contents().newest()
        parent = self._temporary_directory() / "descriptions"
        directories = {step: parent / str(a) for step, a in newest.items()}
        unknown = [d for d in directories.values() if not (d / COMMIT_FILE).exists()]
        # A step without a description, deleted meanwhile, does not exist.
        for_each(self._read_commit, unknown)
        return {s: d for s, d in directories.items() if (d / COMMIT_FILE).exists()}

    def step_path(self, step: int) -> Path:
        """Return a local directory with the description and the digests of a step.

        The directory may have other files from an earlier save or restore.
        """
        attempt = self._contents().newest().get(step)
        if attempt is None:
            return self._copies() / str(step)
        directory = self._copies() / str(attempt)
        with _storing(directory):
            if not self._claim(directory):
                # Another process uploads these copies, or downloads to them.
                directory = self._temporary_directory() / str(attempt)
        if directory not in self._opened:
            # Copies of an earlier program are not trusted.
            with _storing(directory):
                (directory / COMMIT_FILE).unlink(missing_ok=True)
            self._read_commit(directory)
            prefix = f"{attempt}/{_DIGESTS}"
            names = self._files.sizes(prefix)
            for_each(lambda n: self._copy(directory, f"{_DIGESTS}{n}"), names)
            self._opened.add(directory)
        return directory

    def fetch(self, directory: Path, digests: Mapping[str, FileDigest]) -> bool:
        """Download files into the directory that `step_path` returned.

        A block that arrives damaged is downloaded once more. The digests decide later
        whether the files are sound. A name that leads out of the directory stays
        missing.
        """
        inner = {n: d for n, d in digests.items() if ".." not in Path(n).parts}
        digests = {n: d for n, d in inner.items() if not Path(n).is_absolute()}

        def prepare(name: str) -> None:
            path = directory / name
            with _storing(path):
                path.parent.mkdir(parents=True, exist_ok=True)
                with path.open("wb") as file:
                    file.truncate(digests[name].num_bytes)

        def download(block: tuple[str, int, int, int]) -> None:
            name, start, stop, crc = block
            data = self._block(directory, name, (start, stop), crc)
            if data is None:
                (directory / name).unlink(missing_ok=True)
                return
            with (
                _storing(directory / name),
                contextlib.suppress(FileNotFoundError),
                (directory / name).open("r+b") as file,
            ):
                file.seek(start)
                file.write(data)

        for_each(prepare, digests)
        for_each(download, _blocks(digests))
        return True

    def find_missing(
        self, directory: Path, digests: Mapping[str, FileDigest]
    ) -> str | None:
        """Describe the first object that is missing or has a wrong size."""
        sizes = self._files.sizes(f"{directory.name}/")
        for name, digest in digests.items():
            problem = (
                wrong_size(name, sizes[name], digest)
                if name in sizes
                else f"{name} is missing"
            )
            if problem is not None:
                return problem
        return None

    def find_damage(
        self, directory: Path, digests: Mapping[str, FileDigest]
    ) -> str | None:
        """Describe the first damaged object; downloads all and stores none."""
        missing = self.find_missing(directory, digests)
        if missing is not None:
            return missing
        damaged: list[str] = []

        def verify(block: tuple[str, int, int, int]) -> None:
            name, start, stop, crc = block
            data = self._block(directory, name, (start, stop), crc)
            if data is None:
                damaged.append(f"{name} is missing")
            elif zlib.crc32(data) != crc:
                damaged.append(damaged_block(name, start, stop))

        for_each(verify, _blocks(digests))
        return min(damaged, default=None)

    def num_bytes(self, step: int) -> int:
        """Return the number of bytes of all objects of a step."""
        attempt = self._contents().newest().get(step)
        return sum(self._files.sizes(f"{attempt}/").values()) if attempt else 0

    def drop(self, directory: Path, *, keep: bool) -> None:
        """Remove the local copies of a step.

        With `keep` and a directory `local=`, the copies of this step stay, and those of
        all other steps are removed, unless another process uses them.
        """
        if not keep or directory.parent != self._local:
            shutil.rmtree(directory, ignore_errors=True)
            self._release(directory)
            return
        for other in directory.parent.iterdir():
            if other != directory and _NAME.fullmatch(other.name):
                with contextlib.suppress(OSError):
                    if self._claim(other):
                        shutil.rmtree(other, ignore_errors=True)
                        self._release(other)
        self._release(directory)

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
        if self._files.url != self._url:
            raise CheckpointWriteError(
                f"{self}: holds the steps that a run abandoned, so nothing is saved "
                "here; restore a step from here, and give checkpoint_path another "
                "folder to save"
            )
        key = self._url, os.getpid()
        if not _saving[key].acquire(timeout=self._timeout_s):
            raise CheckpointTimeoutError(
                f"{self}: the save of another thread did not end within "
                f"{self._timeout_s:g} seconds; use one Checkpointer, or give a larger "
                "timeout"
            )
        try:
            self._become_writer()
            yield True
        finally:
            _saving[key].release()

    def take_over(self) -> None:
        """Become the writer, or raise CheckpointWriteError if a later one exists.

        Nobody is the writer of abandoned steps.
        """
        if self._files.url == self._url:
            self._become_writer()

    def _become_writer(self) -> None:
        key = self._url, os.getpid()
        if key in _generations:
            self._check_writer(self._contents())
        else:
            _generations[key] = self._new_generation()

    def mark(self) -> str:
        """Return the name of the object that the writer created."""
        return f"writer-{self._generation()}.json"

    def sees(self, mark: str) -> bool:
        """Return whether this process sees a mark."""
        return mark in self._bucket.names().objects

    def unmark(self, mark: str) -> None:
        """Do nothing: the object of the writer stays."""
        del mark

    def clean(self) -> None:
        """Do nothing: `sweep` removes leftovers in the background, after the commit."""

    def abandon(self, step: int) -> None:
        """Move the commits of a step into `abandoned/`; its files stay."""
        for attempt in self._contents().committed:
            if attempt.step == step:
                text = self._bucket.read(f"{attempt}.json")
                with contextlib.suppress(FileExistsError):
                    self._bucket.create(f"{ABANDONED}/{attempt}.json", text)
                self._bucket.delete([f"{attempt}.json"])

    def new_attempt(self) -> str:
        """Return a unique name for a save, later than all earlier ones."""
        number = _num_attempts[self._url] = _num_attempts.get(self._url, 0) + 1
        return f"{self._generation()}-{number}-{secrets.token_hex(4)}"

    def staging(self, step: int, attempt: str, process: int) -> Path:
        """Return a local directory for the files of this process."""
        del process
        directory = self._copies() / f"{step}.{attempt}"
        # The save that creates files here reports errors on all processes.
        with contextlib.suppress(OSError):
            self._claim(directory)
        return directory

    def deliver(self, staging: Path) -> None:
        """Upload the files of this process, several at a time."""
        names = [
            path.relative_to(staging).as_posix()
            for path in staging.rglob("*")
            if path.is_file()
        ]

        def upload(name: str) -> None:
            try:
                self._files.write_file(f"{staging.name}/{name}", staging / name)
            except FileNotFoundError:
                raise CheckpointWriteError(
                    f"{staging / name}: was removed before its upload; let no program "
                    "clean this directory while a save lasts"
                ) from None

        for_each(upload, names)

    def delivered(self, staging: Path, process: int) -> Path:
        """Download the file of digests of a process, and return its directory."""
        with contextlib.suppress(FileNotFoundError):
            self._copy(staging, f"{_DIGESTS}{process}.json")
        return staging

    def commit(self, staging: Path, step: int, text: str) -> None:
        """Create the commit of a step; `sweep` deletes earlier commits of the step.

        Raises:
            CheckpointWriteError: Another program has become the writer, or an uploaded
                file is missing.
        """
        del step
        commit = f"{staging.name}.json"
        self._check_writer(self._contents())
        self._check_uploaded(staging)
        self._bucket.create(commit, text.encode())
        now = self._contents()
        try:
            self._check_writer(now)
        except CheckpointWriteError:
            self._bucket.delete([commit])
            raise

    def delete(self, step: int) -> None:
        """Delete the commits of a step, and then its files."""
        contents = self._contents()
        self._check_writer(contents)
        self._remove([a for a in contents.committed if a.step == step])

    def sweep(self) -> None:
        """Delete replaced saves, and files of killed saves and deletions."""
        contents = self._contents()
        self._check_writer(contents)
        self._remove(set(contents.committed) - set(contents.newest().values()))
        lost = set(contents.uploaded) - set(contents.committed)
        if lost:
            abandoned = self._bucket.names(f"{ABANDONED}/").objects
            lost -= set(_commits(abandoned))
        self._remove_files(a for a in lost if a.generation <= self._generation())
        earlier = [g for g in contents.writers if g < self._generation()]
        self._bucket.delete(f"writer-{generation}.json" for generation in earlier)

    def settle(self, staging: Path) -> None:
        """Remove the local files of a save; with `local=`, those of other saves."""
        self.drop(staging, keep=True)

    def discard(self, staging: Path, *, is_first: bool) -> None:
        """Remove the files of a failed save, as far as the bucket answers soon."""
        self.drop(staging, keep=False)
        if is_first:
            timeout_s = min(self._timeout_s / 8, _DISCARD_TIMEOUT_S)
            hasty = BucketFolder(self._url, None, timeout_s)
            with contextlib.suppress(CheckpointBucketError):
                attempt = _parsed(staging.name)
                if attempt not in hasty._contents().committed:
                    hasty._remove_files([attempt])

    def _contents(self) -> _Contents:
        found = self._bucket.names()
        prefixes = (
            self._files.names().prefixes
            if self._files.url != self._url
            else (found.prefixes)
        )
        return _Contents(
            sorted(_commits(found.objects)),
            [_parsed(name) for name in prefixes if _NAME.fullmatch(name)],
            sorted(
                int(match[1])
                for match in map(_WRITER.fullmatch, found.objects)
                if match
            ),
        )

    def _generation(self) -> int:
        return _generations[self._url, os.getpid()]

    def _new_generation(self) -> int:
        about = {"host": socket.gethostname(), "started_at": time.time()}
        while True:
            # A person may have deleted the objects of earlier writers.
            found = self._contents()
            attempts = found.committed + found.uploaded
            known = (*found.writers, *(a.generation for a in attempts))
            generation = max(known, default=0) + 1
            about["token"] = secrets.token_hex(8)
            name = f"writer-{generation}.json"
            with contextlib.suppress(FileExistsError):
                self._bucket.create(name, json.dumps(about).encode())
                if max(self._contents().writers, default=0) == generation:
                    return generation

    def _check_writer(self, contents: _Contents) -> None:
        newest = max(contents.writers, default=0)
        if newest > self._generation():
            raise CheckpointWriteError(
                f"{self}: another program{self._name_of(newest)} has begun to save "
                "checkpoints here, so this program saves no more; give every run a "
                "folder of its own"
            )

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

    def _name_of(self, generation: int) -> str:
        try:
            about = json.loads(self._bucket.read(f"writer-{generation}.json"))
            return f" on {about['host']}"
        except (OSError, ValueError, KeyError, TypeError):
            return ""

    def _remove(self, attempts: Collection[_Attempt]) -> None:
        self._bucket.delete(f"{attempt}.json" for attempt in attempts)
        self._remove_files(attempts)

    def _remove_files(self, attempts: Iterable[_Attempt]) -> None:
        for attempt in attempts:
            names = self._files.sizes(f"{attempt}/")
            self._files.delete(f"{attempt}/{name}" for name in names)

    def _read_commit(self, directory: Path) -> None:
        """Download the commit of a step as the description; do nothing without one."""
        with contextlib.suppress(FileNotFoundError):
            text = _read_sealed(self._bucket, f"{directory.name}.json")
            _write(directory / COMMIT_FILE, text)

    def _copy(self, directory: Path, name: str) -> None:
        text = _read_sealed(self._files, f"{directory.name}/{name}")
        _write(directory / name, text)

    def _block(
        self, directory: Path, name: str, span: tuple[int, int], crc: int
    ) -> bytes | None:
        """Download a block, twice if it arrives damaged; None if there is no object."""
        data = b""
        for _ in range(2):
            try:
                data = self._files.read(f"{directory.name}/{name}", span)
            except FileNotFoundError:
                return None
            if zlib.crc32(data) == crc:
                break
        return data

    def _claim(self, directory: Path) -> bool:
        """Lock a directory of copies in `local=`; return False if another one did.

        Creates the directory. Without locks of files, every claim succeeds.
        """
        if fcntl is None or self._local is None or directory in self._claimed:
            return True
        while True:
            directory.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(directory, os.O_RDONLY)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
                return False
            except OSError:  # a file system without locks
                pass
            with contextlib.suppress(FileNotFoundError):
                # Another process may have removed the directory before the lock.
                if os.path.samestat(os.fstat(descriptor), directory.stat()):
                    self._claimed[directory] = descriptor
                    return True
            os.close(descriptor)

    def _release(self, directory: Path) -> None:
        self._opened.discard(directory)
        descriptor = self._claimed.pop(directory, None)
        if fcntl is not None and descriptor is not None:
            # Closing alone leaves the lock to a fork of this process.
            with contextlib.suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)

    def _copies(self) -> Path:
        return self._local or self._temporary_directory()

    def _temporary_directory(self) -> Path:
        if self._temporary is None:
            with _storing(Path(tempfile.gettempdir())):
                self._temporary = Path(tempfile.mkdtemp(prefix="roxxel-ckpt-"))
            weakref.finalize(self, _remove_tree, self._temporary, os.getpid())
        return self._temporary


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
    # The temporary directory exists as long as its folder.
    folder = BucketFolder(checked_url(url), None, _READ_TIMEOUT_S)
    described = folder.described()
    target = Path(directory)
    for other in target.iterdir() if target.is_dir() else ():
        if other.name.isdecimal() and int(other.name) not in described:
            shutil.rmtree(other)
    for step, source in described.items():
        _write(target / str(step) / COMMIT_FILE, (source / COMMIT_FILE).read_bytes())
    return list(described)


def _parsed(name: str) -> _Attempt:
    match = _NAME.fullmatch(name)
    if match is None:
        raise AssertionError(f"{name} is not the name of a save")
    return _Attempt(int(match[1]), int(match[2]), int(match[3]), match[4])


def _commits(names: Iterable[str]) -> list[_Attempt]:
    bare = (name.removesuffix(".json") for name in names if name.endswith(".json"))
    return [_parsed(name) for name in bare if _NAME.fullmatch(name)]


def _blocks(digests: Mapping[str, FileDigest]) -> list[tuple[str, int, int, int]]:
    return [(name, *span) for name, d in digests.items() for span in d.spans()]


def _close_all(claimed: dict[Path, int]) -> None:
    while claimed:
        os.close(claimed.popitem()[1])


def _read_sealed(bucket: Bucket, name: str) -> bytes:
    """Return the bytes of a sealed object; read it twice if it arrives damaged."""
    data = bucket.read(name)
    return data if is_sealed(data) else bucket.read(name)


def _write(path: Path, data: bytes) -> None:
    with _storing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


@contextlib.contextmanager
def _storing(path: Path) -> Generator[None]:
    """Raise CheckpointWriteError if the local disk refuses a file.

    A full disk says nothing about the checkpoint, so the error must not count as
    damage.
    """
    try:
        yield
    except OSError as error:
        raise CheckpointWriteError(
            f"{path}: this copy of a file of a bucket cannot be stored "
            f"({error.strerror or brief(error)}); free space there, or give local= "
            "(else TMPDIR) another directory"
        ) from error


def _remove_tree(path: Path, process: int) -> None:
    """Remove a temporary directory, but not in a fork of the process that made it."""
    if process == os.getpid():
        shutil.rmtree(path, ignore_errors=True)
