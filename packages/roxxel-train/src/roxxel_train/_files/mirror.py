"""The files of a run in a bucket, and their copies in a local folder.

A run whose `save_path` is a URL writes its files to a local folder and uploads them: at
the start, with every checkpoint and at the end. (Checkpoints are uploaded by
`roxxel_ckpt`.) In the bucket are

    checkpoints/manifest.json                            lists steps and pieces
    checkpoints/files/<generation>-<number>-<token>      a piece, of at most 16 MiB

A piece is never changed. An upload sends only the pieces that have changed, for example
the last piece of a growing log. The manifest that commits a checkpoint also lists the
pieces (`roxxel_store.swap`). So whoever restores a checkpoint has its log.

If two programs run here, the one that begins last wins: it replaces the manifest and
then reads the files, so it has every file that another program has committed. After
that, commits of the other program fail.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import secrets
import shutil
import zlib
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

from roxxel_ckpt import CheckpointBucketError, CheckpointWriteError
from roxxel_ckpt.contents import SWAP_ERRORS, Contents, checkpoint_bucket
from roxxel_ckpt.descriptions import fetch_descriptions
from roxxel_curriculum.run_log import METRICS
from roxxel_store.files import Output, in_parallel, matches_in
from roxxel_store.locks import tried
from roxxel_store.swap import Writer, read_manifest, writer_of
from roxxel_store.urls import checked_url

from roxxel_train._files.folder import (
    CHECKPOINTS,
    LOCK,
    RECORD,
    RECORD_OF_RUN,
    cache_folder,
    find_record,
    no_record,
)
from roxxel_train.errors import RunMismatchError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator

    from roxxel_ckpt.contents import Files, Piece

_PIECE_BYTES = 1 << 24
_SYNCED = ".synced"
"""Local file with the digests of the file lists that the folder is a copy of."""
_ATTEMPTS = 5
_MOST_NAME = 255
"""Maximum bytes of a folder's name."""

_Result = TypeVar("_Result")


class Mirror:
    """The files of a run in a bucket.

    `folder` is the local folder of the run, in `roxxel/runs/` in `$XDG_CACHE_HOME`, or
    in `~/.cache`. Its name is the URL with `%2F` for a slash: the folder of a run must
    not lie in the folder of another run. The name of a long URL ends with a digest.
    """

    def __init__(self, url: str, timeout_s: float) -> None:
        self.url = checked_url(url)
        scheme, _, path = self.url.partition("://")
        name = quote(path, safe="")
        if len(name) > _MOST_NAME:
            digest = hashlib.sha256(name.encode()).hexdigest()[:16]
            name = f"{name[: _MOST_NAME - 17]}~{digest}"
        self.folder = cache_folder() / "runs" / scheme / name
        self._timeout_s = timeout_s
        self._bucket = checkpoint_bucket(f"{self.url}/{CHECKPOINTS}", timeout_s)
        # Pieces that this program has uploaded and perhaps not committed.
        self._fresh: set[str] = set()

    def record(self) -> bytes | None:
        """Return the content of `run.json`; None if the bucket holds no run.

        Raises:
            RunMismatchError: The bucket holds checkpoints and no run.
        """

        def read(contents: Contents) -> bytes | None:
            if RECORD in contents.files:
                return b"".join(self._read(contents.files, RECORD))
            if contents.steps:
                raise no_record(self.url, CHECKPOINTS)
            return None

        return self._of_newest(read)

    def fetch(self) -> None:
        """Make the local folder a copy of the bucket.

        A folder that is already a copy of the newest files stays unchanged: its logs
        may have lines that an earlier program did not upload.
        """
        self._of_newest(self._fetch)

    def fetch_folder(self, name: str) -> None:
        """Copy the files of a subfolder that are missing in the local folder."""
        self._of_newest(lambda contents: self._fetch_files(contents.files, f"{name}/"))

    def take_over(self) -> None:
        """Become the writer, then make the local folder a copy of the bucket.

        From now on, commits of earlier programs fail.
        """
        self._writer.begin()
        self.fetch()

    def commit(self) -> None:
        """Upload the files that have changed, and commit them.

        Raises:
            CheckpointWriteError: Another program has begun to run here.
            CheckpointBucketError: The bucket refuses, fails, or does not answer.
        """
        writer = self._writer
        with writer.alone(self._timeout_s):  # a save uploads files, too
            writer.ensure_begun()
            files = self.upload()
            if files == Contents.of(writer.held.listed).files:
                return
            writer.swap(
                lambda listed: Contents.of(listed)._replace(files=files).to_json()
            )
            with suppress(CheckpointBucketError):  # the next commit tries again
                writer.collect()

    def upload(self) -> Files:
        """Upload the files that have changed; return all files, for the commit."""
        writer = self._writer
        before = Contents.of(writer.held.listed).files
        # The commit after an earlier upload has failed.
        writer.drop(self._fresh - writer.held.names())
        self._fresh.clear()
        files: dict[str, list[Piece]] = {}
        for name in self._names():
            with suppress(FileNotFoundError):  # a sink may delete its own files
                files[name] = list(self._pieces(name, before.get(name, ())))
        self._check_complete(before, files)
        # The commit may take effect although this program ends before it knows. A
        # bucket without files holds another run, if any.
        self._write_synced(*filter(None, (before, files)))
        return files

    @property
    def _writer(self) -> Writer:
        return writer_of(self._bucket, SWAP_ERRORS)

    def _check_complete(self, before: Files, files: Files) -> None:
        """Raise CheckpointWriteError if a file is gone that a resume needs."""
        for name in (RECORD, METRICS):
            is_known = name == RECORD or name in before
            if is_known and name not in files:
                raise CheckpointWriteError(
                    f"{self.folder / name}: was deleted while the run wrote to it, so "
                    f"the files of {self.url} cannot be uploaded; start the run again "
                    "to continue from its newest checkpoint"
                )

    def _pieces(self, name: str, before: Iterable[Piece]) -> Iterator[Piece]:
        """Upload the pieces of a file that have changed; yield all pieces."""
        earlier = iter(before)
        with (self.folder / name).open("rb") as file:
            while data := file.read(_PIECE_BYTES):
                content = len(data), zlib.crc32(data)
                piece = next(earlier, None)
                if piece is None or piece[1:] != content:
                    piece = (self._writer.new_name("files/"), *content)
                    # Before the upload, which may take effect although it fails.
                    self._fresh.add(piece[0])
                    self._bucket.create(piece[0], data)
                yield piece

    def _names(self) -> list[str]:
        """Return the files to upload, as paths in the folder."""
        paths = (
            path.relative_to(self.folder) for path in matches_in(self.folder, "**/*")
        )
        return sorted(
            path.as_posix()
            for path in paths
            if path.parts[0] not in {CHECKPOINTS, LOCK, _SYNCED}
            and not path.name.endswith(".tmp")
            and (self.folder / path).is_file()
        )

    def _of_newest(self, act: Callable[[Contents], _Result]) -> _Result:
        """Call a function with the manifest's list, and return the result.

        A program that is running deletes the objects that its next commit replaces, so
        the function is called again if an object is missing.
        """
        left = _ATTEMPTS
        while True:
            left -= 1
            try:
                return act(Contents.of(read_manifest(self._bucket, SWAP_ERRORS).listed))
            except FileNotFoundError as error:
                if not left:
                    raise RunMismatchError(
                        f"{error}, but it holds a part of the files of this run; "
                        "restore the object, or give another save_path"
                    ) from error

    def _fetch(self, contents: Contents) -> None:
        synced = self.folder / _SYNCED
        if synced.is_file() and _digest(contents.files) in synced.read_text().split():
            return
        # No file of an older copy may be taken for one of this copy.
        for entry in self.folder.iterdir():
            if entry.is_dir():
                shutil.rmtree(entry, ignore_errors=True)
            elif entry.name != LOCK:
                entry.unlink()
        self._fetch_files(contents.files, "")
        self._write_synced(contents.files)

    def _write_synced(self, *lists: Files) -> None:
        (self.folder / _SYNCED).write_text("\n".join(map(_digest, lists)))

    def _fetch_files(self, files: Files, prefix: str) -> None:
        """Copy the missing files whose paths begin with `prefix`."""

        def fetch(name: str) -> None:
            path = self.folder / name
            if path.exists() or ".." in path.parts or Path(name).is_absolute():
                return
            path.parent.mkdir(parents=True, exist_ok=True)
            draft = path.with_name(f"{path.name}.{secrets.token_hex(4)}.tmp")
            with Output(path, draft) as output:
                for data in self._read(files, name):
                    output.write(data)
                output.rename()

        in_parallel(fetch, [name for name in files if name.startswith(prefix)])

    def _read(self, files: Files, name: str) -> Iterator[bytes]:
        for piece, size, crc in files[name]:
            data = self._bucket.read(piece)
            if (len(data), zlib.crc32(data)) != (size, crc):
                raise RunMismatchError(
                    f"{self._bucket.url_of(piece)}: is damaged, so {name} of this run "
                    "cannot be read; restore the object, or give another save_path"
                )
            yield data


def run_record(path: Path | str) -> dict[str, Any] | None:
    """Return `run.json` of the run that owns a folder of checkpoints, or None."""
    if isinstance(path, str):
        content = Mirror(path.removesuffix(f"/{CHECKPOINTS}"), 60.0).record()
        return None if content is None else RECORD_OF_RUN.parse(content, path)
    return find_record(path.parent)


def fetch_run(url: str, timeout_s: float = 60.0) -> Path:
    """Copy the files of a run in a bucket to this machine, without arrays.

    The copy has `run.json`, the logs, the configs and the descriptions of the
    checkpoints. If the run is training on this machine, its own files stay as they are.

    Args:
        url: URL of the run, its `save_path`.
        timeout_s: Time limit in seconds. A failing request is repeated for about a
            third of this time.

    Returns:
        The local folder of the run. It holds no `run.json` if the bucket has no run.

    Raises:
        RunMismatchError: The files of the run are damaged.
        CheckpointBucketError: The bucket cannot be read.
    """
    mirror = Mirror(url, timeout_s)
    mirror.folder.mkdir(parents=True, exist_ok=True)
    with locked(mirror.folder) as is_free:
        if is_free:
            mirror.fetch()
        checkpoints = f"{mirror.url}/{CHECKPOINTS}"
        fetch_descriptions(checkpoints, mirror.folder / CHECKPOINTS, timeout_s)
    return mirror.folder


@contextmanager
def locked(folder: Path) -> Generator[bool]:
    """Lock `run.lock` of a folder; yield False if another process holds the lock.

    While the lock is held, the file names the holder, for `holder`.
    """
    path = folder / LOCK
    with tried(path) as is_free:
        if is_free:
            _write(path, f"process {os.getpid()} on {platform.node()}\n")
        try:
            yield is_free
        finally:
            if is_free:
                _write(path, "")


def holder(folder: Path) -> str:
    """Return who holds the lock of a folder: another process, with its id and host."""
    with suppress(OSError):
        who = (folder / LOCK).read_bytes()[:200].decode(errors="replace").strip()
        if who.isprintable() and who:
            return f"another process ({who})"
    return "another process"


def _write(lock: Path, text: str) -> None:
    with suppress(OSError):  # Another user may have made the file.
        lock.write_text(text)


def _digest(files: Files) -> str:
    """Return a digest that no two runs share, because names of pieces are random."""
    return hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()
