"""The folder of the run that this program trains: the lock, and `run.json`.

The folder also holds `checkpoints/`, `metrics.jsonl` and `system.log`. If the folder is
in a bucket, a local folder has these files too, except the checkpoints. Others read the
files through `roxxel_train.RunFolder`.
"""

from __future__ import annotations

import secrets
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from roxxel_curriculum.run_log import METRICS
from roxxel_store.files import make_folder, replace_file
from roxxel_store.urls import bucket_url

from roxxel_train._files.folder import (
    CHECKPOINTS,
    RECORD,
    RECORD_OF_RUN,
    check_writable,
    find_record,
    no_record,
    shown,
)
from roxxel_train._files.mirror import Mirror, holder, locked
from roxxel_train.errors import RunMismatchError

if TYPE_CHECKING:
    import os
    from collections.abc import Generator, Mapping
    from pathlib import Path

    from roxxel_ckpt.contents import Files


class OwnFolder:
    """The folder of the run of this program; `run_lock` creates the folder.

    Attributes:
        path: The folder; for a URL, the local folder with the files of the run.
        location: The path, or the URL as text.
        checkpoints: The folder of the checkpoints.
        mirror: The files in the bucket; None for a folder on a disk.
        record: Content of `run.json`; None if the file does not exist. `run_lock`
            updates this attribute.
    """

    def __init__(self, path: str | os.PathLike[str], timeout_s: float = 60.0) -> None:
        self.mirror: Mirror | None = None
        self.record: dict[str, Any] | None
        self.checkpoints: Path | str
        url = bucket_url(path, "save_path")
        if url is not None:
            self.mirror = mirror = Mirror(url, timeout_s)
            self.path, self.location = mirror.folder, mirror.url
            self.checkpoints = f"{mirror.url}/{CHECKPOINTS}"
            content = mirror.record()
            self.record = None
            if content is not None:
                self.record = RECORD_OF_RUN.parse(content, f"{self}/{RECORD}")
        else:
            self.path = self.location = check_writable(path, "save_path")
            self.checkpoints = self.path / CHECKPOINTS
            self.record = self._read()

    def __str__(self) -> str:
        return shown(self.location)

    @contextmanager
    def run_lock(self, **record: Any) -> Generator[None]:
        """Hold `run.lock`, and write `run.json` at the first start.

        An existing `run.json` stays as it is, even if another program wrote the file
        after this object was made. In a bucket, this program becomes the writer,
        fetches the run's files, and uploads them at the start and at the end.

        Raises:
            RunMismatchError: Another process holds the lock.
            CheckpointWriteError: A later program has begun to run in the bucket.
            CheckpointBucketError: The bucket refuses, fails, or does not answer.
        """
        make_folder(self.path)
        with locked(self.path) as is_free:
            if not is_free:
                raise RunMismatchError(
                    f"{self}: {holder(self.path)} is running in this folder; "
                    "wait until it ends, or give another save_path"
                )
            if self.mirror is not None:
                self.mirror.take_over()
            self.record = self._read() or self._begun(record)
            if self.mirror is None:
                yield
                return
            self.mirror.commit()
            try:
                yield
            except BaseException:
                # An error of the upload must not replace the error of the run.
                with suppress(OSError):
                    self.mirror.commit()
                raise
            self.mirror.commit()

    def _begun(self, record: Mapping[str, Any]) -> dict[str, Any]:
        """Write `run.json`. Without it the folder is not a run, so it comes first."""
        content = {"id": secrets.token_hex(8), **record}
        draft = self.path / f"{RECORD}.tmp"
        replace_file(self.path / RECORD, RECORD_OF_RUN.to_bytes(content), draft)
        return content

    def files_of_step(self, checkpoint_path: str) -> Files:
        """In a bucket, upload the files that have changed, for a checkpoint to commit.

        Checkpoints in another folder than `checkpoints` do not list the run's files, so
        for these the files are committed now, and the result is empty.

        Raises:
            CheckpointWriteError, CheckpointBucketError: As in `run_lock`.
        """
        if self.mirror is None:
            return {}
        if self.shares_manifest(checkpoint_path):
            return self.mirror.upload()
        self.mirror.commit()
        return {}

    def shares_manifest(self, checkpoint_path: str) -> bool:
        """Return whether one manifest lists the run's files and the checkpoints.

        Then `run_lock` begins for both.
        """
        return self.mirror is not None and checkpoint_path == self.checkpoints

    def _read(self) -> dict[str, Any] | None:
        record = find_record(self.path)
        if record is None:
            for name in (CHECKPOINTS, METRICS):
                if _has_content(self.path / name):
                    raise no_record(str(self), name)
        return record


def _has_content(path: Path) -> bool:
    """Return whether a path is a folder, or a file that is not empty."""
    return path.is_dir() or (path.exists() and path.stat().st_size > 0)
