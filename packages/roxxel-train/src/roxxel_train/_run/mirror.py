"""The files of a run in a bucket, and their copies in a local folder.

A run whose `save_path` is a URL writes its files to a local folder and uploads them: at
the start, before every commit of a checkpoint and at the end. (Checkpoints are uploaded
by `roxxel_ckpt`.) In the bucket are

    writer-<generation>.json            made by each program that runs here
    files/<generation>-<token>          a piece of a file, of at most 16 MiB
    log-<generation>-<number>.json      a list: the pieces of every file

Objects are created and never changed. Readers use the list with the highest generation,
and within this generation the highest number. An upload sends only the pieces that have
changed; of a growing log, this is the last piece.

If two programs run here, the one that begins last wins (`roxxel_ckpt.writers`). It
begins first and then reads the lists, so it sees every list that another program has
uploaded with success. After that, uploads of the other program fail. A checkpoint is
committed only after the upload of its log has succeeded. So whoever restores a
checkpoint also has its log.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import secrets
import shutil
import threading
import zlib
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from urllib.parse import quote

from roxxel_ckpt import (
    CheckpointBucketError,
    CheckpointWriteError,
    fetch_descriptions,
)
from roxxel_ckpt.buckets import Bucket, checked_url, for_each
from roxxel_ckpt.writers import Writers

from roxxel_train._log.files import METRICS_FILE
from roxxel_train._run.reference import CHECKPOINTS
from roxxel_train.errors import RunMismatchError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

RECORD = "run.json"
LOCK = "run.lock"
_PIECE_BYTES = 1 << 24
_MANIFEST = re.compile(r"log-([0-9]+)-([0-9]+)\.json")
_SYNCED = ".synced"
"""Local file that identifies one list, of which the folder is a copy."""
_LONGEST_NAME = 200

_ATTEMPTS = 5

_Result = TypeVar("_Result")
_Pieces = dict[str, list[tuple[str, int, int]]]
"""For each file, by its path: name, number of bytes and CRC-32 of each piece."""


class _Manifest(NamedTuple):
    """A list of files; generation 0 if the bucket has none."""

    generation: int
    number: int
    files: _Pieces

    @property
    def name(self) -> str:
        return f"log-{self.generation}-{self.number}.json"

    @property
    def identity(self) -> str:
        """The name and a digest: a run that was deleted may have had the same names."""
        content = json.dumps(self.files).encode()
        return f"{self.name} {hashlib.sha256(content).hexdigest()}"


class Mirror:
    """The files of a run in a bucket.

    `folder` is the local folder of the run, in `roxxel/runs/` in `$XDG_CACHE_HOME`, or
    in `~/.cache`. Its name is the URL with `%2F` for a slash: the folder of a run must
    not lie in the folder of another run.
    """

    def __init__(self, url: str, timeout_s: float) -> None:
        self.url = checked_url(url)
        scheme, _, path = self.url.partition("://")
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        name = quote(path, safe="")
        if len(name) > _LONGEST_NAME:
            digest = hashlib.sha256(path.encode()).hexdigest()
            name = f"{name[:_LONGEST_NAME]}-{digest[:16]}"
        self.folder = Path(base, "roxxel", "runs", scheme, name)
        self._bucket = Bucket(self.url, timeout_s)
        self._writers = Writers(self._bucket, "run")
        self._mine = _Manifest(0, 0, {})
        self._last_number = -1
        self._lock = threading.Lock()

    def record(self) -> bytes | None:
        """Return the content of `run.json`; None if the bucket holds no run.

        Raises:
            RunMismatchError: The bucket holds checkpoints and no run.
        """
        record = self._of_newest(
            lambda newest: (
                b"".join(self._contents(newest, RECORD))
                if RECORD in newest.files
                else None
            )
        )
        if record is None and CHECKPOINTS in self._bucket.names().prefixes:
            raise RunMismatchError(
                f"{self.url}: holds {CHECKPOINTS} but no {RECORD}, so it is not a run "
                "of this trainer; give another save_path, and "
                f"init_from={self.url!r} to start with its weights"
            )
        return record

    def fetch(self) -> None:
        """Make the local folder a copy of the bucket.

        A folder that is already a copy of the newest list stays unchanged: its logs may
        have lines that an earlier program did not upload.
        """
        self._of_newest(self._fetch)

    def fetch_folder(self, name: str) -> None:
        """Copy the files of a subfolder that are missing in the local folder."""
        self._of_newest(lambda newest: self._fetch_files(newest, f"{name}/"))

    def take_over(self) -> None:
        """Become the writer, then make the local folder a copy of the bucket.

        From now on, uploads of earlier programs fail.
        """
        generation = self._writers.begin(
            lambda: [manifest[0] for manifest in self._manifests()]
        )
        self._mine, self._last_number = _Manifest(generation, -1, {}), -1
        self.fetch()

    def upload(self) -> None:
        """Upload the files that have changed.

        Raises:
            CheckpointWriteError: Another program has begun to run here.
            CheckpointBucketError: The bucket refuses, fails, or does not answer.
        """
        with self._lock:  # the thread of a save uploads too
            self._check_writer()
            before = self._mine
            files: _Pieces = {}
            for name in self._names():
                with suppress(FileNotFoundError):  # a sink may delete its own files
                    files[name] = list(self._pieces(name))
            self._check_complete(files)
            is_first = before.number < 0
            if files == before.files and not is_first:
                return
            # A list whose creation failed may still arrive, so its number is not used
            # again.
            self._last_number += 1
            mine = _Manifest(before.generation, self._last_number, files)
            self._bucket.create(mine.name, json.dumps(files).encode())
            try:
                self._check_writer()
            except CheckpointWriteError:
                self._try_to_delete(mine, keep=before)
                raise
            self._mine = mine
            (self.folder / _SYNCED).write_text(mine.identity)
            if is_first:
                self._sweep()
                # A program that was suspended here must not begin to save checkpoints.
                self._check_writer()
            else:
                self._try_to_delete(before, keep=mine)

    def _check_writer(self) -> None:
        names = self._bucket.names().objects
        self._writers.check(self._mine.generation, names)

    def _check_complete(self, files: _Pieces) -> None:
        """Raise CheckpointWriteError if a file without which no run resumes is gone."""
        for name in (RECORD, METRICS_FILE):
            is_known = name == RECORD or name in self._mine.files
            if is_known and name not in files:
                raise CheckpointWriteError(
                    f"{self.folder / name}: was deleted while the run wrote to it, so "
                    f"the files of {self.url} cannot be uploaded; start the run again "
                    "to continue from its newest checkpoint"
                )

    def _try_to_delete(self, manifest: _Manifest, keep: _Manifest) -> None:
        """Delete a list, and its pieces that the list `keep` does not name."""
        # If this fails, the next program removes these objects.
        with suppress(CheckpointBucketError):
            unused = _objects(manifest.files) - _objects(keep.files)
            self._bucket.delete([manifest.name, *sorted(unused)])

    def _pieces(self, name: str) -> Iterator[tuple[str, int, int]]:
        """Upload the pieces of a file that have changed; yield all pieces."""
        before = self._mine.files.get(name, [])
        with (self.folder / name).open("rb") as file:
            while data := file.read(_PIECE_BYTES):
                crc = zlib.crc32(data)
                if before and before[0][1:] == (len(data), crc):
                    yield before[0]
                else:
                    token = secrets.token_hex(8)
                    piece = f"files/{self._mine.generation}-{token}"
                    self._bucket.create(piece, data)
                    yield piece, len(data), crc
                before = before[1:]

    def _names(self) -> list[str]:
        """Return the files to upload, as paths in the folder."""
        paths = (path.relative_to(self.folder) for path in self.folder.rglob("*"))
        return sorted(
            path.as_posix()
            for path in paths
            if path.parts[0] not in {CHECKPOINTS, LOCK, _SYNCED}
            and not path.name.endswith(".tmp")
            and (self.folder / path).is_file()
        )

    def _sweep(self) -> None:
        """Remove what earlier programs left, and pieces that no list names."""
        with suppress(CheckpointBucketError):
            earlier = [m for m in self._manifests() if m[0] < self._mine.generation]
            self._bucket.delete(_Manifest(*m, {}).name for m in earlier)
            names = self._bucket.names().objects
            self._writers.remove_earlier(self._mine.generation, names)
            used = _objects(self._mine.files)
            pieces = [f"files/{name}" for name in self._bucket.names("files/").objects]
            self._bucket.delete(
                piece
                for piece in pieces
                if piece not in used and _generation(piece) <= self._mine.generation
            )

    def _manifests(self) -> list[tuple[int, int]]:
        found = map(_MANIFEST.fullmatch, self._bucket.names().objects)
        return sorted((int(match[1]), int(match[2])) for match in found if match)

    def _of_newest(self, act: Callable[[_Manifest], _Result]) -> _Result:
        """Call a function with the newest list, and return the result.

        A program that is running deletes the objects that its next list replaces, so
        the function is called again, with a newer list, if an object is missing.
        """
        left = _ATTEMPTS
        while True:
            left -= 1
            try:
                return act(self._newest())
            except FileNotFoundError as error:
                if not left:
                    raise RunMismatchError(
                        f"{error}, but it holds a part of the files of this run; "
                        "restore the object, or give another save_path"
                    ) from error

    def _newest(self) -> _Manifest:
        found = max(self._manifests(), default=None)
        if found is None:
            return _Manifest(0, 0, {})
        name = _Manifest(*found, {}).name
        try:
            body: dict[str, Any] = json.loads(self._bucket.read(name))
            files = {
                file: [(str(o), int(size), int(crc)) for o, size, crc in pieces]
                for file, pieces in body.items()
            }
        except (ValueError, TypeError, AttributeError) as error:
            raise RunMismatchError(
                f"{self.url}/{name}: is damaged ({error}); restore the object, or "
                "give another save_path"
            ) from error
        return _Manifest(*found, files)

    def _fetch(self, manifest: _Manifest) -> None:
        synced = self.folder / _SYNCED
        if synced.is_file() and synced.read_text() == manifest.identity:
            return
        for entry in self.folder.iterdir():
            if entry.is_dir():
                shutil.rmtree(entry, ignore_errors=True)
            elif entry.name != LOCK:
                entry.unlink()
        self._fetch_files(manifest, "")
        synced.write_text(manifest.identity)

    def _fetch_files(self, manifest: _Manifest, prefix: str) -> None:
        """Copy the missing files whose paths begin with `prefix`."""

        def fetch(name: str) -> None:
            path = self.folder / name
            if path.exists() or ".." in path.parts or Path(name).is_absolute():
                return
            path.parent.mkdir(parents=True, exist_ok=True)
            draft = path.with_name(f"{path.name}.{secrets.token_hex(4)}.tmp")
            with draft.open("wb") as file:
                file.writelines(self._contents(manifest, name))
            draft.replace(path)

        for_each(fetch, [name for name in manifest.files if name.startswith(prefix)])

    def _contents(self, manifest: _Manifest, name: str) -> Iterator[bytes]:
        for piece, size, crc in manifest.files[name]:
            data = self._bucket.read(piece)
            if (len(data), zlib.crc32(data)) != (size, crc):
                raise RunMismatchError(
                    f"{self.url}/{piece}: is damaged, so {name} of this run cannot be "
                    "read; restore the object, or give another save_path"
                )
            yield data


def fetch_run(url: str, timeout_s: float = 60.0) -> Path:
    """Copy the files of a run in a bucket to this machine, without arrays.

    The copy has `run.json`, the logs, the configs and the descriptions of the
    checkpoints. If the run is training on this machine, its own files stay as they are.

    Args:
        url: URL of the run, its `save_path`.
        timeout_s: Time limit in seconds; a failing request is repeated for about a
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
        fetch_descriptions(f"{mirror.url}/{CHECKPOINTS}", mirror.folder / CHECKPOINTS)
    return mirror.folder


@contextmanager
def locked(folder: Path) -> Generator[bool]:
    """Lock `run.lock` of a folder; yield False if another process holds the lock."""
    with (folder / LOCK).open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


def _objects(files: _Pieces) -> set[str]:
    return {piece for pieces in files.values() for piece, _, _ in pieces}


def _generation(piece: str) -> int:
    number = piece.removeprefix("files/").partition("-")[0]
    return int(number) if number.isdecimal() else 0
